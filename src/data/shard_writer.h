/* shard_writer.h - writes encoded documents to OLMo token files with their metadata.
 *
 * Room:   data. internal.h lists the files of a part. shards.h reads the files.
 * Files:  part-<writer>-<nnnnn>.npy and companions, in one folder or one folder a source, and
 *         shards.json, written last, with the meaning of the ids and the counts.
 * Order:  documents are in the order in which they were added. Equal calls give equal bytes. A
 *         document is never divided between two files. */
#ifndef CPL_DATA_SHARD_WRITER_H
#define CPL_DATA_SHARD_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/documents.h"

/* The strings are not owned and must outlive the writer. */
typedef struct cpl_shard_writer_settings {
    const char *folder;        /* created if absent */
    bool replace;              /* true to remove existing parts of this writer (else an error) */
    bool by_source;            /* one folder per source below `folder` */
    int64_t writer, n_writers; /* index and number of writers; 0 and 1 (or 0) for a single writer */
    int64_t max_tokens;        /* limit of a file (0 for 2^30); a larger document gets its own
                                  file */
    int64_t vocab_size;        /* uint16 for sizes up to 65536, else uint32 */
    int64_t eos;               /* appended to each document that does not end in it */
    const char *source_root;   /* a folder removed from the paths in the rows; may be NULL */
    const char *tokenizer_path, *tokenizer_hash, *unicode_version; /* for shards.json; may be
                                                                      NULL */
} cpl_shard_writer_settings;

typedef struct cpl_shard_writer cpl_shard_writer;

CPL_NODISCARD cpl_status cpl_shard_writer_open(cpl_shard_writer **writer,
                                               const cpl_shard_writer_settings *settings);

/* Adds a document, unless it has no ids. An id outside the vocabulary gives CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_shard_writer_add(cpl_shard_writer *writer,
                                              const cpl_document *document, const int32_t *ids,
                                              int64_t n_ids);

/* Returns the number of tokens so far, including EOS. */
int64_t cpl_shard_writer_tokens(const cpl_shard_writer *writer);

/* Completes all files and writes shards.json. `counts` are the counts of the documents read. */
CPL_NODISCARD cpl_status cpl_shard_writer_finish(cpl_shard_writer *writer,
                                                 const cpl_document_counts *counts);

/* Frees the writer. Without cpl_shard_writer_finish, removes all files and folders that it made.
 * NULL is allowed. */
void cpl_shard_writer_close(cpl_shard_writer *writer);

#endif /* CPL_DATA_SHARD_WRITER_H */
