/* charts.c - see show.h: lines over layers; a line a layer over something else; matrices. */
#include "inspect/routing/show.h"

#include <math.h>
#include <stdio.h>

#include "base/arena.h"

enum {
#define CPL_COLUMN(name, ...) name,
#include "inspect/routing/columns.def"
    N_COLUMNS
};

enum {
    OF_LOAD,
    OF_ENTROPY,
    OF_RANKS,
    OF_OVERLAP,
    OF_LIKENESS,
    OF_ERC,
    OF_SIGNS,
    OF_SIGNS_IDS,
    OF_SIGNS_EXPERTS,
    OF_NEGATIVE,
    OF_DOMAINS,
    OF_IDS,
    OF_STEPS,
    KINDS
};

static const cpl_chart_spec specs[KINDS] = {
    [OF_LOAD]     = {.id        = "routing-load",
                     .section   = "load",
                     .title     = "Load of the experts",
                     .y_label   = "load / mean",
                     .caption   = "Tokens of each expert of a layer over the mean; 1 is an even load.",
                     .from_zero = true},
    [OF_ENTROPY]  = {.id      = "routing-entropy",
                     .section = "load",
                     .title   = "Entropy of load and router",
                     .caption = "Of the experts' shares of the load, and of the router's "
                                 "distribution for a token, mean over tokens; 1 is even.",
                     .share   = true,
                     .n_lines = 2,
                     .lines   = {{LOAD_EVENNESS, "load", 0, false},
                                 {ROUTER_EVENNESS, "router", 1, false}}},
    [OF_RANKS]    = {.id      = "routing-ranks",
                     .section = "agreement",
                     .title   = "Router scores and experts' responses",
                     .caption =
                         "Spearman's rank correlation between the router's scores and the responses "
                            "|x W_g| for one token, mean and standard deviation over tokens; chance "
                            "is 0.",
                     .from_zero = true,
                     .n_lines   = 1,
                     .lines     = {{RHO, "rank correlation", 0, false}},
                     .band      = "± standard deviation",
                     .low       = RHO_LOW,
                     .high      = RHO_HIGH,
                     .has_rule  = true},
    [OF_OVERLAP]  = {.id      = "routing-agreement",
                     .section = "agreement",
                     .title   = "Agreement of choices and responses",
                     .caption =
                         "Tokens whose first choice is the expert with the largest response, and "
                          "the share of the K chosen among the K with the largest.",
                     .share   = true,
                     .n_lines = 4,
                     .lines   = {{TOP1, "first choice", 0, false},
                                 {OVERLAP, "top K", 1, false},
                                 {TOP1_CHANCE, "chance 1/n", 0, true},
                                 {OVERLAP_CHANCE, "chance K/n", 1, true}}},
    [OF_LIKENESS] = {.id      = "routing-likeness",
                     .section = "agreement",
                     .title   = "Responses to tokens and to R",
                     .caption = "Correlation of M_tok with M off the diagonal: of the values, and "
                                "of their ranks; with every row over its mean.",
                     .from_zero = true,
                     .n_lines   = 4,
                     .lines     = {{OFF_R, "r", 0, true},
                                   {OFF_RHO, "rho", 1, true},
                                   {OFF_ROWS_R, "r, rows", 0, false},
                                   {OFF_ROWS_RHO, "rho, rows", 1, false}},
                     .has_rule  = true},
    [OF_ERC]      = {.id        = "routing-erc",
                     .section   = "agreement",
                     .title     = "ERC of M_tok over alpha",
                     .y_label   = "ERC / mean diagonal",
                     .caption   = "The coupling loss with M_tok in place of M, over its mean diagonal.",
                     .from_zero = true},
    [OF_SIGNS] =
        {.id      = "routing-signs",
         .section = "signs",
         .title   = "Scores of either sign, over a token's experts",
         .y_label = "rank correlation",
         .caption =
             "Rank correlation of the scores of centred rows with the responses, mean over tokens. "
             "Below 0 among scores below 0: experts respond to the size of the score.",
         .from_zero = true,
         .n_lines   = 3,
         .lines     = {{CENTRED_SIGN_TOKENS_ABOVE, "scores above 0", 0, false},
                       {CENTRED_SIGN_TOKENS_BELOW, "below 0", 1, false},
                       {CENTRED_SIGN_TOKENS_ALL, "all", -1, true}},
         .has_rule  = true},
    [OF_SIGNS_IDS]     = {.id        = "routing-signs-ids",
                          .section   = "signs",
                          .title     = "The same within tokens of one id",
                          .y_label   = "rank correlation",
                          .caption   = "After the mean over the tokens of one id was taken from scores "
                                           "and responses: what is "
                                           "left is not a matter of the id alone.",
                          .from_zero = true,
                          .n_lines   = 3,
                          .lines     = {{CENTRED_SIGN_IDS_ABOVE, "scores above 0", 0, false},
                                        {CENTRED_SIGN_IDS_BELOW, "below 0", 1, false},
                                        {CENTRED_SIGN_IDS_ALL, "all", -1, true}},
                          .has_rule  = true},
    [OF_SIGNS_EXPERTS] = {.id      = "routing-signs-experts",
                          .section = "signs",
                          .title   = "Scores of either sign, over an expert's tokens",
                          .y_label = "rank correlation",
                          .caption = "Rank correlation over the tokens for each expert, mean over "
                                     "experts: whether an expert "
                                     "responds more to the tokens that its row scores higher.",
                          .from_zero = true,
                          .n_lines   = 3,
                          .lines     = {{CENTRED_SIGN_EXPERTS_ABOVE, "scores above 0", 0, false},
                                        {CENTRED_SIGN_EXPERTS_BELOW, "below 0", 1, false},
                                        {CENTRED_SIGN_EXPERTS_ALL, "all", -1, true}},
                          .has_rule  = true},
    [OF_NEGATIVE] =
        {.id      = "routing-negative",
         .section = "signs",
         .title   = "Share of negative scores",
         .caption =
             "Of all scores of the sampled tokens, and of those of the centred rows. The larger it "
             "is, the more the line below 0 of the charts above weighs.",
         .share   = true,
         .n_lines = 2,
         .lines   = {{SIGN_NEGATIVE, "rows as stored", 0, false},
                     {CENTRED_SIGN_NEGATIVE, "centred rows", 1, false}}},
    [OF_DOMAINS] = {.id      = "routing-domains",
                    .section = "domains",
                    .title   = "Distance between domains",
                    .caption =
                        "Jensen-Shannon distance between the experts' shares of two domains, "
                        "mean over pairs, and between two random halves of one: what "
                        "counting alone makes.",
                    .share   = true,
                    .n_lines = 2,
                    .lines   = {{DISTANCE, "two domains", 0, false},
                                {HALVES, "halves of one", 1, true}}},
    [OF_IDS]     = {.id      = "routing-vocabulary",
                    .section = "vocabulary",
                    .title   = "Ids with experts of their own",
                    .caption = "The largest share of one expert in the occurrences of an id, mean over "
                                   "ids; dashed: ids assigned to the tokens at random.",
                    .share   = true,
                    .n_lines = 4,
                    .lines   = {{READ_MEAN, "read", 0, false},
                                {NEXT_MEAN, "next", 1, false},
                                {READ_DEALT, "read, shuffled", 0, true},
                                {NEXT_DEALT, "next, shuffled", 1, true}}},
    [OF_STEPS]   = {.id      = "routing-saturation",
                    .section = "vocabulary",
                    .title   = "Router saturation",
                    .caption = "Share of a token's K experts that the last checkpoint chooses too.",
                    .share   = true},
};

