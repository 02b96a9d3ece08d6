/* shards.h - reads token files by position.
 *
 * Room:    data. shard_writer.h writes such files, as do OLMo, Dolma, nanoGPT and llm.c.
 * Formats: a flat array of little-endian unsigned ids (OLMo's .npy without a NumPy header, .bin), a
 *          real NumPy .npy (versions 1 to 3, one dimension), and llm.c's .bin (256 int32 of
 *          header). NumPy and llm.c files are recognised by their content.
 * Labels:  every document has a source label. It is from <stem>.sources.tsv and .u8/.u16 if they
 *          exist, else it is the name of the file's folder. Label numbers index a list sorted by
 *          bytes.
 * Threads: after opening, all functions only read and may be called by several threads. */
#ifndef CPL_DATA_SHARDS_H
#define CPL_DATA_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "data/settings.h"

/* Options of cpl_shards_open. The default is all zero with eos -1. */
typedef struct cpl_shard_options {
    cpl_token_type_choice type; /* type of flat files; AUTO uses shards.json, the vocabulary, the
                                   content */
    int64_t eos;                /* id that ends documents; -1 to take it from shards.json or
                                   metadata */
    int64_t vocab_size;         /* bound of the ids; 0 for the bound in shards.json, if any */
    const char *const *labels;  /* for each path NULL or a label for all its files; may be NULL */
    const char *const *masks;   /* a label mask for each token file, in order, with one byte per
                                   token (OLMo): 1 to train on the token, else 0; may be NULL */
    int64_t n_masks;
} cpl_shard_options;

/* Number of token files and masks of a cpl_shards that stay open. Other files are opened for each
 * read. Since the order of reads is random, any choice of files is as good. */
enum { CPL_SHARDS_KEPT_OPEN = 128 };

/* A token file or label mask. It is read with pread, so that a truncated file or a failing disk
 * causes an error. A mapping would cause a signal. A closed file is all zero. */
typedef struct cpl_shard_file {
    char *path;      /* owned */
    uint64_t length; /* bytes of the file when it was opened */
    int descriptor;  /* valid if `kept` */
    bool kept;       /* true if the file stays open; else each read opens it, since a data set may
                        have more files than a process may open */
} cpl_shard_file;

typedef struct cpl_shard {
    const char *path;         /* path of `ids` */
    cpl_shard_file ids, mask; /* mask.path is NULL without a mask */
    uint64_t offset;          /* bytes of `ids` before the first token */
    int item_bytes;           /* 1, 2, 4 or 8 */
    int64_t n_tokens;
    cpl_strings own_labels; /* labels of its documents, by the numbers of its sidecar */
    int32_t *label;         /* for each of own_labels the number in cpl_shards.labels */
} cpl_shard;

/* Open token files, read-only for callers. */
typedef struct cpl_shards {
    cpl_shard *file;
    int64_t n_files, n_tokens;
    int64_t n_kept;     /* files that stay open */
    cpl_strings labels; /* sorted */
    int64_t eos;        /* -1 if unknown */
    int64_t vocab_size; /* 0 if unknown */
} cpl_shards;

/* Opens files and folders in the given order. A folder gives all .npy and .bin files below it,
 * sorted by bytes. Warns if the end-of-text id or the item type does not match the data. */
CPL_NODISCARD cpl_status cpl_shards_open(cpl_shards **shards, const char *const *paths,
                                         int64_t n_paths, const cpl_shard_options *options,
                                         const cpl_log *log);
void cpl_shards_close(cpl_shards *shards); /* NULL is allowed */

/* Sets `ids[0 .. count)` to the tokens of `file` from `first` on, without a check of their
 * values. */
CPL_NODISCARD cpl_status cpl_shard_tokens(const cpl_shard *file, int64_t first, int64_t count,
                                          uint64_t *ids);

/* Sets `ids[0 .. count)` to the tokens of `file` from `first` on, which must exist. Returns
 * CPL_ERR_INPUT, with the position, for an id that is not below the vocabulary size (2^31 if
 * unknown). */
CPL_NODISCARD cpl_status cpl_shards_read(const cpl_shards *shards, int64_t file, int64_t first,
                                         int64_t count, int32_t *ids);

/* Sets `mask[0 .. count)` to the label mask of tokens from `first` on, or to 1 without a mask. */
CPL_NODISCARD cpl_status cpl_shards_read_mask(const cpl_shards *shards, int64_t file, int64_t first,
                                              int64_t count, uint8_t *mask);

/* Returns the number of a label, or -1. */
int64_t cpl_shards_find_label(const cpl_shards *shards, const char *label);

/* Calls `each` for every document of `file` in order, with the number of its label and its tokens
 * [start, end). Sets `*present` to whether the file has metadata. If not, `each` is not called. */
CPL_NODISCARD cpl_status cpl_shards_documents(const cpl_shards *shards, int64_t file, bool *present,
                                              void (*each)(void *ctx, int32_t label, int64_t start,
                                                           int64_t end),
                                              void *ctx);

/* For every whole piece of `piece_tokens` tokens of `file`, sets `label[k]` to the number of the
 * label that most of its tokens have, the smallest number on ties. */
CPL_NODISCARD cpl_status cpl_shards_piece_labels(const cpl_shards *shards, int64_t file,
                                                 int64_t piece_tokens, int32_t *label);

/* A survey of a range of token files. */
typedef struct cpl_shard_survey {
    int64_t n_tokens;      /* tokens read */
    uint64_t largest;      /* largest id */
    int64_t too_large;     /* ids not below the vocabulary size, if known */
    int64_t odd_small;     /* ids 0 and 1 in odd places (nearly all if uint32 is read as uint16) */
    int64_t pairs;         /* number of odd places */
    uint64_t candidate[5]; /* candidates for the end-of-text id: 0, 50256, 50279, the last id of the
                              vocabulary (or the largest found), and eos of the shards */
    int64_t n_candidate[5]; /* occurrences of each candidate */
} cpl_shard_survey;

/* Surveys the first `max_tokens` tokens, file by file. */
CPL_NODISCARD cpl_status cpl_shards_survey(const cpl_shards *shards, int64_t max_tokens,
                                           cpl_shard_survey *survey);

/* Appends a readable report: files, items, tokens, documents and tokens of each label, candidates
 * for the end-of-text id among the first `max_tokens` tokens, and whether the item type is
 * likely. */
CPL_NODISCARD cpl_status cpl_shards_describe(const cpl_shards *shards, int64_t max_tokens,
                                             cpl_text *out);

/* Sets the hash (XXH3, 64 bits) of names (file and folder), sizes and the first and last 64 KiB of
 * the files in their order, and of `eos` and `seq_len`. The hash changes if a resumed run would
 * read other data. */
CPL_NODISCARD cpl_status cpl_shards_fingerprint(uint64_t *hash, const cpl_shards *shards,
                                                int64_t eos, int64_t seq_len);

/* Sets the hash (XXH3) of all token ids in the order of the files. It is independent of the paths:
 * equal texts have equal hashes. Reads all files. */
CPL_NODISCARD cpl_status cpl_shards_content(uint64_t *hash, const cpl_shards *shards);

#endif /* CPL_DATA_SHARDS_H */
