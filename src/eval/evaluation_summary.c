/* evaluation_summary.c - see evaluation.h: the conclusion of an evaluation, and results as JSON */
#include "eval/evaluation.h"

#include <math.h>
#include <string.h>

#include "io/json.h"
#include "report/view.h"

enum { MOST_NAMED = 8 };

/* Counts and sums over the tasks with a result. */
typedef struct tally {
    int64_t tasks, questions;
    int64_t shares;      /* tasks whose headline is a share */
    int64_t known;       /* tasks of these whose chance is known */
    int64_t above;       /* tasks of these above chance by two standard errors */
    double mean, chance; /* sums over the tasks of `shares`, and of `known` */
    cpl_text names;      /* the tasks that are above chance */
} tally;

static void count(tally *t, const cpl_task_evaluation *one)
{
    double value, error;
    const char *name    = cpl_evaluation_headline(one->result, &value, &error);
    const json_t *level = json_object_get(one->result, "chance");
    t->tasks++;
    t->questions += json_integer_value(json_object_get(one->result, "n"));
    if (cpl_evaluation_is_loss(name) || !isfinite(value)) return;
    t->shares++;
    t->mean += value;
    if (!level) return;
    t->known++;
    t->chance += json_number_value(level);
    if (!(value - 2 * error > json_number_value(level))) return;
    if (t->above++ < MOST_NAMED)
        cpl_text_printf(&t->names, "%s%s", t->above > 1 ? ", " : "", one->what->key);
}

static tally tally_of(const cpl_evaluation *e)
{
    tally t = {0};
    for (int64_t i = 0; i < e->count; i++)
        if (e->at[i].result) count(&t, &e->at[i]);
    if (t.above > MOST_NAMED) cpl_text_printf(&t.names, ", ...");
    return t;
}

static void write_tally(cpl_text *out, const tally *t)
{
    if (t->known == 0)
        cpl_text_printf(out, "No task has a headline that could be compared with chance.");
    else if (t->above == 0)
        cpl_text_printf(out, "%s above chance by two standard errors.",
                        t->known == 1 ? "The task is not" : "No task is");
    else
        cpl_text_printf(out, "%lld of %lld tasks %s above chance by two standard errors: %s.",
                        (long long)t->above, (long long)t->known, t->above == 1 ? "is" : "are",
                        t->names.bytes ? t->names.bytes : "");
    out->failed = out->failed || t->names.failed;
}

/* Appends a sentence that names the tasks whose headlines are above chance. */
static void write_conclusion(cpl_text *out, const cpl_evaluation *e)
{
    tally t = tally_of(e);
    write_tally(out, &t);
    cpl_text_free(&t.names);
}

/* ---- JSON ---- */

/* Returns the lines of a text as an array, and frees the text. */
static json_t *lines_json(bool *failed, cpl_text *text)
{
    json_t *array = json_array();
    char *rest = NULL, *line = text->length ? strtok_r(text->bytes, "\n", &rest) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &rest))
        cpl_json_add(failed, array, cpl_json_words(line));
    *failed = *failed || text->failed;
    cpl_text_free(text);
    return array;
}

static json_t *summary_json(bool *failed, const cpl_evaluation *e)
{
    tally t        = tally_of(e);
    json_t *object = json_object();
    cpl_json_put(failed, object, "tasks", json_integer((json_int_t)t.tasks));
    cpl_json_put(failed, object, "questions", json_integer((json_int_t)t.questions));
    cpl_json_put(failed, object, "above_chance", json_integer((json_int_t)t.above));
    cpl_json_put(failed, object, "mean", cpl_json_number(t.mean / (double)t.shares));
    cpl_json_put(failed, object, "mean_chance", cpl_json_number(t.chance / (double)t.known));
    cpl_text_free(&t.names);
    return object;
}

/* Returns a copy of a result with the figures of its headline. The other members are shared with
 * the result of the task. */
static json_t *result_json(bool *failed, const cpl_task_evaluation *one)
{
    double value, error;
    const cpl_task *task = one->what->task;
    const char *name     = cpl_evaluation_headline(one->result, &value, &error);
    json_t *result = json_copy(one->result), *summary = json_object();
    cpl_json_put(failed, summary, "title", cpl_json_words(task->title));
    if (task->source) cpl_json_put(failed, summary, "source", cpl_json_words(task->source));
    if (task->licence) cpl_json_put(failed, summary, "licence", cpl_json_words(task->licence));
    cpl_json_put(failed, summary, "value", cpl_json_number(value));
    cpl_json_put(failed, summary, "stderr", cpl_json_number(error));
    if (!cpl_evaluation_is_loss(name))
        cpl_json_put(failed, summary, "share", cpl_json_number(value));
    cpl_json_put(failed, result, "summary", summary);
    return result;
}

json_t *cpl_evaluation_json(const cpl_evaluation *e, json_t *settings, int64_t eos)
{
    json_t *results = json_object(), *averages = json_object();
    cpl_text conclusion = {0}, remarks = {0};
    bool failed = false;
    for (int64_t i = 0; i < e->count; i++)
        if (e->at[i].result)
            cpl_json_put(&failed, results, e->at[i].what->key, result_json(&failed, &e->at[i]));
    for (int i = 0; i < CPL_SELECTION_SETS; i++) {
        const double mean = cpl_evaluation_average(e, cpl_selection_sets[i].set);
        if (isfinite(mean))
            cpl_json_put(&failed, averages, cpl_selection_sets[i].word, cpl_json_number(mean));
    }
    write_conclusion(&conclusion, e);
    cpl_evaluation_remarks(&remarks, e);
    json_t *all = json_pack(
        "{s:s, s:O, s:o, s:o, s:o, s:o, s:o, s:o}", "program", "couplet " COUPLET_VERSION,
        "settings", settings, "eot_token_id", eos < 0 ? json_null() : json_integer(eos), "results",
        results, "averages", averages, "conclusion", lines_json(&failed, &conclusion), "warnings",
        lines_json(&failed, &remarks), "summary", summary_json(&failed, e));
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

/* ---- the page ---- */

/* Returns a copy of the JSON without its samples, which the page does not show. */
static json_t *without_samples(const json_t *data)
{
    json_t *page = json_deep_copy(data), *result;
    const char *key;
    json_object_foreach(json_object_get(page, "results"), key, result)
    {
        (void)json_object_del(result, "samples");
    }
    return page;
}

cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e, const char *model,
                               const json_t *data, json_t *made)
{
    cpl_text title = {0}, sentences = {0};
    cpl_pool pool  = {0};
    json_t *report = without_samples(data);
    cpl_grid grid;
    cpl_text_printf(&title, "Evaluation of %s", model);
    write_conclusion(&sentences, e);
    cpl_text_char(&sentences, '\n');
    cpl_evaluation_remarks(&sentences, e);
    cpl_status status = report ? cpl_text_status(&sentences) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_text_status(&title);
    if (status == CPL_OK) status = cpl_evaluation_table(&grid, &pool, e);
    const cpl_view view = {.kind      = "eval",
                           .title     = title.bytes,
                           .report    = report,
                           .made      = made,
                           .sentences = sentences.bytes,
                           .main      = &grid};
    if (status == CPL_OK) status = cpl_view_page(out, &view);
    json_decref(report);
    cpl_pool_free(&pool);
    cpl_text_free(&title);
    cpl_text_free(&sentences);
    return status;
}
