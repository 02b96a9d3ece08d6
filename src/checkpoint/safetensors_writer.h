/* safetensors_writer.h - writing one safetensors file: tensors are declared, laid out, then put.
 *
 * Room:   checkpoint.
 * Order:  by dtype, largest alignment first (the order of cpl_safetensors_dtype), then by name in
 *         byte order; header and data alike, so that the same tensors give the same bytes. The
 *         header is compact JSON, `__metadata__` first in the order given, padded with spaces to a
 *         multiple of 8.
 * Whole:  as cpl_writer of file.h: a temporary file takes the name at commit.
 *
 *     begin; declare ...; metadata ...; layout;
 *     for i < count: put the bytes of name(i); commit      (abort after any failure) */
#ifndef CPL_CHECKPOINT_SAFETENSORS_WRITER_H
#define CPL_CHECKPOINT_SAFETENSORS_WRITER_H

#include "checkpoint/safetensors.h"

typedef struct cpl_safetensors_writer cpl_safetensors_writer;

/* Creates nothing on disk yet; owned until commit or abort. */
CPL_NODISCARD cpl_status cpl_safetensors_writer_begin(cpl_safetensors_writer **out,
                                                      const char *path);

/* Announces a tensor; name and shape (rank) are copied. Errors: a name that is not UTF-8 or is
 * `__metadata__`, a negative dimension, a size beyond 64 bits or not of whole bytes. */
CPL_NODISCARD cpl_status cpl_safetensors_writer_declare(cpl_safetensors_writer *writer,
                                                        const char *name,
                                                        cpl_safetensors_dtype dtype, int rank,
                                                        const int64_t *shape);

/* Announces a pair of `__metadata__`. Readers of Hugging Face files want "format" = "pt"; whether
 * to say so is the caller's choice. */
CPL_NODISCARD cpl_status cpl_safetensors_writer_metadata(cpl_safetensors_writer *writer,
                                                         const char *key, const char *value);

/* Sorts the tensors, opens the temporary file and writes the header. Errors: a name or key that was
 * declared twice, a header above CPL_SAFETENSORS_MAX_HEADER. */
CPL_NODISCARD cpl_status cpl_safetensors_writer_layout(cpl_safetensors_writer *writer);

/* After layout: how many tensors, and the i-th in the order in which their bytes are to be put. */
int64_t cpl_safetensors_writer_count(const cpl_safetensors_writer *writer);
const char *cpl_safetensors_writer_name(const cpl_safetensors_writer *writer, int64_t i);
const cpl_safetensors_entry *cpl_safetensors_writer_at(const cpl_safetensors_writer *writer,
                                                       int64_t i);

/* Adds the next bytes, of one tensor or several; more than were declared is the programmer's
 * mistake. A full disk is an error here or at commit. */
CPL_NODISCARD cpl_status cpl_safetensors_writer_put(cpl_safetensors_writer *writer,
                                                    const void *bytes, size_t length);

/* Gives the file its name and ends the writer, also on failure; all tensors must have been put.
 * Sets `hash` (as cpl_file_hash; may be NULL). */
CPL_NODISCARD cpl_status cpl_safetensors_writer_commit(cpl_safetensors_writer *writer,
                                                       uint64_t *hash);

/* Ends the writer and leaves nothing on disk; NULL: nothing to do. */
void cpl_safetensors_writer_abort(cpl_safetensors_writer *writer);

#endif /* CPL_CHECKPOINT_SAFETENSORS_WRITER_H */
