/* charts.c - see charts.h */
#include "inspect/charts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/columns.h"
#include "report/markup.h"

enum { CHECKPOINTS = 3, MOST_VALUES = CPL_COUPLING_MOST_LINES + 2, MOST_EXPERTS = 8 };

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

double cpl_coupling_relative_erc(const cpl_layer_report *layer, double erc)
{
    double diagonal = layer->figures.m_diagonal;
    return diagonal > 0 ? erc / diagonal : NAN;
}

static const cpl_coupling_report *report_at(const maker *m, int64_t i)
{
    return m->all[m->first + i];
}

/* Where a layer stands on the axis; adds it where it is new. */
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

static bool has(const cpl_coupling_report *r, const cpl_chart_spec *spec)
{
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *layer = &r->layers[i];
        if (spec->spread ? !layer->fault && spec->spread(NULL, layer) > 0 : layer->has_M)
            return true;
    }
    return false;
}

static double erc_value(const cpl_chart_spec *spec, const cpl_layer_report *layer, int k)
{
    return spec->raw ? layer->erc[k] : cpl_coupling_relative_erc(layer, layer->erc[k]);
}

static void add_layer(cpl_chart_range *range, const cpl_chart_spec *spec,
                      const cpl_coupling_report *r, const cpl_layer_report *layer)
{
    double values[MOST_VALUES];
    if (!layer->has_M) return;
    if (spec->lines) {
        spec->lines(values, layer, cpl_coupling_alpha(r));
        for (int k = 0; k < spec->n_lines + (spec->band ? 2 : 0); k++)
            if (!spec->log_y || values[k] > 0) cpl_chart_range_add(range, values[k]);
    } else {
        for (int k = 0; k < r->options.n_alphas; k++)
            cpl_chart_range_add(range, erc_value(spec, layer, k));
    }
}

/* Where reports are shown in several charts these have one scale; else it is taken from the data. */
static cpl_chart_range common_range(const maker *m, const cpl_chart_spec *spec)
{
    cpl_chart_range range = cpl_chart_range_none();
    if (spec->share) return (cpl_chart_range){0, 1};
    if (m->n_all <= CHECKPOINTS || spec->spread) return (cpl_chart_range){0};
    if (spec->from_zero) cpl_chart_range_add(&range, 0);
    for (int64_t v = 0; v < m->n_all; v++)
        for (int64_t i = 0; i < m->all[v]->n_layers; i++)
            add_layer(&range, spec, m->all[v], &m->all[v]->layers[i]);
    return range;
}

static cpl_chart chart_of(const maker *m, const cpl_chart_spec *spec)
{
    return (cpl_chart){
        .id      = spec->id,
        .section = spec->section,
        .title   = spec->title,
        .caption = spec->caption,
        .x       = {.label = "layer", .whole = true, .names = m->places, .n_names = m->n_places},
        .y       = {.label   = spec->y_label,
                    .range   = common_range(m, spec),
                    .log     = spec->log_y,
                    .zero    = spec->from_zero,
                    .percent = spec->share}};
}

/* ---- lines over layers ---- */

/* values [MOST_VALUES, n_places] of one report; NaN where it has none. */
static double *values_of(maker *m, const cpl_chart_spec *spec, int64_t v)
{
    const cpl_coupling_report *r = report_at(m, v);
    double *values = cpl_pool_take(&m->pool, (size_t)(MOST_VALUES * m->n_places) * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < MOST_VALUES * m->n_places; i++) values[i] = NAN;
    for (int64_t i = 0; i < r->n_layers; i++) {
        double of_layer[MOST_VALUES];
        const int64_t place = place_of(m, &r->layers[i]);
        if (!r->layers[i].has_M) continue;
        for (int k = 0; k < MOST_VALUES; k++) of_layer[k] = NAN;
        spec->lines(of_layer, &r->layers[i], cpl_coupling_alpha(r));
        for (int k = 0; k < MOST_VALUES; k++) values[k * m->n_places + place] = of_layer[k];
    }
    return values;
}

