/* charts.c - the charts of a comparison; see compare.h */
#include "compare/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"

static const double early = 0.05, wide_ratio = 30;

/* ---- which there are ---- */

static double line_value(const cpl_run_record *run, const cpl_run_line *line,
                         const cpl_compared_figure *f)
{
    return f->source ? cpl_run_val_loss(run, line, f->source) : line->values[f->name];
}

static bool any_value(const cpl_compare *c, const cpl_compared_figure *f)
{
    for (int64_t r = 0; r < c->n_runs; r++)
        for (int64_t i = 0; i < c->runs[r].n_lines; i++)
            if (isfinite(line_value(&c->runs[r], &c->runs[r].lines[i], f))) return true;
    return false;
}

static bool has_places(const cpl_compare *c)
{
    return c->options.group_by && c->n_groups > 1 && !isnan(c->groups[0].place);
}

/* ---- curves ---- */

/* Everything that one chart is drawn with. */
typedef struct drawing {
    const cpl_compare *c;
    const cpl_compared_figure *figure;
    double first; /* tokens before which nothing is drawn */
    double unit;  /* tokens of one on the axis */
    cpl_pool pool;
    cpl_chart_series *series;
    int64_t n_series;
} drawing;

static double last_tokens(const cpl_compare *c)
{
    double last = 0;
    for (int64_t r = 0; r < c->n_runs; r++)
        if (cpl_run_last(&c->runs[r])) last = fmax(last, cpl_run_last(&c->runs[r])->tokens);
    return last;
}

/* Sets the unit of tokens; returns the name of the axis. */
static const char *choose_unit(drawing *d)
{
    const double last = last_tokens(d->c);
    d->unit           = last >= 1e6 ? 1e6 : last >= 1e3 ? 1e3 : 1;
    return last >= 1e6 ? "million tokens" : last >= 1e3 ? "thousand tokens" : "tokens";
}

/* Line i of a run, start.json before the others; NULL after the last. */
static const cpl_run_line *nth_line(const cpl_run_record *run, int64_t i)
{
    if (run->has_start && i-- == 0) return &run->start;
    return i < run->n_lines ? &run->lines[i] : NULL;
}

static const cpl_run_line *line_at(const cpl_run_record *run, double tokens)
{
    if (run->has_start && tokens == 0) return &run->start;
    return cpl_run_line_at(run, tokens);
}

/* Mean and deviation over the members that have begun at so many tokens; NaN if one of them has
 * no number. */
static cpl_spread members_at(const drawing *d, const cpl_run_group *group, double tokens,
                             double *values)
{
    int64_t n = 0;
    for (int64_t i = 0; i < group->n; i++) {
        const cpl_run_record *run = &d->c->runs[group->members[i]];
        if (!cpl_run_last(run)) continue;
        const cpl_run_line *line = line_at(run, tokens);
        values[n++]              = line ? line_value(run, line, d->figure) : (double)NAN;
    }
    cpl_spread s = cpl_spread_of(values, n);
    if (s.n < n) s.mean = (double)NAN;
    return s;
}

/* The first member that has logged a step; if none has, the first. */
static const cpl_run_record *first_logged(const cpl_compare *c, const cpl_run_group *group)
{
    for (int64_t i = 0; i < group->n; i++)
        if (cpl_run_last(&c->runs[group->members[i]])) return &c->runs[group->members[i]];
    return &c->runs[group->members[0]];
}

static cpl_status add_group(drawing *d, int64_t g)
{
    const cpl_run_group *group  = &d->c->groups[g];
    const cpl_run_record *first = first_logged(d->c, group);
    const size_t most           = (size_t)(first->n_lines + 1);
    double *x                   = cpl_pool_take(&d->pool, 4 * most * sizeof *x);
    double *values              = cpl_pool_take(&d->pool, (size_t)group->n * sizeof *values);
    if (!x || !values) return CPL_ERR_MEMORY;
    double *y = x + most, *low = y + most, *high = low + most;
    int64_t n = 0;
    for (int64_t i = 0; nth_line(first, i); i++) {
        const double tokens = nth_line(first, i)->tokens;
        const cpl_spread s  = members_at(d, group, tokens, values);
        if (tokens < d->first || isnan(s.mean)) continue;
        x[n]      = tokens / d->unit;
        y[n]      = s.mean;
        low[n]    = s.mean - s.sd;
        high[n++] = s.mean + s.sd;
    }
    const int64_t n_groups = d->c->n_groups;
    const bool ramp        = n_groups > CPL_COMPARE_COLOURS;
    d->series[d->n_series++] =
        (cpl_chart_series){.name  = group->name,
                           .x     = x,
                           .y     = y,
                           .low   = group->n > 1 ? low : NULL,
                           .high  = group->n > 1 ? high : NULL,
                           .n     = n,
                           .group = ramp ? 0 : (int)g,
                           .ramp  = ramp,
                           .share = n_groups > 1 ? (double)g / (double)(n_groups - 1) : 0,
                           .marks = n <= 80};
    return CPL_OK;
}

