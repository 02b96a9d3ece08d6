/* tensors.h - safetensors files of tensors whose elements are in memory. */
#ifndef CPL_TESTS_SUPPORT_TENSORS_H
#define CPL_TESTS_SUPPORT_TENSORS_H

#include "checkpoint/safetensors_writer.h"

static inline cpl_status put_elements(void *ctx, cpl_writer *file, const void *data, size_t bytes)
{
    (void)ctx;
    cpl_writer_put(file, data, bytes);
    return CPL_OK;
}

static inline cpl_status write_tensors(const char *path, const cpl_safetensors_tensor *tensors,
                                       int64_t count, const char *format)
{
    return cpl_safetensors_write(path, tensors, count, format, put_elements, NULL);
}

#endif /* CPL_TESTS_SUPPORT_TENSORS_H */
