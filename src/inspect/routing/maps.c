/* maps.c - the charts that are matrices; see show.h */
#include <math.h>
#include <stdio.h>

#include "base/arena.h"
#include "inspect/routing/show.h"

enum { ANSWERS, TOGETHER, BY_DOMAIN, KINDS };

/* A map a layer, or of BY_DOMAIN a source: layers down, experts across. */
static int64_t count_of(const cpl_routing_report *r, int kind)
{
    if (kind == BY_DOMAIN) return r->texts.sources.count > 1 ? r->texts.sources.count : 0;
    if (kind == TOGETHER && r->top_k < 2) return 0;
    return r->n_experts > 1 ? r->n_layers : 0;
}

/* ---- numbers ---- */

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

/* ---- charts ---- */

static const cpl_chart looks[KINDS] = {
    [ANSWERS]   = {.id      = "routing-answers",
                   .section = "answers",
                   .title   = "M_tok, layer",
                   .caption =
                       "Every row over its mean. A column that is light everywhere is an expert "
                         "that answers everything.",
                   .x = {.label = "answering expert j"},
                   .y = {.label = "tokens routed to i"}},
    [TOGETHER]  = {.id      = "routing-together",
                   .section = "together",
                   .title   = "Experts together, layer",
                   .caption =
                       "Tokens of both experts over what independence gives; blank where there "
                        "is nothing to compare.",
                   .x = {.label = "expert j"},
                   .y = {.label = "expert i"}},
    [BY_DOMAIN] = {.id      = "routing-domain",
                   .section = "by-domain",
                   .title   = "",
                   .caption =
                       "An expert's share of a domain's tokens over the mean of its shares of "
                       "all domains; 1 is no preference.",
                   .x = {.label = "expert"},
                   .y = {.label = "layer"}},
};

static void put_map(cpl_charts *out, const cpl_routing_report *r, int kind, int64_t index,
                    float *values, cpl_chart_range colours)
{
    static const char *const value_labels[KINDS] = {"answer / mean of row", "tokens / expected",
                                                    "share / mean share"};
    static const cpl_chart_range ranges[KINDS]   = {{0}, {0.125, 8}, {0.25, 4}};
    cpl_chart chart                              = looks[kind];
    char title[120], label[48];
    snprintf(label, sizeof label, "%lld", (long long)index);
    if (kind == BY_DOMAIN) snprintf(label, sizeof label, "%.40s", r->texts.sources.at[index]);
    snprintf(title, sizeof title, "%s%s%.80s", chart.title, *chart.title ? " " : "",
             kind == BY_DOMAIN ? r->texts.sources.at[index] : label);
    chart.title = title;
    if (kind == ANSWERS) fill_answers(values, r, index);
    if (kind == TOGETHER) fill_together(values, r, index);
    if (kind == BY_DOMAIN) fill_domain(values, r, index);
    const cpl_chart_matrix matrix = {.values      = values,
                                     .rows        = kind == BY_DOMAIN ? r->n_layers : r->n_experts,
                                     .columns     = r->n_experts,
                                     .scale       = 1,
                                     .colours     = kind == ANSWERS ? colours : ranges[kind],
                                     .log         = kind != ANSWERS,
                                     .diverging   = kind != ANSWERS,
                                     .value_label = value_labels[kind],
                                     .label       = label};
    cpl_charts_heat(out, &chart, &matrix);
}

cpl_status cpl_routing_maps(cpl_charts *out, const cpl_routing_report *r)
{
    const int64_t rows            = r->n_layers > r->n_experts ? r->n_layers : r->n_experts;
    const cpl_chart_range colours = answers_range(r);
    float *values                 = cpl_alloc((size_t)(rows * r->n_experts) * sizeof *values);
    if (!values) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the charts");
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t i = 0; i < count_of(r, kind); i++) put_map(out, r, kind, i, values, colours);
    cpl_free(values);
    return CPL_OK;
}
