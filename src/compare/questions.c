/* questions.c - pairs of runs question by question; see compare.h
 *
 * File:  RUN/questions.json, plain or compressed: {"results": {TASK: {"metrics": {...}, "samples":
 *        [{"id": ..., "correct": 0 or 1, or an object of them by metric}]}}}. Of several metrics
 *        the first in the order of "metrics" counts. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "compare/internal.h"
#include "eval/totals.h"
#include "io/json.h"

/* ---- one file ---- */

/* Whether a name of "metrics" is that of a member of "correct": itself, or "exact_match,NAME". */
static bool names(const char *metric, const char *member)
{
    const char *comma = strchr(metric, ',');
    return strcmp(metric, member) == 0 || (comma && strcmp(comma + 1, member) == 0);
}

/* The member of "correct" that counts: the first in the order of "metrics", else its own first. */
static const char *metric_of(const json_t *task, json_t *correct)
{
    const char *metric, *member, *first = NULL;
    json_t *value, *metrics = json_object_get(task, "metrics");
    json_object_foreach(metrics, metric, value)
    {
        json_object_foreach(correct, member, value) if (names(metric, member)) return member;
    }
    json_object_foreach(correct, member, value)
    {
        if (!first) first = member;
    }
    return first ? first : "";
}

/* Whether the sample is right; -1: not recorded. */
static int right(const json_t *sample, const char *metric)
{
    const json_t *correct = json_object_get(sample, "correct");
    if (json_is_object(correct)) correct = json_object_get(correct, metric);
    if (json_is_boolean(correct)) return json_is_true(correct);
    return json_is_number(correct) ? json_number_value(correct) > 0.5 : -1;
}

static cpl_status no_memory(void)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the questions");
}

/* Sets `*out` to a new object: id -> right or not. An id may be a text or a number. */
static cpl_status by_id(json_t **out, const json_t *task, const char *metric)
{
    size_t i;
    json_t *sample, *samples = json_object_get(task, "samples");
    *out = json_object();
    json_array_foreach(samples, i, sample)
    {
        const json_t *id = json_object_get(sample, "id");
        const int is     = right(sample, metric);
        char *key        = id && is >= 0 ? json_dumps(id, JSON_ENCODE_ANY) : NULL;
        if (key && json_object_set_new(*out, key, json_boolean(is)) != 0) {
            cpl_json_text_free(key);
            return no_memory();
        }
        cpl_json_text_free(key);
    }
    return *out ? CPL_OK : no_memory();
}

/* ---- two files ---- */

/* Adds a sample to the `lead` of its question: how often the other run alone was right, less how
 * often the base was. */
static cpl_status add_lead(json_t *lead, const char *id, int by)
{
    char *question = cpl_text_copy(id);
    if (!question) return no_memory();
    question[cpl_totals_question(id)] = '\0';
    const json_int_t now              = json_integer_value(json_object_get(lead, question)) + by;
    const bool is_there               = json_object_set_new(lead, question, json_integer(now)) == 0;
    cpl_free(question);
    return is_there ? CPL_OK : no_memory();
}

/* McNemar's test over questions. A question with several samples counts for the run that was right
 * more often. */
static double p_of(json_t *lead)
{
    const char *question;
    json_t *by;
    int64_t base = 0, other = 0;
    json_object_foreach(lead, question, by)
    {
        base += json_integer_value(by) < 0;
        other += json_integer_value(by) > 0;
    }
    return cpl_fair_coin(base, base + other);
}

static cpl_status count(cpl_question_table *t, const json_t *base, const json_t *other)
{
    const char *id;
    json_t *a, *all = (json_t *)base, *lead = json_object();
    cpl_status status = lead ? CPL_OK : no_memory();
    json_object_foreach(all, id, a)
    {
        const json_t *b = json_object_get(other, id);
        if (!b) continue;
        const bool one = json_is_true(a), two = json_is_true(b);
        t->both += one && two;
        t->only_base += one && !two;
        t->only_other += !one && two;
        t->neither += !one && !two;
        if (status == CPL_OK && one != two) status = add_lead(lead, id, two - one);
    }
    const int64_t matched = t->both + t->only_base + t->only_other + t->neither;
    t->left_out = (int64_t)json_object_size(base) + (int64_t)json_object_size(other) - 2 * matched;
    t->p        = p_of(lead);
    json_decref(lead);
    return status;
}

