/* charts.c - see show.h */
#include "inspect/show.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "report/markup.h"

enum { CHECKPOINTS = 3, MOST_SERIES = CPL_CHART_MOST_LINES + 2 };

/* ---- the list ---- */

enum {
#define CPL_COLUMN(name, ...) name,
#include "inspect/columns.def"
    N_COLUMNS
};

/* Forms of charts: lines over layers, ERC over alpha, distributions by layer. */
enum {
    LINES,
    RELATIVE_OVER_ALPHA,
    ERC_OVER_ALPHA,
    LAST_OVER_ALPHA = ERC_OVER_ALPHA,
    EPS,
    COSINES,
    ROUTER_NORMS,
    GATE_NORMS,
    SILHOUETTES
};

#define BOXES                                                                                      \
    "Boxes: quartiles and median; whiskers: 5 % to 95 %; open points: least and greatest; filled " \
    "point: mean."

static const cpl_chart_spec specs[] = {
    {.id          = "kappa",
     .section     = "coupling",
     .title       = "Alignment of router rows and experts",
     .y_label     = "mean κ",
     .caption     = "Mean κ of a router row and its own expert (the "
                    "diagonal), and of all other pairs. The band is "
                    "where the diagonal would lie by chance.",
     .from_zero   = true,
     .n_lines     = 2,
     .band        = "random pairings ± 2 sd",
     .low         = KAPPA_LOW,
     .high        = KAPPA_HIGH,
     .band_colour = -1,
     .lines = {{KAPPA_OWN, "own expert", 0, false}, {KAPPA_IF_SEVERAL, "other experts", 1, false}}},
    {.id      = "own-share",
     .section = "coupling",
     .title   = "Largest response on the diagonal",
     .y_label = "share of experts",
     .caption = "Share of router rows (and of experts) whose largest κ is "
                "with each other, and of the pairs that the best one-to-one "
                "assignment leaves together. Chance gives 1/n.",
     .share   = true,
     .n_lines = 4,
     .lines   = {{ROWS_OWN, "rows", 0, false},
                 {COLUMNS_OWN, "columns", 1, false},
                 {ASSIGNED, "assignment", 2, false},
                 {BY_CHANCE, "chance 1/n", -1, true}}},
    {.id        = "z-score",
     .section   = "coupling",
     .title     = "Distance from chance",
     .y_label   = "z-score of the mean κ of own pairs",
     .caption   = "How many standard deviations the mean κ of own pairs "
                  "lies above that of random pairings of router rows and "
                  "experts.",
     .from_zero = true,
     .n_lines   = 1,
     .has_rule  = true,
     .rule_name = "chance",
     .lines     = {{Z, NULL, 0, false}}},
    {.id        = "lambda",
     .section   = "coupling",
     .title     = "How much of its gate's largest response a row reaches",
     .y_label   = "mean λ",
     .caption   = "The response of each expert to its own row over the largest to any row of that "
                  "norm, mean over experts; 1 where rows are top singular vectors of their gates. "
                  "Grey: a row of random direction.",
     .from_zero = true,
     .n_lines   = 3,
     .lines     = {{LAMBDA, "rows as stored", 0, false},
                   {CENTRED_LAMBDA, "centred rows", 1, false},
                   {LAMBDA_RANDOM, "random direction", -1, true}}},
    {.id          = "erc-against-chance",
     .section     = "coupling",
     .title       = "Coupling loss against random pairings",
     .y_label     = "ERC / mean diagonal of M",
     .caption     = "ERC as stored, and its mean and standard deviation under 100 random "
                    "pairings; all over the mean diagonal of M as stored.",
     .from_zero   = true,
     .n_lines     = 2,
     .band        = "± sd",
     .low         = RANDOM_LOW,
     .high        = RANDOM_HIGH,
     .band_colour = -1,
     .lines       = {{ERC_RELATIVE, "as stored", 0, false}, {RANDOM, "random pairings", -1, true}}},
    {.id        = "ratios",
     .section   = "coupling",
     .title     = "Responses to others, in units of the own",
     .y_label   = "max(M_ij / M_ii, M_ij / M_jj), i ≠ j",
     .caption   = "Quantiles over all pairs, and their greatest, α_min, "
                  "which a single pair can set. Below 1 every bound holds "
                  "at α = 1; ∞ is an α_min that is infinite.",
     .log_y     = true,
     .n_lines   = 4,
     .rule      = 1,
     .has_rule  = true,
     .rule_name = "α = 1",
     .lines     = {{RATIO_50, "50 %", 5, false},
                   {RATIO_90, "90 %", 0, false},
                   {RATIO_99, "99 %", 2, false},
                   {ALPHA_MIN, "α_min", 1, false}}},
    {.id        = "erc-over-alpha",
     .form      = RELATIVE_OVER_ALPHA,
     .section   = "coupling",
     .title     = "Coupling loss against α",
     .y_label   = "ERC / mean diagonal of M",
     .caption   = "One line a layer. The loss falls with α and is zero from "
                  "α_min on.",
     .from_zero = true},
    {.id        = "centred-kappa",
     .section   = "centred",
     .title     = "Alignment of rows as stored and of centred rows",
     .y_label   = "mean κ",
     .caption   = "Own expert and other experts; solid: rows as stored, dashed: less their mean. A "
                  "part that "
                  "all rows share brings own and other together; the dashed lines are without it.",
     .from_zero = true,
     .n_lines   = 4,
     .lines     = {{KAPPA_OWN, "own", 0, false},
                   {KAPPA_IF_SEVERAL, "other", 1, false},
                   {CENTRED_KAPPA_OWN, "own, centred", 0, true},
                   {CENTRED_KAPPA_OTHERS, "other, centred", 1, true}}},
    {.id        = "centred-erc",
     .section   = "centred",
     .title     = "Coupling loss of rows as stored and of centred rows",
     .y_label   = "ERC / mean diagonal of M",
     .caption   = "Each over the mean diagonal of its own matrix, at α = 1. What lies between the "
                  "lines is due to the mean of the rows, which routing does not see.",
     .from_zero = true,
     .n_lines   = 2,
     .lines     = {{ERC_RELATIVE, "rows as stored", 0, false},
                   {CENTRED_ERC_RELATIVE, "centred rows", 1, false}}},
    {.id        = "silhouette",
     .section   = "coupling",
     .title     = "Specialisation of the experts",
     .y_label   = "silhouette of the rows of an expert's W_g",
     .caption   = "How much nearer the rows of an expert's gate are to each other than to the "
                  "next expert's, by cosine distance in the original space: 1 where they point "
                  "one way, about 0 where nothing sets them apart. " BOXES,
     .from_zero = true,
     .form      = SILHOUETTES},
    {.id      = "router-cosine",
     .section = "router",
     .title   = "Router rows among themselves",
     .y_label = "|cos| of two router rows",
     .caption = "All pairs of different rows; free of scale. " BOXES,
     .share   = true,
     .form    = COSINES},
    {.id        = "eps",
     .section   = "router",
     .title     = "Room between router rows",
     .y_label   = "ε of a router row",
     .caption   = "Half the distance to the nearest other row, in units of "
                  "the row's norm. " BOXES,
     .from_zero = true,
     .form      = EPS},
    {.id        = "erc-raw-over-alpha",
     .section   = "raw",
     .title     = "Raw coupling loss against α",
     .y_label   = "ERC (depends on the scale of the weights)",
     .caption   = "One line a layer. Not to be compared between models of "
                  "different families.",
     .from_zero = true,
     .form      = ERC_OVER_ALPHA},
    {.id      = "router-norms",
     .section = "raw",
     .title   = "Norms of router rows",
     .y_label = "|R_i|",
     .caption = BOXES,
     .form    = ROUTER_NORMS},
    {.id      = "expert-norms",
     .section = "raw",
     .title   = "Norms of the experts' gates",
     .y_label = "|W_g| (Frobenius)",
     .caption = BOXES,
     .form    = GATE_NORMS},
};