/* Line k of a report; `name` NULL: not in the legend. */
static cpl_chart_series line_of(const maker *m, const cpl_chart_spec *spec, const double *values,
                                int k, const char *name, int colour)
{
    return (cpl_chart_series){.name  = name,
                              .y     = values + k * m->n_places,
                              .n     = m->n_places,
                              .group = colour,
                              .style = spec->dashed[k] ? CPL_CHART_DASHED : CPL_CHART_LINE,
                              .marks = !spec->dashed[k]};
}

static cpl_chart_series band_of(const maker *m, const cpl_chart_spec *spec, const double *values,
                                const char *name, int colour)
{
    return (cpl_chart_series){.name  = name,
                              .low   = values + spec->n_lines * m->n_places,
                              .high  = values + (spec->n_lines + 1) * m->n_places,
                              .n     = m->n_places,
                              .group = colour};
}

static void put_rule(cpl_chart_series *series, int64_t *n, const cpl_chart_spec *spec)
{
    if (!spec->rule_name) return;
    series[(*n)++] = (cpl_chart_series){
        .name = spec->rule_name, .y = &spec->rule, .n = 1, .group = -1, .style = CPL_CHART_RULE};
}

static cpl_status put_one(maker *m, const cpl_chart_spec *spec)
{
    cpl_chart_series series[MOST_VALUES];
    const cpl_chart chart = chart_of(m, spec);
    const double *values  = values_of(m, spec, 0);
    int64_t n             = 0;
    if (!values) return cpl_pool_status(&m->pool);
    for (int k = 0; k < spec->n_lines; k++)
        series[n++] = line_of(m, spec, values, k, spec->names[k], spec->colours[k]);
    if (spec->band) series[n++] = band_of(m, spec, values, spec->band, spec->band_colour);
    put_rule(series, &n, spec);
    cpl_charts_lines(m->out, &chart, series, n);
    return CPL_OK;
}

/* Several checkpoints: a colour each, and of a kind with more than two solid lines a chart a line, so
 * that at most six curves share one. `only` -1: all of them. */
static cpl_status put_several(maker *m, const cpl_chart_spec *spec, int only)
{
    cpl_chart_series series[CHECKPOINTS * MOST_VALUES];
    cpl_chart chart = chart_of(m, spec);
    int64_t n       = 0;
    if (only >= 0) chart.id = cpl_pool_printf(&m->pool, "%s-%s", spec->id, spec->names[only]);
    if (only >= 0)
        chart.title = cpl_pool_printf(&m->pool, "%s: %s", spec->title, spec->names[only]);
    for (int64_t v = 0; v < m->n; v++) {
        const double *values = values_of(m, spec, v);
        if (!values) return cpl_pool_status(&m->pool);
        for (int k = 0; k < spec->n_lines; k++) {
            if (only >= 0 && k != only && !spec->dashed[k]) continue;
            const bool first = k == (only >= 0 ? only : 0);
            const char *name =
                first ? m->names[v]
                      : cpl_pool_printf(&m->pool, "%s, %s", m->names[v], spec->names[k]);
            series[n] = line_of(m, spec, values, k, name, (int)v);
            if (!first) series[n].style = CPL_CHART_DASHED;
            n++;
        }
        if (spec->band)
            series[n++] =
                band_of(m, spec, values,
                        cpl_pool_printf(&m->pool, "%s, %s", m->names[v], spec->band), (int)v);
    }
    put_rule(series, &n, spec);
    cpl_charts_lines(m->out, &chart, series, n);
    return cpl_pool_status(&m->pool);
}

