/* columns.c - see show.h */
#include "inspect/routing/show.h"

#include <math.h>
#include <stdio.h>

#include "report/page.h"

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

static const cpl_shown load[] = {{LOAD_MAX, "max/mean", .digits = 2},
                                 {DEAD, "dead", .digits = 0},
                                 {LOAD_ENTROPY, "load entropy", .digits = 3},
                                 {ROUTER_ENTROPY, "router entropy", .digits = 3},
                                 {DISTANCE, "domains", .digits = 3},
                                 {HALVES, "halves", .digits = 3},
                                 {0}};

static const cpl_shown agreement[] = {{RHO, "rank correlation", .digits = 3},
                                      {RHO_SD, "sd", .digits = 2},
                                      {TOP1, "top-1 %", .digits = 1},
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
                                     {OFF_R, "r", .digits = 2},
                                     {OFF_RHO, "rho", .digits = 2},
                                     {OFF_ROWS_R, "r, rows", .digits = 2},
                                     {OFF_ROWS_RHO, "rho, rows", .digits = 2},
                                     {CENTRED_OFF_R, "r, centred", .digits = 2},
                                     {0}};

static const cpl_shown erc[] = {{ERC_RELATIVE, "a = ", .digits = 4, .alphas = CPL_EACH_ALPHA}, {0}};

