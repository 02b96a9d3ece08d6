/* charts.c - see charts.h */
#include "compare/charts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart.h"
#include "report/svg_file.h"

static const double early = 0.05, wide_ratio = 30;

/* ---- which there are ---- */

static double line_value(const cpl_run_record *run, const cpl_run_line *line,
                         const cpl_compared_figure *f)
{
    return f->source ? cpl_run_source(run, line, f->source) : line->values[f->figure];
}

static bool any_value(const cpl_compare *c, const cpl_compared_figure *f)
{
    for (int64_t r = 0; r < c->n_runs; r++)
        for (int64_t i = 0; i < c->runs[r].n_lines; i++)
            if (isfinite(line_value(&c->runs[r], &c->runs[r].lines[i], f))) return true;
    return false;
}

static cpl_run_curve curve_of(const cpl_compared_figure *f)
{
    if (f->source) return CPL_RUN_CURVE_LOSS;
    return f->figure < 0 ? CPL_RUN_CURVE_NONE : cpl_run_figures[f->figure].curve;
}

static bool is_name_taken(const cpl_compare_charts *charts, const char *file)
{
    for (int64_t i = 0; i < charts->n; i++)
        if (strcmp(charts->charts[i].file, file) == 0) return true;
    return false;
}

static void add(cpl_compare_charts *charts, int64_t figure, bool at_the_end)
{
    const cpl_compared_figure *f = &charts->compare->figures[figure];
    cpl_compare_chart *chart     = &charts->charts[charts->n];
    char name[CPL_SVG_NAME_BYTES], whole[160];
    snprintf(whole, sizeof whole, "%s%.120s", at_the_end ? "at-the-end-" : "", f->file);
    cpl_svg_name(name, whole, "chart");
    *chart = (cpl_compare_chart){
        .caption = f->help, .figure = figure, .curve = curve_of(f), .at_the_end = at_the_end};
    strcpy(chart->file, name);
    for (int64_t k = 2; is_name_taken(charts, chart->file); k++)
        snprintf(chart->file, sizeof chart->file, "%s_%lld", name, (long long)k);
    charts->n++;
}

static bool has_places(const cpl_compare *c)
{
    return c->options.group_by && c->n_groups > 1 && !isnan(c->groups[0].place);
}

cpl_status cpl_compare_charts_open(cpl_compare_charts *charts, const cpl_compare *c)
{
    *charts = (cpl_compare_charts){.compare = c};
    charts->charts =
        cpl_pool_take(&charts->pool, (size_t)(2 * c->n_figures) * sizeof(cpl_compare_chart));
    if (!charts->charts) return CPL_ERR_MEMORY;
    for (int end = 0; end <= has_places(c); end++)
        for (int64_t f = 0; f < c->n_figures; f++)
            if (curve_of(&c->figures[f]) != CPL_RUN_CURVE_NONE && any_value(c, &c->figures[f]))
                add(charts, f, end);
    return CPL_OK;
}

void cpl_compare_charts_close(cpl_compare_charts *charts)
{
    cpl_pool_free(&charts->pool);
    memset(charts, 0, sizeof *charts);
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

/* Sets what tokens are counted in; returns the name of the axis. */
static const char *settle_unit(drawing *d)
{
    const double last = last_tokens(d->c);
    d->unit           = last >= 1e6 ? 1e6 : last >= 1e3 ? 1e3 : 1;
    return last >= 1e6 ? "million tokens" : last >= 1e3 ? "thousand tokens" : "tokens";
}

/* The line of a run's place among its lines, start.json before the first; NULL behind the last. */
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

/* Mean and deviation over the members that have begun at so many tokens; NaN where one of them has
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

/* The colour of line `i` of `n`. */
static void colour(cpl_chart_series *s, int64_t i, int64_t n)
{
    s->ramp   = n > CPL_CHART_COLOURS;
    s->share  = n > 1 ? (double)i / (double)(n - 1) : 0;
    s->colour = s->ramp ? 0 : (int)i;
}

/* The first member that has logged a step; where none has, the first. */
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
    cpl_chart_series line = {.name = group->name, .x = x, .y = y, .n = n};
    colour(&line, g, d->c->n_groups);
    d->series[d->n_series++] = line;
    if (group->n < 2) return CPL_OK;
    line.name                = NULL;
    line.low                 = low;
    line.high                = high;
    d->series[d->n_series++] = line;
    return CPL_OK;
}

