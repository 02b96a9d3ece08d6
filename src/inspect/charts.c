/* charts.c - see charts.h */
#include "inspect/charts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "report/markup.h"

/* ---- memory: blocks in a list, given back together ---- */

typedef struct block {
    struct block *next;
} block;

static void *take(cpl_coupling_charts *charts, int64_t count, size_t size)
{
    size_t bytes = CPL_ALIGNMENT + (size_t)count * size;
    block *made  = cpl_alloc(bytes);
    if (!made) return NULL;
    memset(made, 0, bytes);
    made->next     = charts->memory;
    charts->memory = made;
    return (char *)made + CPL_ALIGNMENT;
}

static cpl_status no_memory(void)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
}

void cpl_coupling_charts_close(cpl_coupling_charts *charts)
{
    for (block *b = charts->memory, *next; b; b = next) {
        next = b->next;
        cpl_free(b);
    }
    memset(charts, 0, sizeof *charts);
}

/* ---- one report ---- */

const char *cpl_coupling_charts_label(char out[48], const cpl_layer_report *layer)
{
    const char *part = layer->at->part;
    snprintf(out, 48, "%.20s%s%lld", part, *part ? " " : "", (long long)layer->at->layer);
    return out;
}

const char *cpl_coupling_charts_words(char out[64], const cpl_layer_report *layer)
{
    const char *part = layer->at->part;
    snprintf(out, 64, "layer %lld%s%.20s", (long long)layer->at->layer, *part ? " of the " : "",
             part);
    return out;
}

static cpl_status name_layers(cpl_coupling_charts *charts, cpl_coupling_view *view)
{
    const cpl_coupling_report *r = view->report;
    char(*bytes)[24]             = take(charts, r->n_layers, sizeof *bytes);
    view->names                  = take(charts, r->n_layers, sizeof *view->names);
    if (!bytes || !view->names) return no_memory();
    for (int64_t i = 0; i < r->n_layers; i++) {
        const char *part = r->layers[i].at->part;
        snprintf(bytes[i], sizeof bytes[i], "%lld", (long long)r->layers[i].at->layer);
        view->names[i] = bytes[i];
        if (!*part) continue;
        bool same = view->n_parts && strcmp(view->parts[view->n_parts - 1].name, part) == 0;
        if (same)
            view->parts[view->n_parts - 1].last = i;
        else if (view->n_parts < 2)
            view->parts[view->n_parts++] = (cpl_chart_part){part, i, i};
    }
    return CPL_OK;
}