/* ---- reports that share charts ---- */

/* Reports [first, first + n) of all, which share charts. */
typedef struct maker {
    cpl_charts *out;
    const cpl_coupling_report *const *all;
    int64_t n_all, first, n;
    const char **names;  /* (n) of the reports */
    const char **places; /* (n_places) labels of layers, of all these reports */
    int64_t n_places;
    cpl_pool pool; /* of what is set above; and of one chart */
} maker;

static const cpl_coupling_report *report_at(const maker *m, int64_t i)
{
    return m->all[m->first + i];
}

/* The place of a layer on the axis. Adds the layer if it is new. */
static int64_t place_of(maker *m, const cpl_layer_report *layer)
{
    char label[48];
    cpl_coupling_layer_label(label, layer);
    for (int64_t i = 0; i < m->n_places; i++)
        if (strcmp(m->places[i], label) == 0) return i;
    m->places[m->n_places] = cpl_pool_printf(&m->pool, "%s", label);
    return m->n_places++;
}

static cpl_status find_places(maker *m)
{
    int64_t most = 0;
    for (int64_t v = 0; v < m->n; v++) most += report_at(m, v)->n_layers;
    m->places = cpl_pool_take(&m->pool, (size_t)(most + 1) * sizeof *m->places);
    m->names  = cpl_pool_take(&m->pool, (size_t)m->n * sizeof *m->names);
    if (!m->places || !m->names) return cpl_pool_status(&m->pool);
    for (int64_t v = 0; v < m->n; v++) {
        m->names[v] = report_at(m, v)->name;
        for (int64_t i = 0; i < report_at(m, v)->n_layers; i++)
            place_of(m, &report_at(m, v)->layers[i]);
    }
    return cpl_pool_status(&m->pool);
}

