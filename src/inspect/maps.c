/* maps.c - the charts without lines: coupling matrices; see show.h */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/show.h"
#include "report/markup.h"

/* ---- coupling matrices ---- */

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The factor of M before it becomes a colour: 1 / mean diagonal. If that mean is 0: 1 / mean off
 * the diagonal. If both are 0: 1. */
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

static void put_map(cpl_charts *out, cpl_pool *pool, const char *name, int64_t v,
                    const cpl_layer_report *layer, cpl_chart_range colours)
{
    char label[48], low[48], high[48], mean[48];
    float least = layer->M[0], most = layer->M[0];
    for (int64_t i = 1; i < layer->at->n * layer->at->n; i++) {
        least = fminf(least, layer->M[i]);
        most  = fmaxf(most, layer->M[i]);
    }
    cpl_coupling_layer_label(label, layer);
    const cpl_chart chart = {
        .id      = cpl_pool_printf(pool, "coupling %s %s", name, label),
        .section = "maps",
        .title   = cpl_pool_printf(pool, "%s%sM of layer %s", name, *name ? ": " : "", label),
        .caption = cpl_pool_printf(
            pool, "M from %s to %s, mean diagonal %s. Rows and columns by falling diagonal.",
            cpl_markup_figure(low, least, 4), cpl_markup_figure(high, most, 4),
            cpl_markup_figure(mean, layer->figures.m_diagonal, 4)),
        .x = {.label = "expert j"},
        .y = {.label = "router row i"}};
    const cpl_chart_matrix matrix = {.values  = layer->M,
                                     .order   = order_of(pool, layer),
                                     .rows    = layer->at->n,
                                     .columns = layer->at->n,
                                     .scale   = heat_scale(layer),
                                     .colours = colours,
                                     .log     = colours.low > 0 && colours.high > 8 * colours.low,
                                     .value_label = "M / mean diagonal",
                                     .raw_label   = "M",
                                     .label       = label,
                                     .group       = (int)v};
    cpl_charts_heat(out, &chart, &matrix);
}

cpl_status cpl_coupling_maps(cpl_charts *out, const cpl_coupling_report *const *reports,
                             int64_t count)
{
    cpl_chart_range colours;
    cpl_pool pool = {0};
    CPL_TRY(heat_range(&colours, reports, count));
    for (int64_t v = 0; v < count; v++)
        for (int64_t i = 0; i < reports[v]->n_layers; i++)
            if (reports[v]->layers[i].has_M)
                put_map(out, &pool, count > 1 ? reports[v]->name : "", v, &reports[v]->layers[i],
                        colours);
    cpl_status status = cpl_pool_status(&pool);
    cpl_pool_free(&pool);
    return status;
}
