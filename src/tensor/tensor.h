/* tensor.h - an array of numbers with its type and shape, which does not own its memory.
 *
 * Room:    tensor. All arrays are row-major and contiguous. */
#ifndef CPL_TENSOR_TENSOR_H
#define CPL_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum cpl_dtype { CPL_F32, CPL_BF16, CPL_I32, CPL_F64 } cpl_dtype;

enum { CPL_MAX_RANK = 4 };

typedef struct cpl_tensor {
    void *storage; /* NULL for none, an optional argument that is omitted */
    cpl_dtype dtype;
    int rank;
    int64_t shape[CPL_MAX_RANK];
} cpl_tensor;

static inline size_t cpl_dtype_bytes(cpl_dtype dtype)
{
    return dtype == CPL_BF16 ? 2 : dtype == CPL_F64 ? 8 : 4;
}

static inline cpl_tensor cpl_tensor_1d(void *data, cpl_dtype dtype, int64_t a)
{
    cpl_tensor t = {data, dtype, 1, {a, 1, 1, 1}};
    return t;
}

static inline cpl_tensor cpl_tensor_2d(void *data, cpl_dtype dtype, int64_t a, int64_t b)
{
    cpl_tensor t = {data, dtype, 2, {a, b, 1, 1}};
    return t;
}

static inline cpl_tensor cpl_tensor_3d(void *data, cpl_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    cpl_tensor t = {data, dtype, 3, {a, b, c, 1}};
    return t;
}

static inline cpl_tensor cpl_tensor_none(void)
{
    cpl_tensor t = {NULL, CPL_F32, 0, {1, 1, 1, 1}};
    return t;
}

/* Returns the number of elements. Unused entries of shape are 1. */
static inline int64_t cpl_tensor_count(cpl_tensor t)
{
    return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
}

static inline size_t cpl_tensor_bytes(cpl_tensor t)
{
    return (size_t)cpl_tensor_count(t) * cpl_dtype_bytes(t.dtype);
}

/* Return the length of the last dimension, and the number of rows of this length. */
static inline int64_t cpl_tensor_cols(cpl_tensor t)
{
    return t.rank > 0 ? t.shape[t.rank - 1] : 1;
}

static inline int64_t cpl_tensor_rows(cpl_tensor t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t.rank; i++) rows *= t.shape[i];
    return rows;
}

/* Returns the tensor's memory as a typed pointer. The dtype must match. */
static inline float *cpl_f32(cpl_tensor t)
{
    CPL_ASSERT(t.dtype == CPL_F32);
    return (float *)t.storage;
}

static inline int32_t *cpl_i32(cpl_tensor t)
{
    CPL_ASSERT(t.dtype == CPL_I32);
    return (int32_t *)t.storage;
}

static inline double *cpl_f64(cpl_tensor t)
{
    CPL_ASSERT(t.dtype == CPL_F64);
    return (double *)t.storage;
}

/* Returns part `i` of the first dimension: [n,D,d] -> [D,d]. */
static inline cpl_tensor cpl_tensor_at(cpl_tensor t, int64_t i)
{
    CPL_ASSERT(t.rank >= 2 && i >= 0 && i < t.shape[0]);
    cpl_tensor part = {NULL, t.dtype, t.rank - 1, {1, 1, 1, 1}};
    for (int k = 1; k < t.rank; k++) part.shape[k - 1] = t.shape[k];
    if (t.storage) part.storage = (char *)t.storage + (size_t)i * cpl_tensor_bytes(part);
    return part;
}

/* Returns entries `first` ... `first + count - 1` of the first dimension: [T,n] -> [count,n]. */
static inline cpl_tensor cpl_tensor_range(cpl_tensor t, int64_t first, int64_t count)
{
    CPL_ASSERT(t.rank >= 1 && first >= 0 && count >= 0 && first + count <= t.shape[0]);
    const size_t each = t.shape[0] ? cpl_tensor_bytes(t) / (size_t)t.shape[0] : 0;
    if (t.storage) t.storage = (char *)t.storage + (size_t)first * each;
    t.shape[0] = count;
    return t;
}

/* Returns the tensor with another shape. */
static inline cpl_tensor cpl_tensor_as_1d(cpl_tensor t)
{
    return cpl_tensor_1d(t.storage, t.dtype, cpl_tensor_count(t));
}

static inline cpl_tensor cpl_tensor_as_2d(cpl_tensor t, int64_t a, int64_t b)
{
    CPL_ASSERT(a * b == cpl_tensor_count(t));
    return cpl_tensor_2d(t.storage, t.dtype, a, b);
}

static inline cpl_tensor cpl_tensor_as_3d(cpl_tensor t, int64_t a, int64_t b, int64_t c)
{
    CPL_ASSERT(a * b * c == cpl_tensor_count(t));
    return cpl_tensor_3d(t.storage, t.dtype, a, b, c);
}

/* Returns numbers first ... first + count - 1 of t, in any shape, as one dimension. */
static inline cpl_tensor cpl_tensor_numbers(cpl_tensor t, int64_t first, int64_t count)
{
    return cpl_tensor_range(cpl_tensor_as_1d(t), first, count);
}

/* Returns a matrix [a,b] at the beginning of the memory of `t`, which has room for it. */
static inline cpl_tensor cpl_tensor_over(cpl_tensor t, cpl_dtype dtype, int64_t a, int64_t b)
{
    const cpl_tensor matrix = cpl_tensor_2d(t.storage, dtype, a, b);
    CPL_ASSERT(cpl_tensor_bytes(matrix) <= cpl_tensor_bytes(t));
    return matrix;
}

/* Returns whether the tensor is not none: the optional argument is given. */
static inline bool cpl_tensor_is_there(cpl_tensor t)
{
    return t.storage != NULL;
}

/* Returns whether both tensors begin at the same address. */
static inline bool cpl_tensor_is_same(cpl_tensor a, cpl_tensor b)
{
    return a.storage == b.storage;
}

#endif /* CPL_TENSOR_TENSOR_H */
