/* charts.c - the charts over layers, and over something else with a line a layer; see
 * charts.h */
#include "inspect/routing/charts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"

enum { MOST_LINES = 4, NAME_BYTES = 24 };

const cpl_routing_look cpl_routing_looks[CPL_ROUTING_KINDS] = {
    [CPL_ROUTING_LOAD]       = {"load", "Load of the experts",
                                "Tokens of each expert of a layer over the mean; 1 is an even load."},
    [CPL_ROUTING_ENTROPY]    = {"entropy", "Entropy of load and router",
                                "Of the experts' shares of the load, and of the router's "
                                   "distribution for a token, mean over tokens; 1 is even."},
    [CPL_ROUTING_RANKS]      = {"ranks", "Router scores and experts' answers",
                                "Spearman's rank correlation between the router's scores and the "
                                     "answers |x W_g| for one token, mean and standard deviation over "
                                     "tokens; chance is 0."},
    [CPL_ROUTING_OVERLAP]    = {"agreement", "Choices that the answers agree with",
                                "Tokens whose first choice is the expert that answers most, and the "
                                   "share of the K chosen among the K that answer most."},
    [CPL_ROUTING_LIKENESS]   = {"likeness", "Answers to tokens and to R",
                                "Correlation of M_tok with M off the diagonal: of the values, and "
                                  "of their ranks; with every row over its mean."},
    [CPL_ROUTING_ERC]        = {"erc", "ERC of M_tok over alpha",
                                "The coupling loss with M_tok in place of M, over its mean "
                                       "diagonal."},
    [CPL_ROUTING_DOMAINS]    = {"domains", "Distance between domains",
                                "Jensen-Shannon distance between the experts' shares of two "
                                   "domains, mean over pairs, and between two random halves of one: "
                                   "what counting alone makes."},
    [CPL_ROUTING_VOCABULARY] = {"vocabulary", "Ids with experts of their own",
                                "The largest share of one expert in the occurrences of an id, mean "
                                "over ids; dashed: ids dealt to the tokens at random."},
    [CPL_ROUTING_SATURATION] = {"saturation", "Router saturation",
                                "Share of a token's K experts that the last checkpoint chooses "
                                "too."},
};

/* ---- opening ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

cpl_status cpl_routing_charts_open(cpl_routing_charts *charts, const cpl_routing_report *r)
{
    const size_t n      = (size_t)r->n_layers;
    const char **layers = cpl_alloc(n * (sizeof *layers + NAME_BYTES) + 1);
    *charts             = (cpl_routing_charts){.report = r, .name = last_part(r->path)};
    if (!layers) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
    char(*bytes)[NAME_BYTES] = (char(*)[NAME_BYTES])(layers + n);
    for (size_t l = 0; l < n; l++) {
        snprintf(bytes[l], NAME_BYTES, "%zu", l);
        layers[l] = bytes[l];
    }
    charts->layers  = layers;
    charts->memory  = (void *)layers;
    charts->answers = cpl_routing_answers_range(r);
    return CPL_OK;
}

void cpl_routing_charts_close(cpl_routing_charts *charts)
{
    cpl_free(charts->memory);
    memset(charts, 0, sizeof *charts);
}

bool cpl_routing_charts_have(const cpl_routing_charts *charts, cpl_routing_kind kind)
{
    const cpl_routing_report *r = charts->report;
    if (kind == CPL_ROUTING_SATURATION) return r->n_steps > 0;
    if (kind == CPL_ROUTING_DOMAINS) return !isnan(r->layers[0].domains.distance);
    if (kind == CPL_ROUTING_LIKENESS) return r->layers[0].stand.has_M;
    if (kind == CPL_ROUTING_VOCABULARY) return r->layers[0].input.n_ids > 0;
    return true;
}

/* ---- over layers ---- */

/* The lines of one kind. */
typedef struct lines {
    int count;
    const char *names[MOST_LINES];
    int colours[MOST_LINES];
    bool dashed[MOST_LINES];
    bool band; /* behind the lines stand the lower and upper end of one */
} lines;

