/* product.c - see scratch.h; operands are F32 numbers, in place or widened. Forward: the dot products
 * of expert_forward in model/erc/reference.c; backward: its dot_backward. */
#include "tensor/cpu/erc/scratch.h"

#include "tensor/cpu/simd.h"
#include "tensor/numbers.h"

enum {
    AHEAD = 4
}; /* rows to prefetch: no processor predicts the jump to the next row of a strip */

cpl_proxy_matrix cpl_proxy_matrix_of(const cpl_erc_workspace *s, cpl_proxy_weights w,
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

/* Rows r0 ... r0+rows-1, columns l ... l+cols-1, as F32 operands: in place, or widened or rounded
 * into `buffer`. */
static const float *operand_rows(const cpl_proxy_matrix *a, int64_t r0, int64_t rows, int64_t l,
                                 int64_t cols, float *buffer, int64_t *stride)
{
    const int64_t first = r0 * a->stride + l;
    const float *wide   = (const float *)(const void *)a->at + first;
    const uint16_t *low = (const uint16_t *)(const void *)a->at + first;
    *stride             = a->direct ? a->stride : cols;
    if (a->direct) return wide;
    for (int64_t r = 0; r < rows; r++) {
        float *to = buffer + r * cols;
        if (a->bf16) {
            cpl_widen_row(to, low + r * a->stride, cols);
        } else {
            memcpy(to, wide + r * a->stride, (size_t)cols * sizeof(float));
            cpl_proxy_round(to, cols);
        }
    }
    return buffer;
}

void cpl_proxy_multiply(float *out, const cpl_proxy_matrix *a, const float *in, int64_t pad,
                        const cpl_erc_thread *t)
{
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows   = cpl_proxy_block_rows(a, r0), stride;
        const float *x = operand_rows(a, r0, rows, 0, a->cols, t->block, &stride);
        if (pad == 1) cpl_panel_dots(out + r0, rows, a->cols, x, stride, in);
        for (int64_t l = 0; pad > 1 && l < pad; l += PANEL) {
            int64_t width = cpl_panel_width(pad, l);
            cpl_panel_product(out + l * a->rows + r0 * width, width, rows, width, a->cols, x,
                              stride, 1, in + l * a->cols, width, false);
        }
    }
}

/* ---- backward ---- */

/* For a single proxy memory is the limit, so the rows are read once, as they are stored. */
static void single_backward(const cpl_proxy_matrix *a, const float *x, const float *wide,
                            float *drows, const cpl_erc_thread *t)
{
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t stride;
        const float *row = operand_rows(a, r, 1, 0, a->cols, t->block, &stride);
        float *grad      = a->grad ? a->grad + r * a->grad_stride : NULL;
        const float dx   = x[r];
#pragma omp simd
        for (int64_t k = 0; k < a->cols; k++) drows[k] += dx * row[k];
        if (!grad) continue;
#pragma omp simd
        for (int64_t k = 0; k < a->cols; k++) grad[k] += dx * wide[k];
    }
}

/* A block of rows and a strip of columns of a matrix, with its operands and gradient. */
typedef struct piece {
    const float *a; /* [rows, valid] operands, `stride` apart */
    const float *x; /* [rows, count] gradient of the product */
    float *grad;    /* [rows, valid], grad_stride apart */
    int64_t rows, stride, grad_stride, count;
    int64_t width, valid; /* columns: a multiple of VECTOR; those the matrix has */
} piece;

/* pack, panels [rows, width] = a, zeros where it ends. */
static void pack_piece(float *pack, const piece *p)
{
    for (int64_t r = 0; r < p->rows; r++) {
        const float *from  = p->a + r * p->stride;
        const float *ahead = r + AHEAD < p->rows ? from + AHEAD * p->stride : from;
        for (int64_t l = 0; l < p->width; l += PANEL) {
            const int64_t width = cpl_panel_width(p->width, l);
            float *to           = pack + l * p->rows + r * width;
            for (int k = 0; k < PANEL; k += 16) __builtin_prefetch(ahead + l + k);
            if (l + PANEL <= p->valid)
                memcpy(to, from + l, PANEL * sizeof(float)); /* a length the compiler knows */
            else
                for (int64_t k = 0; k < width; k++) to[k] = l + k < p->valid ? from[l + k] : 0;
        }
    }
}

/* The piece's gradient += x . wide, panels [count, width]; a panel that reaches beyond the matrix
 * goes by way of `last`, [rows, PANEL]. */
static void add_weight_gradient(const piece *p, const float *wide, float *last)
{
    for (int64_t l = 0; l < p->width; l += PANEL) {
        const int64_t width = cpl_panel_width(p->width, l), step = p->grad_stride;
        const bool inside = l + width <= p->valid;
        cpl_panel_product(inside ? p->grad + l : last, inside ? step : width, p->rows, width,
                          p->count, p->x, p->count, 1, wide + l * p->count, width, inside);
        for (int64_t r = 0; !inside && r < p->rows; r++)
            for (int64_t k = 0; l + k < p->valid; k++)
                p->grad[r * step + l + k] += last[r * width + k];
    }
}

/* drows [count, width of the piece], drows_step apart, = or += x^T a */
static void add_proxy_gradient(const piece *p, float *drows, int64_t drows_step, bool add,
                               const float *pack)
{
    for (int64_t l = 0; l < p->width; l += PANEL) {
        const int64_t width = cpl_panel_width(p->width, l);
        cpl_panel_product(drows + l, drows_step, p->count, width, p->rows, p->x, 1, p->count,
                          pack + l * p->rows, width, add);
    }
}

/* Strip of columns by strip, whose share of `wide` and `drows` stays in the second cache while the
 * matrix passes, block of rows by block. */
void cpl_proxy_product_backward(const cpl_proxy_matrix *a, const float *x, const float *wide,
                                float *drows, int64_t count, bool add, const cpl_erc_thread *t)
{
    const int64_t pad = vector_round_up(a->cols);
    if (count == 1 && !add) memset(drows, 0, (size_t)pad * sizeof(float));
    if (count == 1) {
        single_backward(a, x, wide, drows, t);
        return;
    }
    piece p = {.grad_stride = a->grad_stride, .count = count};
    for (int64_t l = 0; l < pad; l += PROXY_STRIP) {
        p.width = pad - l < PROXY_STRIP ? pad - l : PROXY_STRIP;
        p.valid = a->cols - l < p.width ? a->cols - l : p.width;
        for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
            p.rows = cpl_proxy_block_rows(a, r0);
            p.a    = operand_rows(a, r0, p.rows, l, p.valid, t->block, &p.stride);
            p.x    = x + r0 * count;
            p.grad = a->grad ? a->grad + r0 * a->grad_stride + l : NULL;
            pack_piece(t->pack, &p);
            add_proxy_gradient(&p, drows + l, pad, add || r0 > 0, t->pack);
            if (p.grad) add_weight_gradient(&p, wide + l * count, t->pack);
        }
    }
}