typedef struct maker {
    cpl_charts *out;
    const cpl_routing_report *r;
    const char **layers; /* (n_layers) "0", "1", ... */
    cpl_pool pool;
} maker;

static bool has(const cpl_routing_report *r, int kind)
{
    if (kind == OF_STEPS) return r->n_steps > 0;
    if (kind == OF_DOMAINS) return !isnan(r->layers[0].domains.distance);
    if (kind == OF_LIKENESS) return r->layers[0].m_tok.has_M;
    if (kind == OF_SIGNS_IDS && isnan(r->layers[0].centred_signs.ids.all)) return false;
    if (kind >= OF_SIGNS && kind <= OF_NEGATIVE) return r->layers[0].M != NULL;
    if (kind == OF_IDS) return r->layers[0].input.n_ids > 0;
    return true;
}

static cpl_chart chart_of(const maker *m, int kind)
{
    return cpl_columns_chart(&specs[kind], m->layers, m->r->n_layers);
}

/* ---- over layers ---- */

static cpl_status put_lines(maker *m, int kind)
{
    cpl_chart_series series[CPL_CHART_MOST_LINES + 2];
    const int64_t n           = m->r->n_layers;
    const cpl_columns columns = cpl_routing_columns(m->r);
    const cpl_chart chart     = chart_of(m, kind);
    int64_t *rows             = cpl_pool_take(&m->pool, (size_t)n * sizeof *rows);
    for (int64_t i = 0; rows && i < n; i++) rows[i] = i;
    if (!rows) return cpl_pool_status(&m->pool);
    const int64_t count = cpl_columns_series(series, &m->pool, &specs[kind], &columns, rows, n);
    CPL_TRY(cpl_pool_status(&m->pool));
    cpl_charts_lines(m->out, &chart, series, count);
    return CPL_OK;
}

