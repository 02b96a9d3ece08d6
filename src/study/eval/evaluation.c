/* evaluation.c - see evaluation.h */
#include "study/eval/evaluation.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"
#include "study/eval/sample.h"
#include "study/eval/totals.h"

/* ---- what there is to ask ---- */

/* Forms are asked; what they are forms of is made of their results. */
static bool is_asked(const cpl_selected *what)
{
    return what->profile->forms.count == 0;
}

static cpl_status refuse_nothing(const cpl_evaluated *one, const cpl_questions *q,
                                 const cpl_questions_wish *wish)
{
    const char *file = q->files.count ? q->files.at[q->files.count - 1] : wish->data;
    if (wish->offset > 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: there are no questions: %s has no rows behind --offset %lld",
                        one->what->key, file, (long long)wish->offset);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: there are no questions: %s has no rows that can be used",
                    one->what->key, file);
}

/* Adds to a failure which task it is about. */
static cpl_status about(cpl_status status, const cpl_selected *what)
{
    if (status != CPL_ERR_INPUT) return status;
    return CPL_FAIL(status, "%s, profile %s: %s", what->key, what->profile->name, cpl_last_error());
}

static cpl_status look(cpl_evaluated *one, const cpl_questions_wish *wish, int64_t window,
                       const cpl_tokenizer *tokenizer)
{
    cpl_questions q = {0};
    CPL_TRY(cpl_questions_read(&q, one->what->task, one->what->profile, wish));
    one->n       = q.count;
    one->skipped = q.skipped;
    one->window  = cpl_answering_window(q.question, q.count, window);
    if (q.count == 0) {
        cpl_status status = refuse_nothing(one, &q, wish);
        cpl_questions_free(&q);
        return status;
    }
    cpl_status status = cpl_answering_check(q.question, q.count, window, tokenizer);
    cpl_questions_free(&q);
    return about(status, one->what);
}

/* Tells all tasks without rows in one sentence; of a single one the reading says more. */
static cpl_status check_rows(const cpl_selection *selection, const cpl_questions_wish *wish)
{
    cpl_text names = {0}, all = {0}, wanted = {0};
    cpl_status status  = CPL_OK;
    int64_t n          = 0;
    const bool samples = cpl_questions_of_samples(wish);
    for (int64_t i = 0; i < selection->count; i++) {
        const cpl_selected *what = &selection->at[i];
        if (!is_asked(what)) continue;
        cpl_text_clear(&wanted);
        CPL_TRY_DONE(cpl_questions_missing(&wanted, what->task, what->profile, wish));
        if (!wanted.length) continue;
        cpl_text_printf(&names, "%s%s", n ? ", " : "", what->key);
        cpl_text_printf(&all, "%s%s/%s", n++ ? "; " : "", what->task->id, wanted.bytes);
    }
    CPL_TRY_DONE(cpl_text_status(&names));
    CPL_TRY_DONE(cpl_text_status(&all));
    if (n > 1)
        status =
            CPL_FAIL(CPL_ERR_INPUT,
                     "there are no rows of %lld tasks %s%s: %s; --data DIR "
                     "(eval.tasks_data of a training run) names a folder of yours with "
                     "their files (`couplet eval --list` tells all sources): DIR/%s",
                     (long long)n, samples ? "among the samples that come with the program" : "in ",
                     samples ? "" : wish->data, names.bytes, all.bytes);
done:
    cpl_text_free(&names);
    cpl_text_free(&all);
    cpl_text_free(&wanted);
    return status;
}

cpl_status cpl_evaluation_open(cpl_evaluation *e, const cpl_selection *selection,
                               const cpl_questions_wish *wish, int64_t window,
                               const cpl_tokenizer *tokenizer)
{
    cpl_status status = check_rows(selection, wish);
    const size_t room = (size_t)(selection->count > 0 ? selection->count : 1) * sizeof *e->at;
    *e                = (cpl_evaluation){.selection = selection, .wish = *wish, .window = window};
    e->at             = cpl_alloc(room);
    if (!e->at) return CPL_ERR_MEMORY;
    memset(e->at, 0, room);
    e->count = selection->count;
    for (int64_t i = 0; i < e->count && status == CPL_OK; i++) {
        e->at[i].what = &selection->at[i];
        if (!is_asked(e->at[i].what)) continue;
        status = look(&e->at[i], wish, window, tokenizer);
        e->n_questions += e->at[i].n;
        if (e->at[i].window > e->window) e->window = e->at[i].window;
    }
    e->wish.log = NULL; /* bad rows have been told */
    if (status != CPL_OK) cpl_evaluation_close(e);
    return status;
}

void cpl_evaluation_close(cpl_evaluation *e)
{
    for (int64_t i = 0; i < e->count; i++) json_decref(e->at[i].result);
    cpl_free(e->at);
    *e = (cpl_evaluation){0};
}

/* ---- a task ---- */

