/* totals_read.c - see totals_internal.h */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/run/sample.h"
#include "eval/totals_internal.h"
#include "io/json.h"

/* ---- metrics ---- */

static const json_t *sample_at(const cpl_totals *t, int64_t i)
{
    return json_array_get(t->samples, (size_t)i);
}

static const cpl_request_kind *kind_of(const json_t *sample)
{
    const cpl_request_kind *other = NULL;
    for (size_t i = 0; i < cpl_n_request_kinds; i++) {
        const char *key = cpl_request_kinds[i]->sample_key;
        if (key && json_object_get(sample, key)) return cpl_request_kinds[i];
        if (!key) other = cpl_request_kinds[i];
    }
    return other;
}

/* The "correct" of the first generated text that has filters; NULL: there is none. */
static json_t *filters_of(const cpl_totals *t)
{
    for (int64_t i = 0; i < (int64_t)json_array_size(t->samples); i++) {
        json_t *correct = json_object_get(sample_at(t, i), "correct");
        if (kind_of(sample_at(t, i))->generates && json_is_object(correct)) return correct;
    }
    return NULL;
}

static bool is_there(const cpl_totals *t, const char *name)
{
    for (int64_t i = 0; i < t->n_metrics; i++)
        if (strcmp(t->metric[i].name, name) == 0) return true;
    return false;
}

/* A metric of that name, or one for each filter. */
static void add_metric(cpl_totals *t, const char *name, json_t *filters)
{
    const char *filter;
    json_t *value;
    if (is_there(t, name)) return;
    const char *own = cpl_pool_printf(&t->pool, "correct_%s", cpl_sample_key(name));
    if (!filters) t->metric[t->n_metrics++] = (cpl_metric_key){name, NULL, own};
    json_object_foreach(filters, filter, value)
    {
        t->metric[t->n_metrics++] = (cpl_metric_key){name, filter, own};
    }
}

static cpl_status list_metrics(cpl_totals *t)
{
    json_t *filters  = filters_of(t);
    int64_t most     = t->profile->metrics.count;
    const size_t per = filters ? json_object_size(filters) : 1;
    for (int64_t g = 0; g < t->profile->n_groups; g++) most += t->profile->groups[g].metrics.count;
    t->metric = cpl_pool_take(&t->pool, (size_t)most * per * sizeof *t->metric);
    CPL_TRY(cpl_pool_status(&t->pool));
    for (int64_t i = 0; i < t->profile->metrics.count; i++)
        add_metric(t, t->profile->metrics.at[i], filters);
    t->n_own = t->n_metrics;
    for (int64_t g = 0; g < t->profile->n_groups; g++)
        for (int64_t i = 0; i < t->profile->groups[g].metrics.count; i++)
            add_metric(t, t->profile->groups[g].metrics.at[i], filters);
    return CPL_OK;
}

/* ---- subjects ---- */

static int by_name(const void *left, const void *right)
{
    const cpl_totals_subject *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* What stands before the last "/" of an id; NULL: nothing. */
static const char *subject_of(cpl_totals *t, const json_t *sample)
{
    const char *id    = json_string_value(json_object_get(sample, "id"));
    const char *slash = id ? strrchr(id, '/') : NULL;
    return slash ? cpl_pool_copy(&t->pool, id, (size_t)(slash - id)) : NULL;
}

/* Equal names of the sorted list become one. */
static void join_equal(cpl_totals *t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_subjects; i++)
        if (n == 0 || strcmp(t->subject[n - 1].name, t->subject[i].name) != 0)
            t->subject[n++] = t->subject[i];
    t->n_subjects = n;
}

static cpl_status no_subject(const json_t *sample)
{
    const char *id = json_string_value(json_object_get(sample, "id"));
    return CPL_FAIL(CPL_ERR_INPUT, "question %s has no subject, but others have one",
                    id ? id : "without a text as id");
}

/* All names, sorted; then the place of each sample's among them. */
static cpl_status list_subjects(cpl_totals *t)
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
    join_equal(t);
    for (int64_t i = 0; i < n; i++) {
        const cpl_totals_subject key = {.name = names[i]};
        cpl_totals_subject *found =
            bsearch(&key, t->subject, (size_t)t->n_subjects, sizeof key, by_name);
        found->n++;
        t->of_sample[i] = found - t->subject;
    }
    return CPL_OK;
}