static cpl_status find_boxes(cpl_coupling_charts *charts, cpl_coupling_view *view,
                             cpl_coupling_kind kind)
{
    const cpl_chart_spec *look   = &cpl_chart_specs[kind];
    const cpl_coupling_report *r = view->report;
    cpl_chart_box *boxes         = take(charts, r->n_layers, sizeof *boxes);
    if (!boxes) return no_memory();
    view->boxes[kind] = boxes;
    for (int64_t i = 0; i < r->n_layers; i++) {
        int64_t n      = r->layers[i].fault ? 0 : look->spread(NULL, &r->layers[i]);
        double *values = cpl_alloc((size_t)n * sizeof *values + 1);
        if (!values) return no_memory();
        if (n) look->spread(values, &r->layers[i]);
        cpl_status status = cpl_chart_box_of(&boxes[i], values, n);
        cpl_free(values);
        CPL_TRY(status);
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

static cpl_status find_order(cpl_coupling_charts *charts, int32_t **out,
                             const cpl_layer_report *layer)
{
    int64_t n     = layer->at->n;
    int32_t *made = take(charts, n, sizeof *made);
    place *places = cpl_alloc((size_t)n * sizeof *places);
    if (!made || !places) {
        cpl_free(places);
        return no_memory();
    }
    for (int64_t i = 0; i < n; i++) places[i] = (place){layer->M[i * n + i], (int32_t)i};
    qsort(places, (size_t)n, sizeof *places, by_diagonal);
    for (int64_t i = 0; i < n; i++) made[i] = places[i].expert;
    cpl_free(places);
    *out = made;
    return CPL_OK;
}

static cpl_status open_view(cpl_coupling_charts *charts, cpl_coupling_view *view)
{
    const cpl_coupling_report *r = view->report;
    for (int k = r->options.n_alphas; k-- > 0;)
        if (r->options.alphas[k] == 1) view->alpha = k;
    CPL_TRY(name_layers(charts, view));
    for (cpl_coupling_kind kind = 0; kind < CPL_COUPLING_KINDS; kind++)
        if (cpl_chart_specs[kind].spread) CPL_TRY(find_boxes(charts, view, kind));
    view->orders = take(charts, r->n_layers, sizeof *view->orders);
    if (!view->orders) return no_memory();
    for (int64_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].has_M) CPL_TRY(find_order(charts, &view->orders[i], &r->layers[i]));
    return CPL_OK;
}

/* ---- common scales ---- */

static bool is_over_alpha(cpl_coupling_kind kind)
{
    return kind == CPL_COUPLING_ALPHA || kind == CPL_COUPLING_ERC;
}

static double erc_value(cpl_coupling_kind kind, const cpl_layer_report *layer, int k)
{
    return kind == CPL_COUPLING_ERC ? layer->erc[k] : cpl_coupling_charts_erc(layer, layer->erc[k]);
}

static void add_lines(cpl_chart_range *range, const cpl_coupling_view *view,
                      const cpl_chart_spec *look)
{
    double values[CPL_COUPLING_MOST_LINES + 2];
    int n = look->n_lines + (look->band ? 2 : 0);
    for (int64_t i = 0; i < view->report->n_layers; i++) {
        if (!view->report->layers[i].has_M) continue;
        look->lines(values, &view->report->layers[i], view->alpha);
        for (int k = 0; k < n; k++)
            if (!look->log_y || values[k] > 0) cpl_chart_range_add(range, values[k]);
    }
}

static void add_boxes(cpl_chart_range *range, const cpl_coupling_view *view, cpl_coupling_kind kind)
{
    for (int64_t i = 0; i < view->report->n_layers; i++) {
        cpl_chart_range_add(range, view->boxes[kind][i].least);
        cpl_chart_range_add(range, view->boxes[kind][i].most);
    }
}

static void add_erc(cpl_coupling_charts *charts, const cpl_coupling_view *view,
                    cpl_coupling_kind kind)
{
    const cpl_coupling_report *r = view->report;
    for (int64_t i = 0; i < r->n_layers; i++)
        for (int k = 0; r->layers[i].has_M && k < r->options.n_alphas; k++)
            cpl_chart_range_add(&charts->y[kind], erc_value(kind, &r->layers[i], k));
    for (int k = 0; k < r->options.n_alphas; k++)
        cpl_chart_range_add(&charts->alphas, r->options.alphas[k]);
}

static void find_scale(cpl_coupling_charts *charts, cpl_coupling_kind kind)
{
    const cpl_chart_spec *look = &cpl_chart_specs[kind];
    cpl_chart_range *range     = &charts->y[kind];
    *range                     = cpl_chart_range_none();
    if (look->from_zero) cpl_chart_range_add(range, 0);
    if (look->rule_name) cpl_chart_range_add(range, look->rule);
    for (int64_t v = 0; v < charts->n_views; v++) {
        if (look->lines) add_lines(range, &charts->views[v], look);
        if (look->spread) add_boxes(range, &charts->views[v], kind);
        if (is_over_alpha(kind)) add_erc(charts, &charts->views[v], kind);
    }
    *range = look->whole ? (cpl_chart_range){0, 1} : cpl_chart_range_round(*range, look->log_y);
}

double cpl_coupling_charts_scale(const cpl_layer_report *layer)
{
    const cpl_coupling_figures *f = &layer->figures;
    if (f->m_diagonal > 0) return 1 / f->m_diagonal;
    return f->m_off_diagonal > 0 ? 1 / f->m_off_diagonal : 1;
}

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static cpl_status add_heat(cpl_chart_range *range, const cpl_layer_report *layer)
{
    int64_t cells = layer->at->n * layer->at->n;
    double scale  = cpl_coupling_charts_scale(layer);
    float *sorted = cpl_alloc((size_t)cells * sizeof *sorted);
    if (!sorted) return no_memory();
    memcpy(sorted, layer->M, (size_t)cells * sizeof *sorted);
    qsort(sorted, (size_t)cells, sizeof *sorted, by_float);
    int64_t low = (int64_t)(0.01 * (double)(cells - 1));
    while (low + 1 < cells && sorted[low] == 0) low++; /* a logarithmic scale begins above 0 */
    cpl_chart_range_add(range, sorted[low] * scale);
    cpl_chart_range_add(range, sorted[(int64_t)(0.999 * (double)(cells - 1))] * scale);
    cpl_free(sorted);
    return CPL_OK;
}

/* The range as it is, where it has some width: a bar needs no round ends. */
static cpl_status find_heat_scale(cpl_coupling_charts *charts)
{
    cpl_chart_range range = cpl_chart_range_none();
    for (int64_t v = 0; v < charts->n_views; v++)
        for (int64_t i = 0; i < charts->views[v].report->n_layers; i++) {
            const cpl_layer_report *layer = &charts->views[v].report->layers[i];
            if (layer->has_M) CPL_TRY(add_heat(&range, layer));
        }
    charts->heat_log = range.low > 0 && range.high > 8 * range.low;
    charts->heat     = cpl_chart_range_shown(range, charts->heat_log);
    return CPL_OK;
}

static void find_picture_scale(cpl_coupling_charts *charts)
{
    double most = 0;
    for (int64_t v = 0; v < charts->n_views; v++) {
        const cpl_tsne_plot *p = &charts->views[v].report->picture;
        for (int64_t i = 0; i < 2 * p->n_points; i++)
            if (isfinite(p->y[i])) most = fmax(most, fabs((double)p->y[i]));
    }
    charts->picture = (cpl_chart_range){-most, most};
}

cpl_status cpl_coupling_charts_open(cpl_coupling_charts *charts,
                                    const cpl_coupling_report *const *reports, int64_t count)
{
    cpl_status status = CPL_OK;
    memset(charts, 0, sizeof *charts);
    charts->n_views = count;
    charts->views   = take(charts, count, sizeof *charts->views);
    if (!charts->views) CPL_TRY_DONE(no_memory());
    for (int64_t v = 0; v < count; v++) {
        charts->views[v].report = reports[v];
        CPL_TRY_DONE(open_view(charts, &charts->views[v]));
    }
    charts->alphas = cpl_chart_range_none();
    for (cpl_coupling_kind kind = 0; kind < CPL_COUPLING_KINDS; kind++) find_scale(charts, kind);
    CPL_TRY_DONE(find_heat_scale(charts));
    find_picture_scale(charts);
done:
    if (status != CPL_OK) cpl_coupling_charts_close(charts);
    return status;
}

/* ---- drawing ---- */

bool cpl_coupling_charts_have(const cpl_coupling_charts *charts, int64_t view,
                              cpl_coupling_kind kind)
{
    const cpl_coupling_report *r = charts->views[view].report;
    if (kind == CPL_COUPLING_PICTURE) return r->picture.n_points > 0;
    if (kind == CPL_COUPLING_SILHOUETTE && !r->options.silhouette) return false;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *layer = &r->layers[i];
        if (cpl_chart_specs[kind].spread ? !layer->fault : layer->has_M) return true;
    }
    return false;
}