/* Of a task that is being asked. */
typedef struct asking {
    const cpl_evaluated *one;
    cpl_record *record;
    const cpl_evaluation_watch *watch;
    cpl_question *question; /* (n) those asked now, copies */
    int64_t *place;         /* (n) where their answers belong */
    int64_t n;
    json_t **sample; /* of all questions */
    int64_t behind;  /* asked before those asked now */
} asking;

static cpl_status take(void *who, int64_t index, json_t *sample)
{
    asking *a                  = who;
    a->sample[a->place[index]] = sample;
    return a->record ? cpl_record_add(a->record, a->one->what->key, sample) : CPL_OK;
}

static void advance(void *who, int64_t done, int64_t of)
{
    const asking *a = who;
    if (!a->watch->advanced || of <= 0) return;
    a->watch->advanced(a->watch->who, (double)a->behind + (double)a->n * (double)done / (double)of);
}

/* The questions of one kind that have no answer yet. */
static void gather(asking *a, const cpl_questions *q, cpl_ask ask)
{
    a->n = 0;
    for (int64_t i = 0; i < q->count; i++) {
        if (a->sample[i] || q->question[i].form->ask != ask) continue;
        a->question[a->n] = q->question[i];
        a->place[a->n++]  = i;
    }
}

/* Takes what was answered before; rows, exemplars and templates must still be the same. */
static cpl_status recall(asking *a, const cpl_questions *q, int64_t *recalled)
{
    const char *key = a->one->what->key;
    *recalled       = 0;
    for (int64_t i = 0; i < q->count && a->record; i++) {
        json_t *sample = cpl_record_find(a->record, key, q->question[i].id);
        if (!sample) continue;
        if (!cpl_sample_is_of(sample, &q->question[i]))
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: %s, question %s, was asked in other words: --overwrite begins anew",
                a->record->path, key, q->question[i].id);
        a->sample[i] = json_incref(sample);
        ++*recalled;
    }
    return CPL_OK;
}

static cpl_status ask_all(asking *a, const cpl_questions *q, const cpl_answering *answering)
{
    static const cpl_ask kinds[]          = {CPL_ASK_RANK, CPL_ASK_GENERATE};
    const cpl_answering_listener listener = {take, advance, a};
    for (int k = 0; k < 2; k++) {
        gather(a, q, kinds[k]);
        if (a->n) CPL_TRY(cpl_answering_ask(answering, a->question, a->n, &listener));
        a->behind += a->n;
    }
    return CPL_OK;
}

/* ---- its result ---- */

static json_t *names_json(cpl_names names)
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
    const cpl_form *form = q->question[0].form;
    return names_json((cpl_names){form->until, form->n_until});
}

