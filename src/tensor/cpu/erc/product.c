/* product.c - products of an expert's matrix with proxies; see scratch.h. Operands are F32 numbers,
 * in place or widened, or pairs of bf16 numbers. Forward computes the dot products of
 * expert_forward in model/erc/reference.c, backward its dot_backward. Pairs are two neighbours in a
 * row of the expert's matrix in the forward product, two neighbours in a column (two rows side by
 * side) in the gradient of the proxies, and two proxies in the gradient of the matrix. */
#include "tensor/cpu/erc/scratch.h"

#include "tensor/cpu/simd.h"
#include "tensor/numbers.h"

enum {
    AHEAD = 4
}; /* rows to prefetch: no processor predicts the jump to the next row of a strip */

cpl_erc_matrix cpl_erc_matrix_of(const cpl_erc_workspace *s, cpl_erc_weights w, cpl_erc_grads dw,
                                 int64_t j, int64_t rows, int64_t cols)
{
    const cpl_erc_host_job *job = s->job;
    const int64_t local         = j - job->j0;
    const size_t bytes          = cpl_dtype_bytes(job->dtype);
    cpl_erc_matrix a = {.rows = rows, .cols = cols, .stride = w.stride, .grad_stride = dw.stride};
    a.at             = w.at ? w.at[local] : (const char *)w.data + (size_t)(local * w.step) * bytes;
    a.grad           = dw.at ? dw.at[local] : dw.data ? dw.data + local * dw.step : NULL;
    a.bf16           = job->dtype == CPL_BF16;
    a.rounded        = s->rounded && !a.bf16;
    a.direct         = !a.bf16 && !a.rounded;
    return a;
}

void cpl_erc_round(float *x, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) x[i] = cpl_bf16_to_f32(cpl_bf16_from_f32(x[i]));
}

static int64_t block_rows(const cpl_erc_matrix *a, int64_t r0)
{
    return a->rows - r0 < PROXY_BLOCK ? a->rows - r0 : PROXY_BLOCK;
}

/* Returns rows r0 ... r0+rows-1, columns l ... l+cols-1, as F32 operands: in place, or widened or
 * rounded into `buffer`. */
static const float *operand_rows(const cpl_erc_matrix *a, int64_t r0, int64_t rows, int64_t l,
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
            cpl_erc_round(to, cols);
        }
    }
    return buffer;
}

/* ---- pairs of bf16; rows and cols are even ---- */

static int64_t half_up(int64_t count)
{
    return (count + 1) / 2;
}

/* Returns rows r0 ... r0+rows-1 as pairs, *stride pairs apart: in place if they are bf16 and
 * aligned to pairs, otherwise rounded or copied into the block. */
static const cpl_panel_pair *operand_pairs(const cpl_erc_matrix *a, int64_t r0, int64_t rows,
                                           cpl_panel_pair *block, int64_t *stride)
{
    const uint16_t *low = (const uint16_t *)(const void *)a->at + r0 * a->stride;
    if (a->bf16 && a->stride % 2 == 0) {
        *stride = a->stride / 2;
        return (const cpl_panel_pair *)(const void *)low;
    }
    uint16_t *to = &block->first;
    *stride      = a->cols / 2;
    for (int64_t r = 0; r < rows; r++, to += a->cols) {
        const float *from = (const float *)(const void *)a->at + (r0 + r) * a->stride;
        if (a->bf16) {
            memcpy(to, low + r * a->stride, (size_t)a->cols * sizeof *to);
            continue;
        }
#pragma omp simd
        for (int64_t k = 0; k < a->cols; k++) to[k] = cpl_bf16_from_f32(from[k]);
    }
    return block;
}

