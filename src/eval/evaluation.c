/* evaluation.c - see evaluation.h: all tasks of a selection: questions, requests, results
 * together. */
#include "eval/evaluation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "eval/evaluation_internal.h"
#include "io/file.h"
#include "io/json.h"

/* ---- what there is to ask ---- */

/* Forms are evaluated; the profile they belong to takes the best of their results. */
static bool is_asked(const cpl_selected *what)
{
    return what->profile->forms.count == 0;
}

static int64_t count_asked(const cpl_selection *selection)
{
    int64_t n = 0;
    for (int64_t i = 0; i < selection->count; i++) n += is_asked(&selection->at[i]);
    return n;
}

static cpl_status refuse_nothing(const cpl_task_evaluation *one, const cpl_questions *q,
                                 const cpl_questions_options *options)
{
    const char *file = q->files.count ? q->files.at[q->files.count - 1] : options->data;
    if (options->offset > 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: there are no questions: %s has no rows behind --offset %lld",
                        one->what->key, file, (long long)options->offset);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: there are no questions: %s has no rows that can be used",
                    one->what->key, file);
}

static cpl_status look(cpl_task_evaluation *one, const cpl_questions_options *options,
                       int64_t window, const cpl_tokenizer *tokenizer, bool alone)
{
    cpl_questions q = {0};
    CPL_TRY(cpl_questions_read(&q, one->what->task, one->what->profile, options));
    one->n       = q.count;
    one->skipped = q.skipped;
    one->window  = cpl_eval_runner_window(q.question, q.count, window);
    if (q.count == 0) {
        cpl_status status = refuse_nothing(one, &q, options);
        cpl_questions_free(&q);
        return status;
    }
    cpl_status status = cpl_evaluation_check(one->what, &q, options, window, tokenizer, alone);
    cpl_questions_free(&q);
    return status;
}

/* Tells all tasks without rows in one sentence; of a single one the reading says more. */
static cpl_status check_rows(const cpl_selection *selection, const cpl_questions_options *options)
{
    cpl_text names = {0}, all = {0}, wanted = {0};
    cpl_status status  = CPL_OK;
    int64_t n          = 0;
    const bool samples = cpl_questions_of_samples(options);
    for (int64_t i = 0; i < selection->count; i++) {
        const cpl_selected *what = &selection->at[i];
        if (!is_asked(what)) continue;
        cpl_text_clear(&wanted);
        CPL_TRY_DONE(cpl_questions_missing(&wanted, what->task, what->profile, options));
        if (!wanted.length) continue;
        cpl_text_printf(&names, "%s%s", n ? ", " : "", what->key);
        cpl_text_printf(&all, "%s%s/%s", n++ ? "; " : "", what->task->id, wanted.bytes);
    }
    CPL_TRY_DONE(cpl_text_status(&names));
    CPL_TRY_DONE(cpl_text_status(&all));
    if (n > 1)
        status = CPL_FAIL(
            CPL_ERR_INPUT,
            "there are no rows of %lld tasks %s%s: %s; %s DIR names a folder of yours with "
            "their files (`couplet eval --list` tells all sources): DIR/%s",
            (long long)n, samples ? "among the samples that come with the program" : "in ",
            samples ? "" : options->data, names.bytes, cpl_questions_data_word(options), all.bytes);
done:
    cpl_text_free(&names);
    cpl_text_free(&all);
    cpl_text_free(&wanted);
    return status;
}

cpl_status cpl_evaluation_open(cpl_evaluation *e, const cpl_selection *selection,
                               const cpl_questions_options *options, int64_t window,
                               const cpl_tokenizer *tokenizer)
{
    cpl_status status = check_rows(selection, options);
    const size_t room = (size_t)(selection->count > 0 ? selection->count : 1) * sizeof *e->at;
    *e    = (cpl_evaluation){.selection = selection, .options = *options, .window = window};
    e->at = cpl_alloc(room);
    if (!e->at) return CPL_ERR_MEMORY;
    memset(e->at, 0, room);
    e->count         = selection->count;
    const bool alone = count_asked(selection) == 1;
    for (int64_t i = 0; i < e->count && status == CPL_OK; i++) {
        e->at[i].what = &selection->at[i];
        if (!is_asked(e->at[i].what)) continue;
        status = look(&e->at[i], options, window, tokenizer, alone);
        e->n_questions += e->at[i].n;
        if (e->at[i].window > e->window) e->window = e->at[i].window;
    }
    e->options.log = NULL; /* bad rows were logged before */
    if (status != CPL_OK) cpl_evaluation_close(e);
    return status;
}