/* A file has both names; in a page the section tells the title where there are several reports. */
static cpl_chart chart_of(const cpl_coupling_charts *charts, int64_t v, const char *title,
                          bool in_page)
{
    cpl_chart chart = {.title = title, .in_page = in_page};
    if (!in_page)
        chart.subtitle = charts->views[v].report->name;
    else if (charts->n_views > 1)
        chart.title = charts->views[v].report->name;
    return chart;
}

static void over_layers(cpl_chart *chart, const cpl_coupling_view *view)
{
    chart->x_label   = "layer";
    chart->x_names   = view->names;
    chart->n_x_names = view->report->n_layers;
    chart->x_parts   = view->parts;
    chart->n_x_parts = view->n_parts;
}

/* values [n_lines + 2][n_layers] of one report. */
static void draw_lines(cpl_text *out, const cpl_chart *chart, const cpl_coupling_view *view,
                       const cpl_chart_spec *look, double *values)
{
    enum { MOST = CPL_COUPLING_MOST_LINES + 2 };
    cpl_chart_series series[MOST] = {{0}};
    int64_t n                     = view->report->n_layers;
    int n_values                  = look->n_lines + (look->band ? 2 : 0);
    for (int64_t i = 0; i < n; i++) {
        double of_layer[MOST];
        for (int k = 0; k < MOST; k++) of_layer[k] = NAN;
        if (view->report->layers[i].has_M)
            look->lines(of_layer, &view->report->layers[i], view->alpha);
        for (int k = 0; k < n_values; k++) values[k * n + i] = of_layer[k];
    }
    for (int k = 0; k < look->n_lines; k++)
        series[k] = (cpl_chart_series){.name   = look->names[k],
                                       .y      = values + k * n,
                                       .n      = n,
                                       .colour = look->colours[k],
                                       .dashed = look->dashed[k],
                                       .plain  = look->dashed[k]};
    if (look->band)
        series[look->n_lines] = (cpl_chart_series){.name   = look->band,
                                                   .low    = values + look->n_lines * n,
                                                   .high   = values + (look->n_lines + 1) * n,
                                                   .n      = n,
                                                   .colour = look->band_colour};
    cpl_chart_lines(out, chart, series, look->n_lines + (look->band ? 1 : 0));
}

