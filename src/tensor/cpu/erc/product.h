/* product.h - the products of an expert's matrix with proxies, forward and backward.
 *
 * Room:    tensor/cpu/erc; see scratch.h. product.c multiplies F32 numbers, pairs.c
 *          the bf16 ones of processors that have an instruction for them. */
#ifndef CPL_TENSOR_CPU_ERC_PRODUCT_H
#define CPL_TENSOR_CPU_ERC_PRODUCT_H

#include "tensor/cpu/erc/scratch.h"

/* One matrix of one expert, and its gradient. */
typedef struct cpl_proxy_matrix {
    const char *at;
    float *grad; /* NULL: not wanted */
    int64_t rows, cols, stride, grad_stride;
    bool direct; /* F32 operands as stored */
    bool bf16, rounded;
} cpl_proxy_matrix;

#define cpl_proxy_matrix_of CPL_ISA_NAME(cpl_cpu_proxy_matrix_of)
cpl_proxy_matrix cpl_proxy_matrix_of(const cpl_erc_workspace *s, cpl_proxy_weights w,
                                     cpl_proxy_grads dw, int64_t j, int64_t rows, int64_t cols);

/* x rounded to bf16 and back. */
#define cpl_proxy_round CPL_ISA_NAME(cpl_cpu_proxy_round)
void cpl_proxy_round(float *x, int64_t count);

/* out, panels [rows, pad] = a [rows, cols] . in, panels [cols, pad]; pad 1: plain vectors. */
#define cpl_proxy_multiply CPL_ISA_NAME(cpl_cpu_proxy_multiply)
void cpl_proxy_multiply(float *out, const cpl_proxy_matrix *a, const float *in, int64_t pad,
                        const cpl_erc_thread *t);

/* With the gradient x [rows, count] of a product a . in (in as panels `wide` [count, cols_pad]):
 *     a's gradient += x in,    drows [count, cols_pad] = or += x^T a */
#define cpl_proxy_product_backward CPL_ISA_NAME(cpl_cpu_proxy_product_backward)
void cpl_proxy_product_backward(const cpl_proxy_matrix *a, const float *x, const float *wide,
                                float *drows, int64_t count, bool add, const cpl_erc_thread *t);

/* ---- the same in pairs of bf16; rows and cols are even ---- */

/* in: panels [cols / 2, pad] of pairs. */
#define cpl_proxy_pairs_multiply CPL_ISA_NAME(cpl_cpu_proxy_pairs_multiply)
void cpl_proxy_pairs_multiply(float *out, const cpl_proxy_matrix *a, const cpl_panel_pair *in,
                              int64_t pad, const cpl_erc_thread *t);

/* t->wide_pairs = the proxies t->row [count] of all of R. */
#define cpl_proxy_pairs_rows CPL_ISA_NAME(cpl_cpu_proxy_pairs_rows)
void cpl_proxy_pairs_rows(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count);

/* With t->wide_pairs for `wide`; x is rounded already. */
#define cpl_proxy_pairs_backward CPL_ISA_NAME(cpl_cpu_proxy_pairs_backward)
void cpl_proxy_pairs_backward(const cpl_proxy_matrix *a, const float *x, float *drows,
                              int64_t count, bool add, const cpl_erc_thread *t);

#endif /* CPL_TENSOR_CPU_ERC_PRODUCT_H */
