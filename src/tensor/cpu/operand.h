/* operand.h - the forms of operands of products in memory, and products of them.
 *
 * Room:   tensor/cpu (header only).
 * Forms:  F32 unchanged; BF16 if oneDNN multiplies it; otherwise F32 numbers rounded to bf16, so
 *         that bf16 results are available on every processor. A *panel* is a piece of scratch that
 *         holds an operand in the form the backend needs, its rows contiguous. */
#ifndef CPL_TENSOR_CPU_OPERAND_H
#define CPL_TENSOR_CPU_OPERAND_H

#include <string.h>

#include "base/arena.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"
#include "tensor/product.h"

typedef enum cpl_operand_form { CPL_FORM_F32, CPL_FORM_BF16, CPL_FORM_ROUNDED } cpl_operand_form;

/* Returns the form of the operands of products of `be`. */
static inline cpl_operand_form cpl_operand_form_of(const cpl_backend *be)
{
    if (be->compute == CPL_F32) return CPL_FORM_F32;
    return cpl_product_has_bf16() ? CPL_FORM_BF16 : CPL_FORM_ROUNDED;
}

static inline cpl_dtype cpl_operand_form_dtype(cpl_operand_form form)
{
    return form == CPL_FORM_BF16 ? CPL_BF16 : CPL_F32;
}

/* Returns whether a stored array of `dtype` already has the form and can be multiplied in place. */
static inline bool cpl_operand_form_fits(cpl_operand_form form, cpl_dtype dtype)
{
    return dtype == cpl_operand_form_dtype(form) && form != CPL_FORM_ROUNDED;
}

/* Converts x [n] to the form and stores it from number `at` of the panel. */
static inline void cpl_put(cpl_operand_form form, void *panel, int64_t at, const float *x,
                           int64_t n)
{
    if (form == CPL_FORM_F32) {
        memcpy((float *)panel + at, x, (size_t)n * sizeof *x);
    } else if (form == CPL_FORM_BF16) {
        cpl_round_row((uint16_t *)panel + at, x, n);
    } else {
        float *to = (float *)panel + at;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = cpl_bf16_to_f32(cpl_bf16_from_f32(x[i]));
    }
}

/* Converts n numbers of x from number `from` on like cpl_put. x is F32 or BF16. */
static inline void cpl_put_any(cpl_operand_form form, void *panel, int64_t at, const void *x,
                               cpl_dtype dtype, int64_t from, int64_t n)
{
    if (dtype == CPL_F32) {
        cpl_put(form, panel, at, (const float *)x + from, n);
        return;
    }
    const uint16_t *bits = (const uint16_t *)x + from;
    if (form == CPL_FORM_BF16) {
        memcpy((uint16_t *)panel + at, bits, (size_t)n * sizeof *bits);
    } else {
        cpl_widen_row((float *)panel + at, bits, n);
    }
}

/* Copies `rows` rows of `cols` numbers, `stride` apart and beginning at number `from` of x, into a
 * panel, with `threads` threads. Returns the panel as operand. */
static inline cpl_operand cpl_pack(cpl_operand_form form, void *panel, const void *x,
                                   cpl_dtype dtype, int64_t from, int64_t stride, int64_t rows,
                                   int64_t cols, int threads)
{
    if (rows * cols < CPL_SHARE_LEAST) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < rows; i++)
        cpl_put_any(form, panel, i * cols, x, dtype, from + i * stride, cols);
    return (cpl_operand){panel, cpl_operand_form_dtype(form), CPL_AS_IS, cols};
}

static inline cpl_operand cpl_transposed(cpl_operand a)
{
    a.trans = a.trans == CPL_TRANSPOSED ? CPL_AS_IS : CPL_TRANSPOSED;
    return a;
}

/* Computes c [m,n], rows c_stride apart, = beta c + a b with `threads` threads. A failure is kept
 * in be->failure, and later calls return at once. Several threads may call it at the same time. */
static inline void cpl_multiply(cpl_backend *be, int threads, float *c, int64_t c_stride,
                                cpl_operand a, cpl_operand b, cpl_product_shape shape, float beta)
{
    cpl_status failure = __atomic_load_n(&be->failure, __ATOMIC_RELAXED);
    if (failure != CPL_OK) return;
    failure = cpl_product(c, c_stride, a, b, shape, beta, threads);
    if (failure != CPL_OK) __atomic_store_n(&be->failure, failure, __ATOMIC_RELAXED);
}

#endif /* CPL_TENSOR_CPU_OPERAND_H */
