/* columns.c - see show.h */
#include "inspect/routing/show.h"

#include <math.h>
#include <stdio.h>

/* ---- the figures ---- */

enum {
#define CPL_COLUMN(name, ...) name,
#include "inspect/routing/columns.def"
    N_COLUMNS
};

static const cpl_column list[N_COLUMNS] = {
#define CPL_COLUMN(name, key, part, kind, value) [name] = {key, CPL_PART_##part, CPL_COLUMN_##kind},
#include "inspect/routing/columns.def"
};

static double value_of(const void *report, int64_t layer, int column, int a)
{
    const cpl_routing_report *r = report;
    const cpl_routing_layer *l  = &r->layers[layer];
    const double n              = (double)r->n_experts;
    switch (column) {
#define CPL_COLUMN(name, key, part, kind, value)                                                   \
    case name:                                                                                     \
        return value;
#include "inspect/routing/columns.def"
    }
    return NAN;
}

cpl_columns cpl_routing_columns(const cpl_routing_report *r)
{
    return (cpl_columns){.list     = list,
                         .n        = N_COLUMNS,
                         .value    = value_of,
                         .ctx      = r,
                         .alphas   = r->options.alphas,
                         .n_alphas = r->options.n_alphas};
}

/* ---- on the terminal ---- */

static const cpl_shown load[] = {
    {LOAD_MAX, "max/mean", .digits = 2},         {DEAD, "dead", .digits = 0},
    {LOAD_ENTROPY, "load entropy", .digits = 3}, {ROUTER_ENTROPY, "router entropy", .digits = 3},
    {DISTANCE, "domains", .digits = 3},          {0}};

static const cpl_shown agreement[] = {{RHO, "rank correlation", .digits = 3},
                                      {RHO_SD, "sd", .digits = 2},
                                      {TOP1, "first choice %", .digits = 1},
                                      {TOP1_CHANCE, "chance", .digits = 1},
                                      {OVERLAP, "overlap %", .digits = 1},
                                      {OVERLAP_CHANCE, "chance", .digits = 1},
                                      {0}};

static const cpl_shown signs[] = {
    {SIGN_NEGATIVE, "of scores", "% below 0", .digits = 1},
    {CENTRED_SIGN_NEGATIVE, "centred", "% below 0", .digits = 1},
    {CENTRED_SIGN_TOKENS_ABOVE, "above", "rho over experts", .digits = 3},
    {CENTRED_SIGN_TOKENS_BELOW, "below", "rho over experts", .digits = 3},
    {CENTRED_SIGN_TOKENS_SIZE, "|score|", "rho over experts", .digits = 3},
    {CENTRED_SIGN_IDS_ABOVE, "above", "within an id", .digits = 3},
    {CENTRED_SIGN_IDS_BELOW, "below", "within an id", .digits = 3},
    {CENTRED_SIGN_EXPERTS_ALL, "all", "rho over tokens", .digits = 3},
    {CENTRED_SIGN_EXPERTS_ABOVE, "above", "rho over tokens", .digits = 3},
    {CENTRED_SIGN_EXPERTS_BELOW, "below", "rho over tokens", .digits = 3},
    {0}};

static const cpl_shown likeness[] = {{KEPT, "experts", .digits = 0},
                                     {ROWS_OWN, "rows own %", .digits = 1},
                                     {COLUMNS_OWN, "columns", .digits = 1},
                                     {ALPHA_MIN, "alpha_min", .digits = 3},
                                     {OFF_ROWS_R, "r", .digits = 2},
                                     {OFF_ROWS_RHO, "rho", .digits = 2},
                                     {CENTRED_OFF_ROWS_R, "r, centred", .digits = 2},
                                     {0}};

static const cpl_shown erc[] = {{ERC_RELATIVE, "a = ", .digits = 4, .alphas = CPL_EACH_ALPHA}, {0}};

static const cpl_shown vocabulary[] = {{READ_IDS, "ids", .digits = 0},
                                       {READ_MEAN, "mean", .digits = 3, .as_it_is = true},
                                       {READ_DEALT, "shuffled", .digits = 3, .as_it_is = true},
                                       {0}};

static const char *title_of(cpl_pool *pool, const cpl_routing_report *r, cpl_routing_table table)
{
    switch (table) {
    case CPL_ROUTING_LOAD:
        return cpl_pool_printf(pool,
                               "Load of %lld experts, %lld per token (entropies in nats, at most "
                               "%.3f; distance between domains, 0 to 1)",
                               (long long)r->n_experts, (long long)r->top_k,
                               log((double)r->n_experts));
    case CPL_ROUTING_AGREEMENT:
        return cpl_pool_printf(
            pool, "The router's choice and the experts' responses |x W_g|, %lld tokens",
            (long long)r->n_sampled);
    case CPL_ROUTING_SIGNS:
        return "Sign: rank correlation of centred scores and responses, of scores above and below "
               "0 apart";
    case CPL_ROUTING_LIKENESS:
        return "Is R_i like the tokens routed to it? M_tok, and its correlation with M off the "
               "diagonal, rows over their means";
    case CPL_ROUTING_ERC:
        return "ERC of M_tok over its mean diagonal";
    default:
        return "Vocabulary: the largest share of one expert in the occurrences of an id";
    }
}

cpl_status cpl_routing_grid(cpl_grid *g, cpl_pool *pool, const cpl_routing_report *r,
                            cpl_routing_table table)
{
    static const cpl_shown *const tables[] = {
        [CPL_ROUTING_LOAD] = load,   [CPL_ROUTING_AGREEMENT] = agreement,
        [CPL_ROUTING_SIGNS] = signs, [CPL_ROUTING_LIKENESS] = likeness,
        [CPL_ROUTING_ERC] = erc,     [CPL_ROUTING_VOCABULARY] = vocabulary};
    const cpl_columns c = cpl_routing_columns(r);
    CPL_TRY(cpl_columns_grid(g, pool, &c, tables[table], r->n_layers));
    g->title  = title_of(pool, r, table);
    g->corner = "layer";
    for (int64_t i = 0; i < r->n_layers; i++)
        cpl_columns_grid_row(g, pool, &c, tables[table], i,
                             cpl_pool_printf(pool, "%lld", (long long)i), i);
    return cpl_pool_status(pool);
}
