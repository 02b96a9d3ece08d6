/* proxy_column.c - one expert and all proxies: its column of M, forward and backward.
 *
 * Room:  tensor/cpu; see proxy_space.h. Activations lie transposed, [D, proxies]: the expert's
 *        matrix is read as it is stored, row by row, once; the proxies stay in the cache. */
#include <float.h>
#include <math.h>

#include "tensor/cpu/proxy_space.h"
#include "tensor/cpu/simd.h"

/* ---- an expert's matrices ---- */

typedef struct matrix {
    const char *at;
    float *grad; /* NULL: not wanted */
    int64_t rows, cols, stride, grad_stride;
    bool direct; /* F32 operands as stored */
    bool bf16, rounded;
} matrix;

static matrix matrix_of(const cpl_proxy_space *s, cpl_proxy_weights w, cpl_proxy_grads dw,
                        int64_t j, int64_t rows, int64_t cols)
{
    const cpl_proxy_job *job = s->job;
    const int64_t local      = j - job->j0;
    const size_t bytes       = cpl_dtype_bytes(job->dtype);
    matrix a  = {.rows = rows, .cols = cols, .stride = w.stride, .grad_stride = dw.stride};
    a.at      = w.at ? w.at[local] : (const char *)w.data + (size_t)(local * w.step) * bytes;
    a.grad    = dw.at ? dw.at[local] : dw.data ? dw.data + local * dw.step : NULL;
    a.bf16    = job->dtype == CPL_BF16;
    a.rounded = s->rounded && !a.bf16;
    a.direct  = !a.bf16 && !a.rounded;
    return a;
}

static matrix gate_of(const cpl_proxy_space *s, int64_t j)
{
    return matrix_of(s, s->job->gate, s->job->dgate, j, s->job->D, s->job->d);
}

static matrix up_of(const cpl_proxy_space *s, int64_t j)
{
    return matrix_of(s, s->job->up, s->job->dup, j, s->job->D, s->job->d);
}

static matrix down_of(const cpl_proxy_space *s, int64_t j)
{
    return matrix_of(s, s->job->down, s->job->ddown, j, s->job->d, s->job->D);
}

static void round_floats(float *x, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) x[i] = cpl_bf16_to_f32(cpl_bf16_from_f32(x[i]));
}

/* Rows r0 ... r0+rows-1 as F32 operands: in place, or widened or rounded into `buffer`. */
static const float *operand_rows(const matrix *a, int64_t r0, int64_t rows, float *buffer,
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
            round_floats(to, a->cols);
        }
    }
    return buffer;
}

/* ---- forward ---- */

/* out, panels [rows, pad] = a [rows, cols] . in, panels [cols, pad] */
static void multiply(float *out, const matrix *a, const float *in, int64_t pad,
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

static float sigmoid(float z)
{
    return 1.0f / (1.0f + cpl_exp(-z));
}

/* h = SiLU(z), times u where there is one */
static void hidden(float *h, const float *z, const float *u, int64_t count)
{
    if (u) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) h[i] = z[i] * sigmoid(z[i]) * u[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) h[i] = z[i] * sigmoid(z[i]);
    }
}

/* squares [pad] = sums over depth of the squares of panels x [depth, pad]; in double, so that no
 * scale of the weights overflows or vanishes. */
static void sum_squares(double *squares, const float *x, int64_t depth, int64_t pad)
{
    for (int64_t l = 0; l < pad; l += PANEL) {
        int64_t width = cpl_panel_width(pad, l);
        double sum[PANEL];
        for (int64_t i = 0; i < width; i++) sum[i] = 0;
        const float *row = x + l * depth;
        for (int64_t k = 0; k < depth; k++, row += width) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) sum[i] += (double)row[i] * (double)row[i];
        }
        for (int64_t i = 0; i < width; i++) squares[l + i] = sum[i];
    }
}

