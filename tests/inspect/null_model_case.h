/* null_model_case.h - drawn matrices, the coupling loss written plainly in double, and shuffles as
 * null_model.h describes them. */
#ifndef CPL_TESTS_INSPECT_NULL_MODEL_CASE_H
#define CPL_TESTS_INSPECT_NULL_MODEL_CASE_H

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "inspect/null_model.h"

enum { MOST_N = 64, MOST_D = 96, SMALL = 6 };

static const double slack = 64; /* rounding errors of a sum, in units of eps times its terms */

static const double alphas[] = {0, 0.4, 1, 1.3, 2, 3, 5};

enum { N_ALPHAS = sizeof alphas / sizeof alphas[0] };

static inline void draw_uniform(float *x, int64_t count, uint64_t seed, double low, double high)
{
    cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TEST};
    for (int64_t k = 0; k < count; k++)
        x[k] = (float)(low + (high - low) * cpl_rng_uniform(&key, (uint64_t)k));
}

/* Returns the loss by docs/method.md 3.3. */
static inline double plain_erc(const float *M, int64_t n, double alpha)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            sum += fmax((double)M[i * n + j] - alpha * M[i * n + i], 0);
            sum += fmax((double)M[j * n + i] - alpha * M[i * n + i], 0);
        }
    return sum / (double)(n * n);
}

static inline void plain_kappa(double *kappa, const float *M, const double *row, const double *gate,
                               int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            kappa[i * n + j] = row[i] == 0 || gate[j] == 0 ? 0 : M[i * n + j] / row[i] / gate[j];
}

/* Figures of the sum over score[i, p(i)] for all n! pairings. */
typedef struct census {
    double sum, squares, most; /* total, squares and maximum of the sums */
    int64_t count;
    int32_t best[SMALL];
} census;

static inline void visit(census *c, const double *score, int64_t n, int32_t *pairing, int64_t fixed)
{
    if (fixed < n) {
        for (int64_t k = fixed; k < n; k++) {
            int32_t first  = pairing[fixed];
            pairing[fixed] = pairing[k], pairing[k] = first;
            visit(c, score, n, pairing, fixed + 1);
            pairing[k] = pairing[fixed], pairing[fixed] = first;
        }
        return;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += score[i * n + pairing[i]];
    c->sum += sum;
    c->squares += sum * sum;
    c->count++;
    if (sum <= c->most) return;
    c->most = sum;
    memcpy(c->best, pairing, (size_t)n * sizeof *pairing);
}

static inline census take_census(const double *score, int64_t n)
{
    census c               = {.most = -INFINITY};
    int32_t pairing[SMALL] = {0, 1, 2, 3, 4, 5};
    visit(&c, score, n, pairing, 0);
    return c;
}

/* Shuffles as null_model.h describes it. */
static inline void plain_pairing(int32_t *p, int64_t n, uint64_t seed, int64_t layer, uint64_t turn)
{
    cpl_rng_key key = {seed, turn, (uint32_t)layer, CPL_STREAM_PAIRING};
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)floor((double)cpl_rng_u32(&key, (uint64_t)i) * (i + 1) / 0x1p32);
        int32_t t = p[i];
        p[i] = p[j], p[j] = t;
    }
}

#endif /* CPL_TESTS_INSPECT_NULL_MODEL_CASE_H */
