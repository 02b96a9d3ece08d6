/* gguf_writer.h - writing one GGUF file: metadata, table of tensors, then their data piece by piece.
 *
 * Room:   checkpoint.
 * Layout: docs/formats.md, "GGUF"; version 3, little-endian, the default alignment. The data follow
 *         in the order of the table, each tensor padded.
 * Use:    all metadata and all rows of the table, in any order; begin; for every tensor, in the order
 *         of the table, its bytes and end_tensor; commit.
 * Whole:  as cpl_writer of file.h: a temporary file takes the name at the end.
 * Memory: metadata and table only. A failed allocation is remembered and reported by begin. */
#ifndef CPL_CHECKPOINT_GGUF_WRITER_H
#define CPL_CHECKPOINT_GGUF_WRITER_H

#include "checkpoint/gguf.h"
#include "io/file.h"

/* All zero is an empty one. */
typedef struct cpl_gguf_writer {
    cpl_text metadata, table;
    uint64_t n_pairs, n_tensors;
    uint64_t data_bytes; /* of the tensors so far, padded */
    uint64_t written;    /* of them */
    cpl_writer file;
} cpl_gguf_writer;

/* Closes and removes a file that was begun and not committed. */
void cpl_gguf_writer_free(cpl_gguf_writer *writer);

/* One pair of the metadata. A key may not be empty or come twice. */
void cpl_gguf_writer_u32(cpl_gguf_writer *writer, const char *key,
                         int64_t value); /* fits: assert */
void cpl_gguf_writer_f32(cpl_gguf_writer *writer, const char *key, float value);
void cpl_gguf_writer_bool(cpl_gguf_writer *writer, const char *key, bool value);
void cpl_gguf_writer_string(cpl_gguf_writer *writer, const char *key, const char *value);

/* A pair that is an array of `count` elements of this type; exactly as many calls for an element of
 * it must follow. */
void cpl_gguf_writer_array(cpl_gguf_writer *writer, const char *key, cpl_gguf_value type,
                           int64_t count);
void cpl_gguf_writer_add_i32(cpl_gguf_writer *writer, int32_t element);
void cpl_gguf_writer_add_string(cpl_gguf_writer *writer, const char *bytes, size_t length);

/* A row of the table. The name is unique and has at most CPL_GGUF_MAX_NAME bytes (assert); the
 * innermost of the dimensions, which is the last one here, is a multiple of the format's block
 * (assert). */
void cpl_gguf_writer_tensor(cpl_gguf_writer *writer, const char *name, cpl_format format, int rank,
                            const int64_t *shape);

/* Opens the file and writes everything up to the data. Errors as those of cpl_writer_open. */
CPL_NODISCARD cpl_status cpl_gguf_writer_begin(cpl_gguf_writer *writer, const char *path);

/* Adds bytes of the tensor whose turn it is. A failure to write is returned at once. */
CPL_NODISCARD cpl_status cpl_gguf_writer_data(cpl_gguf_writer *writer, const void *bytes,
                                              size_t length);

/* Adds the padding after a tensor. */
void cpl_gguf_writer_end_tensor(cpl_gguf_writer *writer);

/* As many bytes as the table announces must have been written (assert). */
CPL_NODISCARD cpl_status cpl_gguf_writer_commit(cpl_gguf_writer *writer);

#endif /* CPL_CHECKPOINT_GGUF_WRITER_H */