/* What was asked, how; the totals come behind it. */
static json_t *describe(const cpl_selected *what, const cpl_questions *q)
{
    const char *profile = what->profile->name, *slash = strchr(profile, '/');
    const int length = slash ? (int)(slash - profile) : (int)strlen(profile);
    json_t *object = json_pack("{s:s,s:s%,s:s,s:I,s:I,s:I,s:o}", "task", what->task->id, "profile",
                               profile, (size_t)length, "split", what->profile->split,
                               "num_fewshot", (json_int_t)q->shots, "n", (json_int_t)q->count,
                               "skipped", (json_int_t)q->skipped, "files", names_json(q->files));
    bool whole     = object != NULL;
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

static cpl_status conclude(cpl_evaluated *one, const cpl_questions *q, asking *a, bool samples)
{
    json_t *list      = samples_json(a->sample, q->count);
    json_t *result    = list ? describe(one->what, q) : NULL;
    cpl_status status = CPL_ERR_MEMORY;
    if (result && json_object_set_new(result, "cut", json_integer(count_cut(list))) == 0)
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

static cpl_status ask_task(cpl_evaluated *one, const cpl_questions *q,
                           const cpl_answering *answering, cpl_record *record, bool samples,
                           const cpl_evaluation_watch *watch)
{
    const size_t n    = (size_t)(q->count > 0 ? q->count : 1);
    asking a          = {.one = one, .record = record, .watch = watch};
    cpl_status status = CPL_ERR_MEMORY;
    int64_t recalled  = 0;
    a.question        = cpl_alloc(n * sizeof *a.question);
    a.place           = cpl_alloc(n * sizeof *a.place);
    a.sample          = cpl_alloc(n * sizeof(json_t *));
    if (!a.question || !a.place || !a.sample) goto done;
    memset(a.sample, 0, n * sizeof(json_t *));
    status = recall(&a, q, &recalled);
    if (status == CPL_OK && watch->began) watch->began(watch->who, one, recalled);
    if (status == CPL_OK) status = about(ask_all(&a, q, answering), one->what);
    if (status == CPL_OK) status = conclude(one, q, &a, samples);
    if (status == CPL_OK && watch->finished) watch->finished(watch->who, one);
done:
    for (int64_t i = 0; a.sample && i < q->count; i++) json_decref(a.sample[i]);
    cpl_free(a.question);
    cpl_free(a.place);
    cpl_free(a.sample);
    return status;
}

/* ---- forms ---- */

/* The best headline among the forms of entry `of`. */
static cpl_status best_form(cpl_evaluation *e, int64_t of)
{
    const cpl_evaluated *best = NULL;
    double most               = -INFINITY, value, error;
    const char *name;
    for (int64_t i = 0; i < e->count; i++) {
        if (e->at[i].what->form_of != of || !e->at[i].result) continue;
        cpl_evaluation_headline(e->at[i].result, &value, &error);
        if (best && !(value > most)) continue;
        best = &e->at[i];
        most = value;
    }
    if (!best) return CPL_OK;
    cpl_evaluated *one = &e->at[of];
    name               = cpl_evaluation_headline(best->result, &value, &error);
    json_decref(one->result);
    one->n      = best->n;
    one->result = json_pack("{s:s,s:s,s:s,s:O,s:O,s:I,s:O}", "task", one->what->task->id, "profile",
                            one->what->profile->name, "best_of", best->what->key, "split",
                            json_object_get(best->result, "split"), "num_fewshot",
                            json_object_get(best->result, "num_fewshot"), "n", (json_int_t)best->n,
                            "metrics", json_object_get(best->result, "metrics"));
    bool whole =
        one->result && json_object_set_new(one->result, "headline", json_string(name)) == 0;
    json_t *chance = json_object_get(best->result, "chance");
    if (chance) whole = whole && json_object_set(one->result, "chance", chance) == 0;
    return whole ? CPL_OK : CPL_ERR_MEMORY;
}

cpl_status cpl_evaluation_run(cpl_evaluation *e, const cpl_answering *answering, cpl_record *record,
                              bool samples, const cpl_evaluation_watch *watch)
{
    for (int64_t i = 0; i < e->count; i++) {
        cpl_evaluated *one = &e->at[i];
        cpl_questions q    = {0};
        if (!is_asked(one->what)) {
            CPL_TRY(best_form(e, i));
            continue;
        }
        CPL_TRY(cpl_questions_read(&q, one->what->task, one->what->profile, &e->wish));
        cpl_status status = ask_task(one, &q, answering, record, samples, watch);
        cpl_questions_free(&q);
        CPL_TRY(status);
    }
    return CPL_OK;
}

/* ---- results ---- */

const char *cpl_evaluation_headline(const json_t *result, double *value, double *error)
{
    const char *name = json_string_value(json_object_get(result, "headline"));
    json_t *metrics  = json_object_get(result, "metrics");
    char with[128]   = "";
    if (name) { /* exact_match,strict-match: exact_match_stderr,strict-match */
        const int stem = (int)strcspn(name, ",");
        snprintf(with, sizeof with, "%.*s_stderr%s", stem, name, name + stem);
    }
    json_t *v = name ? json_object_get(metrics, name) : NULL;
    json_t *s = json_object_get(metrics, with);
    *value    = v ? json_number_value(v) : NAN;
    *error    = s ? json_number_value(s) : NAN;
    return name ? name : "";
}

static const cpl_evaluated *under_set(const cpl_evaluation *e, const cpl_task *task,
                                      const char *set)
{
    const cpl_profile *profile;
    if (cpl_task_profile(&profile, task, set, NULL, NULL) != CPL_OK) return NULL;
    for (int64_t i = 0; i < e->count; i++) {
        const cpl_selected *what = e->at[i].what;
        if (what->task == task && what->profile == profile && e->at[i].result) return &e->at[i];
    }
    return NULL;
}

double cpl_evaluation_average(const cpl_evaluation *e, const char *set)
{
    double sum = 0, value, error;
    int64_t n  = 0;
    for (int64_t i = 0; i < e->selection->n_tasks; i++) {
        const cpl_task *task = e->selection->tasks[i];
        if (!cpl_selection_is_of(e->selection, i, set)) continue;
        const cpl_evaluated *one = under_set(e, task, set);
        if (!one) return NAN;
        cpl_evaluation_headline(one->result, &value, &error);
        sum += value;
        n++;
    }
    return n ? sum / (double)n : NAN;
}

static json_t *averages_json(const cpl_evaluation *e)
{
    static const char *const sets[] = {"3b", "15b"};
    json_t *object                  = json_object();
    char name[16];
    for (int i = 0; i < 2; i++) {
        double mean = cpl_evaluation_average(e, sets[i]);
        snprintf(name, sizeof name, "paper-%s", sets[i]);
        if (!isfinite(mean)) continue;
        if (json_object_set_new(object, name, cpl_json_number(mean)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

json_t *cpl_evaluation_json(const cpl_evaluation *e, json_t *settings)
{
    json_t *results = json_object();
    for (int64_t i = 0; i < e->count; i++)
        if (e->at[i].result && json_object_set(results, e->at[i].what->key, e->at[i].result) != 0) {
            json_decref(results);
            return NULL;
        }
    return json_pack("{s:O,s:o,s:o}", "settings", settings, "results", results, "averages",
                     averages_json(e));
}
