/* totals.c - see totals.h */
#include "eval/totals.h"

#include <math.h>
#include <string.h>

#include "eval/totals_internal.h"

/* The mean of some questions and its standard error; NaN: there is none. */
typedef struct mean {
    double value, error;
} mean;

/* ---- means ---- */

static bool is_in(const cpl_group *group, const char *name)
{
    if (group->subjects.count == 0) return true;
    for (int64_t i = 0; i < group->subjects.count; i++)
        if (strcmp(group->subjects.at[i], name) == 0) return true;
    return false;
}

/* Over all questions of the subjects of a group; NULL: of all subjects. */
static mean mean_of(const cpl_totals *t, const cpl_group *group, int64_t m)
{
    int64_t n = 0, questions = 0, subjects = 0;
    double sum = 0, within = 0;
    for (int64_t i = 0; i < t->n_subjects; i++) {
        const cpl_totals_tally *one = &t->subject[i].of[m];
        if (one->n == 0 || (group && !is_in(group, t->subject[i].name))) continue;
        n += one->n;
        sum += one->sum;
        questions += one->questions;
        within += fmax(one->squares - one->means * one->means / (double)one->questions, 0);
        subjects++;
    }
    if (n == 0) return (mean){NAN, NAN};
    return (mean){sum / (double)n,
                  questions > subjects
                      ? sqrt(within / (double)(questions - subjects) / (double)questions)
                      : NAN};
}

/* The mean of means, each counting once; those without questions count for nothing. */
typedef struct mean_of_means {
    double sum, squares;
    int64_t n;
} mean_of_means;

static void add_mean(mean_of_means *of, mean one)
{
    if (isnan(one.value)) return;
    of->sum += one.value;
    of->squares += one.error * one.error;
    of->n++;
}

static mean whole_mean(const mean_of_means *of)
{
    return (mean){of->sum / (double)of->n, sqrt(of->squares) / (double)of->n};
}

static mean subject_mean(const cpl_totals *t, int64_t subject, int64_t m)
{
    const cpl_group alone = {.subjects = {&t->subject[subject].name, 1}};
    return mean_of(t, &alone, m);
}

static mean macro_mean(const cpl_totals *t, int64_t m)
{
    mean_of_means of = {0};
    for (int64_t i = 0; i < t->n_subjects; i++) add_mean(&of, subject_mean(t, i, m));
    return whole_mean(&of);
}

static mean group_mean(const cpl_totals *t, int64_t m)
{
    mean_of_means of = {0};
    for (int64_t g = 0; g < t->profile->n_groups; g++)
        add_mean(&of, mean_of(t, &t->profile->groups[g], m));
    return whole_mean(&of);
}

/* ---- the objects ---- */

