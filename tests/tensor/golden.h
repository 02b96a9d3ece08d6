/* golden.h - tensors of a reference file in tests/golden. */
#ifndef CPL_TESTS_TENSOR_GOLDEN_H
#define CPL_TESTS_TENSOR_GOLDEN_H

#include "checkpoint/safetensors.h"
#include "tensor/ops_check.h"

static inline cpl_safetensors *golden_open(const char *relative)
{
    cpl_safetensors *file;
    assert_ok(cpl_safetensors_open(&file, golden_path(relative)));
    return file;
}

static inline const cpl_safetensors_entry *golden_entry(const cpl_safetensors *file,
                                                        const char *name)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    if (!entry) fail_msg("%s has no tensor %s", file->path, name);
    return entry;
}

/* Returns the F64 or I64 tensor `name` as doubles. */
static inline double *golden_doubles(const cpl_safetensors *file, const char *name)
{
    const cpl_safetensors_entry *entry = golden_entry(file, name);
    const int64_t count                = entry->n_elements;
    double *values                     = new_doubles(count);
    assert_int_equal(entry->end - entry->begin, (size_t)count * sizeof *values);
    assert_ok(cpl_safetensors_read_raw(file, entry, values, 0, (size_t)count * sizeof *values));
    if (entry->dtype == CPL_SAFETENSORS_I64) {
        for (int64_t i = 0; i < count; i++) {
            int64_t whole;
            memcpy(&whole, &values[i], sizeof whole);
            values[i] = (double)whole;
        }
    }
    return values;
}

/* Returns the tensor `name` as F32: [a,b] if it has two dimensions, else [a]. */
static inline cpl_tensor golden_tensor(const cpl_safetensors *file, const char *name)
{
    const cpl_safetensors_entry *entry = golden_entry(file, name);
    const int64_t rows                 = entry->rank == 2 ? (int64_t)entry->shape[0] : 1;
    cpl_tensor x = entry->rank == 2 ? new_tensor(CPL_F32, rows, entry->n_elements / rows)
                                    : new_1d(CPL_F32, entry->n_elements);
    assert_ok(cpl_safetensors_read_f32(file, entry, cpl_f32(x), 0, entry->n_elements));
    return x;
}

#endif /* CPL_TESTS_TENSOR_GOLDEN_H */