static cpl_status put_lines(maker *m, const cpl_chart_spec *spec)
{
    int solid = 0;
    for (int k = 0; k < spec->n_lines; k++) solid += !spec->dashed[k];
    if (m->n_all == 1) return put_one(m, spec);
    if (solid <= 2) return put_several(m, spec, -1);
    for (int k = 0; k < spec->n_lines; k++)
        if (!spec->dashed[k]) CPL_TRY(put_several(m, spec, k));
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
            const int64_t n               = layer->fault ? 0 : spec->spread(NULL, layer);
            double *values                = cpl_alloc((size_t)n * sizeof *values + 1);
            if (!values) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
            if (n) spec->spread(values, layer);
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

/* The lines of report v; returns how many. Sets `above` where one is above 0. */
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
            y[k]   = erc_value(spec, &r->layers[i], k);
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

/* ---- coupling matrices ---- */

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* What M is multiplied with before it becomes a colour: 1 / mean diagonal, or where that is 0
 * 1 / mean off the diagonal, or where both are 0 1. */
static double heat_scale(const cpl_layer_report *layer)
{
    const cpl_coupling_figures *f = &layer->figures;
    if (f->m_diagonal > 0) return 1 / f->m_diagonal;
    return f->m_off_diagonal > 0 ? 1 / f->m_off_diagonal : 1;
}

/* From the 1 % to the 99.9 % quantile. */
static cpl_status add_heat(cpl_chart_range *range, const cpl_layer_report *layer)
{
    int64_t cells = layer->at->n * layer->at->n;
    double scale  = heat_scale(layer);
    float *sorted = cpl_alloc((size_t)cells * sizeof *sorted);
    if (!sorted) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
    memcpy(sorted, layer->M, (size_t)cells * sizeof *sorted);
    qsort(sorted, (size_t)cells, sizeof *sorted, by_float);
    int64_t low = (int64_t)(0.01 * (double)(cells - 1));
    while (low + 1 < cells && sorted[low] == 0) low++; /* a logarithmic scale begins above 0 */
    cpl_chart_range_add(range, sorted[low] * scale);
    cpl_chart_range_add(range, sorted[(int64_t)(0.999 * (double)(cells - 1))] * scale);
    cpl_free(sorted);
    return CPL_OK;
}

/* The scale of colours of all maps. */
static cpl_status heat_range(cpl_chart_range *range, const cpl_coupling_report *const *reports,
                             int64_t count)
{
    *range = cpl_chart_range_none();
    for (int64_t v = 0; v < count; v++)
        for (int64_t i = 0; i < reports[v]->n_layers; i++)
            if (reports[v]->layers[i].has_M) CPL_TRY(add_heat(range, &reports[v]->layers[i]));
    if (range->low > range->high) *range = (cpl_chart_range){0, 1};
    if (range->high - range->low <= 1e-6 * range->high) {
        range->low  = range->high > 0 ? range->low / 2 : 0;
        range->high = range->high > 0 ? range->high * 1.5 : 1;
    }
    return CPL_OK;
}

typedef struct place {
    float diagonal;
    int32_t expert;
} place;

static int by_diagonal(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->diagonal != y->diagonal) return x->diagonal < y->diagonal ? 1 : -1;
    return x->expert < y->expert ? -1 : 1;
}

static int32_t *order_of(cpl_pool *pool, const cpl_layer_report *layer)
{
    int64_t n     = layer->at->n;
    int32_t *made = cpl_pool_take(pool, (size_t)n * sizeof *made);
    place *places = cpl_pool_take(pool, (size_t)n * sizeof *places);
    if (!made || !places) return NULL;
    for (int64_t i = 0; i < n; i++) places[i] = (place){layer->M[i * n + i], (int32_t)i};
    qsort(places, (size_t)n, sizeof *places, by_diagonal);
    for (int64_t i = 0; i < n; i++) made[i] = places[i].expert;
    return made;
}

static void put_map(maker *m, int64_t v, const cpl_layer_report *layer, cpl_chart_range colours)
{
    char label[48], low[48], high[48], mean[48];
    const char *name = m->n_all > 1 ? m->all[v]->name : "";
    float least = layer->M[0], most = layer->M[0];
    for (int64_t i = 1; i < layer->at->n * layer->at->n; i++) {
        least = fminf(least, layer->M[i]);
        most  = fmaxf(most, layer->M[i]);
    }
    cpl_coupling_layer_label(label, layer);
    const cpl_chart chart = {
        .id      = cpl_pool_printf(&m->pool, "coupling %s %s", name, label),
        .section = "maps",
        .title   = cpl_pool_printf(&m->pool, "%s%sM of layer %s", name, *name ? ": " : "", label),
        .caption = cpl_pool_printf(
            &m->pool, "M from %s to %s, mean diagonal %s. Rows and columns by falling diagonal.",
            cpl_markup_figure(low, least, 4), cpl_markup_figure(high, most, 4),
            cpl_markup_figure(mean, layer->figures.m_diagonal, 4)),
        .x = {.label = "expert j"},
        .y = {.label = "router row i"}};
    const cpl_chart_matrix matrix = {.values  = layer->M,
                                     .order   = order_of(&m->pool, layer),
                                     .rows    = layer->at->n,
                                     .columns = layer->at->n,
                                     .scale   = heat_scale(layer),
                                     .colours = colours,
                                     .log     = colours.low > 0 && colours.high > 8 * colours.low,
                                     .value_label = "M / mean diagonal",
                                     .raw_label   = "M",
                                     .label       = label,
                                     .group       = (int)v};
    cpl_charts_heat(m->out, &chart, &matrix);
}

