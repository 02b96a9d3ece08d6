/* charts.c - the charts over layers, and over something else with a line a layer; see
 * charts.h */
#include "inspect/routing/charts.h"

#include <math.h>
#include <stdio.h>

#include "base/arena.h"

enum { MOST_LINES = 4 };

/* A chart of lines over layers, or with n = 0 of another form. */
typedef struct spec {
    const char *id, *section, *title, *caption;
    int n;
    const char *names[MOST_LINES];
    int colours[MOST_LINES];
    bool dashed[MOST_LINES];
    bool band;  /* values [n] and [n + 1] are the ends of one */
    bool share; /* from 0 to 1 */
    bool zero;  /* a line at 0 */
} spec;

enum { LOAD, ENTROPY, RANKS, OVERLAP, LIKENESS, ERC, DOMAINS, VOCABULARY, SATURATION, KINDS };

static const spec specs[KINDS] = {
    [RANKS] =
        {"routing-ranks",
         "agreement",
         "Router scores and experts' answers",
         "Spearman's rank correlation between the router's scores and the answers |x W_g| for "
         "one token, mean and standard deviation over tokens; chance is 0.",
         1,
         {"rank correlation"},
         {0},
         {false},
         true,
         false,
         true},
    [OVERLAP] =
        {"routing-agreement",
         "agreement",
         "Choices that the answers agree with",
         "Tokens whose first choice is the expert that answers most, and the share of the K "
         "chosen among the K that answer most.",
         4,
         {"first choice", "top K", "chance 1/n", "chance K/n"},
         {0, 1, 0, 1},
         {false, false, true, true},
         false,
         true,
         false},
    [LIKENESS] =
        {"routing-likeness",
         "agreement",
         "Answers to tokens and to R",
         "Correlation of M_tok with M off the diagonal: of the values, and of their ranks; "
         "with every row over its mean.",
         4,
         {"r", "rho", "r, rows", "rho, rows"},
         {0, 1, 0, 1},
         {true, true, false, false},
         false,
         false,
         true},
    [ERC]  = {"routing-erc",
              "agreement",
              "ERC of M_tok over alpha",
              "The coupling loss with M_tok in place of M, over its mean diagonal.",
              0,
              {NULL},
              {0},
              {false},
              false,
              false,
              false},
    [LOAD] = {"routing-load",
              "load",
              "Load of the experts",
              "Tokens of each expert of a layer over the mean; 1 is an even load.",
              0,
              {NULL},
              {0},
              {false},
              false,
              false,
              false},
    [ENTROPY] =
        {"routing-entropy",
         "load",
         "Entropy of load and router",
         "Of the experts' shares of the load, and of the router's distribution for a token, "
         "mean over tokens; 1 is even.",
         2,
         {"load", "router"},
         {0, 1},
         {false},
         false,
         true,
         false},
    [DOMAINS]    = {"routing-domains",
                    "domains",
                    "Distance between domains",
                    "Jensen-Shannon distance between the experts' shares of two domains, mean over "
                       "pairs, and between two random halves of one: what counting alone makes.",
                    2,
                    {"two domains", "halves of one"},
                    {0, 1},
                    {false, true},
                    false,
                    true,
                    false},
    [VOCABULARY] = {"routing-vocabulary",
                    "vocabulary",
                    "Ids with experts of their own",
                    "The largest share of one expert in the occurrences of an id, mean over ids; "
                    "dashed: ids dealt to the tokens at random.",
                    4,
                    {"read", "next", "read, dealt", "next, dealt"},
                    {0, 1, 0, 1},
                    {false, false, true, true},
                    false,
                    true,
                    false},
    [SATURATION] = {"routing-saturation",
                    "vocabulary",
                    "Router saturation",
                    "Share of a token's K experts that the last checkpoint chooses too.",
                    0,
                    {NULL},
                    {0},
                    {false},
                    false,
                    true,
                    false},
};

typedef struct maker {
    cpl_charts *out;
    const cpl_routing_report *r;
    const char **layers; /* (n_layers) "0", "1", ... */
    cpl_pool pool;
} maker;

static bool has(const cpl_routing_report *r, int kind)
{
    if (kind == SATURATION) return r->n_steps > 0;
    if (kind == DOMAINS) return !isnan(r->layers[0].domains.distance);
    if (kind == LIKENESS) return r->layers[0].stand.has_M;
    if (kind == VOCABULARY) return r->layers[0].input.n_ids > 0;
    return true;
}

static cpl_chart chart_of(const maker *m, int kind)
{
    const spec *s = &specs[kind];
    return (cpl_chart){
        .id      = s->id,
        .section = s->section,
        .title   = s->title,
        .caption = s->caption,
        .x       = {.label = "layer", .whole = true, .names = m->layers, .n_names = m->r->n_layers},
        .y       = {.range = {0, s->share}, .zero = s->zero}};
}

/* ---- over layers ---- */

