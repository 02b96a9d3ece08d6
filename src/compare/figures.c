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

/* Validation loss of a line, of the source where one is named. */
static double loss_in(const cpl_run_record *run, const cpl_run_line *line, const char *source)
{
    return source ? cpl_run_source(run, line, source) : line->values[CPL_RUN_VAL_LOSS];
}

/* Validation loss at so many tokens, linear between evaluations; NaN beyond them. */
static double loss_between(const cpl_run_record *run, const char *source, double tokens)
{
    const cpl_run_line *low = NULL;
    if (run->has_start && !isnan(loss_in(run, &run->start, source))) low = &run->start;
    for (int64_t i = 0; i < run->n_lines; i++) {
        const cpl_run_line *high = &run->lines[i];
        const double b           = loss_in(run, high, source);
        if (isnan(b)) continue;
        /* The shortest run's own end may be off by the rounding of a quotient. */
        if (fabs(high->tokens - tokens) <= 1e-9 * tokens) return b;
        if (high->tokens > tokens) {
            if (!low) return (double)NAN;
            const double a = loss_in(run, low, source);
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
    return line ? loss_in(&c->runs[run], line, source) : (double)NAN;
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

static double value_of(const cpl_compare *c, int64_t run, int figure)
{
    const cpl_run_line *line = cpl_compare_line(c, run);
    if (figure == CPL_RUN_VAL_LOSS) return loss_at_point(c, run, NULL);
    switch (cpl_run_figures[figure].how) {
    case CPL_RUN_HOW_TENTH:
        return tenth(c, run, figure);
    case CPL_RUN_HOW_MEDIAN:
        return c->speed[run];
    case CPL_RUN_HOW_MOST:
        return most(&c->runs[run], figure);
    case CPL_RUN_HOW_AT:
        break;
    }
    return line ? line->values[figure] : (double)NAN;
}

/* ---- equal time ---- */

static const cpl_run_line *last_evaluated(const cpl_run_record *run)
{
    for (int64_t i = run->n_lines; i-- > 0;)
        if (cpl_run_evaluated(&run->lines[i])) return &run->lines[i];
    return NULL;
}

static cpl_status set_seconds(cpl_compare *c)
{
    c->speed   = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof *c->speed);
    c->seconds = (double)NAN;
    if (!c->speed) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++) {
        const cpl_run_line *last = last_evaluated(&c->runs[r]);
        CPL_TRY(cpl_run_speed(&c->speed[r], &c->runs[r]));
        if (last) c->seconds = fmin(c->seconds, last->tokens / c->speed[r]);
    }
    return CPL_OK;
}

/* ---- rows ---- */

static cpl_status add(cpl_compare *c, cpl_compared_figure row,
                      double (*of)(const cpl_compare *c, int64_t run, const void *what),
                      const void *what)
{
    double *members = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof(double));
    row.values      = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof(double));
    row.spread      = cpl_pool_take(&c->pool, (size_t)c->n_groups * sizeof *row.spread);
    if (!members || !row.values || !row.spread) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++) row.values[r] = of(c, r, what);
    for (int64_t g = 0; g < c->n_groups; g++) {
        const cpl_run_group *group = &c->groups[g];
        for (int64_t i = 0; i < group->n; i++) members[i] = row.values[group->members[i]];
        row.spread[g] = cpl_spread_of(members, group->n);
    }
    c->figures[c->n_figures++] = row;
    return CPL_OK;
}

static double of_figure(const cpl_compare *c, int64_t run, const void *what)
{
    return value_of(c, run, *(const int *)what);
}
static double of_source(const cpl_compare *c, int64_t run, const void *what)
{
    return loss_at_point(c, run, what);
}
static double of_time(const cpl_compare *c, int64_t run, const void *what)
{
    (void)what;
    return loss_between(&c->runs[run], NULL, c->seconds * c->speed[run]);
}
static double of_tokens(const cpl_compare *c, int64_t run, const void *what)
{
    (void)what;
    const cpl_run_line *last = cpl_run_last(&c->runs[run]);
    return last ? last->tokens : (double)NAN;
}

static bool knows(const cpl_compare *c, const char *label)
{
    for (int64_t i = 0; i < c->n_sources; i++)
        if (strcmp(c->sources[i], label) == 0) return true;
    return false;
}

static cpl_status list_sources(cpl_compare *c)
{
    int64_t total = 1;
    for (int64_t r = 0; r < c->n_runs; r++) total += c->runs[r].n_sources;
    c->sources = cpl_pool_take(&c->pool, (size_t)total * sizeof *c->sources);
    if (!c->sources) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++)
        for (int64_t i = 0; i < c->runs[r].n_sources; i++)
            if (!knows(c, c->runs[r].sources[i]))
                c->sources[c->n_sources++] = c->runs[r].sources[i];
    return CPL_OK;
}

static cpl_status add_sources(cpl_compare *c)
{
    for (int64_t i = 0; i < c->n_sources; i++) {
        const char *label       = c->sources[i];
        cpl_compared_figure row = {
            .file  = cpl_pool_printf(&c->pool, "validation-loss-%s", label),
            .label = cpl_pool_printf(&c->pool, "validation loss, %s", label),
            .help  = cpl_pool_printf(
                 &c->pool, "Cross-entropy of the held-out text of %s, nats a token.", label),
            .digits = 4,
            .figure = -1,
            .source = label};
        CPL_TRY(add(c, row, of_source, label));
    }
    const cpl_compared_figure time = {
        .file   = "val_loss_equal_time",
        .label  = "validation loss at equal time",
        .help   = "Validation loss after the time in which the first run reached its last "
                  "evaluation; a run's time is its tokens over its median tokens/s, and between "
                  "two evaluations the loss is taken to be linear.",
        .digits = 4,
        .figure = -1};
    return add(c, time, of_time, NULL);
}

cpl_status cpl_compare_figures(cpl_compare *c)
{
    set_point(c);
    CPL_TRY(set_seconds(c));
    CPL_TRY(list_sources(c));
    const size_t rows = (size_t)(CPL_RUN_FIGURES + c->n_sources + 2);
    c->figures        = cpl_pool_take(&c->pool, rows * sizeof *c->figures);
    if (!c->figures) return CPL_ERR_MEMORY;
    for (int f = 0; f < CPL_RUN_FIGURES; f++) {
        const cpl_run_figure *of      = &cpl_run_figures[f];
        const cpl_compared_figure row = {.file   = of->file,
                                         .label  = of->label,
                                         .help   = of->help,
                                         .digits = of->digits,
                                         .figure = f};
        CPL_TRY(add(c, row, of_figure, &f));
        if (f == CPL_RUN_VAL_LOSS) CPL_TRY(add_sources(c));
    }
    const cpl_compared_figure tokens = {.file   = "tokens",
                                        .label  = "tokens in all",
                                        .help   = "Input positions up to the last logged step.",
                                        .digits = 9,
                                        .figure = -1};
    return add(c, tokens, of_tokens, NULL);
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