static const cpl_shown vocabulary[] = {{READ_IDS, "read: ids", .digits = 0},
                                       {READ_MEAN, "mean", .digits = 3, .as_it_is = true},
                                       {READ_DEALT, "shuffled", .digits = 3, .as_it_is = true},
                                       {NEXT_IDS, "next: ids", .digits = 0},
                                       {NEXT_MEAN, "mean", .digits = 3, .as_it_is = true},
                                       {NEXT_DEALT, "shuffled", .digits = 3, .as_it_is = true},
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
               "diagonal";
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

/* ---- in the page ---- */

static const cpl_shown page_load[] = {
    {LOAD_MAX, "max / mean", .digits = 3},
    {DEAD, "dead", .digits = 0},
    {LOAD_ENTROPY, "load entropy", .digits = 3},
    {ROUTER_ENTROPY, "router entropy", .digits = 3},
    {CPL_COLUMN_WORDS, "most frequent pairs", .alphas = CPL_NO_ALPHA},
    {0}};

static const cpl_shown page_agreement[] = {{RHO, "rank correlation", .digits = 3},
                                           {RHO_SD, "± sd", .digits = 2},
                                           {TOP1, "first choice", .digits = 3},
                                           {OVERLAP, "top K", .digits = 3},
                                           {KEPT, "experts", .digits = 0},
                                           {ROWS_OWN, "rows own", .digits = 3},
                                           {COLUMNS_OWN, "columns own", .digits = 3},
                                           {ALPHA_MIN, "α_min", .digits = 3},
                                           {OFF_R, "r", .digits = 2},
                                           {OFF_RHO, "rho", .digits = 2},
                                           {OFF_ROWS_R, "r, rows", .digits = 2},
                                           {OFF_ROWS_RHO, "rho, rows", .digits = 2},
                                           {0}};

static const cpl_shown page_signs[] = {{SIGN_NEGATIVE, "scores < 0", .digits = 3},
                                       {CENTRED_SIGN_NEGATIVE, "centred < 0", .digits = 3},
                                       {CENTRED_SIGN_TOKENS_ABOVE, "> 0", .digits = 3},
                                       {CENTRED_SIGN_TOKENS_BELOW, "< 0", .digits = 3},
                                       {CENTRED_SIGN_TOKENS_SIZE, "|score|", .digits = 3},
                                       {CENTRED_SIGN_IDS_ABOVE, "within an id > 0", .digits = 3},
                                       {CENTRED_SIGN_IDS_BELOW, "< 0", .digits = 3},
                                       {CENTRED_SIGN_EXPERTS_ALL, "over tokens", .digits = 3},
                                       {CENTRED_SIGN_EXPERTS_ABOVE, "> 0", .digits = 3},
                                       {CENTRED_SIGN_EXPERTS_BELOW, "< 0", .digits = 3},
                                       {0}};

static const cpl_shown page_vocabulary[] = {{READ_IDS, "ids read", .digits = 0},
                                            {READ_MEAN, "share", .digits = 3},
                                            {READ_DEALT, "dealt", .digits = 3},
                                            {CPL_COLUMN_WORDS, "examples", .alphas = CPL_NO_ALPHA},
                                            {NEXT_IDS, "next ids", .digits = 0},
                                            {NEXT_MEAN, "share", .digits = 3},
                                            {NEXT_DEALT, "dealt", .digits = 3},
                                            {CPL_COLUMN_WORDS, "examples", .alphas = CPL_NO_ALPHA},
                                            {0}};

/* Tokens that go to both experts, and how many times what independence gives. */
static void pairs_cell(cpl_text *out, const cpl_routing_report *r, const cpl_routing_layer *l)
{
    char pairs[200] = "–";
    int length      = 0;
    for (int k = 0; k < l->n_pairs && k < 3; k++)
        length +=
            snprintf(pairs + length, sizeof pairs - (size_t)length, "%s%lld + %lld: %.3g %% (%.2g)",
                     k ? ", " : "", (long long)l->pairs[k].i, (long long)l->pairs[k].j,
                     100 * (double)l->pairs[k].tokens / (double)r->texts.n_predictions,
                     (double)l->pairs[k].tokens / l->pairs[k].expected);
    cpl_page_cell(out, pairs);
}

static void examples_cell(cpl_text *out, const cpl_routing_vocabulary *v)
{
    cpl_text words = {0};
    for (int i = 0; i < v->n_examples && i < 2; i++) {
        const cpl_routing_example *x = &v->example[i];
        cpl_text_printf(&words, "%s“", i ? ", " : "");
        for (const char *c = x->text ? x->text : ""; *c; c++)
            if (*c == '\n')
                cpl_text_printf(&words, "\\n");
            else if (*c == '\t')
                cpl_text_printf(&words, "\\t");
            else
                cpl_text_char(&words, *c);
        cpl_text_printf(&words, "” → %d (%.3g %%)", x->expert, 100 * x->share);
    }
    out->failed = out->failed || words.failed;
    cpl_page_cell(out, words.bytes ? words.bytes : "–");
    cpl_text_free(&words);
}

static const struct {
    const char *caption;
    const cpl_shown *shown;
} in_page[] = {
    [CPL_ROUTING_LOAD]      = {"Entropies in nats. Pairs: tokens that go to both experts, and how "
                                    "many times what independence gives.",
                               page_load},
    [CPL_ROUTING_AGREEMENT] = {"Own and α_min are of M_tok, among experts with 8 sampled "
                               "tokens or more; r and rho compare it with M off the diagonal.",
                               page_agreement},
    [CPL_ROUTING_SIGNS]     = {"Rank correlation of centred scores with responses, of scores above "
                                   "and below 0 apart: over a token's experts, the same within "
                                   "tokens of one id, and over an expert's tokens.",
                               page_signs},
    [CPL_ROUTING_VOCABULARY] = {"Ids that occur 8 times or more, as they are read and as they come "
                                "next.",
                                page_vocabulary},
};

void cpl_routing_page_layers(cpl_text *out, const cpl_routing_report *r, cpl_routing_table table)
{
    const cpl_columns c = cpl_routing_columns(r);
    cpl_columns_page_open(out, in_page[table].caption, "layer", &c, in_page[table].shown);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        cpl_page_row_open(out, name);
        const cpl_shown *words = cpl_columns_page_cells(out, &c, in_page[table].shown, i);
        if (table == CPL_ROUTING_LOAD) pairs_cell(out, r, l);
        if (table == CPL_ROUTING_VOCABULARY) {
            examples_cell(out, &l->input);
            cpl_columns_page_cells(out, &c, words + 1, i);
            examples_cell(out, &l->next);
        }
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}
