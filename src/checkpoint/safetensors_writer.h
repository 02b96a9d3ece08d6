/* safetensors_writer.h - writes one safetensors file.
 *
 * Room:   checkpoint.
 * Order:  by dtype, largest alignment first (the order of cpl_safetensors_dtype), then by name in
 *         byte order, in header and data, so that equal tensors give equal bytes. The header is
 *         compact JSON, `__metadata__` first, padded with spaces to a multiple of 8.
 * Atomic: a temporary file is renamed at the end, as by cpl_writer of file.h. */
#ifndef CPL_CHECKPOINT_SAFETENSORS_WRITER_H
#define CPL_CHECKPOINT_SAFETENSORS_WRITER_H

#include "checkpoint/safetensors.h"
#include "io/file.h"

/* Describes a tensor to be written. All pointers are borrowed. */
typedef struct cpl_safetensors_tensor {
    const char *name;
    cpl_safetensors_dtype dtype;
    int rank;
    const int64_t *shape; /* [rank] */
    const void *data;     /* passed to `put`, which writes the elements in C order */
} cpl_safetensors_tensor;

/* Writes the `bytes` bytes of the tensor with this `data` to the file. */
typedef cpl_status cpl_safetensors_put(void *ctx, cpl_writer *file, const void *data, size_t bytes);

/* Writes the tensors [count], the elements of each by `put`, whose failure is returned. `format` is
 * the value of "format" in `__metadata__` (readers of Hugging Face files expect "pt"), or NULL for
 * no metadata. Errors: a name that is not UTF-8, is `__metadata__` or occurs twice, a negative
 * dimension, a size beyond 64 bits or not of whole bytes, a header above
 * CPL_SAFETENSORS_MAX_HEADER. After a failure no new file is left and an existing file is
 * unchanged. */
CPL_NODISCARD cpl_status cpl_safetensors_write(const char *path,
                                               const cpl_safetensors_tensor *tensors, int64_t count,
                                               const char *format, cpl_safetensors_put *put,
                                               void *ctx);

#endif /* CPL_CHECKPOINT_SAFETENSORS_WRITER_H */
