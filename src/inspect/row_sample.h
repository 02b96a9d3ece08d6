/* row_sample.h - figures of a layer from a part of every gate's rows: which rows, estimates with 95 %
 * intervals, and bounds (docs/method.md 5.2).
 *
 * Room:    inspect. Pure functions of numbers in memory; nothing depends on the number of threads.
 * Design:  the D rows of a gate are cut into G blocks of contiguous rows, of sizes as equal as they
 *          can be. b of them, at most CPL_ROW_BLOCKS, are read: every set of b blocks is equally
 *          probable, and each expert has its own.
 * Names:   n experts; f = b / G; squares[j,k,i] is the sum of (R_i . W_c)^2 over the rows c of block
 *          k of expert j, norms[j,k] that of |W_c|^2. kappa, z, ERC, alpha_min: null_model.h.
 * Random:  an interval is of the choice of blocks. The checkpoint is what it is. */
#ifndef CPL_INSPECT_ROW_SAMPLE_H
#define CPL_INSPECT_ROW_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "inspect/null_model.h"

/* ---- row_sample.c: which rows ---- */

enum { CPL_ROW_BLOCKS = 4 };

typedef struct cpl_row_plan {
    int64_t rows;     /* D */
    int64_t unit;     /* rows; blocks begin at its multiples */
    int64_t n_blocks; /* G */
    int64_t n_read;   /* b: CPL_ROW_BLOCKS; 1 of 1 block if it is all of the rows */
    bool whole;       /* every row is read: figures are exact */
} cpl_row_plan;

/* About `share`, in (0,1], of `rows`, but of 16 rows at least; from 0.9 on of all. Where factors are
 * stored for every `aligned` rows (1: no matter), no block lies across two of their groups, but for one
 * of several whole groups. */
cpl_row_plan cpl_row_plan_of(int64_t rows, int64_t aligned, double share);

/* Returns the first row of a block and sets its number of rows. */
int64_t cpl_row_plan_block(const cpl_row_plan *plan, int64_t block, int64_t *rows);

/* Sets chosen (n_read) to different blocks, rising. Equal arguments give equal blocks; `part` tells
 * layers of one number apart. */
void cpl_row_plan_choose(int64_t chosen[CPL_ROW_BLOCKS], const cpl_row_plan *plan, uint64_t seed,
                         int part, int64_t layer, int64_t expert);

/* ---- row_estimates.c, row_bounds.c: what they give ---- */

typedef struct cpl_interval {
    double estimate, low, high; /* a bound has no estimate: NaN */
} cpl_interval;

typedef struct cpl_row_sums {
    int64_t n, n_read, n_blocks;
    double *squares; /* [n,n_read,n] */
    double *norms;   /* [n,n_read] */
} cpl_row_sums;

/* 95 % intervals, each for itself. */
typedef struct cpl_row_estimates {
    cpl_interval kappa_diagonal, kappa_off_diagonal; /* means; off: 0 for n = 1 */
    cpl_interval m_diagonal, m_off_diagonal;
    cpl_interval gate_norm; /* mean of |W_g^j|_F */
    /* Between -(n-1) and n-1, which no z exceeds. Estimate NaN: the sample does not resolve it. All NaN:
     * n = 1, or all pairings give the same in the sample. */
    cpl_interval z;
} cpl_row_estimates;

/* row_norm [n] of the router rows that the squares are of; n_read is CPL_ROW_BLOCKS. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_row_sums_estimate(cpl_row_estimates *out, const cpl_row_sums *sums,
                                               const double *row_norm);

/* What holds for every M within simultaneous intervals of its n^2 entries, and for every kappa
 * within those of its own. High may be infinite. */
typedef struct cpl_row_bounds {
    cpl_interval erc[CPL_NULL_MODEL_MAX_ALPHAS], erc_relative[CPL_NULL_MODEL_MAX_ALPHAS];
    cpl_interval ratio_50, ratio_90, ratio_99, alpha_min; /* of cpl_null_model_ratios */
    cpl_interval violated, active_rows, active_columns;   /* the latter of figures.h, at alpha 1 */
    cpl_interval rows_own, columns_own, assigned; /* shares: kappa_row_top1, kappa_column_top1,
                                                     assignment_accuracy */
} cpl_row_bounds;

CPL_NODISCARD cpl_status cpl_row_sums_bound(cpl_row_bounds *out, const cpl_row_sums *sums,
                                            const double *row_norm, const double *alphas,
                                            int n_alphas);

/* The simultaneous intervals: low, high [n,n] of M, or of kappa (`scale_free`). */
void cpl_row_sums_entries(double *low, double *high, const cpl_row_sums *sums,
                          const double *row_norm, bool scale_free);

/* An interval of the sum of figures, each weighted by `weight` > 0: the sums of the ends. It is wider than
 * independent errors need, and holds where all err to one side. One without an estimate leaves the sum
 * without one. NaN if count is 0. */
cpl_interval cpl_interval_sum(const cpl_interval *parts, int64_t count, double weight);

#endif /* CPL_INSPECT_ROW_SAMPLE_H */
