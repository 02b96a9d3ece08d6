/* lm_eval_tasks.c - see lm_eval.h: the tasks of an evaluation, and the names of tasks and metrics */
#include <string.h>

#include "base/text.h"
#include "eval/lm_eval.h"
#include "eval/prompts/reading.h"
#include "eval/run/kinds.h"
#include "io/json.h"

/* The profile whose prompts and names are those of lm-evaluation-harness. */
static const char their_profile[] = "harness";

/* ---- names of tasks ---- */

static bool is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (unsigned char)c >= 0x80;
}

/* A copy in the pool, for names of files: without "/", and of a subject with "_" for everything but
 * letters and digits, as their names have it. */
static const char *safe(cpl_pool *pool, const char *name, bool subject)
{
    cpl_text text = {0};
    for (const char *c = name; *c; c++)
        cpl_text_char(&text, *c == '/' || (subject && !is_letter_or_digit(*c)) ? '_' : *c);
    const char *copy = text.failed ? cpl_pool_printf(pool, "%s", name)
                                   : cpl_pool_copy(pool, text.bytes ? text.bytes : "", text.length);
    cpl_text_free(&text);
    return copy;
}

/* The profile's group of all subjects; NULL: it has none. */
static const cpl_task_group *whole(const cpl_profile *profile)
{
    for (int64_t g = 0; g < profile->n_groups; g++)
        if (profile->groups[g].subjects.count == 0) return &profile->groups[g];
    return NULL;
}

const char *cpl_lm_eval_name(cpl_pool *pool, const cpl_selected *what, const cpl_task_group *group)
{
    const cpl_profile *profile = what->profile;
    const bool theirs          = strcmp(profile->name, their_profile) == 0;
    if (!group && theirs) group = whole(profile);
    const char *name = group ? group->name : what->task->id;
    return safe(pool, theirs ? name : cpl_pool_printf(pool, "%s_%s", name, profile->name), false);
}

static const char *subject_name(cpl_pool *pool, const cpl_selected *what, const char *subject)
{
    return cpl_pool_printf(pool, "%s_%s", cpl_lm_eval_name(pool, what, NULL),
                           safe(pool, subject, true));
}

/* Forms stand for themselves; the profile that has them is not evaluated. */
static bool has_forms(const cpl_selected *what)
{
    return what->profile->forms.count > 0;
}

cpl_status cpl_lm_eval_check(const cpl_selection *selection)
{
    cpl_pool pool     = {0};
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < selection->count && status == CPL_OK; i++)
        for (int64_t k = 0; k < i && status == CPL_OK; k++) {
            const cpl_selected *a = &selection->at[k], *b = &selection->at[i];
            const char *name = cpl_lm_eval_name(&pool, b, NULL);
            if (has_forms(a) || has_forms(b) || strcmp(cpl_lm_eval_name(&pool, a, NULL), name) != 0)
                continue;
            status = CPL_FAIL(CPL_ERR_USAGE,
                              "--format lm-eval calls %s, profile %s, and %s, profile %s, both %s: "
                              "evaluate them in runs of their own",
                              a->key, a->profile->name, b->key, b->profile->name, name);
        }
    if (status == CPL_OK) status = cpl_pool_status(&pool);
    cpl_pool_free(&pool);
    return status;
}

/* ---- metrics ---- */

/* The answer of a written metric; NULL: it is a score. */
static const cpl_answer *answer_of(const cpl_request_spec *form, const char *metric, int64_t filter)
{
    if (form->filters) return &form->answers[filter];
    for (int64_t i = 0; i < form->n_answers; i++)
        if (strcmp(form->answers[i].name, metric) == 0) return &form->answers[i];
    return NULL;
}

/* Their metrics of written answers compare for equality; another comparison is part of the name. */
static const char *metric_name(cpl_pool *pool, const char *metric, const cpl_answer *answer)
{
    if (!answer || answer->grading.comparison->equality) return metric;
    return cpl_pool_printf(pool, "%s_%s", metric, answer->grading.comparison->name);
}

/* Adds the metric under one of the form's filters, if the totals have it. */
static void add_metric(cpl_pool *pool, cpl_lm_eval_task *t, const char *metric, int64_t filter)
{
    const cpl_answer *answer   = answer_of(t->form, metric, filter);
    const char *named          = t->form->filters ? answer->name : NULL;
    const char *end            = named ? cpl_pool_printf(pool, ",%s", named) : "";
    const cpl_lm_eval_metric m = {
        .key    = {metric, named, cpl_pool_printf(pool, "correct_%s", cpl_sample_key(metric))},
        .value  = cpl_pool_printf(pool, "%s%s", metric, end),
        .error  = cpl_pool_printf(pool, "%s_stderr%s", metric, end),
        .name   = metric_name(pool, metric, answer),
        .filter = named    ? named
                  : answer ? answer->filter_name
                           : "none"};
    if (json_object_get(t->totals, m.value)) t->metric[t->n_metrics++] = m;
}

static cpl_status list_metrics(cpl_pool *pool, cpl_lm_eval_task *t)
{
    const cpl_string_list *metrics = &t->of->what->profile->metrics;
    const int64_t filters          = t->form->filters ? t->form->n_answers : 1;
    t->metric = cpl_pool_take(pool, (size_t)(metrics->count * filters) * sizeof *t->metric);
    CPL_TRY(cpl_pool_status(pool));
    for (int64_t i = 0; i < metrics->count; i++)
        for (int64_t f = 0; f < filters; f++) add_metric(pool, t, metrics->at[i], f);
    return cpl_pool_status(pool);
}

/* ---- tasks ---- */

static const cpl_request_spec *form_of(const cpl_selected *what, const char *subject)
{
    const cpl_task *task = what->task;
    return &cpl_reading_spec(&task->parts->resolved[what->profile - task->profiles], subject)->form;
}

