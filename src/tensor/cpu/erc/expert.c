/* expert.c - forward and backward of one expert for all proxies: one column of M.
 *
 * Room:  tensor/cpu/erc; see scratch.h. Activations are transposed, [D, proxies]: the expert's
 *        matrix is read once, row by row as it is stored, while the proxies stay in the cache.
 * Plain: the code follows expert_forward and expert_backward of model/erc/reference.c, for one j
 *        and all i at once. The reference's v, grad_z, grad_v and y are u, dz, du and o here. */
#include <float.h>
#include <math.h>

#include "tensor/cpu/erc/scratch.h"
#include "tensor/cpu/simd.h"

/* ---- an expert's matrices ---- */

static cpl_erc_matrix gate_of(const cpl_erc_workspace *s, int64_t j)
{
    return cpl_erc_matrix_of(s, s->job->gate, s->job->dgate, j, s->job->D, s->job->d);
}

static cpl_erc_matrix up_of(const cpl_erc_workspace *s, int64_t j)
{
    return cpl_erc_matrix_of(s, s->job->up, s->job->dup, j, s->job->D, s->job->d);
}

static cpl_erc_matrix down_of(const cpl_erc_workspace *s, int64_t j)
{
    return cpl_erc_matrix_of(s, s->job->down, s->job->ddown, j, s->job->d, s->job->D);
}

/* ---- forward ---- */

/* Computes out, panels [rows, pad] = a . proxies. */
static void multiply(const cpl_erc_workspace *s, float *out, const cpl_erc_matrix *a,
                     const cpl_proxies *p, cpl_erc_thread *t)
{
    cpl_erc_multiply(out, a, s->pairs ? NULL : p->deep, p->deep_pairs, p->pad, t);
}

static float sigmoid(float z)
{
    return 1.0f / (1.0f + cpl_exp(-z));
}

/* Computes h = SiLU(z), times u if u is not NULL (h[c] of the reference). */
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

/* Sets squares [pad] to the sums over depth of the squares of panels x [depth, pad], or adds the
 * sums. They are in double, so that no scale of the weights overflows or underflows. */
static void sum_squares(double *squares, const float *x, int64_t depth, int64_t pad, bool add)
{
    for (int64_t l = 0; l < pad; l += PANEL) {
        int64_t width = cpl_panel_width(pad, l);
        double sum[PANEL];
        for (int64_t i = 0; i < width; i++) sum[i] = add ? squares[l + i] : 0;
        const float *row = x + l * depth;
        for (int64_t k = 0; k < depth; k++, row += width) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) sum[i] += (double)row[i] * (double)row[i];
        }
        for (int64_t i = 0; i < width; i++) squares[l + i] = sum[i];
    }
}

void cpl_erc_forward(const cpl_erc_workspace *s, const cpl_erc_acts *acts, cpl_erc_thread *t,
                     const cpl_proxies *p, int64_t j)
{
    const cpl_erc_activation a = s->job->activation;
    const int64_t D = s->job->D, d = s->job->d;
    const float *last = acts->z;
    int64_t depth     = D;
    if (cpl_erc_has_gate(a)) {
        cpl_erc_matrix gate = gate_of(s, j);
        multiply(s, acts->z, &gate, p, t);
    }
    if (cpl_erc_has_up(a)) {
        cpl_erc_matrix up = up_of(s, j);
        multiply(s, acts->u, &up, p, t);
        last = acts->u;
    }
    if (cpl_erc_has_hidden(a)) {
        hidden(acts->h, acts->z, acts->u, D * p->pad);
        last = acts->h;
    }
    if (a == CPL_ERC_OUTPUT) {
        cpl_erc_matrix down = down_of(s, j);
        if (s->rounded) cpl_erc_round(acts->h, D * p->pad);
        cpl_erc_multiply(acts->o, &down, acts->h, NULL, p->pad, t);
        last  = acts->o;
        depth = d;
    }
    sum_squares(acts->squares, last, depth, p->pad, false);
    if (a == CPL_ERC_GATE_UP) sum_squares(acts->squares, acts->z, D, p->pad, true);
}

/* ---- backward ---- */

/* Sets out [depth, count] to the columns `active` of panels x [depth, pad]. */
static void gather_columns(float *out, const float *x, int64_t depth, int64_t pad,
                           const int32_t *active, int64_t count)
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

void cpl_erc_copy_column(const cpl_erc_workspace *s, const cpl_erc_acts *one,
                         const cpl_erc_acts *acts, int64_t pad, int64_t i)
{
    const int32_t only = (int32_t)i;
    const int64_t D = s->job->D, d = s->job->d;
    if (one->z) gather_columns(one->z, acts->z, D, pad, &only, 1);
    if (one->u) gather_columns(one->u, acts->u, D, pad, &only, 1);
    if (one->h) gather_columns(one->h, acts->h, D, pad, &only, 1);
    if (one->o) gather_columns(one->o, acts->o, d, pad, &only, 1);
    one->squares[0] = acts->squares[i];
}