/* ---- what is shown of a kind ---- */

/* The numbers whose distribution is shown, of a layer without fault; NULL: only counts them. */
static int64_t distribution(double *values, const cpl_layer_report *l, int form)
{
    const int64_t n = l->at->n, pairs = n * (n - 1) / 2;
    if (form == SILHOUETTES && (!l->silhouettes || n == 1)) return 0;
    const int64_t count = form == COSINES ? pairs : n;
    for (int64_t i = 0; values && i < count; i++)
        values[i] = form == EPS            ? (double)l->eps[i]
                    : form == COSINES      ? fabs((double)l->cosine[i])
                    : form == ROUTER_NORMS ? l->router_norm[i]
                    : form == GATE_NORMS   ? l->gate_norm[i]
                                           : l->silhouettes[i];
    return count;
}

static bool layer_has(const cpl_coupling_report *r, const cpl_layer_report *l,
                      const cpl_chart_spec *spec)
{
    if (spec->form > LAST_OVER_ALPHA) return !l->fault && distribution(NULL, l, spec->form) > 0;
    if (spec->form == LINES && spec->lines[0].column == LAMBDA && !r->options.lambda) return false;
    return strcmp(spec->section, "centred") == 0 ? l->centred.has_M : l->has_M;
}

static bool has(const cpl_coupling_report *r, const cpl_chart_spec *spec)
{
    for (int64_t i = 0; i < r->n_layers; i++)
        if (layer_has(r, &r->layers[i], spec)) return true;
    return false;
}

static cpl_columns columns_of(const cpl_coupling_report *r)
{
    cpl_columns columns = cpl_inspect_columns(r);
    columns.alpha       = cpl_coupling_alpha(r);
    return columns;
}

/* Of a chart over alpha: at the k-th. */
static double erc_value(const cpl_chart_spec *spec, const cpl_coupling_report *r, int64_t layer,
                        int k)
{
    const cpl_columns c = cpl_inspect_columns(r);
    const double erc    = c.value(r, layer, spec->form == ERC_OVER_ALPHA ? ERC : ERC_RELATIVE, k);
    return isfinite(erc) ? erc : (double)NAN;
}

static void add_values(cpl_chart_range *range, const cpl_chart_spec *spec,
                       const cpl_coupling_report *r, int64_t layer)
{
    const cpl_columns c = columns_of(r);
    int columns[CPL_CHART_MOST_LINES + 2], n = 0;
    for (; n < spec->n_lines; n++) columns[n] = spec->lines[n].column;
    if (spec->band) columns[n++] = spec->low;
    if (spec->band) columns[n++] = spec->high;
    for (int k = 0; k < n; k++) {
        const double x = c.value(r, layer, columns[k], c.alpha);
        if (!spec->log_y || x > 0) cpl_chart_range_add(range, x);
    }
    for (int k = 0; n == 0 && k < r->options.n_alphas; k++)
        cpl_chart_range_add(range, erc_value(spec, r, layer, k));
}

/* Reports that are shown in several charts share one scale; else it is taken from the data. */
static cpl_chart_range common_range(const maker *m, const cpl_chart_spec *spec)
{
    cpl_chart_range range = cpl_chart_range_none();
    if (m->n_all <= CHECKPOINTS || spec->form > LAST_OVER_ALPHA) return (cpl_chart_range){0};
    if (spec->from_zero) cpl_chart_range_add(&range, 0);
    for (int64_t v = 0; v < m->n_all; v++)
        for (int64_t i = 0; i < m->all[v]->n_layers; i++)
            if (m->all[v]->layers[i].has_M) add_values(&range, spec, m->all[v], i);
    return range;
}