static bool is_named(const cpl_lm_eval *l, const char *name)
{
    for (int64_t i = 0; i < l->n_tasks; i++)
        if (strcmp(l->task[i].name, name) == 0) return true;
    return false;
}

/* Adds the task, or one of its subjects. */
static cpl_status add_task(cpl_lm_eval *l, const cpl_task_evaluation *of, const char *subject,
                           const json_t *totals, int64_t n)
{
    const cpl_selected *what = of->what;
    cpl_lm_eval_task *t      = &l->task[l->n_tasks];
    const char *name =
        subject ? subject_name(&l->pool, what, subject) : cpl_lm_eval_name(&l->pool, what, NULL);
    if (is_named(l, name))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "--format lm-eval has the name %s for two tasks or subjects: evaluate them "
                        "in runs of their own, or without --format",
                        name);
    *t                 = (cpl_lm_eval_task){.of       = of,
                                            .name     = name,
                                            .subject  = subject,
                                            .totals   = totals,
                                            .n        = n,
                                            .original = n,
                                            .form     = form_of(what, subject)};
    const int64_t most = l->e->options.max_tokens;
    if (t->form->kind->generates)
        t->max_gen_toks = most == CPL_UNSET ? t->form->max_gen_toks : most;
    l->n_tasks++;
    return list_metrics(&l->pool, t);
}

static cpl_status add_evaluation(cpl_lm_eval *l, const cpl_task_evaluation *of)
{
    json_t *subjects = json_object_get(of->result, "subjects"), *one;
    const char *subject;
    if (!subjects) return add_task(l, of, NULL, json_object_get(of->result, "metrics"), of->n);
    json_object_foreach(subjects, subject, one)
        CPL_TRY(add_task(l, of, subject, one, json_integer_value(json_object_get(one, "n"))));
    return CPL_OK;
}

/* How many tasks an entry of the evaluation becomes. */
static size_t count_tasks(const cpl_task_evaluation *of)
{
    const size_t subjects = json_object_size(json_object_get(of->result, "subjects"));
    return has_forms(of->what) || !of->result ? 0 : subjects ? subjects : 1;
}

/* ---- questions without --limit and --offset ---- */

static void count_rows(cpl_lm_eval *l, const cpl_task_evaluation *of, const cpl_questions *q)
{
    for (int64_t i = 0; i < l->n_tasks; i++) {
        cpl_lm_eval_task *t = &l->task[i];
        if (t->of != of) continue;
        t->original = 0;
        for (int64_t k = 0; k < q->count; k++) {
            const char *subject = q->question[k].subject;
            t->original += !t->subject || (subject && strcmp(subject, t->subject) == 0);
        }
    }
}

static cpl_status read_rows(cpl_lm_eval *l, const cpl_task_evaluation *of)
{
    cpl_questions q               = {0};
    cpl_questions_options options = l->e->options;
    if (options.limit == CPL_UNSET && options.offset == 0) return CPL_OK;
    options.limit    = CPL_UNSET;
    options.offset   = 0;
    options.skip_bad = true;
    CPL_TRY(cpl_questions_read(&q, of->what->task, of->what->profile, &options));
    count_rows(l, of, &q);
    cpl_questions_free(&q);
    return CPL_OK;
}

/* ---- all of an evaluation ---- */

/* The samples of a task: all, or those of its subject. NULL: no memory. */
static json_t *samples_of(const cpl_lm_eval_task *t)
{
    const size_t length = t->subject ? strlen(t->subject) : 0;
    json_t *list        = json_array(), *sample;
    bool failed         = !list;
    size_t i;
    json_array_foreach(json_object_get(t->of->result, "samples"), i, sample)
    {
        const char *id    = json_string_value(json_object_get(sample, "id"));
        const char *slash = id ? strrchr(id, '/') : NULL;
        if (!t->subject ||
            (slash && (size_t)(slash - id) == length && memcmp(id, t->subject, length) == 0))
            cpl_json_add(&failed, list, json_incref(sample));
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

static cpl_status make_lines(cpl_lm_eval_task *t)
{
    if (!json_object_get(t->of->result, "samples")) return CPL_OK;
    json_t *samples = samples_of(t);
    t->lines        = samples ? cpl_lm_eval_lines(t, samples) : NULL;
    json_decref(samples);
    return t->lines ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the samples");
}

static cpl_status fill(cpl_lm_eval *l)
{
    size_t n = 0;
    for (int64_t i = 0; i < l->e->count; i++) n += count_tasks(&l->e->at[i]);
    l->task = cpl_pool_take(&l->pool, n * sizeof *l->task);
    CPL_TRY(cpl_pool_status(&l->pool));
    for (int64_t i = 0; i < l->e->count; i++) {
        if (count_tasks(&l->e->at[i]) == 0) continue;
        CPL_TRY(add_evaluation(l, &l->e->at[i]));
        CPL_TRY(read_rows(l, &l->e->at[i]));
    }
    for (int64_t i = 0; i < l->n_tasks; i++) CPL_TRY(make_lines(&l->task[i]));
    return CPL_OK;
}

cpl_status cpl_lm_eval_open(cpl_lm_eval *l, const cpl_evaluation *e)
{
    *l                      = (cpl_lm_eval){.e = e};
    const cpl_status status = fill(l);
    if (status != CPL_OK) cpl_lm_eval_close(l);
    return status;
}

void cpl_lm_eval_close(cpl_lm_eval *l)
{
    for (int64_t i = 0; i < l->n_tasks; i++) json_decref(l->task[i].lines);
    cpl_pool_free(&l->pool);
    *l = (cpl_lm_eval){0};
}