static cpl_status put_load(maker *m)
{
    const cpl_routing_report *r = m->r;
    const int64_t n             = r->n_experts;
    const cpl_chart chart       = chart_of(m, OF_LOAD);
    cpl_chart_box *boxes        = cpl_pool_take(&m->pool, (size_t)r->n_layers * sizeof *boxes);
    double *loads               = cpl_pool_take(&m->pool, (size_t)n * sizeof *loads);
    if (!boxes || !loads) return cpl_pool_status(&m->pool);
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int64_t e = 0; e < n; e++)
            loads[e] = (double)(r->layers[l].assignments[e] * n) /
                       (double)(r->texts.n_predictions * r->top_k);
        CPL_TRY(cpl_chart_box_of(&boxes[l], loads, n));
    }
    cpl_charts_boxes(m->out, &chart, boxes);
    return CPL_OK;
}

/* ---- over something else: a line a layer ---- */

/* y [L][n] over x [n]. */
static cpl_status put_ramp(maker *m, cpl_chart *chart, const double *x, const double *y, int64_t n)
{
    const int64_t layers     = m->r->n_layers;
    cpl_chart_series *series = cpl_pool_take(&m->pool, (size_t)layers * sizeof *series);
    if (!series) return cpl_pool_status(&m->pool);
    for (int64_t l = 0; l < layers; l++)
        series[l] =
            (cpl_chart_series){.name  = cpl_pool_printf(&m->pool, "layer %lld", (long long)l),
                               .x     = x,
                               .y     = y + l * n,
                               .n     = n,
                               .ramp  = true,
                               .share = layers > 1 ? (double)l / (double)(layers - 1) : 0,
                               .marks = true};
    chart->ramp[0] = series[0].name;
    chart->ramp[1] = series[layers - 1].name;
    cpl_charts_lines(m->out, chart, series, layers);
    return CPL_OK;
}

static cpl_status put_erc(maker *m)
{
    const cpl_routing_report *r = m->r;
    const int64_t n             = r->options.n_alphas;
    cpl_chart chart             = chart_of(m, OF_ERC);
    double *y = cpl_pool_take(&m->pool, (size_t)(r->n_layers * n) * sizeof *y + 1);
    if (!y) return cpl_pool_status(&m->pool);
    for (int64_t l = 0; l < r->n_layers; l++)
        for (int64_t a = 0; a < n; a++)
            y[l * n + a] = r->layers[l].m_tok.erc[a] / r->layers[l].m_tok.diagonal;
    chart.x = (cpl_chart_axis){.label = "α"};
    return put_ramp(m, &chart, r->options.alphas, y, n);
}

