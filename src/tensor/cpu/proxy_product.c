/* proxy_product.c - see proxy_product.h; operands are F32 numbers, in place or widened. */
#include "tensor/cpu/proxy_product.h"

#include "tensor/numbers.h"

cpl_proxy_matrix cpl_proxy_matrix_of(const cpl_proxy_space *s, cpl_proxy_weights w,
                                     cpl_proxy_grads dw, int64_t j, int64_t rows, int64_t cols)
{
    const cpl_proxy_job *job = s->job;
    const int64_t local      = j - job->j0;
    const size_t bytes       = cpl_dtype_bytes(job->dtype);
    cpl_proxy_matrix a = {.rows = rows, .cols = cols, .stride = w.stride, .grad_stride = dw.stride};
    a.at      = w.at ? w.at[local] : (const char *)w.data + (size_t)(local * w.step) * bytes;
    a.grad    = dw.at ? dw.at[local] : dw.data ? dw.data + local * dw.step : NULL;
    a.bf16    = job->dtype == CPL_BF16;
    a.rounded = s->rounded && !a.bf16;
    a.direct  = !a.bf16 && !a.rounded;
    return a;
}

void cpl_proxy_round(float *x, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) x[i] = cpl_bf16_to_f32(cpl_bf16_from_f32(x[i]));
}

/* Rows r0 ... r0+rows-1 as F32 operands: in place, or widened or rounded into `buffer`. */
static const float *operand_rows(const cpl_proxy_matrix *a, int64_t r0, int64_t rows, float *buffer,
                                 int64_t *stride)
{
    if (a->direct) {
        *stride = a->stride;
        return (const float *)(const void *)a->at + r0 * a->stride;
    }
    *stride = a->cols;
    for (int64_t r = 0; r < rows; r++) {
        float *to = buffer + r * a->cols;
        if (a->bf16) {
            const uint16_t *from = (const uint16_t *)(const void *)a->at + (r0 + r) * a->stride;
#pragma omp simd
            for (int64_t k = 0; k < a->cols; k++) to[k] = cpl_bf16_to_f32(from[k]);
        } else {
            memcpy(to, (const float *)(const void *)a->at + (r0 + r) * a->stride,
                   (size_t)a->cols * sizeof(float));
            cpl_proxy_round(to, a->cols);
        }
    }
    return buffer;
}

/* out, panels [rows, pad] = a [rows, cols] . in, panels [cols, pad] */
void cpl_proxy_multiply(float *out, const cpl_proxy_matrix *a, const float *in, int64_t pad,
                        const cpl_proxy_thread *t)
{
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows   = a->rows - r0 < PROXY_BLOCK ? a->rows - r0 : PROXY_BLOCK, stride;
        const float *x = operand_rows(a, r0, rows, t->block, &stride);
        if (pad == 1) cpl_panel_dots(out + r0, rows, a->cols, x, stride, in);
        for (int64_t l = 0; pad > 1 && l < pad; l += PANEL) {
            int64_t width = cpl_panel_width(pad, l);
            cpl_panel_product(out + l * a->rows + r0 * width, width, rows, width, a->cols, x,
                              stride, 1, in + l * a->cols, width, false);
        }
    }
}

/* Rows r0 ... of a product's gradient, see product_backward. */
typedef struct piece {
    const float *a, *x; /* [rows, cols] operands, `stride` apart; [rows, count] */
    float *grad;        /* NULL: not wanted */
    int64_t rows, cols, stride, grad_stride, count;
} piece;

/* Of a single proxy: memory is all that counts, so the rows are read once, as they lie. */
static void single_piece(const piece *p, const float *wide, float *drows)
{
    for (int64_t r = 0; r < p->rows; r++) {
        const float *a = p->a + r * p->stride;
        const float x  = p->x[r];
        float *grad    = p->grad ? p->grad + r * p->grad_stride : NULL;
#pragma omp simd
        for (int64_t k = 0; k < p->cols; k++) drows[k] += x * a[k];
        if (!grad) continue;
#pragma omp simd
        for (int64_t k = 0; k < p->cols; k++) grad[k] += x * wide[k];
    }
}

/* pack [rows, width] = columns l ... l+width-1 of p->a, zeros where there are none. A panel is a
 * short piece of every row, which no processor foresees, so the next panel of the matrix and of its
 * gradient are asked for here; a whole panel's length is known to the compiler. */
static void pack_panel(float *pack, const piece *p, int64_t l, int64_t width)
{
    const int64_t valid = p->cols - l < width ? p->cols - l : width;
    const int64_t ahead = l + width < p->cols ? l + width : l;
    for (int64_t r = 0; r < p->rows; r++) {
        const float *from = p->a + r * p->stride;
        __builtin_prefetch(from + ahead);
        if (p->grad) __builtin_prefetch(p->grad + r * p->grad_stride + ahead, 1);
        if (valid == PANEL)
            memcpy(pack + r * width, from + l, PANEL * sizeof(float));
        else
            memcpy(pack + r * width, from + l, (size_t)valid * sizeof(float));
        for (int64_t k = valid; k < width; k++) pack[r * width + k] = 0;
    }
}

/* Columns l ... l+width-1 of the gradient; `pack` is scratch where they reach beyond the matrix. */
static void add_weight_gradient(const piece *p, const float *panel, int64_t l, int64_t width,
                                float *pack)
{
    float *grad = p->grad + l;
    if (l + width <= p->cols) {
        cpl_panel_product(grad, p->grad_stride, p->rows, width, p->count, p->x, p->count, 1, panel,
                          width, true);
        return;
    }
    cpl_panel_product(pack, width, p->rows, width, p->count, p->x, p->count, 1, panel, width,
                      false);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t k = 0; l + k < p->cols; k++)
            grad[r * p->grad_stride + k] += pack[r * width + k];
}

/* With the gradient x [rows, count] of a product a . in (in as panels `wide` [count, cols_pad]):
 *     a's gradient += x in,    drows [count, cols_pad] = or += x^T a
 * block of rows by block of rows, while they and x are in the cache. */
void cpl_proxy_product_backward(const cpl_proxy_matrix *a, const float *x, const float *wide,
                                float *drows, int64_t count, bool add, const cpl_proxy_thread *t)
{
    const int64_t pad = vector_round_up(a->cols);
    if (count == 1 && !add) memset(drows, 0, (size_t)pad * sizeof(float));
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        piece p = {.cols = a->cols, .grad_stride = a->grad_stride, .count = count};
        p.rows  = a->rows - r0 < PROXY_BLOCK ? a->rows - r0 : PROXY_BLOCK;
        p.a     = operand_rows(a, r0, p.rows, t->block, &p.stride);
        p.x     = x + r0 * count;
        p.grad  = a->grad ? a->grad + r0 * a->grad_stride : NULL;
        if (count == 1) single_piece(&p, wide, drows);
        for (int64_t l = 0; count > 1 && l < pad; l += PANEL) {
            const int64_t width = cpl_panel_width(pad, l);
            pack_panel(t->pack, &p, l, width);
            cpl_panel_product(drows + l, pad, count, width, p.rows, p.x, 1, count, t->pack, width,
                              add || r0 > 0);
            if (p.grad) add_weight_gradient(&p, wide + l * count, l, width, t->pack);
        }
    }
}