static void pairs_multiply(float *out, const cpl_erc_matrix *a, const cpl_panel_pair *in,
                           int64_t pad, const cpl_erc_thread *t)
{
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows            = block_rows(a, r0), stride;
        const cpl_panel_pair *x = operand_pairs(a, r0, rows, t->block_pairs, &stride);
        if (pad == 1) cpl_panel_pairs_dots(out + r0, rows, a->cols / 2, x, stride, in);
        for (int64_t l = 0; pad > 1 && l < pad; l += PANEL) {
            int64_t width = cpl_panel_width(pad, l);
            cpl_panel_pairs_product(out + l * a->rows + r0 * width, width, rows, width, a->cols / 2,
                                    x, stride, 1, in + l * (a->cols / 2), width, false);
        }
    }
}

/* Sets `to` [count] to pairs of the numbers of two rows. `second` NULL stands for zeros. */
static void pair_rows(cpl_panel_pair *to, const uint16_t *first, const uint16_t *second,
                      int64_t count)
{
    if (second) {
#pragma omp simd
        for (int64_t k = 0; k < count; k++) to[k] = (cpl_panel_pair){first[k], second[k]};
    } else {
        for (int64_t k = 0; k < count; k++) to[k] = (cpl_panel_pair){first[k], 0};
    }
}

void cpl_erc_pairs_rows(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count)
{
    const int64_t half = half_up(count);
    for (int64_t l = 0; l < s->d_pad; l += PANEL) {
        const int64_t width = cpl_panel_width(s->d_pad, l);
        for (int64_t a = 0; a < count; a += 2) {
            const uint16_t *first = s->rows_bf16 + t->row[a] * s->d_pad + l;
            const uint16_t *second =
                a + 1 < count ? s->rows_bf16 + t->row[a + 1] * s->d_pad + l : NULL;
            pair_rows(t->wide_pairs + l * half + a / 2 * width, first, second, width);
        }
    }
}

/* Converts x [rows, count] to bf16 twice: t->x_bf16, pairs along count [rows, half], and
 * t->x_pairs, pairs along rows [rows / 2, count]. */
static void lower_gradient(const cpl_erc_thread *t, const float *x, int64_t rows, int64_t count)
{
    const int64_t even = 2 * half_up(count);
    for (int64_t r = 0; r < rows; r++) {
        uint16_t *low = t->x_bf16 + r * even;
        low[even - 1] = 0;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) low[i] = cpl_bf16_from_f32(x[r * count + i]);
        if (r % 2 == 1) pair_rows(t->x_pairs + r / 2 * count, low - even, low, count);
    }
}

/* Sets t->pack_pairs [rows / 2, width] to columns l ... of the block, zeros beyond column cols. */
static void pack_panel(const cpl_erc_thread *t, const cpl_panel_pair *block, int64_t stride,
                       int64_t rows, int64_t l, int64_t width, int64_t cols)
{
    const int64_t valid = cols - l < width ? cols - l : width;
    for (int64_t r = 0; r < rows; r += 2) {
        const uint16_t *first = &block[r * stride].first + l;
        cpl_panel_pair *to    = t->pack_pairs + r / 2 * width;
        pair_rows(to, first, first + 2 * stride, valid);
        for (int64_t k = valid; k < width; k++) to[k] = (cpl_panel_pair){0, 0};
    }
}

/* Adds to the gradient's rows from r0 and columns from l on. A panel that reaches beyond the matrix
 * is computed in t->pack first. */
static void add_pairs_gradient(const cpl_erc_matrix *a, const cpl_erc_thread *t, int64_t r0,
                               int64_t rows, int64_t l, int64_t width, int64_t count)
{
    const int64_t half          = half_up(count);
    const cpl_panel_pair *x     = (const cpl_panel_pair *)(const void *)t->x_bf16 + r0 * half;
    const cpl_panel_pair *panel = t->wide_pairs + l * half;
    float *grad                 = a->grad + r0 * a->grad_stride + l;
    if (l + width <= a->cols) {
        cpl_panel_pairs_product(grad, a->grad_stride, rows, width, half, x, half, 1, panel, width,
                                true);
        return;
    }
    cpl_panel_pairs_product(t->pack, width, rows, width, half, x, half, 1, panel, width, false);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; l + k < a->cols; k++)
            grad[r * a->grad_stride + k] += t->pack[r * width + k];
}

