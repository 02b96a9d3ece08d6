/* columns.c - see show.h */
#include "inspect/show/show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the figures ---- */

enum {
#define CPL_COLUMN(name, ...) name,
#include "inspect/show/columns.def"
    N_COLUMNS
};

/* Parts of columns.def. The parts of the routing report come last. */
enum {
    SHAPE,
    LATENT,
    COUPLING,
    CENTRED,
    CENTRED_ROWS,
    ROUTER,
    GATES,
    SPECTRAL,
    CENTRED_SPECTRAL,
    NOISE,
    CLUSTERS,
    SAMPLE,
    SAMPLE_M,
    SAMPLE_CENTRED,
    TEXT,
    TEXT_ROWS,
    MEAN_TOKEN,
    NULLS,
    N_PARTS
};

static const cpl_column list[N_COLUMNS] = {
#define CPL_COLUMN(name, key, part, kind, value) [name] = {key, part, CPL_COLUMN_##kind},
#include "inspect/show/columns.def"
};

/* Returns the least of sign times the experts' silhouettes. */
static double least_silhouette(const cpl_layer_report *l, double sign)
{
    double least = NAN;
    for (int64_t j = 0; l->silhouettes && j < l->at->n; j++)
        least = fmin(least, sign * l->silhouettes[j]);
    return least;
}

/* Returns whether the layer has the part. `report` is that of the weights or of the routing. */
static bool has_part(const void *report, int64_t layer, int part)
{
    if (part >= TEXT) return part == TEXT || ((const cpl_routing_report *)report)->layers[layer].M;
    const cpl_coupling_report *r = report;
    const cpl_layer_report *l    = &r->layers[layer];
    const cpl_inspect_options *o = &r->options;
    const bool has[]             = {
                    [SHAPE]            = true,
                    [LATENT]           = l->at->projection.weight != NULL,
                    [COUPLING]         = l->has_M,
                    [CENTRED]          = l->centred.has_M,
                    [CENTRED_ROWS]     = l->centred.has_rows,
                    [ROUTER]           = true,
                    [GATES]            = !l->sample || l->sample->plan.whole,
                    [SPECTRAL]         = o->lambda && l->has_M,
                    [CENTRED_SPECTRAL] = o->lambda && l->centred.has_M,
                    [NOISE]            = o->noisy,
                    [CLUSTERS]         = l->silhouettes != NULL,
                    [SAMPLE]           = l->sample != NULL,
                    [SAMPLE_M]         = l->sample && l->sample->has_M,
                    [SAMPLE_CENTRED]   = l->sample && l->sample->has_centred,
    };
    return !l->fault && has[part];
}

static double value_of(const void *report, int64_t layer, int column, int a)
{
    const bool routed              = list[column].part >= TEXT;
    const cpl_routing_report *text = report;
    const cpl_layer_report *l =
        routed ? NULL : &((const cpl_coupling_report *)report)->layers[layer];
    const cpl_routing_layer *t = routed ? &text->layers[layer] : NULL;
    const double n             = routed ? (double)text->n_experts : 0;
    if (!has_part(report, layer, list[column].part)) return NAN;
    switch (column) {
#define CPL_COLUMN(name, key, part, kind, value)                                                   \
    case name:                                                                                     \
        return value;
#include "inspect/show/columns.def"
    }
    return NAN;
}

/* Returns the columns of a report of the weights or of the routing, which has these alphas. */
static cpl_columns columns_of(const void *report, const double *alphas, int n_alphas)
{
    return (cpl_columns){list, N_COLUMNS, value_of, report, alphas, n_alphas};
}

static cpl_columns weights_columns(const cpl_coupling_report *r)
{
    return columns_of(r, r->options.alphas, r->options.n_alphas);
}

static cpl_columns text_columns(const cpl_routing_report *r)
{
    return columns_of(r, r->options.alphas, r->options.n_alphas);
}

/* ---- members of the JSON ---- */

static void put_columns(bool *failed, json_t *object, const cpl_columns *c, int64_t layer,
                        int first, int end)
{
    for (int part = first; part < end; part++)
        if (has_part(c->ctx, layer, part)) cpl_columns_json(failed, object, c, part, layer);
}

void cpl_coupling_columns_json(bool *failed, json_t *object, const cpl_coupling_report *r,
                               int64_t layer)
{
    const cpl_columns c = weights_columns(r);
    put_columns(failed, object, &c, layer, 0, TEXT);
}

void cpl_routing_columns_json(bool *failed, json_t *object, const cpl_routing_report *r,
                              int64_t layer)
{
    const cpl_columns c = text_columns(r);
    put_columns(failed, object, &c, layer, TEXT, N_PARTS);
}

