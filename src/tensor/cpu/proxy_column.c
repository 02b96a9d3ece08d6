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
        for (int64_t l = 0; l < pad; l += PANEL) {
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

void cpl_proxy_forward(const cpl_proxy_space *s, cpl_proxy_thread *t, const cpl_proxies *p,
                       int64_t j)
{
    const cpl_erc_activation a = s->job->activation;
    const int64_t D = s->job->D, d = s->job->d;
    const float *last = t->z;
    int64_t depth     = D;
    if (cpl_proxy_has_gate(a)) {
        matrix gate = gate_of(s, j);
        multiply(t->z, &gate, p->deep, p->pad, t);
    }
    if (cpl_proxy_has_up(a)) {
        matrix up = up_of(s, j);
        multiply(t->u, &up, p->deep, p->pad, t);
        last = t->u;
    }
    if (cpl_proxy_has_hidden(a)) {
        hidden(t->h, t->z, t->u, D * p->pad);
        last = t->h;
    }
    if (a == CPL_ERC_OUTPUT) {
        matrix down = down_of(s, j);
        if (s->rounded) round_floats(t->h, D * p->pad);
        multiply(t->o, &down, t->h, p->pad, t);
        last  = t->o;
        depth = d;
    }
    sum_squares(t->squares, last, depth, p->pad);
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

/* With the gradient x [rows, count] of a product a . in (in as panels `wide` [count, cols_pad]):
 *     a's gradient += x in,    drows [count, cols_pad] = or += x^T a */
static void product_backward(const matrix *a, const float *x, const float *wide, float *drows,
                             int64_t count, bool add, const cpl_proxy_thread *t)
{
    const int64_t pad = lanes_round_up(a->cols);
    for (int64_t r0 = 0; r0 < a->rows; r0 += PROXY_BLOCK) {
        int64_t rows       = a->rows - r0 < PROXY_BLOCK ? a->rows - r0 : PROXY_BLOCK, stride;
        const float *block = operand_rows(a, r0, rows, t->block, &stride);
        const float *xr    = x + r0 * count;
        for (int64_t l = 0; l < pad; l += PANEL) {
            int64_t width = cpl_panel_width(pad, l);
            int64_t valid = a->cols - l < width ? a->cols - l : width;
            for (int64_t r = 0; r < rows; r++) {
                memcpy(t->pack + r * width, block + r * stride + l, (size_t)valid * sizeof(float));
                for (int64_t k = valid; k < width; k++) t->pack[r * width + k] = 0;
            }
            cpl_panel_product(drows + l, pad, count, width, rows, xr, 1, count, t->pack, width,
                              add || r0 > 0);
            if (!a->grad) continue;
            float *grad = a->grad + r0 * a->grad_stride + l;
            if (valid == width) {
                cpl_panel_product(grad, a->grad_stride, rows, width, count, xr, count, 1,
                                  wide + l * count, width, true);
                continue;
            }
            cpl_panel_product(t->pack, width, rows, width, count, xr, count, 1, wide + l * count,
                              width, false);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t k = 0; k < valid; k++)
                    grad[r * a->grad_stride + k] += t->pack[r * width + k];
        }
    }
}

/* Through the down projection: t->dh [D, count] from the scaled output. */
static void output_backward(const cpl_proxy_space *s, cpl_proxy_thread *t, const cpl_proxies *p,
                            int64_t j, int64_t count, const float *scale)
{
    const int64_t d = s->job->d, D = s->job->D;
    matrix down = down_of(s, j);
    gather(t->dout, t->o, d, p->pad, t->active, count);
    scale_columns(t->dout, d, count, scale);
    if (s->rounded) round_floats(t->dout, d * count);
    for (int64_t l = 0; l < s->D_pad; l += PANEL) {
        int64_t width = cpl_panel_width(s->D_pad, l);
        for (int64_t a = 0; a < count; a++) {
            int64_t i = t->active[a], first = i / PANEL * PANEL;
            const float *h = t->h + first * D + (i - first);
            for (int64_t k = 0; k < width; k++)
                t->h_wide[l * count + a * width + k] =
                    l + k < D ? h[(l + k) * cpl_panel_width(p->pad, first)] : 0;
        }
    }
    product_backward(&down, t->dout, t->h_wide, t->dh, count, false, t);
}

/* dout [D, count] = dh [count, D_pad] transposed: the output's scratch is used again, it is large
 * enough only when D <= d, so the panels of h are. */
static void transpose_dh(const cpl_proxy_space *s, cpl_proxy_thread *t, int64_t count)
{
    for (int64_t a = 0; a < count; a++)
        for (int64_t c = 0; c < s->job->D; c++) t->h[c * count + a] = t->dh[a * s->D_pad + c];
}

void cpl_proxy_backward(const cpl_proxy_space *s, cpl_proxy_thread *t, const cpl_proxies *p,
                        int64_t j, int64_t count)
{
    const cpl_erc_activation a = s->job->activation;
    const int64_t D            = s->job->D;
    float *scale               = t->scale;
    for (int64_t i = 0; i < count; i++) {
        double g = t->pull[i] / sqrt(t->squares[t->active[i]]);
        scale[i] = (float)(g > FLT_MAX ? FLT_MAX : g < -FLT_MAX ? -FLT_MAX : g);
    }
    if (a == CPL_ERC_OUTPUT) {
        output_backward(s, t, p, j, count, scale);
        transpose_dh(s, t, count);
    }
    if (t->dz) gather(t->dz, t->z, D, p->pad, t->active, count);
    if (t->du) gather(t->du, t->u, D, p->pad, t->active, count);
    if (cpl_proxy_has_hidden(a))
        hidden_backward(t->dz, t->du, a == CPL_ERC_OUTPUT ? t->h : NULL, D, count, scale);
    else
        scale_columns(t->dz ? t->dz : t->du, D, count, scale);

    const float *wide = p->wide;
    if (count < p->count) {
        gather_rows(t->wide, p->wide, p->count, s->d_pad, t->active, count);
        wide = t->wide;
    }
    if (t->dz) {
        matrix gate = gate_of(s, j);
        if (s->rounded) round_floats(t->dz, D * count);
        product_backward(&gate, t->dz, wide, t->drows, count, false, t);
    }
    if (t->du) {
        matrix up = up_of(s, j);
        if (s->rounded) round_floats(t->du, D * count);
        product_backward(&up, t->du, wide, t->drows, count, t->dz != NULL, t);
    }
}
