/* shards.h - token files, read by position.
 *
 * Room:    data. shard_writer.h makes such files; so do OLMo, Dolma, nanoGPT and llm.c.
 * Formats: a flat array of little-endian unsigned ids (OLMo's .npy without a NumPy header, .bin); a
 *          real NumPy .npy (versions 1 to 3, one dimension); llm.c's .bin (256 int32 of header).
 *          The last two are recognised by their content.
 * Labels:  every document has a source label: from <stem>.sources.tsv and .u8/.u16 if they exist,
 *          else the name of the file's folder. Label numbers index a list sorted by bytes.
 * Threads: after opening everything here only reads and may be called by several threads. */
#ifndef CPL_DATA_SHARDS_H
#define CPL_DATA_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "data/settings.h"

/* All zero but eos, which is -1 if unknown. Used while opening only. */
typedef struct cpl_shard_options {
    cpl_token_type_choice type; /* of flat files; AUTO: shards.json, the vocabulary, the content */
    int64_t eos;                /* -1: that of shards.json or the metadata */
    int64_t vocab_size;         /* ids must be below it; 0: as in shards.json, or no bound */
    const char *const *labels;  /* NULL, or for each path a label for all its files, or NULL */
    const char *const *masks;   /* NULL, or a label mask for each token file, in their order: a
                                   byte a token, 1 train on it, 0 not (OLMo) */
    int64_t n_masks;
} cpl_shard_options;

/* Files of one cpl_shards that stay open, token files and masks; the others are opened for each
 * read. The order of the reads is random, so it does not matter which. */
enum { CPL_SHARDS_KEPT_OPEN = 128 };

/* A token file or label mask. It is read with pread, not mapped: a file that became shorter, and a
 * disk that fails, are an error and not a signal. All zero is a closed file. */
typedef struct cpl_shard_file {
    char *path;      /* owned */
    uint64_t length; /* bytes when it was opened */
    int descriptor;  /* if `kept` */
    bool kept;       /* open; otherwise each read opens the file, so that a data set may have more
                        files than a process may have open */
} cpl_shard_file;

typedef struct cpl_shard {
    const char *path;         /* that of `ids` */
    cpl_shard_file ids, mask; /* mask: without a path if there is none */
    uint64_t offset;          /* bytes of `ids` before the first token */
    int item_bytes;           /* 1, 2, 4 or 8 */
    int64_t n_tokens;
    cpl_strings own_labels; /* of its documents, by the numbers of its sidecar */
    int32_t *label;         /* for each of these its number in the list of all labels */
} cpl_shard;

/* Open token files; read-only for callers. */
typedef struct cpl_shards {
    cpl_shard *file;
    int64_t n_files, n_tokens;
    int64_t n_kept;     /* files that stay open */
    cpl_strings labels; /* sorted */
    int64_t eos;        /* -1: unknown */
    int64_t vocab_size; /* 0: unknown */
} cpl_shards;

/* Opens files and folders in the order given; a folder names all .npy and .bin files below it,
 * sorted by bytes. Warns if the end-of-text id or the item type does not match the data. */
CPL_NODISCARD cpl_status cpl_shards_open(cpl_shards **shards, const char *const *paths,
                                         int64_t n_paths, const cpl_shard_options *options,
                                         const cpl_log *log);
void cpl_shards_close(cpl_shards *shards); /* NULL is allowed */

/* Sets `ids[0 .. count)` to the tokens of `file` from `first` on, without a check of their
 * values. */
CPL_NODISCARD cpl_status cpl_shard_tokens(const cpl_shard *file, int64_t first, int64_t count,
                                          uint64_t *ids);

/* Sets `ids[0 .. count)` to the tokens of `file` from `first` on, which must be there. An id that
 * is not below the vocabulary size (below 2^31 if that is unknown) is an error with its position.
 */
CPL_NODISCARD cpl_status cpl_shards_read(const cpl_shards *shards, int64_t file, int64_t first,
                                         int64_t count, int32_t *ids);

/* Sets `mask[0 .. count)` to the label mask there, all 1 if the file has none. */
CPL_NODISCARD cpl_status cpl_shards_read_mask(const cpl_shards *shards, int64_t file, int64_t first,
                                              int64_t count, uint8_t *mask);

/* The number of a label, or -1. */
int64_t cpl_shards_find_label(const cpl_shards *shards, const char *label);

/* Calls `each` for every document of `file` in order, with the number of its label and its tokens
 * [start, end). `*present`: whether the file has these metadata; without them there are no
 * calls. */
CPL_NODISCARD cpl_status cpl_shards_documents(const cpl_shards *shards, int64_t file, bool *present,
                                              void (*each)(void *ctx, int32_t label, int64_t start,
                                                           int64_t end),
                                              void *ctx);

/* For every piece of `piece_tokens` tokens of `file`, the rest left out, sets `label[k]` to the
 * number of the label that most of its tokens have, the smaller number if two have as many. */
CPL_NODISCARD cpl_status cpl_shards_piece_labels(const cpl_shards *shards, int64_t file,
                                                 int64_t piece_tokens, int32_t *label);

/* A survey of a range of token files. */
typedef struct cpl_shard_survey {
    int64_t n_tokens;      /* that were read */
    uint64_t largest;      /* id */
    int64_t too_large;     /* ids not below the vocabulary size, if that is known */
    int64_t odd_small;     /* ids 0 and 1 in odd places: nearly all, if uint32 is read as uint16 */
    int64_t pairs;         /* odd places */
    uint64_t candidate[5]; /* for the end-of-text id: 0, 50256, 50279, the last id of the vocabulary
                              (or the largest found), and the one that the shards have */
    int64_t n_candidate[5]; /* how often each occurred */
} cpl_shard_survey;

/* Looks at the first `max_tokens` tokens, file by file. */
CPL_NODISCARD cpl_status cpl_shards_survey(const cpl_shards *shards, int64_t max_tokens,
                                           cpl_shard_survey *survey);

/* Appends a readable report: files, items, tokens, documents and tokens of each label, candidates
 * for the end-of-text id among the first `max_tokens` tokens, and whether the item type is likely.
 */
CPL_NODISCARD cpl_status cpl_shards_describe(const cpl_shards *shards, int64_t max_tokens,
                                             cpl_text *out);

/* Sets the hash (XXH3, 64 bits) of names (file and folder), sizes and the first and last 64 KiB of
 * the files in their order, and of `eos` and `seq_len`: changes if a resumed run would see other
 * data. */
CPL_NODISCARD cpl_status cpl_shards_fingerprint(uint64_t *hash, const cpl_shards *shards,
                                                int64_t eos, int64_t seq_len);

/* Sets the hash (XXH3) of all token ids in the order of the files, independent of their paths: the
 * same for the same text. Reads everything. */
CPL_NODISCARD cpl_status cpl_shards_content(uint64_t *hash, const cpl_shards *shards);

#endif /* CPL_DATA_SHARDS_H */
