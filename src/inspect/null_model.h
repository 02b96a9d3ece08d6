/* null_model.h - a coupling matrix compared with chance (docs/method.md 5.2).
 *
 * Room:    inspect. Sums over n x n numbers, in double; nothing here depends on the number of
 *          threads.
 * Names:   M [n,n] with M[i,j] = |R_i . W_g^j|; kappa_ij = M_ij / (|R_i| |W_g^j|_F), 0 if a norm
 *          is 0. A pairing p gives expert p(j) the place of expert j: M'[i,j] = M[i,p(j)]. */
#ifndef CPL_INSPECT_NULL_MODEL_H
#define CPL_INSPECT_NULL_MODEL_H

#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"

enum { CPL_NULL_MODEL_PAIRINGS = 100, CPL_NULL_MODEL_MAX_ALPHAS = 32 };

/* Returns ERC of M at alpha: 1/n^2 sum_i sum_{j != i} max(M_ij - a M_ii, 0) + max(M_ji - a M_ii,
 * 0). */
double cpl_null_model_erc(const float *M, int64_t n, double alpha);

/* Sets pairing [n] to the pairing p of rows and columns that maximises the sum of score[i, p(i)]
 * (Hungarian algorithm, n^3). Among equal pairings (to 1e-12 of the sum) it takes the identity if
 * it is one of them. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_null_model_assign(int32_t *pairing, const double *score, int64_t n);

/* Holds quantiles and maximum of ratio_ij = max(M_ij / M_ii, M_ij / M_jj) over the pairs i != j,
 * linear between neighbours as NumPy's. 0/0 counts as 0, and x/0 is infinite. A ratio is rounded so
 * that its hinges are closed: ERC at a finite `most` is exactly 0. CPL_ERR_MEMORY. */
typedef struct cpl_null_model_ratios {
    double q50, q90, q99, most; /* most is alpha_min; all are 0 if n = 1 */
    double violated;            /* share of the pairs above 1 */
    int64_t most_row, most_column;
} cpl_null_model_ratios;

CPL_NODISCARD cpl_status cpl_null_model_ratios_of(cpl_null_model_ratios *out, const float *M,
                                                  int64_t n);

/* Compares kappa with chance. assignment_accuracy is the share of i with p(i) = i in the optimal
 * assignment on kappa. By chance it is 1/n, and so are the two top1 shares. */
typedef struct cpl_null_model {
    double kappa_diagonal, kappa_off_diagonal; /* means; the second is 0 for n = 1 */
    double kappa_row_top1, kappa_column_top1; /* share whose largest kappa is on the diagonal; a tie
                                                  counts */
    double assignment_accuracy;
    double expected, deviation; /* exact mean and standard deviation of the mean diagonal of kappa
                                   over all n! pairings */
    double z;                   /* (kappa_diagonal - expected) / deviation; NaN if deviation is 0 */

    /* ERC under CPL_NULL_MODEL_PAIRINGS random pairings: mean, standard deviation (divided by their
     * number). */
    double erc_mean[CPL_NULL_MODEL_MAX_ALPHAS], erc_sd[CPL_NULL_MODEL_MAX_ALPHAS];
} cpl_null_model;

/* Sets `out`, and assigned [n] (may be NULL) to the optimal assignment on kappa, from M [n,n],
 * row_norm [n] of R and gate_norm [n] of the experts. Random pairing t is
 * cpl_rng_shuffle with CPL_STREAM_PAIRING, step t, seed and layer. Runs in one thread. n must be at least 1. Numbers
 * of M that are not finite give figures without meaning. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_null_model_of(cpl_null_model *out, int32_t *assigned, const float *M,
                                           const double *row_norm, const double *gate_norm,
                                           int64_t n, const double *alphas, int n_alphas,
                                           uint64_t seed, int64_t layer);

#endif /* CPL_INSPECT_NULL_MODEL_H */