/* Returns the mean over the layers that have a value, for cpl_columns. */
static double mean_value(const void *report, int64_t row, int column, int a)
{
    const cpl_routing_report *r = report;
    double sum = 0, count = 0;
    for (row = 0; row < r->n_layers; row++) {
        const double value = value_of(report, row, column, a);
        if (!isfinite(value)) continue;
        sum += value;
        count++;
    }
    return sum / count;
}

void cpl_routing_means_json(bool *failed, json_t *object, const cpl_routing_report *r)
{
    cpl_columns c = text_columns(r);
    c.value       = mean_value;
    if (has_part(r, 0, MEAN_TOKEN)) cpl_columns_json(failed, object, &c, MEAN_TOKEN, 0);
}

/* ---- the tables of the weights ---- */

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
    {SAMPLE_OWN, "own", "kappa", .digits = 4, .spread = SAMPLE_OWN_ERROR, .spread_digits = 2},
    {SAMPLE_OTHERS, "others", "kappa", .digits = 4, .spread = SAMPLE_OTHERS_ERROR,
     .spread_digits = 2},
    {SAMPLE_CENTRED_OWN, "own", "kappa, centred", .digits = 4, .spread = SAMPLE_CENTRED_OWN_ERROR,
     .spread_digits = 2},
    {SAMPLE_CENTRED_OTHERS, "others", "kappa, centred", .digits = 4,
     .spread = SAMPLE_CENTRED_OTHERS_ERROR, .spread_digits = 2},
    {SAMPLE_NORM, "mean", "|W_g|", .digits = 3, .spread = SAMPLE_NORM_ERROR, .spread_digits = 2},
    {0}};

/* Rows of the table that compares several checkpoints. */
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

/* ---- the tables of a text ---- */

static const cpl_shown load[] = {{TEXT_LOAD_MAX, "max/mean", .digits = 2},
                                 {TEXT_DEAD, "dead", .digits = 0},
                                 {TEXT_LOAD_ENTROPY, "load entropy", .digits = 3},
                                 {TEXT_ROUTER_ENTROPY, "router entropy", .digits = 3},
                                 {TEXT_DISTANCE, "domains", .digits = 3},
                                 {0}};

static const cpl_shown choices[] = {{TEXT_RHO, "rank correlation", .digits = 3},
                                    {TEXT_RHO_SD, "sd", .digits = 2},
                                    {TEXT_TOP1, "first choice %", .digits = 1},
                                    {TEXT_TOP1_CHANCE, "chance", .digits = 1},
                                    {TEXT_OVERLAP, "overlap %", .digits = 1},
                                    {TEXT_OVERLAP_CHANCE, "chance", .digits = 1},
                                    {0}};

static const cpl_shown signs[] = {
    {TEXT_SIGN_NEGATIVE, "of scores", "% below 0", .digits = 1},
    {TEXT_CENTRED_SIGN_NEGATIVE, "centred", "% below 0", .digits = 1},
    {TEXT_CENTRED_SIGN_TOKENS_ABOVE, "above", "rho over experts", .digits = 3},
    {TEXT_CENTRED_SIGN_TOKENS_BELOW, "below", "rho over experts", .digits = 3},
    {TEXT_CENTRED_SIGN_TOKENS_SIZE, "|score|", "rho over experts", .digits = 3},
    {TEXT_CENTRED_SIGN_IDS_ABOVE, "above", "within an id", .digits = 3},
    {TEXT_CENTRED_SIGN_IDS_BELOW, "below", "within an id", .digits = 3},
    {TEXT_CENTRED_SIGN_EXPERTS_ALL, "all", "rho over tokens", .digits = 3},
    {TEXT_CENTRED_SIGN_EXPERTS_ABOVE, "above", "rho over tokens", .digits = 3},
    {TEXT_CENTRED_SIGN_EXPERTS_BELOW, "below", "rho over tokens", .digits = 3},
    {0}};

static const cpl_shown mean_token[] = {{TEXT_RHO, "agreement", .digits = 3},
                                       {TEXT_CENTRED, "centred", .digits = 3},
                                       {TEXT_MU_OFF, "x - mu", .digits = 3},
                                       {TEXT_DZ, "dz", .digits = 2},
                                       {TEXT_MU_NEGATIVE, "% R . mu < 0", .digits = 1},
                                       {0}};