static cpl_status put_maps(maker *m)
{
    cpl_chart_range colours;
    CPL_TRY(heat_range(&colours, m->all, m->n_all));
    for (int64_t v = 0; v < m->n_all; v++)
        for (int64_t i = 0; i < m->all[v]->n_layers; i++)
            if (m->all[v]->layers[i].has_M) put_map(m, v, &m->all[v]->layers[i], colours);
    return cpl_pool_status(&m->pool);
}

/* ---- t-SNE ---- */

static void put_tsne(maker *m, const cpl_coupling_report *r)
{
    const cpl_tsne_plot *p = &r->picture;
    int32_t experts[MOST_EXPERTS];
    const char *names[MOST_EXPERTS];
    char kl[48], which[80] = "expert 0 alone", rows[40] = "all rows";
    int32_t *group   = cpl_pool_take(&m->pool, (size_t)p->n_points * sizeof *group + 1);
    int64_t n_groups = 0;
    for (int64_t i = 0; group && i < p->n_points; i++) {
        int32_t k = 0;
        while (k < n_groups && experts[k] != p->expert[i]) k++;
        CPL_ASSERT(k < MOST_EXPERTS);
        if (k == n_groups) names[n_groups] = cpl_pool_printf(&m->pool, "expert %d", p->expert[i]);
        if (k == n_groups) experts[n_groups++] = p->expert[i];
        group[i] = k;
    }
    if (!group) return;
    if (p->every > 1) snprintf(rows, sizeof rows, "one row in %lld", (long long)p->every);
    if (p->n_experts > 1)
        snprintf(which, sizeof which, "experts i with i mod %lld = 0 (%lld of them)",
                 (long long)p->stride, (long long)p->n_experts);
    const cpl_chart chart = {
        .id      = "t-sne",
        .section = "tsne",
        .title   = m->n_all > 1 ? r->name : "Rows of the experts' gates in two dimensions",
        .caption =
            cpl_pool_printf(&m->pool,
                            "Layer %lld; %s; %s of %s gate, %lld points; perplexity %g, "
                            "%lld iteration%s, Kullback-Leibler divergence %s.",
                            (long long)p->layer, which, rows, p->n_experts == 1 ? "its" : "each",
                            (long long)p->n_points, p->perplexity, (long long)p->iterations,
                            p->iterations == 1 ? "" : "s", cpl_markup_figure(kl, p->kl, 4)),
        .groups   = names,
        .n_groups = n_groups};
    cpl_charts_points(m->out, &chart, p->y, group, p->n_points);
}

/* ---- all ---- */

static cpl_status put_kind(maker *m, const cpl_chart_spec *spec)
{
    bool any = false;
    for (int64_t v = 0; v < m->n; v++) any = any || has(report_at(m, v), spec);
    if (!any) return CPL_OK;
    if (spec->lines) return put_lines(m, spec);
    return spec->spread ? put_boxes(m, spec) : put_over_alpha(m, spec);
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
        for (size_t k = 0; status == CPL_OK && k < cpl_n_chart_specs; k++)
            status = put_kind(&m, &cpl_chart_specs[k]);
        if (status == CPL_OK && first == 0) status = put_maps(&m);
        for (int64_t v = 0; v < m.n; v++)
            if (report_at(&m, v)->picture.n_points > 0) put_tsne(&m, report_at(&m, v));
        if (status == CPL_OK) status = cpl_pool_status(&m.pool);
        cpl_pool_free(&m.pool);
    }
    return status;
}
