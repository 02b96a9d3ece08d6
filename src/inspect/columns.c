/* columns.c - see show.h */
#include "inspect/show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the figures ---- */

enum {
#define CPL_COLUMN(name, ...) name,
#include "inspect/columns.def"
    N_COLUMNS
};

static const cpl_column list[N_COLUMNS] = {
#define CPL_COLUMN(name, key, part, kind, value) [name] = {key, CPL_PART_##part, CPL_COLUMN_##kind},
#include "inspect/columns.def"
};

/* The least of sign times the experts' silhouettes. */
static double least_silhouette(const cpl_layer_report *l, double sign)
{
    double least = NAN;
    for (int64_t j = 0; l->silhouettes && j < l->at->n; j++)
        least = fmin(least, sign * l->silhouettes[j]);
    return least;
}

bool cpl_inspect_has_part(const cpl_coupling_report *r, int64_t layer, int part)
{
    const cpl_layer_report *l         = &r->layers[layer];
    const cpl_sample_report *s        = l->sample;
    const bool has[CPL_INSPECT_PARTS] = {
        [CPL_PART_SHAPE]          = true,
        [CPL_PART_COUPLING]       = l->has_M,
        [CPL_PART_CENTRED]        = l->centred.has_M,
        [CPL_PART_CENTRED_ROWS]   = l->centred.has_rows,
        [CPL_PART_ROUTER]         = true,
        [CPL_PART_NOISE]          = r->options.noisy,
        [CPL_PART_CLUSTERS]       = l->silhouettes != NULL,
        [CPL_PART_SAMPLE]         = s != NULL,
        [CPL_PART_SAMPLE_M]       = s && s->has_M,
        [CPL_PART_SAMPLE_CENTRED] = s && s->has_centred,
    };
    return !l->fault && has[part];
}

static double value_of(const void *report, int64_t layer, int column, int a)
{
    const cpl_layer_report *l = &((const cpl_coupling_report *)report)->layers[layer];
    if (!cpl_inspect_has_part(report, layer, list[column].part)) return NAN;
    switch (column) {
#define CPL_COLUMN(name, key, part, kind, value)                                                   \
    case name:                                                                                     \
        return value;
#include "inspect/columns.def"
    }
    return NAN;
}

cpl_columns cpl_inspect_columns(const cpl_coupling_report *r)
{
    return (cpl_columns){.list     = list,
                         .n        = N_COLUMNS,
                         .value    = value_of,
                         .ctx      = r,
                         .alphas   = r->options.alphas,
                         .n_alphas = r->options.n_alphas};
}

/* ---- the tables ---- */

/* On the terminal. */
static const cpl_shown agreement[] = {
    {KAPPA_OWN, "own", "kappa", .digits = 4},
    {KAPPA_OTHERS, "others", "kappa", .digits = 4},
    {Z, "z", .digits = 2},
    {ROWS_OWN, "row", "% own largest", .digits = 1},
    {COLUMNS_OWN, "column", "% own largest", .digits = 1},
    {ASSIGNED, "signed", "% as-", .digits = 1},
    {ERC_RELATIVE, "alpha ", "ERC / mean diagonal", .digits = 3, .alphas = CPL_ONE_ALPHA},
    {RANDOM, "random", "ERC / mean diagonal", .digits = 3},
    {RATIO_50, "50 %", "M_ij / diagonal", .digits = 2},
    {RATIO_90, "90 %", "M_ij / diagonal", .digits = 2},
    {RATIO_99, "99 %", "M_ij / diagonal", .digits = 2},
    {ALPHA_MIN, "alpha_min", "M_ij / diagonal", .digits = 2},
    {LAMBDA, "own", "lambda", .digits = 4},
    {LAMBDA_RANDOM, "random", "lambda", .digits = 4},
    {0}};

static const cpl_shown raw[] = {
    {ERC, "a=", "ERC", .digits = 3, .alphas = CPL_EACH_ALPHA},
    {VIOLATED, "violated", "% of pairs", .digits = 1},
    {EPS_MEAN, "mean", "eps", .digits = 3},
    {EPS_MIN, "min", "eps", .digits = 3},
    {EPS_MAX, "max", "eps", .digits = 3},
    {ROUTER_NORM, "mean +- sd", "|R|", .digits = 3, .spread = ROUTER_NORM_SD},
    {GATE_NORM, "mean +- sd", "|W_g|", .digits = 3, .spread = GATE_NORM_SD},
    {COSINE, "|cos|", "mean", .digits = 3},
    {CENTRED_COSINE, "|cos|", "centred", .digits = 3},
    {CONDITION, "dition", "con-", .digits = 1},
    {EFFECTIVE_RANK, "rank", "effective", .digits = 1},
    {0}};

