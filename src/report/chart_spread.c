/* chart_spread.c - distributions side by side; see chart.h */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "report/chart_internal.h"

enum { MOST_KEYS = 16 };

/* ---- quantiles ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t n, double share)
{
    double at = share * (double)(n - 1);
    int64_t i = (int64_t)at;
    if (i >= n - 1) return sorted[n - 1];
    return sorted[i] + (sorted[i + 1] - sorted[i]) * (at - (double)i);
}

cpl_status cpl_chart_box_of(cpl_chart_box *out, const double *values, int64_t n)
{
    *out       = (cpl_chart_box){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i];
    if (n <= 0 || !isfinite(sum)) return CPL_OK;
    double *sorted = cpl_alloc((size_t)n * sizeof *sorted);
    if (!sorted) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the quantiles of a chart");
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    *out = (cpl_chart_box){.least = sorted[0],
                           .q5    = quantile(sorted, n, 0.05),
                           .q25   = quantile(sorted, n, 0.25),
                           .q50   = quantile(sorted, n, 0.5),
                           .q75   = quantile(sorted, n, 0.75),
                           .q95   = quantile(sorted, n, 0.95),
                           .most  = sorted[n - 1],
                           .mean  = sum / (double)n};
    cpl_free(sorted);
    return CPL_OK;
}

/* ---- drawing ---- */

static bool is_shown(const cpl_chart_box *box, bool log)
{
    return isfinite(box->least) && isfinite(box->most) && (!log || box->least > 0);
}

static void put_tip(cpl_chart_canvas *s, const cpl_chart_group *group, int64_t place)
{
    const cpl_chart_box *b = &group->boxes[place];
    char w[8][48];
    const double values[8] = {b->q50, b->mean, b->q25, b->q75, b->q5, b->q95, b->least, b->most};
    for (int i = 0; i < 8; i++) cpl_markup_figure(w[i], values[i], 3);
    cpl_text_printf(s->out, "<title>");
    if (group->name) {
        cpl_markup_text(s->out, group->name);
        cpl_text_printf(s->out, ", ");
    }
    cpl_chart_put_place(s->out, s->chart, (double)place);
    cpl_text_printf(s->out,
                    ": median %s, mean %s; quartiles %s to %s; 5 %% to 95 %%: %s to %s; least %s, "
                    "greatest %s</title>\n",
                    w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
}

static void put_dot(cpl_chart_canvas *s, const char *class, double x, double value, double r)
{
    cpl_text_printf(s->out, "<circle class=\"%s\"", class);
    cpl_chart_put_attribute(s->out, "r", r);
    cpl_chart_put_attribute(s->out, "cx", x);
    cpl_chart_put_attribute(s->out, "cy", cpl_chart_axis_at(&s->y, value));
    cpl_text_printf(s->out, "/>\n");
}

static void put_box(cpl_chart_canvas *s, const cpl_chart_group *group, int64_t place, double x,
                    double width)
{
    const cpl_chart_box *b = &group->boxes[place];
    double half = width / 2, r = fmin(1.9, fmax(half * 0.45, 0.9));
    double at[5], values[5]    = {b->q5, b->q25, b->q50, b->q75, b->q95};
    for (int i = 0; i < 5; i++) at[i] = cpl_chart_axis_at(&s->y, values[i]);
    cpl_text_printf(s->out, "<g class=\"c-spread\">\n");
    put_tip(s, group, place);
    cpl_chart_put_line(s->out, "c-line c-thin", x, at[0], x, at[1]);
    cpl_chart_put_line(s->out, "c-line c-thin", x, at[3], x, at[4]);
    cpl_text_printf(s->out, "<rect class=\"c-box\"");
    cpl_chart_put_attribute(s->out, "x", x - half);
    cpl_chart_put_attribute(s->out, "y", at[3]);
    cpl_chart_put_attribute(s->out, "width", width);
    cpl_chart_put_attribute(s->out, "height", fmax(at[1] - at[3], 0));
    cpl_text_printf(s->out, "/>\n");
    cpl_chart_put_line(s->out, "c-median", x - half, at[2], x + half, at[2]);
    put_dot(s, "c-ring", x, b->least, r);
    put_dot(s, "c-ring", x, b->most, r);
    put_dot(s, "c-dot", x, b->mean, r);
    cpl_text_printf(s->out, "</g>\n");
}

static void put_group(cpl_chart_canvas *s, const cpl_chart_group *group, int64_t index,
                      int64_t n_groups)
{
    char colour[24];
    double slot  = (s->right - s->left) / (double)s->chart->n_x_names;
    double share = 0.76 * slot / (double)n_groups, width = fmin(share * 0.8, 14);
    double shift = ((double)index - (double)(n_groups - 1) / 2) * fmin(share, 18);
    cpl_chart_colour_class(colour, group->colour, false, 0);
    cpl_text_printf(s->out, "<g class=\"%s\">\n", colour);
    for (int64_t i = 0; i < s->chart->n_x_names; i++)
        if (is_shown(&group->boxes[i], s->chart->log_y))
            put_box(s, group, i, cpl_chart_place_at(s, (double)i) + shift, width);
    cpl_text_printf(s->out, "</g>\n");
}

/* Sets both axes; returns whether there is anything to draw. */
static bool make_axes(cpl_chart_canvas *s, const cpl_chart_group *groups, int64_t n_groups)
{
    const cpl_chart *chart = s->chart;
    cpl_chart_range x      = {0, chart->n_x_names > 1 ? (double)(chart->n_x_names - 1) : 1};
    cpl_chart_range y      = cpl_chart_range_none();
    for (int64_t k = 0; k < n_groups; k++)
        for (int64_t i = 0; i < chart->n_x_names; i++) {
            if (!is_shown(&groups[k].boxes[i], chart->log_y)) continue;
            cpl_chart_range_add(&y, groups[k].boxes[i].least);
            cpl_chart_range_add(&y, groups[k].boxes[i].most);
        }
    s->x = cpl_chart_axis_of(x, x, false);
    s->y = cpl_chart_axis_of(chart->y, y, chart->log_y);
    return !cpl_chart_range_is_none(y);
}

void cpl_chart_spread(cpl_text *out, const cpl_chart *chart, const cpl_chart_group *groups,
                      int64_t n_groups)
{
    cpl_chart_key keys[MOST_KEYS];
    int64_t n_keys     = 0;
    cpl_chart_canvas s = cpl_chart_canvas_open(out, chart);
    for (int64_t k = 0; k < n_groups && n_keys < MOST_KEYS; k++) {
        if (!groups[k].name) continue;
        keys[n_keys] = (cpl_chart_key){.name = groups[k].name, .mark = CPL_CHART_KEY_DOT};
        cpl_chart_colour_class(keys[n_keys++].colour, groups[k].colour, false, 0);
    }
    cpl_chart_canvas_legend(&s, keys, n_keys);
    bool any = make_axes(&s, groups, n_groups);
    cpl_chart_canvas_axes(&s);
    if (!any) cpl_chart_canvas_empty(&s);
    for (int64_t k = 0; k < n_groups; k++) put_group(&s, &groups[k], k, n_groups);
    cpl_chart_canvas_close(&s);
}
