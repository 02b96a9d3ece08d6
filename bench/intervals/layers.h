/* layers.h - layers whose rows are known, for the measurements of this folder: random ones and those of
 * checkpoints, their figures, and samples of their rows as `inspect --sample` draws them.
 *
 * Names:   n experts, d model width, D expert width. */
#ifndef COVER_LAYERS_H
#define COVER_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "inspect/families/gate_reader.h"
#include "inspect/row_sample.h"

/* Stops the program with the library's sentence. */
void cover_ok(cpl_status status);

/* Zeros. */
void *cover_room(size_t bytes);

/* What the figures need of a layer: for the rows before row c of expert j the sums of squares. Memory is
 * about n^2 D doubles. */
typedef struct cover_layer {
    int64_t n, d, D;
    double *squares;   /* [n,D+1,n]: of expert j, rows before c, router row i */
    double *norms;     /* [n,D+1] */
    double *row_norm;  /* [n] */
    float *R, *turned; /* [n,d], [d,n]: the same */
    float *dots;       /* [n] */
} cover_layer;

/* A kind of random layer. */
typedef struct cover_kind {
    const char *name;
    int64_t n, d, D;
    double own;    /* each gate has its router row added, this large, times a number of every row */
    double tail;   /* standard deviation of the logarithm of a row's norm */
    bool sorted;   /* rows by falling norm */
    double common; /* the same vector added to all router rows */
    int64_t fewer; /* one layer in place of this many */
} cover_kind;

cover_layer cover_layer_random(const cover_kind *kind, uint64_t seed);
cover_layer cover_layer_read(const cpl_moe_layer *at);
void cover_layer_free(cover_layer *l);

/* The sums of a sample of a layer; free squares and norms. */
cpl_row_sums cover_layer_draw(const cover_layer *l, const cpl_row_plan *plan, uint64_t seed);

/* The figures of all rows. */
typedef struct cover_truth {
    cpl_null_model chance;
    cpl_null_model_ratios ratios;
    double m[2], norm, erc, relative; /* m: means on and off the diagonal */
    float *M;                         /* [n,n]; to be freed */
} cover_truth;

cover_truth cover_truth_of(const cover_layer *l);

#endif /* COVER_LAYERS_H */