/* ---- questions ---- */

/* One of several samples of a question. */
typedef struct repeated {
    const char *id; /* without what stands behind the "#" */
    int64_t sample;
} repeated;

static int by_question(const void *left, const void *right)
{
    const repeated *a = left, *b = right;
    const int order = strcmp(a->id, b->id);
    return order ? order : (a->sample > b->sample) - (a->sample < b->sample);
}

size_t cpl_totals_question(const char *id)
{
    const char *slash = strrchr(id, '/');
    const char *mark  = strchr(slash ? slash : id, '#');
    return mark ? (size_t)(mark - id) : strlen(id);
}

/* The question of a sample that is one of several; NULL: it is the only one. */
static const char *question_of(cpl_totals *t, const json_t *sample)
{
    const char *id      = json_string_value(json_object_get(sample, "id"));
    const size_t length = id ? cpl_totals_question(id) : 0;
    return id && id[length] ? cpl_pool_copy(&t->pool, id, length) : NULL;
}

/* Every sample that is the only one of its question has its own place, and others that of their
 * first one. */
static cpl_status list_questions(cpl_totals *t)
{
    const int64_t n = (int64_t)json_array_size(t->samples);
    int64_t many    = 0;
    repeated *of    = cpl_pool_take(&t->pool, (size_t)n * sizeof *of);
    t->question_of  = cpl_pool_take(&t->pool, (size_t)n * sizeof *t->question_of);
    CPL_TRY(cpl_pool_status(&t->pool));
    for (int64_t i = 0; i < n; i++) {
        const char *id    = question_of(t, sample_at(t, i));
        t->question_of[i] = i;
        if (id) of[many++] = (repeated){id, i};
    }
    CPL_TRY(cpl_pool_status(&t->pool));
    qsort(of, (size_t)many, sizeof *of, by_question);
    for (int64_t i = 1; i < many; i++)
        if (strcmp(of[i].id, of[i - 1].id) == 0)
            t->question_of[of[i].sample] = t->question_of[of[i - 1].sample];
    return CPL_OK;
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

/* Sets the value of a sample; NaN: it says nothing of the metric. */
static cpl_status value_of(double *value, const cpl_totals *t, const json_t *sample,
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

/* Adds metric m of all samples to their subjects; `question` (n) is memory to work in, all zero
 * before and after. */
static cpl_status add_samples(cpl_totals *t, int64_t m, of_question *question)
{
    const int64_t n = (int64_t)json_array_size(t->samples);
    double value;
    for (int64_t i = 0; i < n; i++) {
        cpl_totals_tally *to = &t->subject[t->of_sample[i]].of[m];
        CPL_TRY(value_of(&value, t, sample_at(t, i), &t->metric[m]));
        if (isnan(value)) continue;
        to->n++;
        to->sum += value;
        question[t->question_of[i]].n++;
        question[t->question_of[i]].sum += value;
    }
    for (int64_t i = 0; i < n; i++) {
        cpl_totals_tally *to = &t->subject[t->of_sample[i]].of[m];
        if (question[i].n == 0) continue;
        const double mean = question[i].sum / (double)question[i].n;
        to->questions++;
        to->means += mean;
        to->squares += mean * mean;
        question[i] = (of_question){0};
    }
    return CPL_OK;
}

static cpl_status add_all(cpl_totals *t)
{
    const size_t n        = json_array_size(t->samples);
    of_question *question = cpl_pool_take(&t->pool, n * sizeof *question);
    for (int64_t i = 0; i < t->n_subjects; i++)
        t->subject[i].of = cpl_pool_take(&t->pool, (size_t)t->n_metrics * sizeof(cpl_totals_tally));
    CPL_TRY(cpl_pool_status(&t->pool));
    for (int64_t m = 0; m < t->n_metrics; m++) CPL_TRY(add_samples(t, m, question));
    return cpl_pool_status(&t->pool);
}

cpl_status cpl_totals_read(cpl_totals *t)
{
    CPL_ASSERT(t->profile->metrics.count > 0);
    if (json_array_size(t->samples) == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "there are no answered questions of %s", t->task->id);
    CPL_TRY(list_metrics(t));
    CPL_TRY(list_subjects(t));
    CPL_TRY(list_questions(t));
    return add_all(t);
}
