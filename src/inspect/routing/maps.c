/* maps.c - the charts that are matrices; see charts.h */
#include <math.h>
#include <stdio.h>

#include "base/arena.h"
#include "inspect/routing/charts.h"

const cpl_routing_look cpl_routing_map_looks[CPL_ROUTING_MAPS] = {
    [CPL_ROUTING_BY_DOMAIN] = {"domain", "",
                               "The expert's share of the domain over the mean of its "
                               "shares of all domains."},
    [CPL_ROUTING_ANSWERS]   = {"answers", "M_tok, layer", "Every row over its mean."},
    [CPL_ROUTING_TOGETHER]  = {"together", "Experts together, layer",
                               "Tokens that go to both over what independence gives."},
};

int64_t cpl_routing_charts_maps(const cpl_routing_charts *charts, cpl_routing_map map)
{
    const cpl_routing_report *r = charts->report;
    if (map == CPL_ROUTING_BY_DOMAIN)
        return r->texts.sources.count > 1 ? r->texts.sources.count : 0;
    if (map == CPL_ROUTING_TOGETHER && r->top_k < 2) return 0;
    return r->n_experts > 1 ? r->n_layers : 0;
}

/* ---- numbers ---- */

static double row_mean(const cpl_routing_report *r, const cpl_routing_layer *l, int64_t i)
{
    double sum = 0;
    for (int64_t j = 0; j < r->n_experts; j++) sum += (double)l->M_tok[i * r->n_experts + j];
    return sum / (double)r->n_experts;
}

cpl_chart_range cpl_routing_answers_range(const cpl_routing_report *r)
{
    cpl_chart_range range = cpl_chart_range_none();
    for (int64_t k = 0; k < r->n_layers; k++)
        for (int64_t i = 0; i < r->n_experts; i++) {
            double mean = row_mean(r, &r->layers[k], i);
            for (int64_t j = 0; mean > 0 && j < r->n_experts; j++)
                cpl_chart_range_add(&range,
                                    (double)r->layers[k].M_tok[i * r->n_experts + j] / mean);
        }
    return cpl_chart_range_shown(range, false);
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

/* ---- drawing ---- */

static cpl_chart_matrix matrix_of(const cpl_routing_charts *charts, cpl_routing_map map,
                                  const float *values)
{
    const cpl_routing_report *r = charts->report;
    cpl_chart_matrix m          = {.values = values, .n = r->n_experts, .scale = 1};
    if (map == CPL_ROUTING_ANSWERS) {
        m.range       = charts->answers;
        m.value_label = "answer / mean of row";
        return m;
    }
    m.range =
        map == CPL_ROUTING_TOGETHER ? (cpl_chart_range){0.125, 8} : (cpl_chart_range){0.25, 4};
    m.logarithmic = true;
    m.value_label = map == CPL_ROUTING_TOGETHER ? "tokens / expected" : "share / mean share";
    if (map != CPL_ROUTING_BY_DOMAIN) return m;
    m.n         = r->n_layers;
    m.n_columns = r->n_experts;
    return m;
}

void cpl_routing_charts_map(cpl_text *out, const cpl_routing_charts *charts, cpl_routing_map map,
                            int64_t index, bool in_page)
{
    const cpl_routing_report *r = charts->report;
    const bool domain           = map == CPL_ROUTING_BY_DOMAIN;
    const int64_t rows          = domain ? r->n_layers : r->n_experts;
    float *values               = cpl_alloc((size_t)(rows * r->n_experts) * sizeof *values);
    char title[120];
    if (!values) {
        out->failed = true;
        return;
    }
    if (domain)
        snprintf(title, sizeof title, "%.80s", r->texts.sources.at[index]);
    else
        snprintf(title, sizeof title, "%s %lld", cpl_routing_map_looks[map].title,
                 (long long)index);
    cpl_chart chart = {.title    = title,
                       .subtitle = in_page ? NULL : charts->name,
                       .x_label  = map == CPL_ROUTING_ANSWERS ? "answering expert j" : "expert",
                       .y_label  = domain                       ? "layer"
                                   : map == CPL_ROUTING_ANSWERS ? "tokens routed to i"
                                                                : "expert",
                       .in_page  = in_page};
    if (domain) chart.height = fmin(110 + 16 * (double)rows, 370);
    if (domain)
        fill_domain(values, r, index);
    else if (map == CPL_ROUTING_ANSWERS)
        fill_answers(values, r, index);
    else
        fill_together(values, r, index);
    cpl_chart_matrix matrix = matrix_of(charts, map, values);
    cpl_chart_heat(out, &chart, &matrix);
    cpl_free(values);
}