static cpl_chart chart_of(const maker *m, const cpl_chart_spec *spec)
{
    cpl_chart chart = cpl_columns_chart(spec, m->places, m->n_places);
    chart.y.percent = spec->share;
    if (!spec->share) chart.y.range = common_range(m, spec);
    return chart;
}

/* ---- lines over layers ---- */

/* The series of report v, in their colours; returns how many, 0 if there is no memory. */
static int64_t series_of(cpl_chart_series *series, maker *m, const cpl_chart_spec *spec, int64_t v)
{
    const cpl_coupling_report *r = report_at(m, v);
    const cpl_columns columns    = columns_of(r);
    int64_t *rows                = cpl_pool_take(&m->pool, (size_t)m->n_places * sizeof *rows);
    if (!rows) return 0;
    for (int64_t i = 0; i < m->n_places; i++) rows[i] = -1;
    for (int64_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].has_M) rows[place_of(m, &r->layers[i])] = i;
    const int64_t n = cpl_columns_series(series, &m->pool, spec, &columns, rows, m->n_places);
    return m->pool.failed ? 0 : n;
}

static cpl_status put_one(maker *m, const cpl_chart_spec *spec)
{
    cpl_chart_series series[MOST_SERIES];
    const cpl_chart chart = chart_of(m, spec);
    const int64_t n       = series_of(series, m, spec, 0);
    CPL_TRY(cpl_pool_status(&m->pool));
    cpl_charts_lines(m->out, &chart, series, n);
    return CPL_OK;
}

/* Whether line k of a kind is in the chart of its solid line `only`, -1: of all: dashed ones are in
 * that of their colour, grey ones in each. */
static bool belongs(const cpl_chart_spec *spec, int64_t k, int only)
{
    if (only < 0 || k == only || k >= spec->n_lines) return true;
    const int colour = spec->lines[k].colour;
    return spec->lines[k].dashed && (colour < 0 || colour == spec->lines[only].colour);
}

/* Several checkpoints: a colour each, and of a kind with more than two lines a chart a solid line,
 * so that at most six curves share one. `only` -1: all of them. */
static cpl_status put_several(maker *m, const cpl_chart_spec *spec, int only)
{
    cpl_chart_series series[CHECKPOINTS * MOST_SERIES], own[MOST_SERIES];
    cpl_chart chart = chart_of(m, spec);
    const int first = only >= 0 ? only : 0;
    int64_t n = 0, n_own = 0;
    if (only >= 0) {
        chart.id    = cpl_pool_printf(&m->pool, "%s-%s", spec->id, spec->lines[only].name);
        chart.title = cpl_pool_printf(&m->pool, "%s: %s", spec->title, spec->lines[only].name);
    }
    for (int64_t v = 0; v < m->n; v++) {
        n_own = series_of(own, m, spec, v);
        for (int64_t k = 0; k < n_own - spec->has_rule; k++) {
            if (!belongs(spec, k, only)) continue;
            series[n]       = own[k];
            series[n].group = (int)v;
            series[n].name  = k == first
                                  ? m->names[v]
                                  : cpl_pool_printf(&m->pool, "%s, %s", m->names[v], own[k].name);
            if (k != first && k < spec->n_lines) series[n].style = CPL_CHART_DASHED;
            n++;
        }
    }
    if (spec->has_rule && n_own) series[n++] = own[n_own - 1];
    CPL_TRY(cpl_pool_status(&m->pool));
    cpl_charts_lines(m->out, &chart, series, n);
    return cpl_pool_status(&m->pool);
}

static cpl_status put_lines(maker *m, const cpl_chart_spec *spec)
{
    if (m->n_all == 1) return put_one(m, spec);
    if (spec->n_lines <= 2) return put_several(m, spec, -1);
    for (int k = 0; k < spec->n_lines; k++)
        if (!spec->lines[k].dashed) CPL_TRY(put_several(m, spec, k));
    return CPL_OK;
}

/* ---- distributions ---- */

