/* evaluation_run.c - see evaluation.h: one task, from its questions to its result. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "eval/evaluation.h"
#include "eval/tasks/task_parts.h"
#include "eval/totals.h"
#include "io/json.h"

cpl_status cpl_evaluation_about(cpl_status status, const cpl_selected *what)
{
    if (status != CPL_ERR_INPUT) return status;
    return CPL_FAIL(status, "%s, profile %s: %s", what->key, what->profile->name, cpl_last_error());
}

/* ---- running requests ---- */

/* The state of one task's evaluation. */
typedef struct task_run {
    const cpl_task_evaluation *one;
    cpl_eval_journal *journal;
    const cpl_evaluation_callbacks *callbacks;
    cpl_pool pool;
    cpl_question *question; /* (n) copies of the questions that are run */
    int64_t *place;         /* (n) indices of their answers in `sample` */
    int64_t n;
    json_t **sample; /* the answers to all questions of the task */
    int64_t behind;  /* number of questions of earlier kinds */
} task_run;

static cpl_status take_answer(void *ctx, int64_t index, json_t *sample)
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
    if (!a->callbacks->advanced || of <= 0) return;
    a->callbacks->advanced(a->callbacks->ctx,
                           (double)a->behind + (double)a->n * (double)done / (double)of);
}

/* Gathers the questions of one kind. Without `answered_too`, only questions without an answer. */
static void gather_questions(task_run *a, const cpl_questions *q, const cpl_request_kind *kind,
                             bool answered_too)
{
    a->n = 0;
    for (int64_t i = 0; i < q->count; i++) {
        if ((a->sample[i] && !answered_too) || q->question[i].form->kind != kind) continue;
        a->question[a->n] = q->question[i];
        a->place[a->n++]  = i;
    }
}

/* Takes the answers of the journal. Fails if the request of an answered question, or anything by
 * which it is graded, has changed. */
static cpl_status recall_answers(task_run *a, const cpl_questions *q)
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
                "%s: %s, question %s, had another prompt, or another scoring, than "
                "its rows and its task file say now: `couplet eval --overwrite` begins anew",
                a->journal->path, key, q->question[i].id);
        a->sample[i] = json_incref(sample);
    }
    return CPL_OK;
}

/* Drops the answers of one kind whose block lacks an answer, so that they are computed again. */
static cpl_status keep_blocks(task_run *a, const cpl_questions *q, const cpl_request_kind *kind,
                              const cpl_eval_runner *runner)
{
    gather_questions(a, q, kind, true);
    bool *answered = cpl_pool_take(&a->pool, (size_t)a->n);
    CPL_TRY(cpl_pool_status(&a->pool));
    for (int64_t i = 0; i < a->n; i++) answered[i] = a->sample[a->place[i]] != NULL;
    cpl_status status = cpl_eval_runner_keep_blocks(runner, a->question, a->n, answered);
    for (int64_t i = 0; i < a->n && status == CPL_OK; i++) {
        if (answered[i]) continue;
        json_decref(a->sample[a->place[i]]);
        a->sample[a->place[i]] = NULL;
    }
    return cpl_evaluation_about(status, a->one->what);
}

static int64_t count_answered(const task_run *a, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += a->sample[i] != NULL;
    return count;
}

static cpl_status put_back(void *ctx, int64_t index, json_t *sample)
{
    task_run *a = ctx;
    json_decref(a->sample[index]);
    a->sample[index] = sample;
    return CPL_OK;
}

/* Takes the answers of rank 0's journal, on every rank. */
static cpl_status recall_together(task_run *a, const cpl_questions *q, cpl_group *group)
{
    const cpl_eval_runner_callbacks callbacks = {.take = put_back, .ctx = a};
    cpl_status status                         = recall_answers(a, q);
    if (cpl_gather_is_alone(group)) return status;
    json_t *answers = json_array();
    bool failed     = !answers;
    for (int64_t i = 0; i < q->count; i++)
        if (a->sample[i])
            cpl_json_add(&failed, answers, json_pack("[I,O]", (json_int_t)i, a->sample[i]));
    if (status == CPL_OK && failed) status = CPL_ERR_MEMORY;
    return cpl_eval_runner_share(group, status, answers, &callbacks);
}

