/* evaluation_run.c - see evaluation_internal.h: one task, from its questions to its result. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "eval/evaluation_internal.h"
#include "eval/totals.h"
#include "io/json.h"

cpl_status cpl_evaluation_about(cpl_status status, const cpl_selected *what)
{
    if (status != CPL_ERR_INPUT) return status;
    return CPL_FAIL(status, "%s, profile %s: %s", what->key, what->profile->name, cpl_last_error());
}

/* ---- asking ---- */

/* The state of one task's evaluation. */
typedef struct task_run {
    const cpl_task_evaluation *one;
    cpl_eval_journal *journal;
    const cpl_evaluation_watch *watch;
    cpl_question *question; /* (n) the requests at hand, copies */
    int64_t *place;         /* (n) where their answers belong */
    int64_t n;
    json_t **sample; /* of all questions */
    int64_t behind;  /* answered before them */
} task_run;

static cpl_status take(void *ctx, int64_t index, json_t *sample)
{
    task_run *a                = ctx;
    a->sample[a->place[index]] = sample;
    if (!a->journal) return CPL_OK;
    char sum[SHA256_DIGEST_STRING_LENGTH];
    cpl_question_sum(sum, &a->question[index]);
    return cpl_eval_journal_add(a->journal, a->one->what->key, sum, sample);
}

static void advance(void *ctx, int64_t done, int64_t of)
{
    const task_run *a = ctx;
    if (!a->watch->advanced || of <= 0) return;
    a->watch->advanced(a->watch->ctx, (double)a->behind + (double)a->n * (double)done / (double)of);
}

/* The questions of one kind, or those of them that have no answer yet. */
static void gather(task_run *a, const cpl_questions *q, const cpl_request_kind *kind,
                   bool answered_too)
{
    a->n = 0;
    for (int64_t i = 0; i < q->count; i++) {
        if ((a->sample[i] && !answered_too) || q->question[i].form->kind != kind) continue;
        a->question[a->n] = q->question[i];
        a->place[a->n++]  = i;
    }
}

/* Takes what was answered before; the request, and everything by which it is graded, must still be
 * the same. */
static cpl_status recall(task_run *a, const cpl_questions *q)
{
    const char *key = a->one->what->key, *recorded;
    char sum[SHA256_DIGEST_STRING_LENGTH];
    for (int64_t i = 0; i < q->count && a->journal; i++) {
        json_t *sample = cpl_eval_journal_find(a->journal, key, q->question[i].id, &recorded);
        if (!sample) continue;
        cpl_question_sum(sum, &q->question[i]);
        if (strcmp(sum, recorded) != 0)
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: %s, question %s, was asked in other words, or marked in another way, than "
                "its rows and its task file say now: --overwrite begins anew",
                a->journal->path, key, q->question[i].id);
        a->sample[i] = json_incref(sample);
    }
    return CPL_OK;
}

/* Answers of one kind in whose block one is missing are dropped and computed again. */
static cpl_status keep_blocks(task_run *a, const cpl_questions *q, const cpl_request_kind *kind,
                              const cpl_eval_runner *runner)
{
    gather(a, q, kind, true);
    bool *answered = cpl_alloc((size_t)a->n + 1);
    if (!answered) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < a->n; i++) answered[i] = a->sample[a->place[i]] != NULL;
    cpl_status status = cpl_eval_runner_keep_blocks(runner, a->question, a->n, answered);
    for (int64_t i = 0; i < a->n && status == CPL_OK; i++) {
        if (answered[i]) continue;
        json_decref(a->sample[a->place[i]]);
        a->sample[a->place[i]] = NULL;
    }
    cpl_free(answered);
    return cpl_evaluation_about(status, a->one->what);
}

static int64_t count_answered(const task_run *a, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += a->sample[i] != NULL;
    return count;
}

/* Sets how many answers of before count. */
static cpl_status go_on(task_run *a, const cpl_questions *q, const cpl_eval_runner *runner,
                        int64_t *recalled)
{
    CPL_TRY(recall(a, q));
    for (size_t k = 0; k < cpl_n_request_kinds && count_answered(a, q->count); k++)
        CPL_TRY(keep_blocks(a, q, cpl_request_kinds[k], runner));
    *recalled = count_answered(a, q->count);
    return CPL_OK;
}

static cpl_status run_all(task_run *a, const cpl_questions *q, const cpl_eval_runner *runner)
{
    const cpl_eval_runner_callbacks callbacks = {take, advance, a};
    for (size_t k = 0; k < cpl_n_request_kinds; k++) {
        gather(a, q, cpl_request_kinds[k], false);
        if (a->n) CPL_TRY(cpl_eval_runner_run(runner, a->question, a->n, &callbacks));
        a->behind += a->n;
    }
    return CPL_OK;
}

/* ---- its result ---- */

