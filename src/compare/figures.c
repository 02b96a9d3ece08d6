/* figures.c - the point at which runs are compared, and their figures there; see compare.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/internal.h"
#include "report/markup.h"

/* ---- the point ---- */

static bool all_have(const cpl_compare *c, double tokens, bool evaluated)
{
    for (int64_t r = 0; r < c->n_runs; r++) {
        if (!cpl_run_last(&c->runs[r])) continue;
        const cpl_run_line *line = cpl_run_line_at(&c->runs[r], tokens);
        if (!line || (evaluated && !cpl_run_evaluated(line))) return false;
    }
    return true;
}

/* The first run that has logged a step; NULL: none has. */
static const cpl_run_record *first_logged(const cpl_compare *c)
{
    for (int64_t r = 0; r < c->n_runs; r++)
        if (cpl_run_last(&c->runs[r])) return &c->runs[r];
    return NULL;
}

static bool find_point(cpl_compare *c, bool evaluated)
{
    const cpl_run_record *first = first_logged(c);
    for (int64_t i = first->n_lines; i-- > 0;) {
        if (!all_have(c, first->lines[i].tokens, evaluated)) continue;
        c->point = first->lines[i].tokens;
        return true;
    }
    return false;
}

static void set_point(cpl_compare *c)
{
    c->point_kind = CPL_POINT_NONE;
    if (!first_logged(c)) return;
    c->point_kind = CPL_POINT_EVALUATED;
    if (find_point(c, true)) return;
    c->point_kind = CPL_POINT_LOGGED;
    if (find_point(c, false)) return;
    c->point_kind = CPL_POINT_LAST;
    c->point      = (double)INFINITY;
    for (int64_t r = 0; r < c->n_runs; r++) {
        const cpl_run_line *last = cpl_run_last(&c->runs[r]);
        if (last) c->point = fmin(c->point, last->tokens);
    }
}

const cpl_run_line *cpl_compare_line(const cpl_compare *c, int64_t run)
{
    return cpl_run_line_before(&c->runs[run], c->point);
}

/* ---- validation loss ---- */

/* Validation loss at so many tokens, linear between evaluations; NaN beyond them. */
static double loss_between(const cpl_run_record *run, const char *source, double tokens)
{
    const cpl_run_line *low = NULL;
    if (run->has_start && !isnan(cpl_run_val_loss(run, &run->start, source))) low = &run->start;
    for (int64_t i = 0; i < run->n_lines; i++) {
        const cpl_run_line *high = &run->lines[i];
        const double b           = cpl_run_val_loss(run, high, source);
        if (isnan(b)) continue;
        /* The shortest run's own end may be off by the rounding of a quotient. */
        if (fabs(high->tokens - tokens) <= 1e-9 * tokens) return b;
        if (high->tokens > tokens) {
            if (!low) return (double)NAN;
            const double a = cpl_run_val_loss(run, low, source);
            return a + (b - a) * (tokens - low->tokens) / (high->tokens - low->tokens);
        }
        low = high;
    }
    return (double)NAN;
}

static double loss_at_point(const cpl_compare *c, int64_t run, const char *source)
{
    const cpl_run_line *line = cpl_compare_line(c, run);
    if (c->point_kind != CPL_POINT_EVALUATED) return loss_between(&c->runs[run], source, c->point);
    return line ? cpl_run_val_loss(&c->runs[run], line, source) : (double)NAN;
}

double cpl_compare_loss(const cpl_compare *c, int64_t run)
{
    return loss_at_point(c, run, NULL);
}

/* ---- figures ---- */

/* Before the run's own last line at the point, which may lie far before it. */
static double tenth(const cpl_compare *c, int64_t run, int figure)
{
    const cpl_run_record *r  = &c->runs[run];
    const cpl_run_line *last = cpl_compare_line(c, run);
    const double end         = last ? last->tokens : 0;
    double sum               = 0;
    int64_t count            = 0;
    for (int64_t i = 0; i < r->n_lines; i++) {
        const cpl_run_line *line = &r->lines[i];
        if (line->tokens <= 0.9 * end || line->tokens > end) continue;
        if (isnan(line->values[figure])) continue;
        sum += line->values[figure];
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

static double most(const cpl_run_record *run, int figure)
{
    double best = (double)NAN;
    for (int64_t i = 0; i < run->n_lines; i++) best = fmax(best, run->lines[i].values[figure]);
    return best;
}

/* ---- equal time ---- */

static const cpl_run_line *last_evaluated(const cpl_run_record *run)
{
    for (int64_t i = run->n_lines; i-- > 0;)
        if (cpl_run_evaluated(&run->lines[i])) return &run->lines[i];
    return NULL;
}

/* Median of tokens/s over the lines, of which `values` has room for all; NaN: none has it. */
static double speed_of(const cpl_run_record *run, double *values)
{
    int64_t n = 0;
    for (int64_t i = 0; i < run->n_lines; i++) {
        const double x = run->lines[i].values[CPL_RUN_SPEED];
        if (x > 0) values[n++] = x;
    }
    return cpl_median(values, n);
}

static cpl_status set_seconds(cpl_compare *c)
{
    c->speed   = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof *c->speed);
    c->seconds = (double)NAN;
    if (!c->speed) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++) {
        const cpl_run_line *last = last_evaluated(&c->runs[r]);
        double *values = cpl_pool_take(&c->pool, (size_t)c->runs[r].n_lines * sizeof *values);
        if (!values) return CPL_ERR_MEMORY;
        c->speed[r] = speed_of(&c->runs[r], values);
        if (last) c->seconds = fmin(c->seconds, last->tokens / c->speed[r]);
    }
    return CPL_OK;
}