/* Takes the answers of an interrupted run, and sets the number of answers that are kept. */
static cpl_status go_on(task_run *a, const cpl_questions *q, const cpl_eval_runner *runner,
                        int64_t *recalled)
{
    CPL_TRY(recall_together(a, q, runner->group));
    for (const cpl_request_kind *const *k = cpl_request_kinds; *k && count_answered(a, q->count);
         k++)
        CPL_TRY(keep_blocks(a, q, *k, runner));
    *recalled = count_answered(a, q->count);
    return CPL_OK;
}

static cpl_status run_all(task_run *a, const cpl_questions *q, const cpl_eval_runner *runner)
{
    const cpl_eval_runner_callbacks callbacks = {take_answer, advance, a};
    for (const cpl_request_kind *const *k = cpl_request_kinds; *k; k++) {
        gather_questions(a, q, *k, false);
        if (a->n) CPL_TRY(cpl_eval_runner_run(runner, a->question, a->n, &callbacks));
        a->behind += a->n;
    }
    return CPL_OK;
}

/* ---- the result of a task ---- */

static void put_names(bool *failed, json_t *object, const char *key, cpl_string_list names)
{
    json_t *list = cpl_json_open(failed, object, key, json_array());
    for (int64_t i = 0; i < names.count; i++)
        cpl_json_add(failed, list, cpl_json_words(names.at[i]));
}

static json_t *form_json(bool *failed, const cpl_prompt_spec *spec)
{
    const cpl_request_spec *form = &spec->form;
    json_t *made                 = json_pack("{s:s}", "output_type", form->kind->output_type);
    if (spec->subjects.count) put_names(failed, made, "subjects", spec->subjects);
    if (!form->kind->generates) return made;
    cpl_json_put(failed, made, "max_gen_toks", json_integer(form->max_gen_toks));
    put_names(failed, made, "until", (cpl_string_list){form->until, form->n_until});
    cpl_json_put(failed, made, "filters", json_boolean(form->filters));
    json_t *answers = cpl_json_open(failed, made, "answers", json_array());
    for (int64_t i = 0; i < form->n_answers; i++) {
        const cpl_answer *one            = &form->answers[i];
        const cpl_comparison *comparison = one->grading.comparison;
        cpl_json_add(failed, answers,
                     json_pack("{s:s,s:s,s:s*}", "name", one->name, "filter_name",
                               one->filter_name ? one->filter_name : one->name, "comparison",
                               comparison->equality ? NULL : comparison->name));
    }
    return made;
}

/* Adds how the task is asked and reported, for readers of the totals. */
static void put_profile(bool *failed, json_t *result, const cpl_selected *what)
{
    static const char *const headline[] = {"questions", "groups", "subjects"};
    const cpl_profile *profile          = what->profile;
    const cpl_resolved_profile *resolved =
        &what->task->parts->resolved[profile - what->task->profiles];
    put_names(failed, result, "reported", profile->metrics);
    cpl_json_put(failed, result, "headline_of", json_string(headline[profile->headline]));
    json_t *forms  = cpl_json_open(failed, result, "forms", json_array());
    json_t *groups = cpl_json_open(failed, result, "group_list", json_array());
    for (int64_t i = 0; i < resolved->n_specs; i++)
        cpl_json_add(failed, forms, form_json(failed, &resolved->specs[i]));
    for (int64_t i = 0; i < profile->n_groups; i++) {
        const cpl_task_group *group = &profile->groups[i];
        json_t *made                = json_pack("{s:s}", "name", group->name);
        put_names(failed, made, "subjects", group->subjects);
        put_names(failed, made, "metrics", group->metrics);
        cpl_json_add(failed, groups, made);
    }
}