static const cpl_shown likeness[] = {{TEXT_KEPT, "experts", .digits = 0},
                                     {TEXT_ROWS_OWN, "rows own %", .digits = 1},
                                     {TEXT_COLUMNS_OWN, "columns", .digits = 1},
                                     {TEXT_ALPHA_MIN, "alpha_min", .digits = 3},
                                     {TEXT_OFF_ROWS_R, "r", .digits = 2},
                                     {TEXT_OFF_ROWS_RHO, "rho", .digits = 2},
                                     {TEXT_CENTRED_OFF_ROWS_R, "r, centred", .digits = 2},
                                     {0}};

static const cpl_shown text_erc[] = {
    {TEXT_ERC_RELATIVE, "a = ", .digits = 4, .alphas = CPL_EACH_ALPHA}, {0}};

static const cpl_shown vocabulary[] = {{TEXT_READ_IDS, "ids", .digits = 0},
                                       {TEXT_READ_MEAN, "mean", .digits = 3, .as_it_is = true},
                                       {TEXT_READ_DEALT, "shuffled", .digits = 3, .as_it_is = true},
                                       {0}};

/* ---- all tables ---- */

/* Rows of a table are the layers that have the part. */
static const struct {
    const cpl_shown *shown;
    int part;
} tables[] = {[CPL_TABLE_AGREEMENT]  = {agreement, COUPLING},
              [CPL_TABLE_CENTRED]    = {agreement, CENTRED},
              [CPL_TABLE_RAW]        = {raw, ROUTER},
              [CPL_TABLE_CLUSTERS]   = {clusters, CLUSTERS},
              [CPL_TABLE_SAMPLE]     = {sampled, SAMPLE},
              [CPL_TABLE_LOAD]       = {load, TEXT},
              [CPL_TABLE_CHOICES]    = {choices, TEXT},
              [CPL_TABLE_SIGNS]      = {signs, TEXT_ROWS},
              [CPL_TABLE_MEAN_TOKEN] = {mean_token, MEAN_TOKEN},
              [CPL_TABLE_LIKENESS]   = {likeness, TEXT},
              [CPL_TABLE_TEXT_ERC]   = {text_erc, TEXT},
              [CPL_TABLE_VOCABULARY] = {vocabulary, TEXT}};

static const char *const titles[] = {
    [CPL_TABLE_AGREEMENT] = "Agreement, free of the scale of the weights",
    [CPL_TABLE_CENTRED] =
        "Agreement of the centred rows R_i - mean R: adding a vector to all router rows, which\n"
        "softmax routing ignores, does not change it",
    [CPL_TABLE_RAW] =
        "Raw figures: ERC and norms depend on the scale of the weights, so they cannot be "
        "compared\n"
        "between models; eps says how far router rows are apart, and without coupling nothing more",
    [CPL_TABLE_CLUSTERS] =
        "Specialisation: silhouettes of the rows of W_g, the experts being the clusters, by "
        "cosine\n"
        "distance; 1: rows of an expert point one way, 0: as near to another expert, below: nearer",
    [CPL_TABLE_SAMPLE] = "Means from the rows that were read, +- their standard errors",
    [CPL_TABLE_LOAD] =
        "Load of the experts (entropies in nats, at most ln n; distance between domains, 0 to 1)",
    [CPL_TABLE_CHOICES] = "The router's choice and the experts' responses |x W_g|",
    [CPL_TABLE_SIGNS] =
        "Sign: rank correlation of centred scores and responses, of scores above and below 0 apart",
    [CPL_TABLE_MEAN_TOKEN] =
        "Agreement without the experts' main effects (centred), and without the mean token mu; dz: "
        "own\n"
        "entries of M_tok less row and column means, in standard deviations of the others",
    [CPL_TABLE_LIKENESS] =
        "Is R_i like the tokens routed to it? M_tok, and its correlation with M off the diagonal, "
        "rows over their means",
    [CPL_TABLE_TEXT_ERC] = "ERC of M_tok over its mean diagonal",
    [CPL_TABLE_VOCABULARY] =
        "Vocabulary: the largest share of one expert in the occurrences of an id",
};

/* Maps a figure to the same figure of the centred rows, or to 0 if that is not measured. */
#define OF_CENTRED(name) [name] = CENTRED_##name
static const int centred_of[N_COLUMNS] = {
    OF_CENTRED(KAPPA_OWN),    OF_CENTRED(KAPPA_OTHERS), OF_CENTRED(ROWS_OWN),
    OF_CENTRED(COLUMNS_OWN),  OF_CENTRED(ASSIGNED),     OF_CENTRED(Z),
    OF_CENTRED(ERC_RELATIVE), OF_CENTRED(RANDOM),       OF_CENTRED(RATIO_50),
    OF_CENTRED(RATIO_90),     OF_CENTRED(RATIO_99),     OF_CENTRED(ALPHA_MIN),
    OF_CENTRED(VIOLATED),     OF_CENTRED(LAMBDA)};