static void draw_spread(cpl_text *out, const cpl_chart *chart, const cpl_coupling_view *view,
                        cpl_coupling_kind kind)
{
    cpl_chart_group group = {.boxes = view->boxes[kind]};
    cpl_chart_spread(out, chart, &group, 1);
}

/* One series a layer, coloured by its place; values and names for each of them. */
static void draw_over_alpha(cpl_text *out, cpl_chart *chart, const cpl_coupling_view *view,
                            cpl_coupling_kind kind, cpl_chart_series *series, double *values,
                            char (*names)[64])
{
    const cpl_coupling_report *r = view->report;
    int64_t n_series = 0, n_alphas = r->options.n_alphas;
    for (int64_t i = 0; i < r->n_layers; i++) {
        if (!r->layers[i].has_M) continue;
        double *y = values + n_series * n_alphas;
        for (int k = 0; k < n_alphas; k++) y[k] = erc_value(kind, &r->layers[i], k);
        cpl_coupling_charts_words(names[n_series], &r->layers[i]);
        series[n_series] = (cpl_chart_series){
            .name  = names[n_series],
            .x     = r->options.alphas,
            .y     = y,
            .n     = n_alphas,
            .ramp  = true,
            .share = r->n_layers > 1 ? (double)i / (double)(r->n_layers - 1) : 0};
        n_series++;
    }
    chart->x_label       = "α";
    chart->ramp_names[0] = n_series ? names[0] : NULL;
    chart->ramp_names[1] = n_series ? names[n_series - 1] : NULL;
    cpl_chart_lines(out, chart, series, n_series);
}

static void draw_picture(cpl_text *out, cpl_chart *chart, const cpl_coupling_report *r)
{
    const cpl_tsne_plot *p = &r->picture;
    int32_t experts[CPL_CHART_COLOURS];
    char names[CPL_CHART_COLOURS][24], kl[48];
    const char *pointers[CPL_CHART_COLOURS];
    char note[200], which[40] = "expert 0", thinned[40] = "";
    int64_t n_classes = 0;
    int32_t *classes  = cpl_alloc((size_t)p->n_points * sizeof *classes);
    if (!classes) {
        out->failed = true;
        return;
    }
    for (int64_t i = 0; i < p->n_points; i++) {
        int32_t k = 0;
        while (k < n_classes && experts[k] != p->expert[i]) k++;
        CPL_ASSERT(k < CPL_CHART_COLOURS);
        if (k == n_classes) experts[n_classes++] = p->expert[i];
        classes[i] = k;
    }
    for (int64_t k = 0; k < n_classes; k++) {
        snprintf(names[k], sizeof names[k], "%d", experts[k]);
        pointers[k] = names[k];
    }
    if (p->every > 1) snprintf(thinned, sizeof thinned, "; 1 row in %lld", (long long)p->every);
    if (p->n_experts > 1) snprintf(which, sizeof which, "i mod %lld = 0", (long long)p->stride);
    snprintf(note, sizeof note, "layer %lld; %s%s; perplexity %g; KL %s", (long long)p->layer,
             which, thinned, p->perplexity, cpl_markup_figure(kl, p->kl, 4));
    chart->note         = note;
    chart->legend_title = "expert";
    cpl_chart_points(out, chart, p->y, classes, p->n_points, pointers, n_classes);
    cpl_free(classes);
}