/* ---- rows ---- */

static double value_of(const cpl_compare *c, int64_t run, const cpl_compared_figure *f)
{
    const cpl_run_record *r  = &c->runs[run];
    const cpl_run_line *line = cpl_compare_line(c, run);
    switch (f->is->how) {
    case CPL_RUN_HOW_LOSS:
        return loss_at_point(c, run, f->source);
    case CPL_RUN_HOW_TENTH:
        return tenth(c, run, (int)f->name);
    case CPL_RUN_HOW_MEDIAN:
        return c->speed[run];
    case CPL_RUN_HOW_MOST:
        return most(r, (int)f->name);
    case CPL_RUN_HOW_EQUAL_TIME:
        return loss_between(r, NULL, c->seconds * c->speed[run]);
    case CPL_RUN_HOW_TOKENS:
        return r->n_lines ? cpl_run_last(r)->tokens : (double)NAN;
    case CPL_RUN_HOW_AT:
        break;
    }
    return line ? line->values[f->name] : (double)NAN;
}

static cpl_status add(cpl_compare *c, cpl_compared_figure row)
{
    double *members = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof(double));
    row.values      = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof(double));
    row.spread      = cpl_pool_take(&c->pool, (size_t)c->n_groups * sizeof *row.spread);
    if (!members || !row.values || !row.spread) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++) row.values[r] = value_of(c, r, &row);
    for (int64_t g = 0; g < c->n_groups; g++) {
        const cpl_run_group *group = &c->groups[g];
        for (int64_t i = 0; i < group->n; i++) members[i] = row.values[group->members[i]];
        row.spread[g] = cpl_spread_of(members, group->n);
    }
    c->figures[c->n_figures++] = row;
    return CPL_OK;
}

static bool has_source(const cpl_compare *c, const char *label)
{
    for (int64_t i = 0; i < c->n_figures; i++)
        if (c->figures[i].source && strcmp(c->figures[i].source, label) == 0) return true;
    return false;
}

/* The validation loss of a source, unless it has its row. */
static cpl_status add_source(cpl_compare *c, const char *label)
{
    if (has_source(c, label)) return CPL_OK;
    cpl_run_figure *is = cpl_pool_take(&c->pool, sizeof *is);
    if (!is) return CPL_ERR_MEMORY;
    *is       = cpl_run_figures[CPL_RUN_VAL_LOSS];
    is->file  = cpl_pool_printf(&c->pool, "validation-loss-%s", label);
    is->label = cpl_pool_printf(&c->pool, "validation loss, %s", label);
    is->help  = cpl_pool_printf(&c->pool,
                                "Cross-entropy of the held-out text of %s, nats per token.", label);
    return add(c, (cpl_compared_figure){.is = is, .name = CPL_RUN_VAL_LOSS, .source = label});
}

static cpl_status add_sources(cpl_compare *c)
{
    for (int64_t r = 0; r < c->n_runs; r++)
        for (int64_t i = 0; i < c->runs[r].sources.count; i++)
            CPL_TRY(add_source(c, c->runs[r].sources.at[i]));
    return CPL_OK;
}

cpl_status cpl_compare_figures(cpl_compare *c)
{
    int64_t rows = CPL_RUN_FIGURES;
    set_point(c);
    CPL_TRY(set_seconds(c));
    for (int64_t r = 0; r < c->n_runs; r++) rows += c->runs[r].sources.count;
    c->figures = cpl_pool_take(&c->pool, (size_t)rows * sizeof *c->figures);
    if (!c->figures) return CPL_ERR_MEMORY;
    for (int f = 0; f < CPL_RUN_FIGURES; f++) {
        const cpl_run_figure_name name = (cpl_run_figure_name)f;
        CPL_TRY(add(c, (cpl_compared_figure){.is = &cpl_run_figures[f], .name = name}));
        if (name == CPL_RUN_VAL_LOSS) CPL_TRY(add_sources(c));
    }
    return CPL_OK;
}

const char *cpl_compare_point_words(char out[CPL_POINT_WORDS], const cpl_compare *c)
{
    static const char *const why[] = {
        "the most at which every run was evaluated",
        "the most that every run has logged; none was evaluated by all, so validation loss is "
        "linear between two evaluations",
        "where the shortest ends: of every run its last line before, as none is common to all, and "
        "validation loss linear between two evaluations",
        "as no step is logged yet",
    };
    char tokens[32];
    snprintf(out, CPL_POINT_WORDS, "at %s tokens, %s", cpl_markup_count(tokens, (int64_t)c->point),
             why[c->point_kind]);
    return out;
}