static json_t *names_json(cpl_string_list names)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < names.count; i++)
        if (json_array_append_new(list, cpl_json_words(names.at[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *until_json(const cpl_questions *q)
{
    const cpl_request_spec *form = q->question[0].form;
    return names_json((cpl_string_list){form->until, form->n_until});
}

/* Task, profile and settings; the totals follow. */
static json_t *describe(const cpl_selected *what, const cpl_questions *q)
{
    const char *profile = what->profile->name, *slash = strchr(profile, '/');
    const int length = slash ? (int)(slash - profile) : (int)strlen(profile);
    json_t *object = json_pack("{s:s,s:s%,s:s,s:I,s:I,s:I,s:o}", "task", what->task->id, "profile",
                               profile, (size_t)length, "split", what->profile->split,
                               "num_fewshot", (json_int_t)q->shots, "n", (json_int_t)q->count,
                               "skipped", (json_int_t)q->skipped, "files", names_json(q->files));
    bool whole     = object != NULL;
    if (q->all_shots)
        whole = whole && json_object_set_new(object, "shots", json_string(q->all_shots)) == 0;
    if (slash) whole = whole && json_object_set_new(object, "variant", json_string(slash + 1)) == 0;
    if (isfinite(what->task->chance))
        whole = whole && json_object_set_new(object, "chance",
                                             cpl_json_number(what->task->chance / 100)) == 0;
    if (q->max_tokens > 0)
        whole = whole &&
                json_object_set_new(object, "max_gen_toks", json_integer(q->max_tokens)) == 0 &&
                json_object_set_new(object, "until", until_json(q)) == 0;
    if (whole) return object;
    json_decref(object);
    return NULL;
}

/* Questions that were longer than the window. */
static int64_t count_cut(const json_t *samples)
{
    int64_t count = 0;
    size_t i;
    json_t *sample;
    json_array_foreach((json_t *)samples, i, sample) count +=
        json_integer_value(json_object_get(sample, "cut")) > 0;
    return count;
}

/* Ranked questions of which more than `window` tokens, the model's, were fed: their form's is longer. */
static int64_t count_beyond(const json_t *samples, int64_t window)
{
    int64_t count = 0;
    size_t i, k;
    json_t *sample, *tokens;
    json_array_foreach((json_t *)samples, i, sample)
    {
        const json_t *context = json_object_get(sample, "ctx_tokens");
        int64_t most          = 0;
        json_array_foreach(json_object_get(sample, "tokens"), k, tokens)
        {
            const int64_t fed =
                json_integer_value(json_array_get(context, k)) + json_integer_value(tokens) - 1;
            if (fed > most) most = fed;
        }
        count += most > window;
    }
    return count;
}

/* "cut"; and "beyond", where a window is longer than the model's. */
static cpl_status add_lengths(json_t *result, const cpl_questions *q, const json_t *samples,
                              int64_t window)
{
    bool whole = json_object_set_new(result, "cut", json_integer(count_cut(samples))) == 0;
    if (cpl_eval_runner_window(q->question, q->count, window) > window)
        whole = whole && json_object_set_new(result, "beyond",
                                             json_integer(count_beyond(samples, window))) == 0;
    return whole ? CPL_OK : CPL_ERR_MEMORY;
}

/* All samples, in the order of the questions; they are the array's from then on. */
static json_t *samples_json(json_t **sample, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_t *one = sample[i];
        sample[i]   = NULL;
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* "headline": the profile's first metric, of several filters the first. */
static cpl_status set_headline(json_t *result, const cpl_profile *profile)
{
    const char *first = profile->metrics.at[0], *name;
    const size_t stem = strlen(first);
    json_t *value;
    json_object_foreach(json_object_get(result, "metrics"), name, value)
    {
        if (strncmp(name, first, stem) != 0 || (name[stem] != '\0' && name[stem] != ',')) continue;
        return json_object_set_new(result, "headline", json_string(name)) == 0 ? CPL_OK
                                                                               : CPL_ERR_MEMORY;
    }
    return CPL_FAIL(CPL_ERR_INPUT, "%s has no metric %s", profile->name, first);
}

static cpl_status conclude(cpl_task_evaluation *one, const cpl_questions *q, task_run *a,
                           int64_t window, bool samples)
{
    json_t *list      = samples_json(a->sample, q->count);
    json_t *result    = list ? describe(one->what, q) : NULL;
    cpl_status status = CPL_ERR_MEMORY;
    if (result) status = add_lengths(result, q, list, window);
    if (status == CPL_OK)
        status = cpl_totals_add(result, one->what->task, one->what->profile, list);
    if (status == CPL_OK) status = set_headline(result, one->what->profile);
    if (status == CPL_OK && samples && json_object_set(result, "samples", list) != 0)
        status = CPL_ERR_MEMORY;
    json_decref(list);
    if (status != CPL_OK) {
        json_decref(result);
        return status;
    }
    json_decref(one->result); /* of an evaluation before */
    one->result = result;
    return CPL_OK;
}

cpl_status cpl_evaluation_ask(cpl_task_evaluation *one, const cpl_questions *q,
                              const cpl_eval_runner *runner, cpl_eval_journal *journal,
                              bool samples, const cpl_evaluation_watch *watch)
{
    const size_t n    = (size_t)(q->count > 0 ? q->count : 1);
    task_run a        = {.one = one, .journal = journal, .watch = watch};
    cpl_status status = CPL_ERR_MEMORY;
    int64_t recalled  = 0;
    a.question        = cpl_alloc(n * sizeof *a.question);
    a.place           = cpl_alloc(n * sizeof *a.place);
    a.sample          = cpl_alloc(n * sizeof(json_t *));
    if (a.sample) memset(a.sample, 0, n * sizeof(json_t *));
    if (!a.question || !a.place || !a.sample) goto done;
    status = go_on(&a, q, runner, &recalled);
    if (status == CPL_OK && watch->began) watch->began(watch->ctx, one, recalled);
    if (status == CPL_OK) status = cpl_evaluation_about(run_all(&a, q, runner), one->what);
    if (status == CPL_OK) status = conclude(one, q, &a, runner->window, samples);
    if (status == CPL_OK && watch->finished) watch->finished(watch->ctx, one);
done:
    for (int64_t i = 0; a.sample && i < q->count; i++) json_decref(a.sample[i]);
    cpl_free(a.question);
    cpl_free(a.place);
    cpl_free(a.sample);
    return status;
}