/* Returns a new result with task, profile and settings, to which the totals are added. */
static json_t *describe(bool *failed, const cpl_selected *what, const cpl_questions *q)
{
    const cpl_request_spec *form = q->question[0].form;
    const char *profile = what->profile->name, *slash = strchr(profile, '/');
    const size_t length = slash ? (size_t)(slash - profile) : strlen(profile);
    json_t *object =
        json_pack("{s:s,s:s%,s:s,s:I,s:I,s:I}", "task", what->task->id, "profile", profile, length,
                  "split", what->profile->split, "num_fewshot", (json_int_t)q->shots, "n",
                  (json_int_t)q->count, "skipped", (json_int_t)q->skipped);
    put_names(failed, object, "files", q->files);
    if (q->all_shots) cpl_json_put(failed, object, "shots", json_string(q->all_shots));
    if (slash) cpl_json_put(failed, object, "variant", json_string(slash + 1));
    if (isfinite(what->task->chance))
        cpl_json_put(failed, object, "chance", cpl_json_number(what->task->chance / 100));
    if (q->max_tokens > 0) {
        cpl_json_put(failed, object, "max_gen_toks", json_integer(q->max_tokens));
        put_names(failed, object, "until", (cpl_string_list){form->until, form->n_until});
    }
    put_profile(failed, object, what);
    return object;
}

/* Counts the questions that were longer than the window. */
static int64_t count_cut(const json_t *samples)
{
    int64_t count = 0;
    size_t i;
    json_t *sample;
    json_array_foreach((json_t *)samples, i, sample) count +=
        json_integer_value(json_object_get(sample, "cut")) > 0;
    return count;
}

/* Counts the ranked questions of which more than `window` tokens, the model's window, were fed. The
 * window of their form is longer. */
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

/* Returns an array of all samples, in the order of the questions. The array takes them over. */
static json_t *samples_json(bool *failed, json_t **sample, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        cpl_json_add(failed, list, sample[i]);
        sample[i] = NULL;
    }
    return list;
}

/* Sets "headline" to the profile's first metric, or to its first filter if it has several. */
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

/* Sets the result, with its totals and "cut". Adds "beyond" if the window of a question is longer
 * than `window`, the model's window. */
static cpl_status conclude(cpl_task_evaluation *one, const cpl_questions *q, task_run *a,
                           int64_t window, bool samples)
{
    bool failed     = false;
    json_t *list    = samples_json(&failed, a->sample, q->count);
    json_t *result  = describe(&failed, one->what, q);
    const bool more = cpl_eval_runner_window(q->question, q->count, window) > window;
    cpl_json_put(&failed, result, "cut", json_integer(count_cut(list)));
    if (more) cpl_json_put(&failed, result, "beyond", json_integer(count_beyond(list, window)));
    cpl_status status = failed ? CPL_ERR_MEMORY : CPL_OK;
    if (status == CPL_OK)
        status = cpl_totals_add(result, one->what->task, one->what->profile, list);
    if (status == CPL_OK) status = set_headline(result, one->what->profile);
    if (status == CPL_OK && samples && json_object_set(result, "samples", list) != 0)
        status = CPL_ERR_MEMORY;
    json_decref(list);
    json_decref(status == CPL_OK ? one->result : result); /* on success frees the old result */
    if (status == CPL_OK) one->result = result;
    return status;
}

cpl_status cpl_evaluation_run_task(cpl_task_evaluation *one, const cpl_questions *q,
                                   const cpl_eval_runner *runner, cpl_eval_journal *journal,
                                   bool samples, const cpl_evaluation_callbacks *callbacks)
{
    const size_t n    = (size_t)q->count;
    task_run a        = {.one = one, .journal = journal, .callbacks = callbacks};
    cpl_status status = CPL_OK;
    int64_t recalled  = 0;
    a.question        = cpl_pool_take(&a.pool, n * sizeof *a.question);
    a.place           = cpl_pool_take(&a.pool, n * sizeof *a.place);
    a.sample          = cpl_pool_take(&a.pool, n * sizeof(json_t *));
    CPL_TRY_DONE(cpl_pool_status(&a.pool));
    CPL_TRY_DONE(go_on(&a, q, runner, &recalled));
    if (callbacks->began) callbacks->began(callbacks->ctx, one, recalled);
    CPL_TRY_DONE(cpl_evaluation_about(run_all(&a, q, runner), one->what));
    CPL_TRY_DONE(conclude(one, q, &a, runner->window, samples));
    if (callbacks->finished) callbacks->finished(callbacks->ctx, one);
done:
    for (int64_t i = 0; a.sample && i < q->count; i++) json_decref(a.sample[i]);
    cpl_pool_free(&a.pool);
    return status;
}
