/* gguf_writer.h - writes one GGUF file: metadata, table of tensors, and data in pieces.
 *
 * Room:   checkpoint.
 * Layout: docs/formats.md, "GGUF", version 3, little-endian, the default alignment. The data follow
 *         in the order of the table. Each tensor is padded.
 * Use:    add all metadata and all rows of the table, in any order. Call begin. For every tensor,
 *         in the order of the table, write its bytes and call end_tensor. Call commit.
 * Atomic: a temporary file is renamed at the end, as by cpl_writer of file.h.
 * Memory: metadata and table only. begin reports a failed allocation of earlier calls. */
#ifndef CPL_CHECKPOINT_GGUF_WRITER_H
#define CPL_CHECKPOINT_GGUF_WRITER_H

#include "checkpoint/gguf.h"
#include "io/file.h"

/* Holds the state of a writer. An empty writer is all zero. */
typedef struct cpl_gguf_writer {
    cpl_text metadata, table;
    uint64_t n_pairs, n_tensors;
    uint64_t data_bytes; /* padded bytes of all tensors in the table so far */
    uint64_t written;    /* bytes of data written so far */
    cpl_writer file;
} cpl_gguf_writer;

/* Frees the writer. Removes a file that was begun and not committed. */
void cpl_gguf_writer_free(cpl_gguf_writer *writer);

/* Adds one pair of the metadata. Keys must not be empty and must be different. */
void cpl_gguf_writer_u32(cpl_gguf_writer *writer, const char *key,
                         int64_t value); /* must fit (assert) */
void cpl_gguf_writer_f32(cpl_gguf_writer *writer, const char *key, float value);
void cpl_gguf_writer_bool(cpl_gguf_writer *writer, const char *key, bool value);
void cpl_gguf_writer_string(cpl_gguf_writer *writer, const char *key, const char *value);

/* Adds a pair with an array of `count` elements of `type`. Exactly `count` calls for an element
 * must follow. */
void cpl_gguf_writer_array(cpl_gguf_writer *writer, const char *key, cpl_gguf_value type,
                           int64_t count);
void cpl_gguf_writer_add_i32(cpl_gguf_writer *writer, int32_t element);
void cpl_gguf_writer_add_string(cpl_gguf_writer *writer, const char *bytes, size_t length);

/* Adds a row of the table. The name must be unique and have at most CPL_GGUF_MAX_NAME bytes
 * (assert). The last dimension, the innermost, must be a multiple of the format's block
 * (assert). */
void cpl_gguf_writer_tensor(cpl_gguf_writer *writer, const char *name, cpl_format format, int rank,
                            const int64_t *shape);

/* Opens the file and writes all bytes before the data. Has the errors of cpl_writer_open. */
CPL_NODISCARD cpl_status cpl_gguf_writer_begin(cpl_gguf_writer *writer, const char *path);

/* Writes bytes of the current tensor. */
CPL_NODISCARD cpl_status cpl_gguf_writer_data(cpl_gguf_writer *writer, const void *bytes,
                                              size_t length);

/* Writes the padding after the current tensor. */
void cpl_gguf_writer_end_tensor(cpl_gguf_writer *writer);

/* Commits the file. All bytes of all tensors must have been written (assert). */
CPL_NODISCARD cpl_status cpl_gguf_writer_commit(cpl_gguf_writer *writer);

#endif /* CPL_CHECKPOINT_GGUF_WRITER_H */