static const lines lines_of[CPL_ROUTING_KINDS] = {
    [CPL_ROUTING_ENTROPY] = {2, {"load", "router"}, {0, 1}, {0}, false},
    [CPL_ROUTING_RANKS]   = {1, {"rank correlation"}, {0}, {0}, true},
    [CPL_ROUTING_OVERLAP] = {4,
                             {"first choice", "top K", "chance 1/n", "chance K/n"},
                             {0, 1, 0, 1},
                             {false, false, true, true},
                             false},
    [CPL_ROUTING_LIKENESS] =
        {4, {"r", "rho", "r, rows", "rho, rows"}, {0, 1, 0, 1}, {true, true, false, false}, false},
    [CPL_ROUTING_DOMAINS]    = {2, {"two domains", "halves of one"}, {0, 1}, {false, true}, false},
    [CPL_ROUTING_VOCABULARY] = {4,
                                {"read", "next", "read, dealt", "next, dealt"},
                                {0, 1, 0, 1},
                                {false, false, true, true},
                                false},
};

/* Sets the values of one layer, those of a band behind the lines. */
static void values_of(double *v, cpl_routing_kind kind, const cpl_routing_report *r,
                      const cpl_routing_layer *l)
{
    const double n = (double)r->n_experts, k = (double)r->top_k;
    switch (kind) {
    case CPL_ROUTING_ENTROPY:
        v[0] = l->load.entropy / log(n);
        v[1] = l->router_entropy / log(n);
        break;
    case CPL_ROUTING_RANKS:
        v[0] = l->rho_mean;
        v[1] = l->rho_mean - l->rho_sd;
        v[2] = l->rho_mean + l->rho_sd;
        break;
    case CPL_ROUTING_OVERLAP:
        v[0] = l->top1;
        v[1] = l->overlap;
        v[2] = 1 / n;
        v[3] = k / n;
        break;
    case CPL_ROUTING_LIKENESS:
        v[0] = l->stand.off.pearson;
        v[1] = l->stand.off.spearman;
        v[2] = l->stand.off_rows.pearson;
        v[3] = l->stand.off_rows.spearman;
        break;
    case CPL_ROUTING_DOMAINS:
        v[0] = l->domains.distance;
        v[1] = l->domains.halves;
        break;
    case CPL_ROUTING_VOCABULARY:
        v[0] = l->input.mean;
        v[1] = l->next.mean;
        v[2] = l->input.shuffled;
        v[3] = l->next.shuffled;
        break;
    default:
        break;
    }
}

static void draw_lines(cpl_text *out, cpl_chart *chart, const cpl_routing_report *r,
                       cpl_routing_kind kind)
{
    const lines *of                         = &lines_of[kind];
    const int64_t n                         = r->n_layers;
    cpl_chart_series series[MOST_LINES + 1] = {{0}};
    int count                               = of->count;
    double *values = cpl_alloc((size_t)(n * (MOST_LINES + 2)) * sizeof *values);
    if (!values) {
        out->failed = true;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double v[MOST_LINES + 2] = {0};
        values_of(v, kind, r, &r->layers[i]);
        for (int k = 0; k < MOST_LINES + 2; k++) values[k * n + i] = v[k];
    }
    for (int k = 0; k < count; k++)
        series[k] = (cpl_chart_series){.name   = of->names[k],
                                       .y      = values + k * n,
                                       .n      = n,
                                       .colour = of->colours[k],
                                       .dashed = of->dashed[k]};
    if (of->band)
        series[count++] = (cpl_chart_series){.name   = "± standard deviation",
                                             .low    = values + n,
                                             .high   = values + 2 * n,
                                             .n      = n,
                                             .colour = 0};
    cpl_chart_lines(out, chart, series, count);
    cpl_free(values);
}

static void draw_load(cpl_text *out, cpl_chart *chart, const cpl_routing_report *r)
{
    const int64_t n      = r->n_experts;
    cpl_chart_box *boxes = cpl_alloc((size_t)r->n_layers * sizeof *boxes);
    double *loads        = cpl_alloc((size_t)n * sizeof *loads);
    bool whole           = boxes && loads;
    for (int64_t l = 0; whole && l < r->n_layers; l++) {
        for (int64_t e = 0; e < n; e++)
            loads[e] = (double)(r->layers[l].assignments[e] * n) /
                       (double)(r->texts.n_predictions * r->top_k);
        whole = cpl_chart_box_of(&boxes[l], loads, n) == CPL_OK;
    }
    cpl_chart_group group = {.boxes = boxes};
    if (whole)
        cpl_chart_spread(out, chart, &group, 1);
    else
        out->failed = true;
    cpl_free(boxes);
    cpl_free(loads);
}

/* ---- over something else: a line a layer ---- */