/* Puts NAME and the ending, and behind a comma the filter if there is one; nothing if it is NaN. */
static cpl_status put(cpl_totals *t, json_t *object, const cpl_metric_key *m, const char *ending,
                      double value)
{
    if (isnan(value)) return CPL_OK;
    const char *key = cpl_pool_printf(&t->pool, "%s%s%s%s", m->name, ending, m->filter ? "," : "",
                                      m->filter ? m->filter : "");
    CPL_TRY(cpl_pool_status(&t->pool));
    if (json_object_set_new(object, key, json_real(value)) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the totals");
}

static cpl_status put_mean(cpl_totals *t, json_t *object, const cpl_metric_key *m, mean value)
{
    CPL_TRY(put(t, object, m, "", value.value));
    return put(t, object, m, "_stderr", value.error);
}

/* Sets a new empty object inside `to`. */
static cpl_status open_object(json_t **object, json_t *to, const char *key)
{
    *object = json_object();
    if (json_object_set_new(to, key, *object) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the totals");
}

/* Metric i of the profile as the profile counts it; `all` is its mean over all questions. */
static mean first_mean(const cpl_totals *t, int64_t i, mean all)
{
    switch (t->profile->headline) {
    case CPL_OF_GROUPS:
        return group_mean(t, i);
    case CPL_OF_SUBJECTS:
        return macro_mean(t, i);
    default:
        return all;
    }
}

static cpl_status put_metric(cpl_totals *t, json_t *metrics, int64_t i)
{
    const cpl_metric_key *m = &t->metric[i];
    const bool subjects     = t->subject[0].name != NULL;
    const mean all = mean_of(t, NULL, i), first = subjects ? first_mean(t, i, all) : all;
    if (isnan(all.value))
        return CPL_FAIL(CPL_ERR_INPUT, "no question says anything of the metric %s", m->name);
    if (isnan(first.value))
        return CPL_FAIL(CPL_ERR_INPUT, "no question is of a group of %s", t->task->id);
    CPL_TRY(put_mean(t, metrics, m, first));
    if (!subjects) return CPL_OK;
    CPL_TRY(put(t, metrics, m, "_macro", macro_mean(t, i).value));
    return t->profile->headline == CPL_OF_QUESTIONS ? CPL_OK
                                                    : put(t, metrics, m, "_micro", all.value);
}

static cpl_status put_metrics(cpl_totals *t, json_t *result)
{
    json_t *metrics;
    CPL_TRY(open_object(&metrics, result, "metrics"));
    for (int64_t i = 0; i < t->n_own; i++) CPL_TRY(put_metric(t, metrics, i));
    return CPL_OK;
}

static cpl_status put_count(json_t *object, int64_t n)
{
    if (json_object_set_new(object, "n", json_integer((json_int_t)n)) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the totals");
}

static cpl_status put_subjects(cpl_totals *t, json_t *result)
{
    json_t *subjects, *one;
    if (!t->subject[0].name) return CPL_OK;
    CPL_TRY(open_object(&subjects, result, "subjects"));
    for (int64_t i = 0; i < t->n_subjects; i++) {
        CPL_TRY(open_object(&one, subjects, t->subject[i].name));
        CPL_TRY(put_count(one, t->subject[i].n));
        for (int64_t m = 0; m < t->n_own; m++)
            CPL_TRY(put_mean(t, one, &t->metric[m], subject_mean(t, i, m)));
    }
    return CPL_OK;
}

static bool is_named(const cpl_string_list *names, const char *name)
{
    for (int64_t i = 0; i < names->count; i++)
        if (strcmp(names->at[i], name) == 0) return true;
    return false;
}

static cpl_status put_group(cpl_totals *t, json_t *groups, const cpl_group *group)
{
    const cpl_string_list *metrics =
        group->metrics.count > 0 ? &group->metrics : &t->profile->metrics;
    json_t *object;
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_subjects; i++)
        if (is_in(group, t->subject[i].name)) n += t->subject[i].n;
    if (n == 0) return CPL_OK;
    CPL_TRY(open_object(&object, groups, group->name));
    CPL_TRY(put_count(object, n));
    for (int64_t m = 0; m < t->n_metrics; m++)
        if (is_named(metrics, t->metric[m].name))
            CPL_TRY(put_mean(t, object, &t->metric[m], mean_of(t, group, m)));
    return CPL_OK;
}

static cpl_status put_groups(cpl_totals *t, json_t *result)
{
    json_t *groups;
    if (!t->subject[0].name || t->profile->n_groups == 0) return CPL_OK;
    CPL_TRY(open_object(&groups, result, "groups"));
    for (int64_t g = 0; g < t->profile->n_groups; g++)
        CPL_TRY(put_group(t, groups, &t->profile->groups[g]));
    return CPL_OK;
}

static cpl_status add(cpl_totals *t, json_t *result)
{
    CPL_TRY(cpl_totals_read(t));
    CPL_TRY(put_metrics(t, result));
    CPL_TRY(put_subjects(t, result));
    return put_groups(t, result);
}

cpl_status cpl_totals_add(json_t *result, const cpl_task *task, const cpl_profile *profile,
                          const json_t *samples)
{
    cpl_totals t      = {.task = task, .profile = profile, .samples = samples};
    cpl_status status = add(&t, result);
    cpl_pool_free(&t.pool);
    return status;
}