static cpl_status compare_task(cpl_run_pair *pair, cpl_pool *pool, const char *name,
                               const json_t *base, const json_t *other)
{
    json_t *a = NULL, *b = NULL;
    const json_t *samples = json_object_get(base, "samples");
    json_t *correct       = json_object_get(json_array_get(samples, 0), "correct");
    const char *metric    = metric_of(base, correct);
    cpl_question_table t  = {.task   = cpl_pool_copy(pool, name, strlen(name)),
                             .metric = cpl_pool_copy(pool, metric, strlen(metric))};
    cpl_status status     = by_id(&a, base, metric);
    if (status == CPL_OK) status = by_id(&b, other, metric);
    if (status == CPL_OK) status = count(&t, a, b);
    if (status == CPL_OK && t.both + t.only_base + t.only_other + t.neither > 0)
        pair->tasks[pair->n_tasks++] = t;
    json_decref(a);
    json_decref(b);
    return status;
}

/* ---- shape ---- */

/* The number of samples of a task that have no id, or do not say whether they are right. */
static int64_t count_useless(const json_t *task)
{
    size_t i;
    int64_t useless = 0;
    json_t *sample, *samples = json_object_get(task, "samples");
    json_array_foreach(samples, i, sample)
    {
        json_t *correct = json_object_get(sample, "correct");
        useless +=
            !json_object_get(sample, "id") ||
            !(json_is_object(correct) || json_is_boolean(correct) || json_is_number(correct));
    }
    return useless;
}

/* What is wrong with a file; NULL: nothing. */
static const char *fault_of(cpl_pool *pool, const json_t *file)
{
    const char *name;
    json_t *task, *results = json_object_get(file, "results");
    if (!json_is_object(file)) return "it is no object";
    if (!json_is_object(results)) return "its member results is no object of tasks";
    json_object_foreach(results, name, task)
    {
        const int64_t useless = count_useless(task);
        if (!json_is_array(json_object_get(task, "samples")))
            return cpl_pool_printf(pool, "its task %.80s has no array samples", name);
        if (useless)
            return cpl_pool_printf(pool,
                                   "%lld of the samples of its task %.80s %s no id or no correct",
                                   (long long)useless, name, useless == 1 ? "has" : "have");
    }
    return NULL;
}

static cpl_status compare_tasks(cpl_run_pair *pair, cpl_pool *pool, json_t *files[2])
{
    const char *name;
    json_t *task, *tasks = json_object_get(files[0], "results");
    const json_t *theirs = json_object_get(files[1], "results");
    pair->tasks          = cpl_pool_take(pool, json_object_size(tasks) * sizeof *pair->tasks + 1);
    if (!pair->tasks) return CPL_ERR_MEMORY;
    json_object_foreach(tasks, name, task)
    {
        const json_t *same = json_object_get(theirs, name);
        if (same) CPL_TRY(compare_task(pair, pool, name, task, same));
    }
    return CPL_OK;
}

cpl_status cpl_compare_questions(cpl_compare *c, cpl_pairing *p, const char **reason)
{
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < p->n && status == CPL_OK; i++) {
        cpl_run_pair *pair            = &p->pairs[i];
        const cpl_run_record *runs[2] = {&c->runs[pair->base], &c->runs[pair->other]};
        json_t *files[2];
        CPL_TRY(cpl_run_files(files, reason, &c->pool, runs, "questions.json", fault_of));
        status = compare_tasks(pair, &c->pool, files);
        json_decref(files[0]);
        json_decref(files[1]);
    }
    return status;
}
