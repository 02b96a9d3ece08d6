/* evaluation_page.c - see evaluation.h: results as one self-contained HTML page, and its chart */
#include "eval/evaluation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "report/page.h"

/* ---- the chart: a headline a task, with its standard error, and chance ---- */

/* Results that have a share as their headline. */
static bool is_drawn(const cpl_task_evaluation *one)
{
    double value, error;
    const char *name = one->result ? cpl_evaluation_headline(one->result, &value, &error) : "";
    const cpl_score *score;
    return *name && !(cpl_score_find(&score, name) == CPL_OK && score->loss);
}

cpl_status cpl_evaluation_charts(cpl_charts *out, const cpl_evaluation *e)
{
    cpl_pool pool      = {0};
    const size_t most  = (size_t)e->count + 1;
    double *values     = cpl_pool_take(&pool, 4 * most * sizeof *values);
    const char **names = cpl_pool_take(&pool, most * sizeof *names);
    cpl_status status  = cpl_pool_status(&pool);
    int64_t n          = 0;
    double *low = values + most, *high = low + most, *chance = high + most;
    for (int64_t i = 0; status == CPL_OK && i < e->count; i++) {
        double error;
        if (!is_drawn(&e->at[i])) continue;
        const json_t *level = json_object_get(e->at[i].result, "chance");
        cpl_evaluation_headline(e->at[i].result, &values[n], &error);
        low[n]     = fmax(values[n] - 2 * error, 0);
        high[n]    = fmin(values[n] + 2 * error, 1);
        chance[n]  = level ? json_number_value(level) : NAN;
        names[n++] = e->at[i].what->key;
    }
    const cpl_chart_series series[] = {
        {.name = "chance", .y = chance, .n = n, .group = -1, .style = CPL_CHART_DOTS},
        {.name  = "headline, and two standard errors to both sides",
         .y     = values,
         .low   = low,
         .high  = high,
         .n     = n,
         .group = 0,
         .style = CPL_CHART_DOTS}};
    const cpl_chart chart = {.id      = "headlines",
                             .section = "results",
                             .title   = "Headline metrics",
                             .caption =
                                 "The headline metric of every task, with two standard errors "
                                 "to both sides, and chance.",
                             .x = {.label = "", .names = names, .n_names = n},
                             .y = {.range = {0, 1}, .zero = true, .percent = true}};
    if (n) cpl_charts_lines(out, &chart, series, 2);
    cpl_pool_free(&pool);
    return status;
}

/* ---- tables ---- */

static cpl_status put_tables(cpl_text *out, cpl_pool *pool, const cpl_evaluation *e)
{
    static const char *const parts[] = {"groups", "subjects"};
    bool begun                       = false;
    cpl_grid g;
    cpl_page_section(out, "Results");
    CPL_TRY(cpl_evaluation_table(&g, pool, e));
    cpl_grid_page(out, &g);
    for (int64_t i = 0; i < 2 * e->count; i++) {
        const cpl_task_evaluation *one = &e->at[i / 2];
        if (!json_object_get(one->result, parts[i % 2])) continue;
        if (!begun) cpl_page_section(out, "Subjects");
        begun = true;
        CPL_TRY(cpl_evaluation_table_of(&g, pool, one, parts[i % 2]));
        if (g.n_rows > 0) cpl_page_subsection(out, g.title);
        cpl_grid_page(out, &g);
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

/* ---- the columns of the tables ---- */

/* The source of the rows, once for all forms. */
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

/* The data of the page: the JSON without its samples, which the page does not show. */
static json_t *without_samples(const json_t *data, bool *failed)
{
    json_t *page = json_object(), *results, *result;
    const char *key;
    *failed = json_object_update(page, (json_t *)(uintptr_t)data) != 0;
    results = cpl_json_open(failed, page, "results", json_object());
    json_object_foreach(json_object_get(data, "results"), key, result)
    {
        json_t *copy = json_copy(result);
        (void)json_object_del(copy, "samples");
        cpl_json_put(failed, results, key, copy);
    }
    return page;
}

cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e, const char *model,
                               const json_t *data)
{
    cpl_pool pool = {0};
    char title[300];
    snprintf(title, sizeof title, "Evaluation of %.250s", model);
    cpl_page_open(out, title,
                  "Every figure with its profile, split, few-shot examples and metric.");
    put_remarks(out, e);
    cpl_page_charts(out, data, "results");
    cpl_status status = put_tables(out, &pool, e);
    put_terms(out, e);
    bool failed;
    json_t *page = without_samples(data, &failed);
    cpl_page_close(out, page);
    json_decref(page);
    cpl_pool_free(&pool);
    if (failed) return CPL_ERR_MEMORY;
    return status == CPL_OK ? cpl_text_status(out) : status;
}