/* Sets the values of one layer, then those of a band. */
static void values_of(double *v, int kind, const cpl_routing_report *r, const cpl_routing_layer *l)
{
    const double n = (double)r->n_experts, k = (double)r->top_k;
    switch (kind) {
    case ENTROPY:
        v[0] = l->load.entropy / log(n);
        v[1] = l->router_entropy / log(n);
        break;
    case RANKS:
        v[0] = l->rho_mean;
        v[1] = l->rho_mean - l->rho_sd;
        v[2] = l->rho_mean + l->rho_sd;
        break;
    case OVERLAP:
        v[0] = l->top1;
        v[1] = l->overlap;
        v[2] = 1 / n;
        v[3] = k / n;
        break;
    case LIKENESS:
        v[0] = l->stand.off.pearson;
        v[1] = l->stand.off.spearman;
        v[2] = l->stand.off_rows.pearson;
        v[3] = l->stand.off_rows.spearman;
        break;
    case DOMAINS:
        v[0] = l->domains.distance;
        v[1] = l->domains.halves;
        break;
    case VOCABULARY:
        v[0] = l->input.mean;
        v[1] = l->next.mean;
        v[2] = l->input.shuffled;
        v[3] = l->next.shuffled;
        break;
    default:
        break;
    }
}

static cpl_status put_lines(maker *m, int kind)
{
    static const double nought = 0;
    const spec *s              = &specs[kind];
    const int64_t n            = m->r->n_layers;
    cpl_chart_series series[MOST_LINES + 2];
    const cpl_chart chart = chart_of(m, kind);
    int64_t count         = 0;
    double *values = cpl_pool_take(&m->pool, (size_t)(n * (MOST_LINES + 2)) * sizeof *values);
    if (!values) return cpl_pool_status(&m->pool);
    for (int64_t i = 0; i < n; i++) {
        double v[MOST_LINES + 2] = {0};
        values_of(v, kind, m->r, &m->r->layers[i]);
        for (int k = 0; k < MOST_LINES + 2; k++) values[k * n + i] = v[k];
    }
    for (int k = 0; k < s->n; k++)
        series[count++] =
            (cpl_chart_series){.name  = s->names[k],
                               .y     = values + k * n,
                               .n     = n,
                               .group = s->colours[k],
                               .style = s->dashed[k] ? CPL_CHART_DASHED : CPL_CHART_LINE,
                               .marks = !s->dashed[k]};
    if (s->band)
        series[count++] = (cpl_chart_series){.name = "± standard deviation",
                                             .low  = values + s->n * n,
                                             .high = values + (s->n + 1) * n,
                                             .n    = n};
    if (s->zero)
        series[count++] =
            (cpl_chart_series){.y = &nought, .n = 1, .group = -1, .style = CPL_CHART_RULE};
    cpl_charts_lines(m->out, &chart, series, count);
    return CPL_OK;
}

static cpl_status put_load(maker *m)
{
    const cpl_routing_report *r = m->r;
    const int64_t n             = r->n_experts;
    cpl_chart chart             = chart_of(m, LOAD);
    cpl_chart_box *boxes        = cpl_pool_take(&m->pool, (size_t)r->n_layers * sizeof *boxes);
    double *loads               = cpl_pool_take(&m->pool, (size_t)n * sizeof *loads);
    if (!boxes || !loads) return cpl_pool_status(&m->pool);
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int64_t e = 0; e < n; e++)
            loads[e] = (double)(r->layers[l].assignments[e] * n) /
                       (double)(r->texts.n_predictions * r->top_k);
        CPL_TRY(cpl_chart_box_of(&boxes[l], loads, n));
    }
    chart.y.label = "load / mean";
    chart.y.zero  = true;
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
    cpl_chart chart             = chart_of(m, ERC);
    double *y = cpl_pool_take(&m->pool, (size_t)(r->n_layers * n) * sizeof *y + 1);
    if (!y) return cpl_pool_status(&m->pool);
    for (int64_t l = 0; l < r->n_layers; l++)
        for (int64_t a = 0; a < n; a++)
            y[l * n + a] = r->layers[l].stand.erc[a] / r->layers[l].stand.diagonal;
    chart.x = (cpl_chart_axis){.label = "α"};
    chart.y = (cpl_chart_axis){.label = "ERC / mean diagonal", .zero = true};
    return put_ramp(m, &chart, r->options.alphas, y, n);
}

/* The last checkpoint itself is the point at 1. */
static cpl_status put_saturation(maker *m)
{
    const cpl_routing_report *r = m->r;
    const int64_t n             = r->n_steps + 1;
    cpl_chart chart             = chart_of(m, SATURATION);
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
    if (kind == LOAD) return put_load(m);
    if (kind == ERC) return put_erc(m);
    return kind == SATURATION ? put_saturation(m) : put_lines(m, kind);
}

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
    return status == CPL_OK ? cpl_routing_maps(out, r) : status;
}