static cpl_status put_boxes(maker *m, const cpl_chart_spec *spec)
{
    cpl_chart chart      = chart_of(m, spec);
    cpl_chart_box *boxes = cpl_pool_take(&m->pool, (size_t)(m->n * m->n_places) * sizeof *boxes);
    if (!boxes) return cpl_pool_status(&m->pool);
    for (int64_t i = 0; i < m->n * m->n_places; i++) CPL_TRY(cpl_chart_box_of(&boxes[i], NULL, 0));
    for (int64_t v = 0; v < m->n; v++)
        for (int64_t i = 0; i < report_at(m, v)->n_layers; i++) {
            const cpl_layer_report *layer = &report_at(m, v)->layers[i];
            const int64_t n = layer->fault ? 0 : distribution(NULL, layer, spec->form);
            double *values  = cpl_alloc((size_t)n * sizeof *values + 1);
            if (!values) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
            if (n) distribution(values, layer, spec->form);
            cpl_status status =
                cpl_chart_box_of(&boxes[v * m->n_places + place_of(m, layer)], values, n);
            cpl_free(values);
            CPL_TRY(status);
        }
    if (m->n_all > 1) {
        chart.groups   = m->names;
        chart.n_groups = m->n;
    }
    cpl_charts_boxes(m->out, &chart, boxes);
    return CPL_OK;
}

/* ---- ERC over alpha: a line a layer ---- */

/* The lines of report v; returns how many. Sets `above` if one is above 0. */
static int64_t alpha_lines(cpl_chart_series *series, maker *m, const cpl_chart_spec *spec,
                           int64_t v, bool *above)
{
    const cpl_coupling_report *r = report_at(m, v);
    const int64_t n_alphas       = r->options.n_alphas;
    int64_t n                    = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        char label[48];
        double *y = cpl_pool_take(&m->pool, (size_t)n_alphas * sizeof *y);
        if (!y || !r->layers[i].has_M) continue;
        for (int k = 0; k < n_alphas; k++) {
            y[k]   = erc_value(spec, r, i, k);
            *above = *above || !(y[k] <= 0);
        }
        cpl_coupling_layer_label(label, &r->layers[i]);
        const char *name = m->n_all == 1 ? cpl_pool_printf(&m->pool, "layer %s", label)
                           : n == 0      ? m->names[v]
                                         : NULL;
        series[n++] =
            (cpl_chart_series){.name  = name,
                               .x     = r->options.alphas,
                               .y     = y,
                               .n     = n_alphas,
                               .group = (int)v,
                               .ramp  = m->n_all == 1,
                               .share = r->n_layers > 1 ? (double)i / (double)(r->n_layers - 1) : 0,
                               .marks = true};
    }
    return n;
}

static cpl_status put_over_alpha(maker *m, const cpl_chart_spec *spec)
{
    int64_t most = 1, n = 0;
    bool above = false;
    for (int64_t v = 0; v < m->n; v++) most += report_at(m, v)->n_layers;
    cpl_chart_series *series = cpl_pool_take(&m->pool, (size_t)most * sizeof *series);
    cpl_chart chart          = chart_of(m, spec);
    if (!series) return cpl_pool_status(&m->pool);
    for (int64_t v = 0; v < m->n; v++) n += alpha_lines(series + n, m, spec, v, &above);
    chart.x = (cpl_chart_axis){.label = "α"};
    if (m->n_all == 1) {
        chart.ramp[0] = series[0].name;
        chart.ramp[1] = series[n - 1].name;
    }
    if (!above) { /* a flat line says less than a sentence */
        chart.note = "ERC is 0 at every α of the list, in every layer.";
        n          = 0;
    }
    cpl_charts_lines(m->out, &chart, series, n);
    return cpl_pool_status(&m->pool);
}

/* ---- all ---- */

static cpl_status put_kind(maker *m, const cpl_chart_spec *spec)
{
    bool any = false;
    for (int64_t v = 0; v < m->n; v++) any = any || has(report_at(m, v), spec);
    if (!any) return CPL_OK;
    if (spec->form == LINES) return put_lines(m, spec);
    return spec->form > LAST_OVER_ALPHA ? put_boxes(m, spec) : put_over_alpha(m, spec);
}

cpl_status cpl_coupling_charts(cpl_charts *out, const cpl_coupling_report *const *reports,
                               int64_t count)
{
    cpl_status status = CPL_OK;
    for (int64_t first = 0; first < count && status == CPL_OK; first += CHECKPOINTS) {
        const int64_t left = count - first;
        maker m            = {.out   = out,
                              .all   = reports,
                              .n_all = count,
                              .first = first,
                              .n     = left < CHECKPOINTS ? left : CHECKPOINTS};
        status             = find_places(&m);
        for (size_t k = 0; status == CPL_OK && k < sizeof specs / sizeof *specs; k++)
            status = put_kind(&m, &specs[k]);
        if (status == CPL_OK && first == 0) status = cpl_coupling_maps(out, reports, count);
        cpl_pool_free(&m.pool);
    }
    return status;
}
