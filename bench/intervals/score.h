/* score.h - what samples of rows gave, beside the figures of all rows, and the tables of it
 * (docs/sampling.md). */
#ifndef COVER_SCORE_H
#define COVER_SCORE_H

#include "base/text.h"
#include "layers.h"

enum { COVER_SHARES = 5 };
extern const double cover_shares[COVER_SHARES];

enum {
    COVER_KAPPA_OWN,
    COVER_KAPPA_OTHERS,
    COVER_Z,
    COVER_M_OWN,
    COVER_M_OTHERS,
    COVER_NORM,
    COVER_FIGURES
};

enum {
    COVER_ALPHA_MIN,
    COVER_RELATIVE,
    COVER_VIOLATED,
    COVER_ROWS,
    COVER_COLUMNS,
    COVER_ASSIGNED,
    COVER_BOUNDS
};

/* One sample. */
typedef struct cover_result {
    cpl_interval figure[COVER_FIGURES], bound[COVER_BOUNDS];
    double figure_is[COVER_FIGURES], bound_is[COVER_BOUNDS];
    bool all_m, all_kappa; /* all n^2 intervals of the entries hold at once */
} cover_result;

/* All samples of a kind of layers: at[share][layer * samples + sample]. */
typedef struct cover_score {
    int64_t layers, samples;
    cover_result *at[COVER_SHARES];
} cover_score;

cover_score cover_score_new(int64_t layers, int64_t samples);
void cover_score_free(cover_score *s);

/* Draws the samples of a layer, each with a seed of its own. Different layers: from any thread. */
void cover_score_layer(cover_score *s, int64_t layer, const cover_layer *l);

/* Prints the tables of a kind and adds its lines to those of the last two tables. */
void cover_score_print(const cover_score *s, cpl_text lines[2], const char *name);

void cover_score_print_last(const cpl_text lines[2]);

#endif /* COVER_SCORE_H */
