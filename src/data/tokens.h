/* tokens.h - documents into token shards: reader, encoder and shard writer joined.
 *
 * Room:   data. `couplet tokenize encode` and the trainer use the same piece.
 * Ranks:  every rank reads all documents, and encodes one batch of each round of them; rank 0
 *         writes the ids of all, in the order of the documents. So the shards are those of one
 *         process. */
#ifndef CPL_DATA_TOKENS_H
#define CPL_DATA_TOKENS_H

#include "base/log.h"
#include "data/documents.h"
#include "data/settings.h"
#include "parallel/group.h"
#include "tokenizer/tokenizer.h"

typedef struct cpl_tokens_job {
    const char *folder;                /* of the shards; created if absent */
    const cpl_strings *inputs;         /* files, folders, patterns */
    const cpl_data_settings *settings; /* fields, bad, strip, split, special_as_text, eos, limits */
    const cpl_tokenizer *tokenizer;
    const char *tokenizer_path; /* for shards.json */
    const char *source_root;    /* left out of the paths in the metadata; NULL: nothing */
    bool replace;               /* existing token files; else they are an error */
    bool by_source;             /* one folder a source */
    bool lone_surrogates_replaced;
    int64_t max_tokens; /* of a file; 0: 2^30 */
    int n_threads;      /* that encode; 0: one per processor. The shards do not depend on it */
    /* Called after each input file with the number done; NULL: not called. */
    void (*progress)(void *ctx, int64_t files_done, int64_t n_files);
    void *ctx;
    const cpl_log *log;
    cpl_group *group; /* of ranks that share the work; NULL: one process */
} cpl_tokens_job;

typedef struct cpl_tokens_made {
    cpl_document_counts counts;
    int64_t n_files; /* read */
    int64_t tokens;  /* written, one EOS a document included */
} cpl_tokens_made;

/* How documents are read under these settings; the strings stay theirs. */
cpl_document_settings cpl_tokens_reading(const cpl_data_settings *settings);

/* Encodes every document in the order of the files (sorted by bytes) and their lines; the same
 * inputs give the same bytes. A failure leaves no files. With a group it is collective, and `made`
 * is set on rank 0; CPL_ERR_INPUT if ranks see other inputs. Errors: no such files, no document in
 * them (an empty corpus), a tokenizer without an end-of-text token if data.eos is unset,
 * CPL_ERR_STOPPED, and all of documents.h. */
CPL_NODISCARD cpl_status cpl_tokens_make(const cpl_tokens_job *job, cpl_tokens_made *made);

/* Whether `path` is token shards (a .npy or .bin file, or a folder with such files or shards.json
 * in it or in its folders) rather than documents. */
bool cpl_tokens_are_shards(const char *path);

/* Hash of everything the shards depend on: the documents' names, sizes and the first and last
 * 64 KiB of each, the tokenizer, and the settings of reading. */
CPL_NODISCARD cpl_status cpl_tokens_fingerprint(uint64_t *hash, const cpl_tokens_job *job);

#endif /* CPL_DATA_TOKENS_H */