void cpl_proxy_forward(const cpl_proxy_space *s, const cpl_proxy_acts *acts, cpl_proxy_thread *t,
                       const cpl_proxies *p, int64_t j)
{
    const cpl_erc_activation a = s->job->activation;
    const int64_t D = s->job->D, d = s->job->d;
    const float *last = acts->z;
    int64_t depth     = D;
    if (cpl_proxy_has_gate(a)) {
        matrix gate = gate_of(s, j);
        multiply(acts->z, &gate, p->deep, p->pad, t);
    }
    if (cpl_proxy_has_up(a)) {
        matrix up = up_of(s, j);
        multiply(acts->u, &up, p->deep, p->pad, t);
        last = acts->u;
    }
    if (cpl_proxy_has_hidden(a)) {
        hidden(acts->h, acts->z, acts->u, D * p->pad);
        last = acts->h;
    }
    if (a == CPL_ERC_OUTPUT) {
        matrix down = down_of(s, j);
        if (s->rounded) round_floats(acts->h, D * p->pad);
        multiply(acts->o, &down, acts->h, p->pad, t);
        last  = acts->o;
        depth = d;
    }
    sum_squares(acts->squares, last, depth, p->pad);
}

/* ---- backward ---- */

/* out [depth, count] = the columns `active` of panels x [depth, pad] */
static void gather(float *out, const float *x, int64_t depth, int64_t pad, const int32_t *active,
                   int64_t count)
{
    for (int64_t a = 0; a < count;) {
        int64_t l = active[a] / PANEL * PANEL, width = cpl_panel_width(pad, l), end = a + 1;
        while (end < count && active[end] < l + width) end++;
        const float *row = x + l * depth;
        const bool whole = active[end - 1] - active[a] == end - 1 - a;
        for (int64_t k = 0; k < depth; k++, row += width) {
            float *to = out + k * count;
            if (whole)
                memcpy(to + a, row + active[a] - l, (size_t)(end - a) * sizeof(float));
            else
                for (int64_t b = a; b < end; b++) to[b] = row[active[b] - l];
        }
        a = end;
    }
}

void cpl_proxy_keep(const cpl_proxy_space *s, const cpl_proxy_acts *one, const cpl_proxy_acts *acts,
                    int64_t pad, int64_t i)
{
    const int32_t only = (int32_t)i;
    const int64_t D = s->job->D, d = s->job->d;
    if (one->z) gather(one->z, acts->z, D, pad, &only, 1);
    if (one->u) gather(one->u, acts->u, D, pad, &only, 1);
    if (one->h) gather(one->h, acts->h, D, pad, &only, 1);
    if (one->o) gather(one->o, acts->o, d, pad, &only, 1);
    one->squares[0] = acts->squares[i];
}

/* wide, panels [count, cols_pad] = rows `active` of panels from [all, cols_pad] */
static void gather_rows(float *wide, const float *from, int64_t all, int64_t cols_pad,
                        const int32_t *active, int64_t count)
{
    for (int64_t l = 0; l < cols_pad; l += PANEL) {
        int64_t width = cpl_panel_width(cols_pad, l);
        for (int64_t a = 0; a < count; a++)
            memcpy(wide + l * count + a * width, from + l * all + active[a] * width,
                   (size_t)width * sizeof(float));
    }
}

/* x [rows, count] times scale [count] */
static void scale_columns(float *x, int64_t rows, int64_t count, const float *scale)
{
    for (int64_t r = 0; r < rows; r++, x += count) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) x[i] *= scale[i];
    }
}

/* With z and u [rows, count] in dz and du and the gradient dh of h: their own gradients in their
 * places. h = SiLU(z) u, or SiLU(z) where du is NULL. dh [rows, count] may be NULL: then it is
 * scale [count] times h. */
static void hidden_backward(float *dz, float *du, const float *dh, int64_t rows, int64_t count,
                            const float *scale)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = r * count + i;
            float z = dz[at], u = du ? du[at] : 1.0f, g = sigmoid(z);
            float pull = dh ? dh[at] : scale[i] * z * g * u;
            dz[at]     = pull * u * g * (1.0f + z * (1.0f - g));
            if (du) du[at] = pull * z * g;
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

