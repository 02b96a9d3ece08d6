/* sample.h - with --sample: the rows of a gate that are read, and means of a layer from these rows
 * (docs/method.md 5.2).
 *
 * Room:    inspect. Pure functions of numbers in memory, whose results do not depend on the number
 *          of threads. The D rows of a gate are cut into G blocks of contiguous rows, of sizes as
 *          equal as possible. b of them, at most CPL_ROW_BLOCKS, are read. Every set of b blocks is
 *          equally probable, and the blocks of different experts are independent.
 * Names:   n experts; squares[j,k,i] is the sum of (R_i . W_c)^2 over the rows c of block k of
 *          expert j, norms[j,k] the sum of |W_c|^2. kappa: null_model.h. */
#ifndef CPL_INSPECT_SAMPLE_H
#define CPL_INSPECT_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

/* ---- choice of rows ---- */

enum { CPL_ROW_BLOCKS = 4 };

typedef struct cpl_row_plan {
    int64_t rows;     /* D */
    int64_t unit;     /* rows; blocks begin at its multiples */
    int64_t n_blocks; /* G */
    int64_t n_read;   /* b: CPL_ROW_BLOCKS, or 1 of 1 block if every row is read */
    bool whole;       /* every row is read: figures are exact */
} cpl_row_plan;

/* Plans to read about `share`, in (0,1], of `rows`: at least 16 rows, and all of them from a share
 * of 0.9 on. `aligned` is the number of rows that share a row of factors, or 1. A block lies within
 * one group of these rows, or is several whole groups. */
cpl_row_plan cpl_row_plan_of(int64_t rows, int64_t aligned, double share);

/* Returns the first row of a block and sets its number of rows. */
int64_t cpl_row_plan_block(const cpl_row_plan *plan, int64_t block, int64_t *rows);

/* Sets chosen (n_read) to different blocks, rising. Equal arguments give equal blocks. `part`
 * distinguishes layers of one number. */
void cpl_row_plan_choose(int64_t chosen[CPL_ROW_BLOCKS], const cpl_row_plan *plan, uint64_t seed,
                         int part, int64_t layer, int64_t expert);

/* ---- means from the rows ---- */

typedef struct cpl_row_sums {
    int64_t n, n_read, n_blocks;
    double *squares; /* [n,n_read,n] */
    double *norms;   /* [n,n_read] */
} cpl_row_sums;

/* Lists the figures: means over experts, and over pairs of different experts (0 for n = 1). */
typedef enum cpl_sample_figure {
    CPL_SAMPLE_KAPPA_OWN,
    CPL_SAMPLE_KAPPA_OTHERS,
    CPL_SAMPLE_M_OWN,
    CPL_SAMPLE_M_OTHERS,
    CPL_SAMPLE_GATE_NORM, /* |W_g^j|_F */
    CPL_SAMPLE_FIGURES
} cpl_sample_figure;

/* Holds an estimate and its standard error, which comes from the choice of blocks. The error is 0
 * if every row is read. */
typedef struct cpl_estimate {
    double estimate, standard_error;
} cpl_estimate;

/* Estimates each figure by the jackknife over the blocks of each expert. row_norm [n] has the norms
 * of the rows that the squares are of. n_read must be CPL_ROW_BLOCKS. */
void cpl_sample_estimate(cpl_estimate out[CPL_SAMPLE_FIGURES], const cpl_row_sums *sums,
                         const double *row_norm);

#endif /* CPL_INSPECT_SAMPLE_H */
