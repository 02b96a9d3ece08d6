/* erc_oracle.h - the coupling loss written plainly in double from the paper's equations, for tests.
 * Its central differences are the oracle of every gradient. */
#ifndef CPL_TESTS_ERC_ORACLE_H
#define CPL_TESTS_ERC_ORACLE_H

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

typedef struct oracle {
    int n, d, D, activation;
    double alpha;
    double *R, *delta, *w[3]; /* w: gate [n,D,d], up [n,D,d], down [n,d,D] */
    double *M;                /* [n,n] of the last evaluation */
    double nearest_kink;      /* least |M_ij - bound| / bound of the last evaluation */
} oracle;

static inline double oracle_dot(const double *a, const double *b, int count)
{
    double sum = 0;
    for (int k = 0; k < count; k++) sum += a[k] * b[k];
    return sum;
}

/* M[i,j]: the norm of what expert j makes of proxy i. */
static inline double oracle_norm(const oracle *o, int i, int j)
{
    double *x = malloc(sizeof(double) * (size_t)(o->d + o->D)), *h = x + o->d, squares = 0;
    for (int k = 0; k < o->d; k++) x[k] = o->R[i * o->d + k] * o->delta[i * o->d + k];
    for (int c = 0; c < o->D; c++) {
        const int row = (j * o->D + c) * o->d;
        double z = oracle_dot(o->w[0] + row, x, o->d), u = oracle_dot(o->w[1] + row, x, o->d);
        double silu = z / (1 + exp(-z));
        h[c]        = o->activation == 0   ? z
                      : o->activation == 1 ? u
                                           : silu * (o->activation == 2 ? 1 : u);
        squares += h[c] * h[c];
    }
    if (o->activation == 4) {
        squares = 0;
        for (int k = 0; k < o->d; k++) {
            double y = oracle_dot(o->w[2] + (j * o->d + k) * o->D, h, o->D);
            squares += y * y;
        }
    }
    free(x);
    return sqrt(squares);
}

static inline double oracle_hinge(oracle *o, double m, double diagonal)
{
    double bound = o->alpha * diagonal, off = fabs(m - bound) / (bound > 0 ? bound : 1);
    if (off < o->nearest_kink) o->nearest_kink = off;
    return m > bound ? m - bound : 0;
}

/* Of what depends on one number only row `i` of M (a router row) or column `j` (an expert) changes:
 * give its index, or -1 for all. */
static inline double oracle_loss(oracle *o, int only_row, int only_column)
{
    const int n = o->n;
    double sum  = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if ((only_row < 0 || i == only_row) && (only_column < 0 || j == only_column))
                o->M[i * n + j] = oracle_norm(o, i, j);
    o->nearest_kink = INFINITY;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (i != j) {
                sum += oracle_hinge(o, o->M[i * n + j], o->M[i * n + i]);
                sum += oracle_hinge(o, o->M[j * n + i], o->M[i * n + i]);
            }
    return sum / (n * n);
}

/* d loss / d *x, where x lies in router row `row` or in expert `column`. */
static inline double oracle_slope(oracle *o, double *x, int row, int column)
{
    const double keep = *x, h = 1e-5 * (fabs(keep) + 0.1);
    *x          = keep + h;
    double up   = oracle_loss(o, row, column);
    *x          = keep - h;
    double down = oracle_loss(o, row, column);
    *x          = keep;
    (void)oracle_loss(o, row, column);
    return (up - down) / (2 * h);
}

static inline double *oracle_numbers(int count)
{
    return calloc((size_t)count, sizeof(double));
}

/* Random weights and noise that f32 holds exactly; `tilt` pulls every expert towards its own row.
 */
static inline oracle oracle_random(int n, int d, int D, int activation, double alpha, double tilt,
                                   uint64_t seed)
{
    oracle o           = {n, d, D, activation, alpha, NULL, NULL, {NULL, NULL, NULL}, NULL, 0};
    cpl_rng_key key    = {.seed = seed, .stream = CPL_STREAM_TEST};
    const int n_router = n * d, n_expert = n * d * D;
    uint64_t at = 0;
    o.R         = oracle_numbers(n_router);
    o.delta     = oracle_numbers(n_router);
    o.M         = oracle_numbers(n * n);
    for (int i = 0; i < n_router; i++) o.R[i] = (float)cpl_rng_normal(&key, at++);
    for (int i = 0; i < n_router; i++)
        o.delta[i] = (float)(1 + 0.3 * ((double)cpl_rng_uniform(&key, at++) - 0.5));
    for (int k = 0; k < 3; k++) {
        o.w[k] = oracle_numbers(n_expert);
        for (int i = 0; i < n_expert; i++) {
            double own = k < 2 ? o.R[i / (D * d) * d + i % d] : 0;
            o.w[k][i]  = (float)(0.3 * (double)cpl_rng_normal(&key, at++) + tilt * own);
        }
    }
    return o;
}

static inline void oracle_free(oracle *o)
{
    free(o->R);
    free(o->delta);
    free(o->M);
    for (int k = 0; k < 3; k++) free(o->w[k]);
}

static inline float *oracle_floats(const double *x, int count)
{
    float *out = malloc(sizeof(float) * (size_t)count);
    for (int i = 0; i < count; i++) out[i] = (float)x[i];
    return out;
}

#endif /* CPL_TESTS_ERC_ORACLE_H */
