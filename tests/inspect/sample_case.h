/* sample_case.h - random layers in memory, the figures of all their rows, and samples of them. */
#ifndef CPL_TESTS_INSPECT_SAMPLE_CASE_H
#define CPL_TESTS_INSPECT_SAMPLE_CASE_H

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "inspect/sample.h"

enum { ROWS_MOST_N = 16 };

/* Rows of a layer. squares [n,D,n]: (R_i . W_c)^2 of row c of expert j; norms [n,D]. */
typedef struct rows_case {
    int n, d, D;
    double *squares, *norms;
    double row_norm[ROWS_MOST_N];
} rows_case;

static inline float rows_normal(uint64_t seed, uint64_t step, int64_t i)
{
    cpl_rng_key key = {.seed = seed, .step = step, .stream = CPL_STREAM_TEST};
    return cpl_rng_normal(&key, (uint64_t)i);
}

static inline void rows_set(rows_case *c, const float *R, int j, int k, const float *W)
{
    double norm = 0;
    for (int a = 0; a < c->d; a++) norm += (double)W[a] * W[a];
    c->norms[j * c->D + k] = norm;
    for (int i = 0; i < c->n; i++) {
        double dot = 0;
        for (int a = 0; a < c->d; a++) dot += (double)R[i * c->d + a] * W[a];
        c->squares[(j * c->D + k) * c->n + i] = dot * dot;
    }
}

/* Draws normal numbers. `own` times a normal number times the router row is added to each gate's
 * rows. */
static inline rows_case rows_random(int n, int d, int D, double own, uint64_t seed)
{
    rows_case c = {n,
                   d,
                   D,
                   malloc(sizeof(double) * (size_t)(n * D * n)),
                   malloc(sizeof(double) * (size_t)(n * D)),
                   {0}};
    float *R = malloc(sizeof *R * (size_t)(n * d)), *W = malloc(sizeof *W * (size_t)d);
    for (int i = 0; i < n * d; i++) R[i] = rows_normal(seed, 1, i);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int a = 0; a < d; a++) sum += (double)R[i * d + a] * R[i * d + a];
        c.row_norm[i] = sqrt(sum);
    }
    for (int j = 0; j < n; j++)
        for (int k = 0; k < D; k++) {
            const double add = own / c.row_norm[j] * rows_normal(seed, 2, j * D + k);
            for (int a = 0; a < d; a++)
                W[a] =
                    rows_normal(seed, 3, (j * D + k) * (int64_t)d + a) + (float)add * R[j * d + a];
            rows_set(&c, R, j, k, W);
        }
    free(R);
    free(W);
    return c;
}

static inline void rows_free(rows_case *c)
{
    free(c->squares);
    free(c->norms);
}

/* Adds the sums of one block of rows. */
static inline void rows_add(const rows_case *c, int j, int64_t first, int64_t rows, double *squares,
                            double *norm)
{
    memset(squares, 0, (size_t)c->n * sizeof *squares);
    *norm = 0;
    for (int64_t k = j * c->D + first; k < j * c->D + first + rows; k++) {
        *norm += c->norms[k];
        for (int i = 0; i < c->n; i++) squares[i] += c->squares[k * c->n + i];
    }
}

/* Draws a sample. The caller frees squares and norms. */
static inline cpl_row_sums rows_draw(const rows_case *c, const cpl_row_plan *plan, uint64_t seed)
{
    const int64_t b = plan->n_read;
    cpl_row_sums s  = {c->n, b, plan->n_blocks, malloc(sizeof(double) * (size_t)(c->n * b * c->n)),
                       malloc(sizeof(double) * (size_t)(c->n * b))};
    for (int j = 0; j < c->n; j++) {
        int64_t chosen[CPL_ROW_BLOCKS], rows;
        cpl_row_plan_choose(chosen, plan, seed, 0, 3, j);
        for (int64_t k = 0; k < b; k++) {
            const int64_t first = cpl_row_plan_block(plan, chosen[k], &rows);
            rows_add(c, j, first, rows, s.squares + (j * b + k) * c->n, &s.norms[j * b + k]);
        }
    }
    return s;
}

static inline void rows_free_sums(cpl_row_sums *s)
{
    free(s->squares);
    free(s->norms);
}

/* Computes the figures of all rows. */
static inline void rows_truth(double out[CPL_SAMPLE_FIGURES], const rows_case *c)
{
    double squares[ROWS_MOST_N], norm;
    memset(out, 0, CPL_SAMPLE_FIGURES * sizeof *out);
    for (int j = 0; j < c->n; j++) {
        rows_add(c, j, 0, c->D, squares, &norm);
        out[CPL_SAMPLE_GATE_NORM] += sqrt(norm) / c->n;
        for (int i = 0; i < c->n; i++) {
            const double count = i == j ? c->n : c->n * (c->n - 1), m = sqrt(squares[i]);
            out[i == j ? CPL_SAMPLE_M_OWN : CPL_SAMPLE_M_OTHERS] += m / count;
            out[i == j ? CPL_SAMPLE_KAPPA_OWN : CPL_SAMPLE_KAPPA_OTHERS] +=
                m / sqrt(norm) / c->row_norm[i] / count;
        }
    }
}

#endif /* CPL_TESTS_INSPECT_SAMPLE_CASE_H */
