/* tokens.h - makes token shards from documents: joins reader, encoder and shard writer.
 *
 * Room:   data. `couplet tokenize encode` and the trainer use it.
 * Ranks:  every rank reads all documents and encodes one batch of each round. Rank 0 writes the ids
 *         of all ranks in the order of the documents, so that the shards equal those of one
 *         process. */
#ifndef CPL_DATA_TOKENS_H
#define CPL_DATA_TOKENS_H

#include "base/log.h"
#include "data/documents.h"
#include "data/settings.h"
#include "parallel/group.h"
#include "tokenizer/tokenizer.h"

typedef struct cpl_tokens_job {
    const char *folder;                /* folder of the shards; created if absent */
    const cpl_strings *inputs;         /* files, folders, patterns */
    const cpl_data_settings *settings; /* fields, bad, strip, split, special_as_text, eos, limits */
    const cpl_tokenizer *tokenizer;
    const char *tokenizer_path; /* for shards.json */
    const char *source_root;    /* a folder removed from the paths in the metadata; may be NULL */
    bool replace;               /* true to replace existing token files (else an error) */
    bool by_source;             /* true to write one folder per source */
    bool lone_surrogates_replaced;
    int64_t max_tokens; /* limit of a file; 0 for 2^30 */
    int n_threads;      /* encoding threads, 0 for one per processor; no effect on shards */
    /* Called after each input file with the number of files done. May be NULL. */
    void (*progress)(void *ctx, int64_t files_done, int64_t n_files);
    void *ctx;
    const cpl_log *log;
    cpl_group *group; /* ranks that divide the work; NULL for one process */
} cpl_tokens_job;

typedef struct cpl_tokens_made {
    cpl_document_counts counts;
    int64_t n_files; /* files read */
    int64_t tokens;  /* tokens written, including one EOS per document */
} cpl_tokens_made;

/* Returns the settings of the document reader. Strings are borrowed from `settings`. */
cpl_document_settings cpl_tokens_reading(const cpl_data_settings *settings);

/* Encodes every document in the order of the files (sorted by bytes) and their lines. Equal inputs
 * give equal bytes. A failure leaves no files. With a group the call is collective and sets `made`
 * on rank 0. Returns CPL_ERR_INPUT for missing files, an empty corpus, a tokenizer without an
 * end-of-text token if data.eos is unset, and different inputs on the ranks. Returns also
 * CPL_ERR_STOPPED and the errors of documents.h. */
CPL_NODISCARD cpl_status cpl_tokens_make(const cpl_tokens_job *job, cpl_tokens_made *made);

/* Returns whether `path` is token shards (a .npy or .bin file, or a folder with such files or
 * shards.json in it or in its folders) rather than documents. */
bool cpl_tokens_are_shards(const char *path);

/* Sets the hash of all inputs that determine the shards: the names, sizes, and first and last 64
 * KiB of the files, the tokenizer, and the settings of reading. */
CPL_NODISCARD cpl_status cpl_tokens_fingerprint(uint64_t *hash, const cpl_tokens_job *job);

#endif /* CPL_DATA_TOKENS_H */
