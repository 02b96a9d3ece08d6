/* reference.c - see reference.h. The equation numbers are the paper's; method: docs/method.md. */
#include "model/erc/reference.h"

#include <math.h>
#include <stdbool.h>

static double dot(const double *a, const double *b, int64_t count) /* a, b [count] */
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++) sum += a[k] * b[k];
    return sum;
}

void cpl_erc_reference_epsilon(double *epsilon, const double *router, int64_t n, int64_t d)
{
    for (int64_t i = 0; i < n; i++) { /* equation 4, taken as an equality */
        const double *row = router + i * d;
        double nearest = INFINITY, norm = sqrt(dot(row, row, d));
        for (int64_t j = 0; j < n; j++) {
            double squares = 0;
            for (int64_t k = 0; k < d; k++) squares += pow(row[k] - router[j * d + k], 2);
            if (j != i) nearest = fmin(nearest, sqrt(squares));
        }
        epsilon[i] = n == 1 || norm == 0 ? 0 : nearest / (2 * norm);
    }
}

static bool has_silu(const cpl_erc_reference *erc)
{
    return erc->activation >= CPL_ERC_SILU && erc->activation != CPL_ERC_GATE_UP;
}

/* Computes M[i,j] (section 3.1, step 2): the norm of expert j's activation for proxy i. Sets in
 * scratch z = W_gate proxy, s = sigmoid(z), v = W_up proxy, h = z s v [d_expert], y = W_down h
 * [d_model]. z or v is 1 without its matrix, s is 1 without SiLU: h is z, v, SiLU(z), SiLU(z) v.
 * The activation gate_up is z and v. */
static double expert_forward(const cpl_erc_reference *erc, int64_t i, int64_t j)
{
    const int64_t d = erc->d_model, D = erc->d_expert;
    double *z = erc->scratch, *s = z + D, *v = s + D, *h = v + D, *y = h + D;
    for (int64_t c = 0; c < D; c++) {
        z[c] = erc->w_gate ? dot(erc->w_gate + (j * D + c) * d, erc->proxy + i * d, d) : 1;
        s[c] = has_silu(erc) ? 1 / (1 + exp(-z[c])) : 1;
        v[c] = erc->w_up ? dot(erc->w_up + (j * D + c) * d, erc->proxy + i * d, d) : 1;
        h[c] = z[c] * s[c] * v[c];
    }
    if (erc->activation == CPL_ERC_GATE_UP) return sqrt(dot(z, z, D) + dot(v, v, D));
    if (!erc->w_down) return sqrt(dot(h, h, D));
    for (int64_t k = 0; k < d; k++) y[k] = dot(erc->w_down + (j * d + k) * D, h, D);
    return sqrt(dot(y, y, d));
}

double cpl_erc_reference_forward(const cpl_erc_reference *erc)
{
    const int64_t n = erc->n_experts, d = erc->d_model;
    double loss = 0, u = 1 / (double)(n * n), *M = erc->M, *grad_M = erc->grad_M;
    for (int64_t k = 0; k < n * d; k++) erc->proxy[k] = erc->router[k] * erc->delta[k];
    for (int64_t k = 0; k < n * n; k++) M[k] = expert_forward(erc, k / n, k % n);
    for (int64_t k = 0; k < n * n; k++) grad_M[k] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            const double row    = M[i * n + j] - erc->alpha * M[i * n + i]; /* equation 1 */
            const double column = M[j * n + i] - erc->alpha * M[i * n + i]; /* equation 2 */
            loss += u * (fmax(row, 0) + fmax(column, 0));                   /* equation 3 */
            grad_M[i * n + j] += u * (row >= 0);                            /* d max(x, 0) / dx */
            grad_M[j * n + i] += u * (column >= 0);
            grad_M[i * n + i] -= u * erc->alpha * ((row >= 0) + (column >= 0));
        }
    return loss;
}

/* Runs backward of out = row . proxy_i: adds to grad_row [d_model] and, since R~ = R delta, to
 * grad_router. */
static void dot_backward(const cpl_erc_reference *erc, int64_t i, double *grad_row,
                         const double *row, double grad_out)
{
    for (int64_t k = 0, at = i * erc->d_model; k < erc->d_model; k++, at++) {
        grad_row[k] += grad_out * erc->proxy[at];
        erc->grad_router[at] += grad_out * row[k] * erc->delta[at];
    }
}

/* Runs backward of expert_forward. d|x| / dx = x / |x| for x = h or y, whose norm is M[i,j]. */
static void expert_backward(const cpl_erc_reference *erc, int64_t i, int64_t j, double grad_M)
{
    const int64_t d = erc->d_model, D = erc->d_expert;
    const double *z = erc->scratch, *s = z + D, *v = s + D, *h = v + D, *y = h + D;
    const double scale = grad_M / expert_forward(erc, i, j);
    for (int64_t c = 0; c < D; c++) {
        const int64_t row = (j * D + c) * d;
        double grad_h     = erc->w_down ? 0 : scale * h[c];
        for (int64_t k = 0; erc->w_down && k < d; k++) {
            grad_h += scale * y[k] * erc->w_down[(j * d + k) * D + c];
            erc->grad_down[(j * d + k) * D + c] += scale * y[k] * h[c];
        }
        double grad_z = grad_h * v[c] * s[c] * (1 + z[c] * (1 - s[c])),
               grad_v = grad_h * z[c] * s[c];
        if (erc->activation == CPL_ERC_GATE_UP) grad_z = scale * z[c], grad_v = scale * v[c];
        if (erc->w_gate) dot_backward(erc, i, erc->grad_gate + row, erc->w_gate + row, grad_z);
        if (erc->w_up) dot_backward(erc, i, erc->grad_up + row, erc->w_up + row, grad_v);
    }
}

void cpl_erc_reference_backward(const cpl_erc_reference *erc)
{
    for (int64_t k = 0, n = erc->n_experts; k < n * n; k++)
        if (erc->M[k] != 0) expert_backward(erc, k / n, k % n, erc->weight * erc->grad_M[k]);
}
