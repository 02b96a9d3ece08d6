/* pairs.c - see scratch.h; operands are pairs of bf16 numbers. Forward the pairs run
 * along an expert's rows, as they lie; towards the proxies along its columns (two rows side by
 * side), towards its gradient along the proxies. */
#include "tensor/cpu/erc/scratch.h"
#include "tensor/numbers.h"

static int64_t half_up(int64_t count)
{
    return (count + 1) / 2;
}

/* Rows r0 ... r0+rows-1 as pairs, *stride pairs apart: in place, or rounded or copied (where they
 * do not begin on pairs) into the block. */
static const cpl_panel_pair *operand_pairs(const cpl_proxy_matrix *a, int64_t r0, int64_t rows,
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

void cpl_proxy_pairs_multiply(float *out, const cpl_proxy_matrix *a, const cpl_panel_pair *in,
                              int64_t pad, const cpl_erc_thread *t)
{
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows            = cpl_proxy_block_rows(a, r0), stride;
        const cpl_panel_pair *x = operand_pairs(a, r0, rows, t->block_pairs, &stride);
        if (pad == 1) cpl_panel_pairs_dots(out + r0, rows, a->cols / 2, x, stride, in);
        for (int64_t l = 0; pad > 1 && l < pad; l += PANEL) {
            int64_t width = cpl_panel_width(pad, l);
            cpl_panel_pairs_product(out + l * a->rows + r0 * width, width, rows, width, a->cols / 2,
                                    x, stride, 1, in + l * (a->cols / 2), width, false);
        }
    }
}

/* to [count] pairs: the numbers of two rows side by side; the second may be NULL: zeros. */
static void side_by_side(cpl_panel_pair *to, const uint16_t *first, const uint16_t *second,
                         int64_t count)
{
    if (second) {
#pragma omp simd
        for (int64_t k = 0; k < count; k++) to[k] = (cpl_panel_pair){first[k], second[k]};
    } else {
        for (int64_t k = 0; k < count; k++) to[k] = (cpl_panel_pair){first[k], 0};
    }
}

void cpl_proxy_pairs_rows(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count)
{
    const int64_t half = half_up(count);
    for (int64_t l = 0; l < s->d_pad; l += PANEL) {
        const int64_t width = cpl_panel_width(s->d_pad, l);
        for (int64_t a = 0; a < count; a += 2) {
            const uint16_t *first = s->rows_bf16 + t->row[a] * s->d_pad + l;
            const uint16_t *second =
                a + 1 < count ? s->rows_bf16 + t->row[a + 1] * s->d_pad + l : NULL;
            side_by_side(t->wide_pairs + l * half + a / 2 * width, first, second, width);
        }
    }
}

/* x [rows, count] as bf16 twice: t->x_bf16, pairs along count [rows, half], and t->x_pairs, pairs
 * along rows [rows / 2, count]. */
static void lower_gradient(const cpl_erc_thread *t, const float *x, int64_t rows, int64_t count)
{
    const int64_t even = 2 * half_up(count);
    for (int64_t r = 0; r < rows; r++) {
        uint16_t *low = t->x_bf16 + r * even;
        low[even - 1] = 0;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) low[i] = cpl_bf16_from_f32(x[r * count + i]);
        if (r % 2 == 1) side_by_side(t->x_pairs + r / 2 * count, low - even, low, count);
    }
}

/* t->pack_pairs [rows / 2, width] = columns l ... of the block, zeros where there are none. */
static void pack_panel(const cpl_erc_thread *t, const cpl_panel_pair *block, int64_t stride,
                       int64_t rows, int64_t l, int64_t width, int64_t cols)
{
    const int64_t valid = cols - l < width ? cols - l : width;
    for (int64_t r = 0; r < rows; r += 2) {
        const uint16_t *first = &block[r * stride].first + l;
        cpl_panel_pair *to    = t->pack_pairs + r / 2 * width;
        side_by_side(to, first, first + 2 * stride, valid);
        for (int64_t k = valid; k < width; k++) to[k] = (cpl_panel_pair){0, 0};
    }
}

/* Rows r0 ... of the gradient, columns l ...; through t->pack where they reach beyond the matrix.
 */
static void add_weight_gradient(const cpl_proxy_matrix *a, const cpl_erc_thread *t, int64_t r0,
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

void cpl_proxy_pairs_backward(const cpl_proxy_matrix *a, const float *x, float *drows,
                              int64_t count, bool add, const cpl_erc_thread *t)
{
    const int64_t pad = vector_round_up(a->cols);
    lower_gradient(t, x, a->rows, count);
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows                = cpl_proxy_block_rows(a, r0), stride;
        const cpl_panel_pair *block = operand_pairs(a, r0, rows, t->block_pairs, &stride);
        for (int64_t l = 0; l < pad; l += PANEL) {
            const int64_t width = cpl_panel_width(pad, l);
            pack_panel(t, block, stride, rows, l, width, a->cols);
            cpl_panel_pairs_product(drows + l, pad, count, width, rows / 2,
                                    t->x_pairs + r0 / 2 * count, 1, count, t->pack_pairs, width,
                                    add || r0 > 0);
            if (a->grad) add_weight_gradient(a, t, r0, rows, l, width, count);
        }
    }
}