static const cpl_shown clusters[] = {{SILHOUETTE, "rows", "mean of", .digits = 4},
                                     {SILHOUETTE_LEAST, "the least", "expert with", .digits = 4},
                                     {SILHOUETTE_MOST, "the most", "expert with", .digits = 4},
                                     {0}};

static const cpl_shown sampled[] = {
    {SAMPLE_OWN, "own", "kappa", .digits = 4, .spread = SAMPLE_OWN_ERROR},
    {SAMPLE_OTHERS, "others", "kappa", .digits = 4, .spread = SAMPLE_OTHERS_ERROR},
    {SAMPLE_CENTRED_OWN, "own", "kappa, centred", .digits = 4, .spread = SAMPLE_CENTRED_OWN_ERROR},
    {SAMPLE_CENTRED_OTHERS, "others", "kappa, centred", .digits = 4,
     .spread = SAMPLE_CENTRED_OTHERS_ERROR},
    {SAMPLE_NORM, "mean", "|W_g|", .digits = 3, .spread = SAMPLE_NORM_ERROR},
    {0}};

static const struct {
    const cpl_shown *shown;
    const char *title;
} tables[] = {
    [CPL_TABLE_SAMPLE] = {sampled, "Means from the rows that were read, +- their standard errors"},
    [CPL_TABLE_AGREEMENT] = {agreement, "Agreement, free of the scale of the weights"},
    [CPL_TABLE_CENTRED] =
        {agreement,
         "The same of the centred rows R_i - mean R: no change of the router that leaves "
         "softmax routing\nas it is changes these"},
    [CPL_TABLE_RAW] = {raw,
                       "Raw figures: ERC and norms depend on the scale of the weights, so they "
                       "cannot be compared\nbetween models; eps says how far router rows are "
                       "apart, and without coupling nothing more"},
    [CPL_TABLE_CLUSTERS] =
        {clusters,
         "Specialisation: silhouettes of the rows of W_g, the experts being the clusters, by "
         "cosine\ndistance; 1: rows of an expert point one way, 0: as near to another expert, "
         "below: nearer"},
};

/* Of several checkpoints, a row each. */
static const cpl_shown compared[] = {
    {KAPPA_OWN, "alignment with the own expert (kappa)", .digits = 4},
    {KAPPA_OTHERS, "alignment with other experts (kappa)", .digits = 4},
    {Z, "distance from random pairings (z)", .digits = 4},
    {ROWS_OWN, "router rows that excite their own expert most, %", .digits = 1},
    {COLUMNS_OWN, "experts that respond most to their own row, %", .digits = 1},
    {ASSIGNED, "pairs that the best assignment keeps, %", .digits = 1},
    {CENTRED_Z, "z, of centred rows", .digits = 4},
    {CENTRED_ROWS_OWN, "centred rows that excite their own most, %", .digits = 1},
    {CENTRED_COLUMNS_OWN, "experts, of centred rows, %", .digits = 1},
    {BY_CHANCE, "these shares by chance, %", .digits = 1},
    {ERC_RELATIVE, "ERC / mean diagonal", .digits = 4, .as_it_is = true},
    {RANDOM, "the same under random pairings", .digits = 4, .as_it_is = true},
    {VIOLATED, "pairs of experts that violate ERC at alpha 1, %", .digits = 1},
    {COSINE, "cosine of two router rows (mean)", .digits = 4},
    {LAMBDA, "lambda, own pairs", .digits = 4},
    {CENTRED_LAMBDA, "lambda, of centred rows", .digits = 4},
    {LAMBDA_RANDOM, "lambda of a row of any direction", .digits = 4},
    {SILHOUETTE, "silhouette of the rows of W_g", .digits = 4},
    {0}};

static const cpl_shown compared_samples[] = {
    {SAMPLE_OWN, "alignment with the own expert (kappa)", .digits = 4},
    {SAMPLE_OTHERS, "alignment with other experts (kappa)", .digits = 4},
    {SAMPLE_CENTRED_OWN, "the same of centred rows, own expert", .digits = 4},
    {SAMPLE_CENTRED_OTHERS, "the same of centred rows, other experts", .digits = 4},
    {COSINE, "cosine of two router rows (mean)", .digits = 4},
    {0}};

