/* evaluation_check.c - see evaluation_internal.h: what is wrong with the questions of a task as a whole. */
#include <string.h>

#include "eval/evaluation_internal.h"
#include "eval/tasks/task_internal.h"
#include "eval/totals.h"

/* ---- metrics ---- */

static bool is_reported(const cpl_questions *q, const char *metric)
{
    for (int64_t i = 0; i < q->count; i++)
        if (q->question[i].form->kind->reports(q->profile, metric)) return true;
    return false;
}

/* The task file has been checked: where a question has to say something of a metric it can. */
static cpl_status check_metrics(const cpl_questions *q)
{
    const cpl_string_list *metrics = &q->profile->metrics;
    for (int64_t i = 0; i < metrics->count; i++) {
        if (is_reported(q, metrics->at[i])) continue;
        return CPL_FAIL(CPL_ERR_INPUT,
                        "no question would say anything of the metric %s: all that are there %s; "
                        "put the rows of other subjects beside them, or ask with a task file of "
                        "your own (docs/tasks.md) that has no such metric",
                        metrics->at[i], q->question[0].form->kind->questions);
    }
    return CPL_OK;
}

/* ---- subjects ---- */

static bool is_in_group(const cpl_profile *profile, const char *subject)
{
    for (int64_t i = 0; i < profile->n_groups; i++) {
        const cpl_string_list *subjects = &profile->groups[i].subjects;
        if (!subjects->count || cpl_string_list_holds(subjects, subject)) return true;
    }
    return false;
}

/* Where the headline is the mean of groups every question is of one. */
static cpl_status check_groups(const cpl_questions *q)
{
    if (q->profile->headline != CPL_OF_GROUPS) return CPL_OK;
    for (int64_t i = 0; i < q->count; i++) {
        const char *subject = q->question[i].subject;
        if (!subject || is_in_group(q->profile, subject)) continue;
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the subject %s is in no group, and the headline is the mean of the "
                        "groups: name it in one of them, or take its rows out",
                        subject);
    }
    return CPL_OK;
}

static bool is_there(const cpl_questions *q, const char *subject)
{
    for (int64_t i = 0; i < q->count; i++)
        if (q->question[i].subject && strcmp(q->question[i].subject, subject) == 0) return true;
    return false;
}

static void warn_of(const cpl_questions *q, const cpl_string_list *names, const char *kind,
                    const cpl_log *log)
{
    for (int64_t i = 0; i < names->count; i++)
        if (!is_there(q, names->at[i]))
            cpl_log_warn(log,
                         "%s: %s names the subject %s, of which there are no rows: a name that is "
                         "wrong changes how its questions are asked or counted",
                         q->task->id, kind, names->at[i]);
}

/* Of a task that lists its subjects, whose names have been checked. */
static void warn_of_missing(const cpl_questions *q, const cpl_string_list *known,
                            const cpl_log *log)
{
    const char *first = NULL;
    int64_t missing   = 0;
    for (int64_t i = 0; i < known->count; i++) {
        if (is_there(q, known->at[i])) continue;
        if (missing++ == 0) first = known->at[i];
    }
    if (missing)
        cpl_log_warn(log,
                     "%s: %lld of its %lld subjects %s no rows, %s %s: what comes out is of the "
                     "others, and not what is published as %s",
                     q->task->id, (long long)missing, (long long)known->count,
                     missing == 1 ? "has" : "have", missing == 1 ? "which is" : "the first is",
                     first, q->task->id);
}

static void warn_of_names(const cpl_questions *q, const cpl_questions_options *options)
{
    const cpl_resolved_profile *resolved =
        &q->task->parts->resolved[q->profile - q->task->profiles];
    const cpl_string_list *known = &q->task->parts->known;
    if (!options->log || options->offset > 0) return;
    if (known->count) {
        warn_of_missing(q, known, options->log);
        return;
    }
    for (int64_t i = 1; i < resolved->n_specs; i++)
        warn_of(q, &resolved->specs[i].subjects, "a case", options->log);
    for (int64_t i = 0; i < q->profile->n_groups; i++)
        warn_of(q, &q->profile->groups[i].subjects, q->profile->groups[i].name, options->log);
}

/* ---- lengths ---- */

enum { ADVICE = 320 };

/* What makes room: `flags` of this task alone, or what a training run can do. */
static void advise(char advice[ADVICE], const cpl_selected *what, bool alone, bool of_run,
                   const char *flags)
{
    const char *key = what->key;
    if (of_run)
        snprintf(advice, ADVICE,
                 "take %.100s out of eval.tasks, or make model.max_position_embeddings larger",
                 key);
    else if (!*flags)
        snprintf(advice, ADVICE, "a model of a longer context has room for it");
    else if (alone)
        snprintf(advice, ADVICE, "%s makes room", flags);
    else
        snprintf(advice, ADVICE,
                 "ask %.100s in a run of its own, where %s makes room and changes no other task",
                 key, flags);
}

static cpl_status check_lengths(const cpl_selected *what, const cpl_questions *q,
                                const cpl_questions_options *options, int64_t window,
                                const cpl_tokenizer *tokenizer, bool alone)
{
    char room[ADVICE], beyond[ADVICE], fewer[80];
    snprintf(fewer, sizeof fewer, "--max-gen-toks below %lld", (long long)window);
    advise(room, what, alone, options->of_run, fewer);
    advise(beyond, what, alone, options->of_run,
           q->fewer            ? "--num-fewshot with a smaller number"
           : q->max_tokens > 0 ? "--max-gen-toks with a smaller number"
                               : "");
    const cpl_eval_runner_advice advice = {room, beyond};
    return cpl_eval_runner_check(q->question, q->count, window, tokenizer, &advice);
}

cpl_status cpl_evaluation_check(const cpl_selected *what, const cpl_questions *q,
                                const cpl_questions_options *options, int64_t window,
                                const cpl_tokenizer *tokenizer, bool alone)
{
    cpl_status status = check_metrics(q);
    if (status == CPL_OK) status = check_groups(q);
    if (status == CPL_OK) status = check_lengths(what, q, options, window, tokenizer, alone);
    if (status == CPL_OK) warn_of_names(q, options);
    return cpl_evaluation_about(status, what);
}