/* ---- at the end ---- */

/* A point of every run, apart from each other so that no line joins them. */
static cpl_status add_points(drawing *d)
{
    const size_t most = 2 * (size_t)d->c->n_runs;
    double *x         = cpl_pool_take(&d->pool, 2 * most * sizeof *x);
    if (!x) return CPL_ERR_MEMORY;
    double *y = x + most;
    int64_t n = 0;
    for (int64_t r = 0; r < d->c->n_runs; r++, n += 2) {
        x[n] = x[n + 1] = d->c->groups[d->c->group_of[r]].place;
        y[n]            = d->figure->values[r];
        y[n + 1]        = (double)NAN;
    }
    d->series[d->n_series++] = (cpl_chart_series){.x = x, .y = y, .n = n, .colour = 1};
    return CPL_OK;
}

static cpl_status add_means(drawing *d)
{
    const size_t most = (size_t)d->c->n_groups;
    double *x         = cpl_pool_take(&d->pool, 2 * most * sizeof *x);
    if (!x) return CPL_ERR_MEMORY;
    double *y = x + most;
    int64_t n = 0;
    for (int64_t g = 0; g < d->c->n_groups; g++) {
        if (isnan(d->figure->spread[g].mean)) continue;
        x[n]   = d->c->groups[g].place;
        y[n++] = d->figure->spread[g].mean;
    }
    d->series[d->n_series++] =
        (cpl_chart_series){.x = x, .y = y, .n = n, .colour = 0, .plain = true};
    return CPL_OK;
}

/* Settings that span more than a decade and a half stand on a logarithmic axis. */
static bool is_wide(const cpl_compare *c)
{
    const double low = c->groups[0].place, high = c->groups[c->n_groups - 1].place;
    return low > 0 && high > low * wide_ratio;
}

/* ---- a chart ---- */

static cpl_status fill(drawing *d, const cpl_compare_chart *chart)
{
    d->series = cpl_pool_take(&d->pool, (size_t)(2 * d->c->n_groups + 2) * sizeof *d->series);
    if (!d->series) return CPL_ERR_MEMORY;
    if (chart->at_the_end) {
        CPL_TRY(add_means(d));
        return add_points(d);
    }
    d->first = chart->curve == CPL_RUN_CURVE_LOSS ? early * last_tokens(d->c) : 0;
    for (int64_t g = 0; g < d->c->n_groups; g++) CPL_TRY(add_group(d, g));
    return CPL_OK;
}

cpl_status cpl_compare_chart_draw(cpl_text *out, const cpl_compare_charts *charts, int64_t i,
                                  bool in_page)
{
    const cpl_compare *c           = charts->compare;
    const cpl_compare_chart *chart = &charts->charts[i];
    drawing d                      = {.c = c, .figure = &c->figures[chart->figure]};
    const char *x_label            = settle_unit(&d);
    cpl_status status              = fill(&d, chart);
    const bool ramp                = !chart->at_the_end && c->n_groups > CPL_CHART_COLOURS;
    cpl_chart drawn                = {.title   = d.figure->label,
                                      .x_label = chart->at_the_end ? c->options.group_by : x_label,
                                      .log_x   = chart->at_the_end && is_wide(c),
                                      .log_y   = chart->curve == CPL_RUN_CURVE_LOG,
                                      .in_page = in_page};
    if (chart->curve == CPL_RUN_CURVE_SHARE) drawn.y = (cpl_chart_range){.low = 0, .high = 1};
    if (drawn.log_y) drawn.note = "0 lies below the scale and is not drawn.";
    if (ramp) drawn.ramp_names[0] = c->groups[0].name;
    if (ramp) drawn.ramp_names[1] = c->groups[c->n_groups - 1].name;
    if (status == CPL_OK) cpl_chart_lines(out, &drawn, d.series, d.n_series);
    cpl_pool_free(&d.pool);
    return status == CPL_OK ? cpl_text_status(out) : status;
}