#undef OF_CENTRED

/* Returns the mean over the layers that have the figure, at the first alpha, or NaN. */
static double mean_of(const cpl_columns *c, int64_t n_layers, int column)
{
    double sum    = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n_layers; i++) {
        if (!has_part(c->ctx, i, list[column].part)) continue;
        sum += value_of(c->ctx, i, column, 0);
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

/* Returns whether a layer of the report has the part. */
static bool is_there(const void *report, int64_t n_layers, int part)
{
    bool there = false;
    for (int64_t i = 0; i < n_layers; i++) there = there || has_part(report, i, part);
    return there;
}

/* Leaves out the columns whose part no layer has. With `centred` the columns are figures of the
 * centred rows. */
static void choose_columns(cpl_shown *out, const cpl_shown *from, const void *report,
                           int64_t n_layers, bool centred)
{
    for (; from->heading; from++) {
        *out = *from;
        if (centred && centred_of[out->column]) out->column = centred_of[out->column];
        out += is_there(report, n_layers, list[out->column].part);
    }
    *out = (cpl_shown){0};
}

enum { MOST_SHOWN = 24 };

const char *cpl_coupling_layer_label(char out[48], const cpl_layer_report *layer)
{
    const char *part = layer->at->part;
    snprintf(out, 48, "%.20s%s%lld", part, *part ? " " : "", (long long)layer->at->layer);
    return out;
}

/* Makes a table. `weights` is the report that names the layers, or NULL for a text, whose layers
 * have numbers. */
static cpl_status make_grid(cpl_grid *g, cpl_pool *pool, const cpl_columns *c,
                            cpl_inspect_table table, int64_t n_layers,
                            const cpl_coupling_report *weights)
{
    cpl_shown shown[MOST_SHOWN];
    char label[48];
    int64_t n = 0;
    choose_columns(shown, tables[table].shown, c->ctx, n_layers, table == CPL_TABLE_CENTRED);
    for (int64_t i = 0; i < n_layers; i++) n += has_part(c->ctx, i, tables[table].part);
    CPL_TRY(cpl_columns_grid(g, pool, c, shown, n));
    g->title  = titles[table];
    g->corner = "layer";
    n         = 0;
    for (int64_t i = 0; i < n_layers; i++) {
        if (!has_part(c->ctx, i, tables[table].part)) continue;
        snprintf(label, sizeof label, "%lld", (long long)i);
        if (weights) cpl_coupling_layer_label(label, &weights->layers[i]);
        cpl_columns_grid_row(g, pool, c, shown, n++, cpl_pool_printf(pool, "%s", label), i);
    }
    return cpl_pool_status(pool);
}

cpl_status cpl_inspect_grid(cpl_grid *g, cpl_pool *pool, const cpl_coupling_report *r,
                            cpl_inspect_table table)
{
    const cpl_columns c = weights_columns(r);
    return make_grid(g, pool, &c, table, r->n_layers, r);
}

cpl_status cpl_routing_grid(cpl_grid *g, cpl_pool *pool, const cpl_routing_report *r,
                            cpl_inspect_table table)
{
    const cpl_columns c = text_columns(r);
    return make_grid(g, pool, &c, table, r->n_layers, NULL);
}

cpl_status cpl_inspect_grid_compare(cpl_grid *g, cpl_pool *pool, const cpl_coupling_report *reports,
                                    int64_t count)
{
    cpl_shown shown[MOST_SHOWN];
    const bool part = reports[0].options.sample > 0;
    int64_t rows    = 0;
    for (const cpl_shown *from = part ? compared_samples : compared; from->heading; from++) {
        bool there = false;
        for (int64_t v = 0; v < count; v++)
            there = there || is_there(&reports[v], reports[v].n_layers, list[from->column].part);
        if (there) shown[rows++] = *from;
    }
    CPL_TRY(cpl_grid_open(g, pool, rows, count));
    for (int64_t v = 0; v < count; v++) {
        const cpl_columns c = weights_columns(&reports[v]);
        g->columns[v]       = cpl_pool_printf(pool, "(%lld)", (long long)v + 1);
        for (int64_t k = 0; k < rows; k++) {
            const double mean = mean_of(&c, reports[v].n_layers, shown[k].column);
            g->rows[k]        = shown[k].heading;
            cpl_grid_set(g, k, v, cpl_columns_plain(pool, &list[shown[k].column], &shown[k], mean));
        }
    }
    return cpl_pool_status(pool);
}