/* The last checkpoint itself is the point at 1. */
static cpl_status put_saturation(maker *m)
{
    const cpl_routing_report *r = m->r;
    const int64_t n             = r->n_steps + 1;
    cpl_chart chart             = chart_of(m, OF_STEPS);
    double *x                   = cpl_pool_take(&m->pool, (size_t)n * sizeof *x);
    double *y                   = cpl_pool_take(&m->pool, (size_t)(r->n_layers * n) * sizeof *y);
    if (!x || !y) return cpl_pool_status(&m->pool);
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int64_t s = 0; s < r->n_steps; s++) {
            x[s]         = (double)r->steps[s].step;
            y[l * n + s] = r->steps[s].topk[l];
        }
        x[n - 1]         = (double)r->reader.step;
        y[l * n + n - 1] = 1;
    }
    chart.x = (cpl_chart_axis){.label = "step", .whole = true};
    return put_ramp(m, &chart, x, y, n);
}

static cpl_status put_kind(maker *m, int kind)
{
    if (!has(m->r, kind)) return CPL_OK;
    if (kind == OF_LOAD) return put_load(m);
    if (kind == OF_ERC) return put_erc(m);
    return kind == OF_STEPS ? put_saturation(m) : put_lines(m, kind);
}

/* ---- matrices: a map a layer or a source ---- */

enum { ANSWERS, TOGETHER, BY_DOMAIN, MAPS };

/* A map a layer, or of BY_DOMAIN a source: layers down, experts across. */
static int64_t count_maps(const cpl_routing_report *r, int kind)
{
    if (kind == BY_DOMAIN) return r->texts.sources.count > 1 ? r->texts.sources.count : 0;
    if (kind == TOGETHER && r->top_k < 2) return 0;
    return r->n_experts > 1 ? r->n_layers : 0;
}

/* ---- the numbers of maps ---- */

static double row_mean(const cpl_routing_report *r, const cpl_routing_layer *l, int64_t i)
{
    double sum = 0;
    for (int64_t j = 0; j < r->n_experts; j++) sum += (double)l->M_tok[i * r->n_experts + j];
    return sum / (double)r->n_experts;
}

static cpl_chart_range answers_range(const cpl_routing_report *r)
{
    cpl_chart_range range = cpl_chart_range_none();
    for (int64_t k = 0; k < r->n_layers; k++)
        for (int64_t i = 0; i < r->n_experts; i++) {
            double mean = row_mean(r, &r->layers[k], i);
            for (int64_t j = 0; mean > 0 && j < r->n_experts; j++)
                cpl_chart_range_add(&range,
                                    (double)r->layers[k].M_tok[i * r->n_experts + j] / mean);
        }
    return range;
}

/* values [L,n]: the expert's share of the domain over the mean of its shares of all domains. */
static void fill_domain(float *values, const cpl_routing_report *r, int64_t source)
{
    const int64_t n = r->n_experts, sources = r->texts.sources.count;
    for (int64_t l = 0; l < r->n_layers; l++)
        for (int64_t e = 0; e < n; e++) {
            double mean = 0, mine = 0;
            int64_t counted = 0;
            for (int64_t s = 0; s < sources; s++) {
                if (r->source_tokens[s] == 0) continue;
                double share = (double)r->layers[l].by_source[s * n + e] /
                               (double)(r->source_tokens[s] * r->top_k);
                mean += share;
                counted++;
                if (s == source) mine = share;
            }
            mean /= (double)counted;
            values[l * n + e] = mean > 0 ? (float)(mine / mean) : NAN;
        }
}

static void fill_answers(float *values, const cpl_routing_report *r, int64_t layer)
{
    const int64_t n = r->n_experts;
    for (int64_t i = 0; i < n; i++) {
        double mean = row_mean(r, &r->layers[layer], i);
        for (int64_t j = 0; j < n; j++)
            values[i * n + j] =
                mean > 0 ? (float)((double)r->layers[layer].M_tok[i * n + j] / mean) : NAN;
    }
}

static void fill_together(float *values, const cpl_routing_report *r, int64_t layer)
{
    const int64_t n         = r->n_experts;
    const int64_t *together = r->layers[layer].together;
    const double factor     = cpl_routing_factor(together, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double expected = factor * (double)together[i * n + i] * (double)together[j * n + j];
            values[i * n + j] =
                i != j && expected > 0 ? (float)((double)together[i * n + j] / expected) : NAN;
        }
}

