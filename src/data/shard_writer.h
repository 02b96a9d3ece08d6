/* shard_writer.h - encoded documents into OLMo token files with their metadata.
 *
 * Room:   data. Takes ids from any source. The files of a part are listed below; shards.h reads
 *         them back.
 * Files:  part-<writer>-<nnnnn>.npy and companions, in one folder or one folder a source, and
 *         shards.json, written last, with the meaning of the ids and the counts.
 * Order:  documents are in the order in which they were added; the same calls give the same bytes.
 *         A document is never divided between two files. */
#ifndef CPL_DATA_SHARD_WRITER_H
#define CPL_DATA_SHARD_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/documents.h"

/* The strings are not owned and must outlive the writer. */
typedef struct cpl_shard_writer_settings {
    const char *folder; /* created if absent */
    bool replace;       /* parts of this writer that are in it already are removed; else an error */
    bool by_source;     /* one folder a source below `folder` */
    int64_t writer, n_writers; /* 0 and 1 (or 0) for a writer that is alone */
    int64_t max_tokens;        /* of a file; 0: 2^30. A larger document gets a separate file */
    int64_t vocab_size;        /* up to 65536: uint16, else uint32 */
    int64_t eos;               /* appended to each document that does not end in it */
    const char *source_root; /* NULL, or a folder: its name is left out of the paths in the rows */
    const char *tokenizer_path, *tokenizer_hash, *unicode_version; /* for shards.json; or NULL */
} cpl_shard_writer_settings;

typedef struct cpl_shard_writer cpl_shard_writer;

CPL_NODISCARD cpl_status cpl_shard_writer_open(cpl_shard_writer **writer,
                                               const cpl_shard_writer_settings *settings);

/* Adds a document; one without ids adds nothing. An id outside the vocabulary is an error. */
CPL_NODISCARD cpl_status cpl_shard_writer_add(cpl_shard_writer *writer,
                                              const cpl_document *document, const int32_t *ids,
                                              int64_t n_ids);

/* Tokens so far, EOS included. */
int64_t cpl_shard_writer_tokens(const cpl_shard_writer *writer);

/* Completes all files and writes shards.json; `counts` are those of the documents read. */
CPL_NODISCARD cpl_status cpl_shard_writer_finish(cpl_shard_writer *writer,
                                                 const cpl_document_counts *counts);

/* Gives everything back. Without cpl_shard_writer_finish all files and folders that it made vanish.
 * NULL is allowed. */
void cpl_shard_writer_close(cpl_shard_writer *writer);

#endif /* CPL_DATA_SHARD_WRITER_H */
