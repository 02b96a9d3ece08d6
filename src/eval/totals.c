/* totals.c - see totals.h: sums of samples by subject, and the means and objects made of them */
#include "eval/totals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "eval/run/kinds.h"
#include "eval/tasks/task_parts.h"
#include "io/json.h"

/* A set of samples: the samples of one subject, or all samples of a task without subjects. A
 * question that was run several times has several samples, and one mean. */
typedef struct tally {
    int64_t n; /* number of samples */
    double sum;
    int64_t questions;
    double means, squares; /* sums over the questions of their means, and of the squared means */
} tally;

typedef struct subject_total {
    const char *name; /* NULL: the task has no subjects */
    int64_t n;        /* number of samples */
    tally *of;        /* (n_metrics) */
} subject_total;

typedef struct totals {
    const cpl_task *task;
    const cpl_profile *profile;
    const json_t *samples;
    cpl_pool pool;
    bool failed;            /* true if memory ran out for JSON */
    cpl_metric_key *metric; /* (n_metrics) metrics of the profile, then of its groups */
    int64_t n_metrics, n_own;
    subject_total *subject; /* (n_subjects) by name */
    int64_t n_subjects;
    int64_t *of_sample;   /* index of each sample's subject */
    int64_t *question_of; /* index of each sample's question: of its first sample */
} totals;

/* ---- metrics ---- */

static const json_t *sample_at(const totals *t, int64_t i)
{
    return json_array_get(t->samples, (size_t)i);
}

static const cpl_request_kind *kind_of(const json_t *sample)
{
    const cpl_request_kind *other = NULL;
    for (const cpl_request_kind *const *k = cpl_request_kinds; *k; k++) {
        const char *key = (*k)->sample_key;
        if (key && json_object_get(sample, key)) return *k;
        if (!key) other = *k;
    }
    return other;
}

/* Returns the "correct" of the first generated text that has filters, or NULL. */
static json_t *filters_of(const totals *t)
{
    for (int64_t i = 0; i < (int64_t)json_array_size(t->samples); i++) {
        json_t *correct = json_object_get(sample_at(t, i), "correct");
        if (kind_of(sample_at(t, i))->generates && json_is_object(correct)) return correct;
    }
    return NULL;
}

/* Adds the metrics of these names that are not in the list yet, each once for every filter. */
static void add_metrics(totals *t, const cpl_string_list *names, json_t *filters)
{
    const char *filter;
    json_t *value;
    for (int64_t i = 0; i < names->count; i++) {
        const char *name = names->at[i];
        bool known       = false;
        for (int64_t m = 0; m < t->n_metrics; m++) known |= strcmp(t->metric[m].name, name) == 0;
        if (known) continue;
        const char *own = cpl_pool_printf(&t->pool, "correct_%s", cpl_sample_key(name));
        if (!filters) t->metric[t->n_metrics++] = (cpl_metric_key){name, NULL, own};
        json_object_foreach(filters, filter, value)
        {
            t->metric[t->n_metrics++] = (cpl_metric_key){name, filter, own};
        }
    }
}

static cpl_status list_metrics(totals *t)
{
    const cpl_profile *profile = t->profile;
    json_t *filters            = filters_of(t);
    int64_t most               = profile->metrics.count;
    const size_t per           = filters ? json_object_size(filters) : 1;
    for (int64_t g = 0; g < profile->n_groups; g++) most += profile->groups[g].metrics.count;
    t->metric = cpl_pool_take(&t->pool, (size_t)most * per * sizeof *t->metric);
    CPL_TRY(cpl_pool_status(&t->pool));
    add_metrics(t, &profile->metrics, filters);
    t->n_own = t->n_metrics;
    for (int64_t g = 0; g < profile->n_groups; g++)
        add_metrics(t, &profile->groups[g].metrics, filters);
    return CPL_OK;
}

/* ---- subjects ---- */