static const struct {
    cpl_chart chart;
    const char *value_label;
    cpl_chart_range colours;
} maps[MAPS] = {
    [ANSWERS]   = {{.id      = "routing-answers",
                    .section = "answers",
                    .title   = "M_tok, layer ",
                    .caption = "Every row over its mean. A column that is light everywhere is an "
                                 "expert with a large response to all tokens.",
                    .x       = {.label = "expert j"},
                    .y       = {.label = "tokens routed to i"}},
                   "response / mean of row",
                   {0}},
    [TOGETHER]  = {{.id      = "routing-together",
                    .section = "together",
                    .title   = "Experts together, layer ",
                    .caption = "Tokens of both experts over what independence gives; blank where "
                                "no tokens are expected.",
                    .x       = {.label = "expert j"},
                    .y       = {.label = "expert i"}},
                   "tokens / expected",
                   {0.125, 8}},
    [BY_DOMAIN] = {{.id      = "routing-domain",
                    .section = "by-domain",
                    .title   = "",
                    .caption = "An expert's share of a domain's tokens over the mean of its shares "
                               "of all domains; 1 is no preference.",
                    .x       = {.label = "expert"},
                    .y       = {.label = "layer"}},
                   "share / mean share",
                   {0.25, 4}},
};

static void put_map(cpl_charts *out, const cpl_routing_report *r, int kind, int64_t index,
                    float *values, cpl_chart_range colours)
{
    cpl_chart chart = maps[kind].chart;
    char title[120], label[48];
    snprintf(label, sizeof label, "%lld", (long long)index);
    if (kind == BY_DOMAIN) snprintf(label, sizeof label, "%.40s", r->texts.sources.at[index]);
    snprintf(title, sizeof title, "%s%.80s", chart.title,
             kind == BY_DOMAIN ? r->texts.sources.at[index] : label);
    chart.title = title;
    if (kind == ANSWERS) fill_answers(values, r, index);
    if (kind == TOGETHER) fill_together(values, r, index);
    if (kind == BY_DOMAIN) fill_domain(values, r, index);
    const cpl_chart_matrix matrix = {.values      = values,
                                     .rows        = kind == BY_DOMAIN ? r->n_layers : r->n_experts,
                                     .columns     = r->n_experts,
                                     .scale       = 1,
                                     .colours     = kind == ANSWERS ? colours : maps[kind].colours,
                                     .log         = kind != ANSWERS,
                                     .diverging   = kind != ANSWERS,
                                     .value_label = maps[kind].value_label,
                                     .label       = label};
    cpl_charts_heat(out, &chart, &matrix);
}

static cpl_status put_maps(cpl_charts *out, const cpl_routing_report *r)
{
    const int64_t rows            = r->n_layers > r->n_experts ? r->n_layers : r->n_experts;
    const cpl_chart_range colours = answers_range(r);
    float *values                 = cpl_alloc((size_t)(rows * r->n_experts) * sizeof *values);
    if (!values) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
    for (int kind = 0; kind < MAPS; kind++)
        for (int64_t i = 0; i < count_maps(r, kind); i++) put_map(out, r, kind, i, values, colours);
    cpl_free(values);
    return CPL_OK;
}

/* ---- all ---- */

cpl_status cpl_routing_charts(cpl_charts *out, const cpl_routing_report *r)
{
    maker m           = {.out = out, .r = r};
    cpl_status status = CPL_OK;
    m.layers          = cpl_pool_take(&m.pool, (size_t)r->n_layers * sizeof *m.layers + 1);
    for (int64_t l = 0; m.layers && l < r->n_layers; l++)
        m.layers[l] = cpl_pool_printf(&m.pool, "%lld", (long long)l);
    status = cpl_pool_status(&m.pool);
    for (int kind = 0; status == CPL_OK && kind < KINDS; kind++) status = put_kind(&m, kind);
    cpl_pool_free(&m.pool);
    return status == CPL_OK ? put_maps(out, r) : status;
}