static bool is_requested(int column, const cpl_inspect_options *o)
{
    if (column == SILHOUETTE) return o->silhouette;
    if (column == SAMPLE_CENTRED_OWN || column == SAMPLE_CENTRED_OTHERS) return !o->noisy;
    if (o->sample > 0 && (column == ERC || column == VIOLATED || column == GATE_NORM)) return false;
    return o->lambda || (column != LAMBDA && column != CENTRED_LAMBDA && column != LAMBDA_RANDOM);
}

/* The same figure of the centred rows; 0: there is none. */
#define CENTRED(name) [name] = CENTRED_##name
static const int centred_of[N_COLUMNS] = {
    CENTRED(KAPPA_OWN),    CENTRED(KAPPA_OTHERS), CENTRED(ROWS_OWN),
    CENTRED(COLUMNS_OWN),  CENTRED(ASSIGNED),     CENTRED(Z),
    CENTRED(ERC_RELATIVE), CENTRED(RANDOM),       CENTRED(RATIO_50),
    CENTRED(RATIO_90),     CENTRED(RATIO_99),     CENTRED(ALPHA_MIN),
    CENTRED(VIOLATED),     CENTRED(LAMBDA)};
#undef CENTRED

/* Without what was not requested. centred: the figures of the centred rows, and none that is of the
 * gates' rows alone. */
static void choose(cpl_shown *out, const cpl_shown *from, const cpl_inspect_options *o,
                   bool centred)
{
    for (; from->heading; from++) {
        if (!is_requested(from->column, o) || (centred && from->column == SILHOUETTE)) continue;
        *out = *from;
        if (centred && centred_of[out->column]) out->column = centred_of[out->column];
        if (centred && out->spread) out->spread = centred_of[out->spread];
        out++;
    }
    *out = (cpl_shown){0};
}

enum { MOST_SHOWN = 24 };

/* ---- over the layers ---- */

static double mean_of(const cpl_coupling_report *r, int column)
{
    double sum    = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        if (!cpl_inspect_has_part(r, i, list[column].part)) continue;
        sum += value_of(r, i, column, 0);
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

/* ---- on the terminal ---- */

const char *cpl_coupling_layer_label(char out[48], const cpl_layer_report *layer)
{
    const char *part = layer->at->part;
    snprintf(out, 48, "%.20s%s%lld", part, *part ? " " : "", (long long)layer->at->layer);
    return out;
}

static bool has_row(const cpl_layer_report *l, cpl_inspect_table table)
{
    if (table == CPL_TABLE_CENTRED) return !l->fault && l->centred.has_M;
    if (table == CPL_TABLE_SAMPLE) return !l->fault && l->sample;
    return !l->fault && (l->has_M || table != CPL_TABLE_AGREEMENT);
}

cpl_status cpl_inspect_grid(cpl_grid *g, cpl_pool *pool, const cpl_coupling_report *r,
                            cpl_inspect_table table)
{
    const cpl_columns c = cpl_inspect_columns(r);
    cpl_shown shown[MOST_SHOWN];
    char label[48];
    int64_t n = 0;
    choose(shown, tables[table].shown, &r->options, table == CPL_TABLE_CENTRED);
    for (int64_t i = 0; i < r->n_layers; i++) n += has_row(&r->layers[i], table);
    CPL_TRY(cpl_columns_grid(g, pool, &c, shown, n));
    g->title  = tables[table].title;
    g->corner = "layer";
    n         = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        if (!has_row(&r->layers[i], table)) continue;
        cpl_coupling_layer_label(label, &r->layers[i]);
        cpl_columns_grid_row(g, pool, &c, shown, n++, cpl_pool_printf(pool, "%s", label), i);
    }
    return cpl_pool_status(pool);
}

cpl_status cpl_inspect_grid_compare(cpl_grid *g, cpl_pool *pool, const cpl_coupling_report *reports,
                                    int64_t count)
{
    cpl_shown shown[MOST_SHOWN];
    int64_t rows                 = 0;
    const cpl_inspect_options *o = &reports[0].options;
    choose(shown, o->sample > 0 ? compared_samples : compared, o, false);
    while (shown[rows].heading) rows++;
    CPL_TRY(cpl_grid_open(g, pool, rows, count));
    for (int64_t v = 0; v < count; v++) {
        g->columns[v] = cpl_pool_printf(pool, "(%lld)", (long long)v + 1);
        for (int64_t k = 0; k < rows; k++) {
            g->rows[k] = shown[k].heading;
            cpl_grid_set(g, k, v,
                         cpl_columns_plain(pool, &list[shown[k].column], &shown[k],
                                           mean_of(&reports[v], shown[k].column)));
        }
    }
    return cpl_pool_status(pool);
}
