/* evaluation_page.c - see evaluation_page.h */
#include "eval/evaluation_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/evaluation.h"
#include "report/chart.h"
#include "report/page.h"

/* ---- charts: a headline a task, with its standard error, and chance ---- */

/* Of one task at x: its value, two standard errors to both sides, chance. */
typedef struct mark {
    double x[2], value, bar[2], chance_x[2], chance[2];
} mark;

enum { SERIES = 3, ABREAST = 6 }; /* so many tasks a chart have room for their names */

static void set_mark(mark *m, int64_t at, const json_t *result)
{
    double error;
    const json_t *chance = json_object_get(result, "chance");
    const double level   = chance ? 100 * json_number_value(chance) : NAN;
    cpl_evaluation_headline(result, &m->value, &error);
    m->value *= 100;
    m->x[0] = m->x[1] = (double)at;
    m->bar[0]         = fmax(m->value - 200 * error, 0);
    m->bar[1]         = fmin(m->value + 200 * error, 100);
    m->chance_x[0]    = (double)at - 0.3;
    m->chance_x[1]    = (double)at + 0.3;
    m->chance[0] = m->chance[1] = level;
}

static void set_series(cpl_chart_series *s, const mark *m, bool first)
{
    s[0] = (cpl_chart_series){.x      = m->chance_x,
                              .y      = m->chance,
                              .n      = 2,
                              .colour = 1,
                              .plain  = true,
                              .dashed = true,
                              .name   = first ? "chance" : NULL};
    s[1] = (cpl_chart_series){.x      = m->x,
                              .y      = m->bar,
                              .n      = 2,
                              .colour = -1,
                              .plain  = true,
                              .name   = first ? "two standard errors" : NULL};
    s[2] = (cpl_chart_series){
        .x = m->x, .y = &m->value, .n = 1, .colour = 0, .name = first ? "headline" : NULL};
}

/* Results that have a share as their headline. */
static bool is_drawn(const cpl_task_evaluation *one)
{
    double value, error;
    const char *name = one->result ? cpl_evaluation_headline(one->result, &value, &error) : "";
    const cpl_score *score;
    return *name && !(cpl_score_find(&score, name) == CPL_OK && score->loss);
}

static void put_chart(cpl_text *out, const char *const *names, int64_t n,
                      const cpl_chart_series *series)
{
    const cpl_chart chart = {.title     = "Headline metrics",
                             .y_label   = "percent",
                             .y         = {0, 100},
                             .x_names   = names,
                             .n_x_names = n,
                             .width     = 720,
                             .height    = 320,
                             .in_page   = true};
    cpl_page_chart_open(out);
    cpl_chart_lines(out, &chart, series, n * SERIES);
    cpl_page_chart_close(out, NULL);
}

static cpl_status put_charts(cpl_text *out, const cpl_evaluation *e)
{
    cpl_pool pool            = {0};
    const size_t most        = (size_t)e->count;
    mark *marks              = cpl_pool_take(&pool, most * sizeof *marks);
    const char **names       = cpl_pool_take(&pool, most * sizeof *names);
    cpl_chart_series *series = cpl_pool_take(&pool, most * SERIES * sizeof *series);
    int64_t n                = 0;
    cpl_status status        = cpl_pool_status(&pool);
    for (int64_t i = 0; status == CPL_OK && i < e->count; i++) {
        if (!is_drawn(&e->at[i])) continue;
        set_mark(&marks[n], n % ABREAST, e->at[i].result);
        set_series(&series[n * SERIES], &marks[n], n % ABREAST == 0);
        names[n++] = e->at[i].what->key;
    }
    if (n > 0) cpl_page_charts_open(out);
    for (int64_t i = 0; i < n; i += ABREAST)
        put_chart(out, names + i, n - i < ABREAST ? n - i : ABREAST, series + i * SERIES);
    if (n > 0) cpl_page_charts_close(out);
    cpl_pool_free(&pool);
    return status;
}

/* ---- tables ---- */

static cpl_status put_results(cpl_text *out, const cpl_evaluation *e)
{
    cpl_pool pool = {0};
    cpl_grid g;
    cpl_status status = cpl_evaluation_table(&g, &pool, e);
    if (status == CPL_OK) cpl_grid_page(out, &g);
    cpl_pool_free(&pool);
    return status;
}

static cpl_status put_parts(cpl_text *out, const cpl_task_evaluation *one, const char *of)
{
    cpl_pool pool = {0};
    cpl_grid g;
    if (!json_object_get(one->result, of)) return CPL_OK;
    cpl_status status = cpl_evaluation_table_of(&g, &pool, one, of);
    if (status == CPL_OK && g.n_rows > 0) {
        cpl_page_subsection(out, g.title);
        cpl_grid_page(out, &g);
    }
    cpl_pool_free(&pool);
    return status;
}

static cpl_status put_all_parts(cpl_text *out, const cpl_evaluation *e)
{
    bool begun = false;
    for (int64_t i = 0; i < e->count; i++) {
        const cpl_task_evaluation *one = &e->at[i];
        if (!json_object_get(one->result, "subjects") && !json_object_get(one->result, "groups"))
            continue;
        if (!begun) cpl_page_section(out, "Subjects");
        begun = true;
        CPL_TRY(put_parts(out, one, "groups"));
        CPL_TRY(put_parts(out, one, "subjects"));
    }
    return CPL_OK;
}

static void put_remarks(cpl_text *out, const cpl_evaluation *e)
{
    cpl_text remarks = {0};
    cpl_evaluation_remarks(&remarks, e);
    char *rest = NULL, *line = remarks.length ? strtok_r(remarks.bytes, "\n", &rest) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &rest)) cpl_page_note(out, line);
    out->failed = out->failed || remarks.failed;
    cpl_text_free(&remarks);
}

/* ---- what stands in the tables ---- */

/* Where rows are from, once for all forms. */
static void put_source(cpl_text *out, const cpl_selected *what)
{
    const cpl_task *task = what->task;
    char words[400];
    if (what->form_of >= 0 || !task->source) return;
    snprintf(words, sizeof words, "%.80s: rows from %.200s (%.80s)", task->title, task->source,
             task->licence ? task->licence : "licence not stated");
    cpl_page_small(out, words);
}

static void put_terms(cpl_text *out, const cpl_evaluation *e)
{
    cpl_page_section(out, "What the words mean");
    cpl_page_terms_open(out);
    for (size_t i = 0; i < cpl_n_scores; i++)
        cpl_page_term(out, cpl_scores[i].name, cpl_scores[i].what);
    cpl_page_term(out, "soft", "the probability of the right option under a softmax over scores");
    cpl_page_term(out, "exact_match", "the share of generated answers that are right");
    cpl_page_term(out, "_macro, _micro", "the mean over subjects; over all questions");
    cpl_page_terms_close(out);
    for (int64_t i = 0; i < e->count; i++) put_source(out, e->at[i].what);
}

cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e, const char *model)
{
    char title[300];
    snprintf(title, sizeof title, "Evaluation of %.250s", model);
    cpl_page_open(
        out, title,
        "Every figure with its profile, split, exemplars and metric. Made by couplet eval.", NULL);
    put_remarks(out, e);
    CPL_TRY(put_charts(out, e));
    cpl_page_section(out, "Results");
    CPL_TRY(put_results(out, e));
    CPL_TRY(put_all_parts(out, e));
    put_terms(out, e);
    cpl_page_close(out, NULL);
    return cpl_text_status(out);
}
