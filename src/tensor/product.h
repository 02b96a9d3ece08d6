/* product.h - one matrix product, the only user of oneDNN.
 *
 * Room:  tensor. Row-major throughout. Only product.c includes a header of oneDNN. It handles
 *        versions 2 and 3 of the C API. */
#ifndef CPL_TENSOR_PRODUCT_H
#define CPL_TENSOR_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/host_ops.h"
#include "tensor/ops.h"

/* A stored matrix and the way it is read. `stride` counts numbers from one stored row to the next
 * and is at least the length of a stored row. */
typedef struct cpl_operand {
    const void *data;
    cpl_dtype dtype; /* CPL_F32 or CPL_BF16 */
    cpl_trans trans;
    int64_t stride;
} cpl_operand;

typedef struct cpl_product_shape {
    int64_t m, n, k;
} cpl_product_shape;

/* Computes c [m,n], rows `c_stride` apart, = beta c + op(a) [m,k] . op(b) [k,n]. Both operands are
 * F32, or both BF16 if cpl_product_has_bf16(). Sums are in F32. beta is 0 (the old c is not read)
 * or 1. m, n, k may be 0. Uses n_threads threads, or one if it is called inside a parallel region.
 * Equal calls give equal bits. Returns CPL_ERR_MEMORY or CPL_ERR_DEVICE if oneDNN refuses. */
CPL_NODISCARD cpl_status cpl_product(float *c, int64_t c_stride, cpl_operand a, cpl_operand b,
                                     cpl_product_shape shape, float beta, int n_threads);

/* Computes c = op(a) op(b) for whole matrices in F32. */
CPL_NODISCARD cpl_status cpl_product_matrices(cpl_matrix c, cpl_trans ta, cpl_matrix a,
                                              cpl_trans tb, cpl_matrix b, int n_threads);

/* Makes oneDNN's kernels and primitives for F32, and for BF16 if cpl_product_has_bf16(), before
 * their first use, so that a failure is reported early. Later calls do nothing. */
CPL_NODISCARD cpl_status cpl_product_prepare(void);

/* Returns whether oneDNN multiplies bf16 in hardware on this machine (AVX512-BF16 or AMX). */
bool cpl_product_has_bf16(void);

/* Returns the version of oneDNN and its instruction set, e.g. "2.6.3, avx512_core". */
const char *cpl_product_library(void);

/* Limits oneDNN to the instruction set `isa`: "v2", "v3", or "v4" for no limit. Must be called
 * before oneDNN's first use. */
void cpl_product_limit(const char *isa);

#endif /* CPL_TENSOR_PRODUCT_H */