/* ---- at the end ---- */

/* The means of the groups, and a point of every run. */
static cpl_status add_end(drawing *d)
{
    const cpl_compare *c = d->c;
    const size_t most    = (size_t)(c->n_groups + c->n_runs);
    double *x            = cpl_pool_take(&d->pool, 2 * most * sizeof *x);
    int64_t n            = 0;
    if (!x) return CPL_ERR_MEMORY;
    double *y = x + most;
    for (int64_t g = 0; g < c->n_groups; g++) {
        if (isnan(d->figure->spread[g].mean)) continue;
        x[n]   = c->groups[g].place;
        y[n++] = d->figure->spread[g].mean;
    }
    d->series[d->n_series++] = (cpl_chart_series){.name = "mean", .x = x, .y = y, .n = n};
    x += n;
    y += n;
    for (int64_t r = 0; r < c->n_runs; r++) {
        x[r] = c->groups[c->group_of[r]].place;
        y[r] = d->figure->values[r];
    }
    d->series[d->n_series++] = (cpl_chart_series){
        .name = "a run", .x = x, .y = y, .n = c->n_runs, .group = 1, .style = CPL_CHART_DOTS};
    return CPL_OK;
}

/* Settings that span more than a decade and a half get a logarithmic axis. */
static bool is_wide(const cpl_compare *c)
{
    const double low = c->groups[0].place, high = c->groups[c->n_groups - 1].place;
    return low > 0 && high > low * wide_ratio;
}

/* ---- a chart ---- */

static cpl_status fill(drawing *d, bool at_the_end)
{
    d->series = cpl_pool_take(&d->pool, (size_t)(d->c->n_groups + 2) * sizeof *d->series);
    if (!d->series) return CPL_ERR_MEMORY;
    if (at_the_end) return add_end(d);
    d->first = d->figure->is->curve == CPL_RUN_CURVE_LOSS ? early * last_tokens(d->c) : 0;
    for (int64_t g = 0; g < d->c->n_groups; g++) CPL_TRY(add_group(d, g));
    return CPL_OK;
}

static cpl_status put_chart(cpl_charts *out, const cpl_compare *c, const cpl_compared_figure *f,
                            bool at_the_end)
{
    drawing d                 = {.c = c, .figure = f};
    const char *x_label       = choose_unit(&d);
    const cpl_run_curve curve = f->is->curve;
    cpl_status status         = fill(&d, at_the_end);
    const bool ramp           = !at_the_end && c->n_groups > CPL_COMPARE_COLOURS;
    cpl_chart chart           = {
                  .id      = cpl_pool_printf(&d.pool, "%s%s", at_the_end ? "at-the-end-" : "", f->is->file),
                  .section = at_the_end ? "end" : "curves",
                  .title   = f->is->label,
                  .caption = f->is->help,
                  .x = {.label = at_the_end ? c->options.group_by : x_label, .log = at_the_end && is_wide(c)},
                  .y = {.range = {0, curve == CPL_RUN_CURVE_SHARE}, .log = curve == CPL_RUN_CURVE_LOG}};
    chart.y.zero = chart.y.log; /* a loss that has reached 0 is at the foot of the axis */
    if (ramp) {
        chart.ramp[0] = c->groups[0].name;
        chart.ramp[1] = c->groups[c->n_groups - 1].name;
    }
    if (status == CPL_OK) status = cpl_pool_status(&d.pool);
    if (status == CPL_OK) cpl_charts_lines(out, &chart, d.series, d.n_series);
    cpl_pool_free(&d.pool);
    return status;
}

cpl_status cpl_compare_charts(cpl_charts *out, const cpl_compare *c)
{
    for (int end = has_places(c); end >= 0; end--)
        for (int64_t i = 0; i < c->n_figures; i++) {
            const cpl_compared_figure *f = &c->figures[i];
            if (f->is->curve != CPL_RUN_CURVE_NONE && any_value(c, f))
                CPL_TRY(put_chart(out, c, f, end));
        }
    return CPL_OK;
}