static void pairs_backward(const cpl_erc_matrix *a, const float *x, float *drows, int64_t count,
                           bool add, const cpl_erc_thread *t)
{
    const int64_t pad = vector_round_up(a->cols);
    lower_gradient(t, x, a->rows, count);
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows                = block_rows(a, r0), stride;
        const cpl_panel_pair *block = operand_pairs(a, r0, rows, t->block_pairs, &stride);
        for (int64_t l = 0; l < pad; l += PANEL) {
            const int64_t width = cpl_panel_width(pad, l);
            pack_panel(t, block, stride, rows, l, width, a->cols);
            cpl_panel_pairs_product(drows + l, pad, count, width, rows / 2,
                                    t->x_pairs + r0 / 2 * count, 1, count, t->pack_pairs, width,
                                    add || r0 > 0);
            if (a->grad) add_pairs_gradient(a, t, r0, rows, l, width, count);
        }
    }
}

/* ---- forward ---- */

void cpl_erc_multiply(float *out, const cpl_erc_matrix *a, const float *in,
                      const cpl_panel_pair *in_pairs, int64_t pad, const cpl_erc_thread *t)
{
    if (!in) {
        pairs_multiply(out, a, in_pairs, pad, t);
        return;
    }
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows   = block_rows(a, r0), stride;
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

/* Runs backward for a single proxy. Memory limits its speed, so it reads the stored rows once. */
static void single_backward(const cpl_erc_matrix *a, const float *x, const float *wide,
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
    int64_t width, valid; /* columns, a multiple of VECTOR; columns within the matrix */
} piece;

/* Sets pack, panels [rows, width], to a, with zeros beyond the matrix. */
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
                memcpy(to, from + l, PANEL * sizeof(float)); /* a constant length */
            else
                for (int64_t k = 0; k < width; k++) to[k] = l + k < p->valid ? from[l + k] : 0;
        }
    }
}

/* Adds to the piece's gradient x . wide, panels [count, width]. A panel that reaches beyond the
 * matrix is computed in `last`, [rows, PANEL], first. */
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

/* Computes drows [count, width of the piece], rows drows_step apart, = or += x^T a. */
static void add_proxy_gradient(const piece *p, float *drows, int64_t drows_step, bool add,
                               const float *pack)
{
    for (int64_t l = 0; l < p->width; l += PANEL) {
        const int64_t width = cpl_panel_width(p->width, l);
        cpl_panel_product(drows + l, drows_step, p->count, width, p->rows, p->x, 1, p->count,
                          pack + l * p->rows, width, add);
    }
}

/* Adds the gradients of a product. The outer loop runs over strips of columns, whose part of `wide`
 * and `drows` stays in the second cache. The inner loop runs over blocks of rows of the matrix. */
void cpl_erc_product_backward(const cpl_erc_matrix *a, const float *x, const float *wide,
                              float *drows, int64_t count, bool add, const cpl_erc_thread *t)
{
    const int64_t pad = vector_round_up(a->cols);
    if (!wide) {
        pairs_backward(a, x, drows, count, add, t);
        return;
    }
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
            p.rows = block_rows(a, r0);
            p.a    = operand_rows(a, r0, p.rows, l, p.valid, t->block, &p.stride);
            p.x    = x + r0 * count;
            p.grad = a->grad ? a->grad + r0 * a->grad_stride + l : NULL;
            pack_piece(t->pack, &p);
            add_proxy_gradient(&p, drows + l, pad, add || r0 > 0, t->pack);
            if (p.grad) add_weight_gradient(&p, wide + l * count, t->pack);
        }
    }
}