static int by_name(const void *left, const void *right)
{
    const subject_total *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* Returns the part of an id before its last "/", or NULL. */
static const char *subject_of(totals *t, const json_t *sample)
{
    const char *id    = json_string_value(json_object_get(sample, "id"));
    const char *slash = id ? strrchr(id, '/') : NULL;
    return slash ? cpl_pool_copy(&t->pool, id, (size_t)(slash - id)) : NULL;
}

static cpl_status no_subject(const json_t *sample)
{
    const char *id = json_string_value(json_object_get(sample, "id"));
    return CPL_FAIL(CPL_ERR_INPUT, "question %s has no subject, but others have one",
                    id ? id : "without a text as id");
}

/* Lists all subjects, sorted by name, and sets the index of each sample's subject. */
static cpl_status list_subjects(totals *t)
{
    const int64_t n    = (int64_t)json_array_size(t->samples);
    const char **names = cpl_pool_take(&t->pool, (size_t)n * sizeof *names);
    t->subject         = cpl_pool_take(&t->pool, (size_t)n * sizeof *t->subject);
    t->of_sample       = cpl_pool_take(&t->pool, (size_t)n * sizeof *t->of_sample);
    CPL_TRY(cpl_pool_status(&t->pool));
    for (int64_t i = 0; i < n; i++) {
        names[i] = subject_of(t, sample_at(t, i));
        if (names[i]) t->subject[t->n_subjects++].name = names[i];
    }
    CPL_TRY(cpl_pool_status(&t->pool));
    if (t->n_subjects == 0) {
        t->subject[0].n = n;
        t->n_subjects   = 1;
        return CPL_OK;
    }
    for (int64_t i = 0; i < n; i++)
        if (!names[i]) return no_subject(sample_at(t, i));
    qsort(t->subject, (size_t)t->n_subjects, sizeof *t->subject, by_name);
    t->n_subjects = 1; /* equal names become one */
    for (int64_t i = 1; i < n; i++)
        if (by_name(&t->subject[t->n_subjects - 1], &t->subject[i]) != 0)
            t->subject[t->n_subjects++] = t->subject[i];
    for (int64_t i = 0; i < n; i++) {
        const subject_total key = {.name = names[i]};
        subject_total *found =
            bsearch(&key, t->subject, (size_t)t->n_subjects, sizeof key, by_name);
        found->n++;
        t->of_sample[i] = found - t->subject;
    }
    return CPL_OK;
}

/* ---- questions ---- */

/* Returns the number of characters of a sample's id that name its question: all, or the characters
 * before the "#" that numbers its samples. */
static size_t question_length(const char *id)
{
    const char *slash = strrchr(id, '/');
    const char *mark  = strchr(slash ? slash : id, '#');
    return mark ? (size_t)(mark - id) : strlen(id);
}

/* Sets the index of each sample's question: the index of the first sample of that question. */
static cpl_status list_questions(totals *t)
{
    const int64_t n = (int64_t)json_array_size(t->samples);
    json_t *first   = json_object(); /* question -> the place of its first sample */
    t->question_of  = cpl_pool_take(&t->pool, (size_t)n * sizeof *t->question_of);
    for (int64_t i = 0; i < n && t->question_of; i++) {
        const char *id      = json_string_value(json_object_get(sample_at(t, i), "id"));
        const size_t length = id ? question_length(id) : 0;
        t->question_of[i]   = i;
        if (!id || !id[length]) continue;
        const char *question = cpl_pool_copy(&t->pool, id, length);
        const json_t *known  = json_object_get(first, question);
        if (known)
            t->question_of[i] = json_integer_value(known);
        else
            cpl_json_put(&t->failed, first, question, json_integer(i));
    }
    json_decref(first);
    return cpl_pool_status(&t->pool);
}

/* ---- one value ---- */

static cpl_status lacks(const json_t *sample, const cpl_metric_key *m)
{
    char *id                = json_dumps(json_object_get(sample, "id"), JSON_ENCODE_ANY);
    const cpl_status status = CPL_FAIL(
        CPL_ERR_INPUT, "question %s has no number for the metric %s%s%s", id ? id : "without an id",
        m->name, m->filter ? "," : "", m->filter ? m->filter : "");
    cpl_json_text_free(id);
    return status;
}

/* Sets the value of a sample, or NaN if it has no value of the metric. */
static cpl_status value_of(double *value, const totals *t, const json_t *sample,
                           const cpl_metric_key *m)
{
    *value                       = NAN;
    const cpl_request_kind *kind = kind_of(sample);
    if (!kind->reports(t->profile, m->name)) return CPL_OK;
    const json_t *found = kind->value(sample, m, t->profile->metrics.at[0]);
    if (!json_is_number(found) && !json_is_boolean(found)) return lacks(sample, m);
    *value = json_is_boolean(found) ? json_is_true(found) : json_number_value(found);
    return CPL_OK;
}

/* All samples of one question, while they are added. */
typedef struct of_question {
    int64_t n;
    double sum;
} of_question;

/* Adds metric m of all samples to their subjects. `question` (n) is memory to work in, all zero
 * before and after. */
static cpl_status add_samples(totals *t, int64_t m, of_question *question)
{
    const int64_t n = (int64_t)json_array_size(t->samples);
    double value;
    for (int64_t i = 0; i < n; i++) {
        tally *to = &t->subject[t->of_sample[i]].of[m];
        CPL_TRY(value_of(&value, t, sample_at(t, i), &t->metric[m]));
        if (isnan(value)) continue;
        to->n++;
        to->sum += value;
        question[t->question_of[i]].n++;
        question[t->question_of[i]].sum += value;
    }
    for (int64_t i = 0; i < n; i++) {
        tally *to = &t->subject[t->of_sample[i]].of[m];
        if (question[i].n == 0) continue;
        const double mean = question[i].sum / (double)question[i].n;
        to->questions++;
        to->means += mean;
        to->squares += mean * mean;
        question[i] = (of_question){0};
    }
    return CPL_OK;
}

static cpl_status add_all(totals *t)
{
    const size_t n        = json_array_size(t->samples);
    of_question *question = cpl_pool_take(&t->pool, n * sizeof *question);
    for (int64_t i = 0; i < t->n_subjects; i++)
        t->subject[i].of = cpl_pool_take(&t->pool, (size_t)t->n_metrics * sizeof(tally));
    CPL_TRY(cpl_pool_status(&t->pool));
    for (int64_t m = 0; m < t->n_metrics; m++) CPL_TRY(add_samples(t, m, question));
    return cpl_pool_status(&t->pool);
}

static cpl_status read_samples(totals *t)
{
    CPL_ASSERT(t->profile->metrics.count > 0);
    if (json_array_size(t->samples) == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "there are no answered questions of %s", t->task->id);
    CPL_TRY(list_metrics(t));
    CPL_TRY(list_subjects(t));
    CPL_TRY(list_questions(t));
    return add_all(t);
}

/* The mean of some questions and its standard error. NaN: not known. */
typedef struct mean {
    double value, error;
} mean;

/* ---- means ---- */

static bool is_in(const cpl_task_group *group, const char *name)
{
    return group->subjects.count == 0 || cpl_string_list_holds(&group->subjects, name);
}

/* Returns the mean over all questions of the subjects of a group, or of all subjects if `group` is
 * NULL. */
static mean mean_of(const totals *t, const cpl_task_group *group, int64_t m)
{
    int64_t n = 0, questions = 0, subjects = 0;
    double sum = 0, within = 0;
    for (int64_t i = 0; i < t->n_subjects; i++) {
        const tally *one = &t->subject[i].of[m];
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

/* A mean of means, which count equally. Means without questions are left out. */
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

static mean subject_mean(const totals *t, int64_t subject, int64_t m)
{
    const cpl_task_group alone = {.subjects = {&t->subject[subject].name, 1}};
    return mean_of(t, &alone, m);
}

static mean macro_mean(const totals *t, int64_t m)
{
    mean_of_means of = {0};
    for (int64_t i = 0; i < t->n_subjects; i++) add_mean(&of, subject_mean(t, i, m));
    return whole_mean(&of);
}

static mean group_mean(const totals *t, int64_t m)
{
    mean_of_means of = {0};
    for (int64_t g = 0; g < t->profile->n_groups; g++)
        add_mean(&of, mean_of(t, &t->profile->groups[g], m));
    return whole_mean(&of);
}

/* ---- the objects ---- */

/* Adds the member NAME with `ending`, and with a comma and the filter if the metric has a filter. A
 * NaN is left out. */
static void put_value(totals *t, json_t *object, const cpl_metric_key *m, const char *ending,
                      double value)
{
    const char *key = cpl_pool_printf(&t->pool, "%s%s%s%s", m->name, ending, m->filter ? "," : "",
                                      m->filter ? m->filter : "");
    if (!isnan(value)) cpl_json_put(&t->failed, object, key, json_real(value));
}

static void put_mean(totals *t, json_t *object, const cpl_metric_key *m, mean value)
{
    put_value(t, object, m, "", value.value);
    put_value(t, object, m, "_stderr", value.error);
}

/* Returns the mean of metric i over the items of the profile's headline. `all` is its mean over all
 * questions. */
static mean first_mean(const totals *t, int64_t i, mean all)
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

static cpl_status put_metric(totals *t, json_t *metrics, int64_t i)
{
    const cpl_metric_key *m = &t->metric[i];
    const bool subjects     = t->subject[0].name != NULL;
    const mean all = mean_of(t, NULL, i), first = subjects ? first_mean(t, i, all) : all;
    if (isnan(all.value)) return CPL_FAIL(CPL_ERR_INPUT, "no question has the metric %s", m->name);
    if (isnan(first.value))
        return CPL_FAIL(CPL_ERR_INPUT, "no question is of a group of %s", t->task->id);
    put_mean(t, metrics, m, first);
    if (subjects) put_value(t, metrics, m, "_macro", macro_mean(t, i).value);
    if (subjects && t->profile->headline != CPL_OF_QUESTIONS)
        put_value(t, metrics, m, "_micro", all.value);
    return CPL_OK;
}

/* Adds the object {"n": n} of a subject or a group under its name, and returns it. */
static json_t *put_part(totals *t, json_t *parts, const char *name, int64_t n)
{
    json_t *part = cpl_json_open(&t->failed, parts, name, json_object());
    cpl_json_put(&t->failed, part, "n", json_integer(n));
    return part;
}

static void put_subjects(totals *t, json_t *subjects)
{
    for (int64_t i = 0; i < t->n_subjects; i++) {
        json_t *one = put_part(t, subjects, t->subject[i].name, t->subject[i].n);
        for (int64_t m = 0; m < t->n_own; m++)
            put_mean(t, one, &t->metric[m], subject_mean(t, i, m));
    }
}

static void put_group(totals *t, json_t *groups, const cpl_task_group *group)
{
    const cpl_string_list *metrics =
        group->metrics.count > 0 ? &group->metrics : &t->profile->metrics;
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_subjects; i++)
        if (is_in(group, t->subject[i].name)) n += t->subject[i].n;
    if (n == 0) return;
    json_t *object = put_part(t, groups, group->name, n);
    for (int64_t m = 0; m < t->n_metrics; m++)
        if (cpl_string_list_holds(metrics, t->metric[m].name))
            put_mean(t, object, &t->metric[m], mean_of(t, group, m));
}

static cpl_status add(totals *t, json_t *result)
{
    CPL_TRY(read_samples(t));
    json_t *metrics = cpl_json_open(&t->failed, result, "metrics", json_object());
    for (int64_t i = 0; i < t->n_own; i++) CPL_TRY(put_metric(t, metrics, i));
    if (t->subject[0].name)
        put_subjects(t, cpl_json_open(&t->failed, result, "subjects", json_object()));
    if (t->subject[0].name && t->profile->n_groups > 0) {
        json_t *groups = cpl_json_open(&t->failed, result, "groups", json_object());
        for (int64_t g = 0; g < t->profile->n_groups; g++)
            put_group(t, groups, &t->profile->groups[g]);
    }
    if (t->failed) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the totals");
    return cpl_pool_status(&t->pool);
}

cpl_status cpl_totals_add(json_t *result, const cpl_task *task, const cpl_profile *profile,
                          const json_t *samples)
{
    totals t          = {.task = task, .profile = profile, .samples = samples};
    cpl_status status = add(&t, result);
    cpl_pool_free(&t.pool);
    return status;
}