void cpl_evaluation_close(cpl_evaluation *e)
{
    for (int64_t i = 0; i < e->count; i++) json_decref(e->at[i].result);
    cpl_free(e->at);
    *e = (cpl_evaluation){0};
}

/* ---- forms ---- */

/* The best headline among the forms of entry `of`. */
static cpl_status best_form(cpl_evaluation *e, int64_t of)
{
    const cpl_task_evaluation *best = NULL;
    double most                     = -INFINITY, value, error;
    const char *name;
    for (int64_t i = 0; i < e->count; i++) {
        if (e->at[i].what->form_of != of || !e->at[i].result) continue;
        cpl_evaluation_headline(e->at[i].result, &value, &error);
        if (best && !(value > most)) continue;
        best = &e->at[i];
        most = value;
    }
    if (!best) return CPL_OK;
    cpl_task_evaluation *one = &e->at[of];
    name                     = cpl_evaluation_headline(best->result, &value, &error);
    json_decref(one->result);
    one->n      = best->n;
    one->result = json_pack("{s:s,s:s,s:s,s:O,s:O,s:I,s:O}", "task", one->what->task->id, "profile",
                            one->what->profile->name, "best_of", best->what->key, "split",
                            json_object_get(best->result, "split"), "num_fewshot",
                            json_object_get(best->result, "num_fewshot"), "n", (json_int_t)best->n,
                            "metrics", json_object_get(best->result, "metrics"));
    bool whole =
        one->result && json_object_set_new(one->result, "headline", json_string(name)) == 0;
    static const char *const extra_stop_ids[] = {"chance", "shots"};
    for (int i = 0; i < 2; i++) {
        json_t *there = json_object_get(best->result, extra_stop_ids[i]);
        if (there) whole = whole && json_object_set(one->result, extra_stop_ids[i], there) == 0;
    }
    return whole ? CPL_OK : CPL_ERR_MEMORY;
}

cpl_status cpl_evaluation_run(cpl_evaluation *e, const cpl_eval_runner *runner,
                              cpl_eval_journal *journal, bool samples,
                              const cpl_evaluation_watch *watch)
{
    for (int64_t i = 0; i < e->count; i++) {
        cpl_task_evaluation *one = &e->at[i];
        cpl_questions q          = {0};
        if (!is_asked(one->what)) {
            CPL_TRY(best_form(e, i));
            continue;
        }
        CPL_TRY(cpl_questions_read(&q, one->what->task, one->what->profile, &e->options));
        cpl_status status = cpl_evaluation_ask(one, &q, runner, journal, samples, watch);
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

static const cpl_task_evaluation *under_set(const cpl_evaluation *e, const cpl_task *task,
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
        const cpl_task_evaluation *one = under_set(e, task, set);
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

static const char *const places[] = {"../share/couplet/eval", "../../data/eval"};

/* The folder of the program, from cpl_alloc; NULL: not known. */
static char *program_folder(void)
{
    char program[4096];
    ssize_t length                   = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    return length > 0 ? cpl_path_folder(program) : NULL;
}

cpl_status cpl_eval_data_dir_check(const char *data, const char *word)
{
    char *folder = program_folder();
    if (cpl_path_is_folder(data)) {
        cpl_free(folder);
        return CPL_OK;
    }
    cpl_status status = CPL_FAIL(
        CPL_ERR_INPUT,
        "the rows that come with the program are not there: beside it, in %s, neither %s nor %s is "
        "a folder, nor is %s here. Put the program back where it was installed or built (a link to "
        "it can stand elsewhere), or name a folder of rows with %s DIR",
        folder ? folder : "its folder", places[0], places[1], data, word);
    cpl_free(folder);
    return status;
}

char *cpl_eval_data_dir(void)
{
    char *folder = program_folder();
    for (int i = 0; folder && i < 2; i++) {
        char *path = cpl_path_join(folder, places[i]), *real = path ? realpath(path, NULL) : NULL;
        cpl_free(path);
        if (real && cpl_path_is_folder(real)) {
            path = cpl_text_copy(real);
            free(real);
            cpl_free(folder);
            return path;
        }
        free(real);
    }
    cpl_free(folder);
    return cpl_text_copy("data/eval");
}