/* Sets wide, panels [count, cols_pad], to rows `active` of panels from [all, cols_pad]. */
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

/* Multiplies the columns of x [rows, count] by scale [count]. */
static void scale_columns(float *x, int64_t rows, int64_t count, const float *scale)
{
    for (int64_t r = 0; r < rows; r++, x += count) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) x[i] *= scale[i];
    }
}

/* Replaces z and u [rows, count], in dz and du, by their gradients (grad_z and grad_v of the
 * reference). h = SiLU(z) u, or SiLU(z) if du is NULL. dh [rows, count] is the gradient of h. If dh
 * is NULL, the gradient is scale [count] times h. */
static void hidden_backward(float *dz, float *du, const float *dh, int64_t rows, int64_t count,
                            const float *scale)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = r * count + i;
            float z = dz[at], u = du ? du[at] : 1.0f, g = sigmoid(z);
            float grad_h = dh ? dh[at] : scale[i] * z * g * u;
            dz[at]       = grad_h * u * g * (1.0f + z * (1.0f - g));
            if (du) du[at] = grad_h * z * g;
        }
    }
}

/* Sets t->h_wide, panels [count, D_pad], to the active columns of h, panels [D, pad], as rows. */
static void gather_hidden(const cpl_erc_workspace *s, const cpl_erc_acts *acts, cpl_erc_thread *t,
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

/* Runs backward of o = W_o h (y of the reference): acts->h becomes dh [D, count]. */
static void output_backward(const cpl_erc_workspace *s, const cpl_erc_acts *acts, cpl_erc_thread *t,
                            int64_t pad, int64_t j, int64_t count)
{
    const int64_t d = s->job->d, D = s->job->D;
    cpl_erc_matrix down = down_of(s, j);
    gather_columns(t->dout, acts->o, d, pad, t->active, count);
    scale_columns(t->dout, d, count, t->scale);
    if (s->rounded) cpl_erc_round(t->dout, d * count);
    gather_hidden(s, acts, t, pad, count);
    cpl_erc_product_backward(&down, t->dout, t->h_wide, t->dh, count, false, t);
    for (int64_t a = 0; a < count; a++)
        for (int64_t c = 0; c < D; c++) acts->h[c * count + a] = t->dh[a * s->D_pad + c];
}

/* Sets t->dz and t->du [D, count] from the gradient of the activation. */
static void activation_backward(const cpl_erc_workspace *s, const cpl_erc_acts *acts,
                                cpl_erc_thread *t, int64_t pad, int64_t j, int64_t count)
{
    const cpl_erc_activation a = s->job->activation;
    const int64_t D            = s->job->D;
    if (a == CPL_ERC_OUTPUT) output_backward(s, acts, t, pad, j, count);
    if (t->dz) gather_columns(t->dz, acts->z, D, pad, t->active, count);
    if (t->du) gather_columns(t->du, acts->u, D, pad, t->active, count);
    if (cpl_erc_has_hidden(a)) {
        hidden_backward(t->dz, t->du, a == CPL_ERC_OUTPUT ? acts->h : NULL, D, count, t->scale);
    } else {
        if (t->dz) scale_columns(t->dz, D, count, t->scale);
        if (t->du) scale_columns(t->du, D, count, t->scale);
    }
    if (t->dz && s->rounded) cpl_erc_round(t->dz, D * count);
    if (t->du && s->rounded) cpl_erc_round(t->du, D * count);
}

/* Runs backward of the norm: d|a| / da = a / |a|, hence the factor G / M (reference: `scale`). */
static void set_scale(cpl_erc_thread *t, const cpl_erc_acts *acts, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double g    = t->grad_M[i] / sqrt(acts->squares[t->active[i]]);
        t->scale[i] = (float)(g > FLT_MAX ? FLT_MAX : g < -FLT_MAX ? -FLT_MAX : g);
    }
}

void cpl_erc_backward(const cpl_erc_workspace *s, const cpl_erc_acts *acts, cpl_erc_thread *t,
                      const cpl_proxies *p, int64_t j, int64_t count)
{
    const float *wide = p->wide;
    set_scale(t, acts, count);
    activation_backward(s, acts, t, p->pad, j, count);
    if (s->pairs && count > 1) { /* memory limits a single proxy, not instructions */
        cpl_erc_pairs_rows(s, t, count);
        wide = NULL;
    } else if (count < p->count) {
        gather_rows(t->wide, p->wide, p->count, s->d_pad, t->active, count);
        wide = t->wide;
    }
    /* z = W_g R~ and u = W_p R~: the matrices' gradients, and t->drows (reference: dot_backward) */
    if (t->dz) {
        cpl_erc_matrix gate = gate_of(s, j);
        cpl_erc_product_backward(&gate, t->dz, wide, t->drows, count, false, t);
    }
    if (t->du) {
        cpl_erc_matrix up = up_of(s, j);
        cpl_erc_product_backward(&up, t->du, wide, t->drows, count, t->dz != NULL, t);
    }
}