/* pack [rows, width] = columns l ... l+width-1 of p->a, zeros where there are none. */
static void pack_panel(float *pack, const piece *p, int64_t l, int64_t width)
{
    const int64_t valid = p->cols - l < width ? p->cols - l : width;
    for (int64_t r = 0; r < p->rows; r++) {
        memcpy(pack + r * width, p->a + r * p->stride + l, (size_t)valid * sizeof(float));
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
static void product_backward(const matrix *a, const float *x, const float *wide, float *drows,
                             int64_t count, bool add, const cpl_proxy_thread *t)
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

/* t->h_wide, panels [count, D_pad] = the active columns of h, panels [D, pad], as rows */
static void gather_hidden(const cpl_proxy_space *s, const cpl_proxy_acts *acts, cpl_proxy_thread *t,
                          int64_t pad, int64_t count)
{
    const int64_t D = s->job->D;
    for (int64_t l = 0; l < s->D_pad; l += PANEL) {
        int64_t width = cpl_panel_width(s->D_pad, l);
        for (int64_t a = 0; a < count; a++) {
            int64_t first = t->active[a] / PANEL * PANEL, step = cpl_panel_width(pad, first);
            const float *h = acts->h + first * D + (t->active[a] - first);
            float *to      = t->h_wide + l * count + a * width;
            for (int64_t k = 0; k < width; k++) to[k] = l + k < D ? h[(l + k) * step] : 0;
        }
    }
}

/* Through the down projection: acts->h, no longer needed, becomes dh [D, count]. */
static void output_backward(const cpl_proxy_space *s, const cpl_proxy_acts *acts,
                            cpl_proxy_thread *t, int64_t pad, int64_t j, int64_t count)
{
    const int64_t d = s->job->d, D = s->job->D;
    matrix down = down_of(s, j);
    gather(t->dout, acts->o, d, pad, t->active, count);
    scale_columns(t->dout, d, count, t->scale);
    if (s->rounded) round_floats(t->dout, d * count);
    gather_hidden(s, acts, t, pad, count);
    product_backward(&down, t->dout, t->h_wide, t->dh, count, false, t);
    for (int64_t a = 0; a < count; a++)
        for (int64_t c = 0; c < D; c++) acts->h[c * count + a] = t->dh[a * s->D_pad + c];
}

/* The gradient of z and u [D, count] from that of the activation. */
static void activation_backward(const cpl_proxy_space *s, const cpl_proxy_acts *acts,
                                cpl_proxy_thread *t, int64_t pad, int64_t j, int64_t count)
{
    const cpl_erc_activation a = s->job->activation;
    const int64_t D            = s->job->D;
    if (a == CPL_ERC_OUTPUT) output_backward(s, acts, t, pad, j, count);
    if (t->dz) gather(t->dz, acts->z, D, pad, t->active, count);
    if (t->du) gather(t->du, acts->u, D, pad, t->active, count);
    if (cpl_proxy_has_hidden(a))
        hidden_backward(t->dz, t->du, a == CPL_ERC_OUTPUT ? acts->h : NULL, D, count, t->scale);
    else
        scale_columns(t->dz ? t->dz : t->du, D, count, t->scale);
    if (t->dz && s->rounded) round_floats(t->dz, D * count);
    if (t->du && s->rounded) round_floats(t->du, D * count);
}

/* The norm's own gradient: d|a| = a / |a|, so what is scaled is G / M. */
static void set_scale(cpl_proxy_thread *t, const cpl_proxy_acts *acts, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double g    = t->pull[i] / sqrt(acts->squares[t->active[i]]);
        t->scale[i] = (float)(g > FLT_MAX ? FLT_MAX : g < -FLT_MAX ? -FLT_MAX : g);
    }
}

void cpl_proxy_backward(const cpl_proxy_space *s, const cpl_proxy_acts *acts, cpl_proxy_thread *t,
                        const cpl_proxies *p, int64_t j, int64_t count)
{
    const float *wide = p->wide;
    set_scale(t, acts, count);
    activation_backward(s, acts, t, p->pad, j, count);
    if (count < p->count) {
        gather_rows(t->wide, p->wide, p->count, s->d_pad, t->active, count);
        wide = t->wide;
    }
    if (t->dz) {
        matrix gate = gate_of(s, j);
        product_backward(&gate, t->dz, wide, t->drows, count, false, t);
    }
    if (t->du) {
        matrix up = up_of(s, j);
        product_backward(&up, t->du, wide, t->drows, count, t->dz != NULL, t);
    }
}