/* y [L][n] over x [n]. */
static void draw_ramp(cpl_text *out, cpl_chart *chart, const cpl_routing_report *r, const double *x,
                      const double *y, int64_t n)
{
    cpl_chart_series *series = cpl_alloc((size_t)r->n_layers * sizeof *series);
    char first[24]           = "layer 0", last[40];
    snprintf(last, sizeof last, "layer %lld", (long long)r->n_layers - 1);
    if (!series) {
        out->failed = true;
        return;
    }
    for (int64_t l = 0; l < r->n_layers; l++)
        series[l] = (cpl_chart_series){
            .x     = x,
            .y     = y + l * n,
            .n     = n,
            .ramp  = true,
            .share = r->n_layers > 1 ? (double)l / (double)(r->n_layers - 1) : 0};
    chart->ramp_names[0] = first;
    chart->ramp_names[1] = last;
    cpl_chart_lines(out, chart, series, r->n_layers);
    cpl_free(series);
}

static void draw_erc(cpl_text *out, cpl_chart *chart, const cpl_routing_report *r)
{
    const int64_t n = r->options.n_alphas;
    double *y       = cpl_alloc((size_t)(r->n_layers * n) * sizeof *y + 1);
    chart->x_label  = "α";
    for (int64_t l = 0; y && l < r->n_layers; l++)
        for (int64_t a = 0; a < n; a++)
            y[l * n + a] = r->layers[l].stand.erc[a] / r->layers[l].stand.diagonal;
    if (y)
        draw_ramp(out, chart, r, r->options.alphas, y, n);
    else
        out->failed = true;
    cpl_free(y);
}

/* The last checkpoint itself is the point at 1. */
static void draw_saturation(cpl_text *out, cpl_chart *chart, const cpl_routing_report *r)
{
    const int64_t n = r->n_steps + 1;
    double *x       = cpl_alloc((size_t)n * sizeof *x),
           *y       = cpl_alloc((size_t)(r->n_layers * n) * sizeof *y);
    chart->x_label  = "step";
    for (int64_t l = 0; x && y && l < r->n_layers; l++) {
        for (int64_t s = 0; s < r->n_steps; s++) {
            x[s]         = (double)r->steps[s].step;
            y[l * n + s] = r->steps[s].topk[l];
        }
        x[n - 1]         = (double)r->reader.step;
        y[l * n + n - 1] = 1;
    }
    if (x && y) {
        chart->x = (cpl_chart_range){fmin(x[0], x[n - 1]), fmax(x[n - 2], x[n - 1])};
        draw_ramp(out, chart, r, x, y, n);
    } else {
        out->failed = true;
    }
    cpl_free(x);
    cpl_free(y);
}

void cpl_routing_charts_draw(cpl_text *out, const cpl_routing_charts *charts, cpl_routing_kind kind,
                             bool in_page)
{
    static const cpl_chart_rule even = {1, NULL}, zero = {0, NULL};
    const cpl_routing_report *r = charts->report;
    cpl_chart chart             = {.title     = cpl_routing_looks[kind].title,
                                   .subtitle  = in_page ? NULL : charts->name,
                                   .x_label   = "layer",
                                   .x_names   = charts->layers,
                                   .n_x_names = r->n_layers,
                                   .in_page   = in_page};
    const bool over_layers      = kind != CPL_ROUTING_ERC && kind != CPL_ROUTING_SATURATION;
    if (!over_layers) {
        chart.x_names   = NULL;
        chart.n_x_names = 0;
    }
    if (kind == CPL_ROUTING_LOAD || kind == CPL_ROUTING_RANKS || kind == CPL_ROUTING_LIKENESS) {
        chart.rules   = kind == CPL_ROUTING_LOAD ? &even : &zero;
        chart.n_rules = 1;
    }
    if (kind == CPL_ROUTING_ENTROPY || kind == CPL_ROUTING_OVERLAP ||
        kind == CPL_ROUTING_VOCABULARY || kind == CPL_ROUTING_SATURATION ||
        kind == CPL_ROUTING_DOMAINS)
        chart.y = (cpl_chart_range){0, 1};
    if (kind == CPL_ROUTING_LOAD) {
        chart.y_label = "load / mean";
        draw_load(out, &chart, r);
    } else if (kind == CPL_ROUTING_ERC) {
        chart.y_label = "ERC / mean diagonal";
        draw_erc(out, &chart, r);
    } else if (kind == CPL_ROUTING_SATURATION) {
        draw_saturation(out, &chart, r);
    } else {
        draw_lines(out, &chart, r, kind);
    }
}