/* Room for the numbers of the chart with the most of them. */
static void draw_series(cpl_text *out, cpl_chart *chart, const cpl_coupling_view *view,
                        cpl_coupling_kind kind)
{
    const cpl_chart_spec *look = &cpl_chart_specs[kind];
    int64_t n = view->report->n_layers, most = CPL_CHANCE_MAX_ALPHAS;
    double *values           = cpl_alloc((size_t)(n * most) * sizeof *values);
    cpl_chart_series *series = cpl_alloc((size_t)n * sizeof *series);
    char(*names)[64]         = cpl_alloc((size_t)n * sizeof *names);
    if (!values || !series || !names)
        out->failed = true;
    else if (look->lines)
        draw_lines(out, chart, view, look, values);
    else
        draw_over_alpha(out, chart, view, kind, series, values, names);
    cpl_free(values);
    cpl_free(series);
    cpl_free(names);
}

void cpl_coupling_charts_draw(cpl_text *out, const cpl_coupling_charts *charts, int64_t v,
                              cpl_coupling_kind kind, bool in_page)
{
    const cpl_chart_spec *look    = &cpl_chart_specs[kind];
    const cpl_coupling_view *view = &charts->views[v];
    cpl_chart_rule rule           = {look->rule, look->rule_name};
    cpl_chart chart               = chart_of(charts, v, look->title, in_page);
    char y_label[96];
    chart.y_label = look->y_label;
    chart.y       = charts->y[kind];
    chart.log_y   = look->log_y;
    chart.rules   = &rule;
    chart.n_rules = look->rule_name ? 1 : 0;
    if (kind == CPL_COUPLING_CHANCE) {
        snprintf(y_label, sizeof y_label, "%s, α = %g", look->y_label,
                 view->report->options.alphas[view->alpha]);
        chart.y_label = y_label;
    }
    if (look->lines || look->spread) over_layers(&chart, view);
    if (is_over_alpha(kind)) chart.x = charts->alphas;
    if (kind == CPL_COUPLING_PICTURE) {
        chart.x = charts->picture;
        draw_picture(out, &chart, view->report);
    } else if (look->spread) {
        draw_spread(out, &chart, view, kind);
    } else {
        draw_series(out, &chart, view, kind);
    }
}

void cpl_coupling_charts_heat(cpl_text *out, const cpl_coupling_charts *charts, int64_t v,
                              int64_t index)
{
    const cpl_layer_report *layer = &charts->views[v].report->layers[index];
    char words[64], title[96], low[48], high[48], note[160];
    float least = layer->M[0], most = layer->M[0];
    for (int64_t i = 1; i < layer->at->n * layer->at->n; i++) {
        least = fminf(least, layer->M[i]);
        most  = fmaxf(most, layer->M[i]);
    }
    snprintf(title, sizeof title, "Coupling matrix M, %s", cpl_coupling_charts_words(words, layer));
    snprintf(note, sizeof note, "M from %s to %s", cpl_markup_figure(low, least, 4),
             cpl_markup_figure(high, most, 4));
    cpl_chart chart         = chart_of(charts, v, title, false);
    chart.y_label           = "router row i";
    chart.x_label           = "expert j (both by falling diagonal)";
    chart.note              = note;
    cpl_chart_matrix matrix = {.values      = layer->M,
                               .order       = charts->views[v].orders[index],
                               .n           = layer->at->n,
                               .scale       = cpl_coupling_charts_scale(layer),
                               .range       = charts->heat,
                               .logarithmic = charts->heat_log,
                               .value_label = "M / mean diagonal"};
    cpl_chart_heat(out, &chart, &matrix);
}
