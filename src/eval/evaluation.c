/* evaluation.c - see evaluation.h: all tasks of a selection, checked and run one after the other */
#include "eval/evaluation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/text.h"
#include "eval/tasks/task_parts.h"
#include "io/file.h"
#include "io/json.h"

/* ---- checks of all questions of a task ---- */

static bool is_reported(const cpl_questions *q, const char *metric)
{
    for (int64_t i = 0; i < q->count; i++)
        if (q->question[i].form->kind->reports(q->profile, metric)) return true;
    return false;
}

/* Checks that at least one question reports every metric. The reader of the task file has checked
 * that questions can report the metrics required of them. */
static cpl_status check_metrics(const cpl_questions *q)
{
    const cpl_string_list *metrics = &q->profile->metrics;
    for (int64_t i = 0; i < metrics->count; i++) {
        if (is_reported(q, metrics->at[i])) continue;
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "no question counts for the metric %s: all that are there %s; add the rows of other "
            "subjects, or use a task file of your own (docs/tasks.md) that has no such metric",
            metrics->at[i], q->question[0].form->kind->questions);
    }
    return CPL_OK;
}

static bool is_in_group(const cpl_profile *profile, const char *subject)
{
    for (int64_t i = 0; i < profile->n_groups; i++) {
        const cpl_string_list *subjects = &profile->groups[i].subjects;
        if (!subjects->count || cpl_string_list_holds(subjects, subject)) return true;
    }
    return false;
}

/* Checks that every question with a subject is in a group, if the headline is the mean of
 * groups. */
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
                         "wrong changes how its questions are evaluated or counted",
                         q->task->id, kind, names->at[i]);
}

/* Warns if subjects that the task lists have no rows. */
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
                     "%s: %lld of its %lld subjects %s no rows, %s %s: the score is of the others, "
                     "and not what is published as %s",
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

enum { ADVICE = 320 };

/* Writes how to make room for a prompt: by `flags` of this task, or by settings of a training
 * run. */
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
        snprintf(
            advice, ADVICE,
            "evaluate %.100s in a run of its own, where %s makes room and changes no other task",
            key, flags);
}

/* Checks the lengths of all questions. Leaves out the questions of bad rows if skip_bad is set. */
static cpl_status check_lengths(const cpl_evaluation *e, const cpl_selected *what, cpl_questions *q,
                                bool alone)
{
    const cpl_questions_options *options = &e->options;
    char room[ADVICE], beyond[ADVICE], fewer[80];
    bool *bad = options->skip_bad ? cpl_alloc((size_t)q->count + 1) : NULL;
    if (options->skip_bad && !bad) return CPL_ERR_MEMORY;
    if (bad) memset(bad, 0, (size_t)q->count);
    snprintf(fewer, sizeof fewer, "--max-gen-toks below %lld", (long long)e->model_window);
    advise(room, what, alone, options->of_run, fewer);
    advise(beyond, what, alone, options->of_run,
           q->fewer            ? "--num-fewshot with a smaller number"
           : q->max_tokens > 0 ? "--max-gen-toks with a smaller number"
                               : "");
    const cpl_eval_runner_advice advice = {
        room, beyond, bad ? NULL : cpl_questions_skip_advice(options), bad, options->log};
    cpl_status status =
        cpl_eval_runner_check(q->question, q->count, e->model_window, e->tokenizer, &advice);
    if (status == CPL_OK && bad) cpl_questions_leave_out(q, bad);
    cpl_free(bad);
    return cpl_evaluation_about(status, what);
}

/* Checks for errors that would otherwise occur only at the end: a metric that no question reports,
 * and a subject that is in no group although the headline is a mean of groups. Logs a warning for
 * subjects in the task file that have no rows. */
static cpl_status check_questions(const cpl_selected *what, const cpl_questions *q,
                                  const cpl_questions_options *options)
{
    cpl_status status = check_metrics(q);
    if (status == CPL_OK) status = check_groups(q);
    if (status == CPL_OK) warn_of_names(q, options);
    return cpl_evaluation_about(status, what);
}

/* ---- questions and rows of the tasks ---- */

/* Returns whether a profile is evaluated itself. A profile with forms takes the best of their
 * results. */
static bool is_evaluated(const cpl_selected *what)
{
    return what->profile->forms.count == 0;
}

static int64_t count_evaluated(const cpl_selection *selection)
{
    int64_t n = 0;
    for (int64_t i = 0; i < selection->count; i++) n += is_evaluated(&selection->at[i]);
    return n;
}

static cpl_status refuse_nothing(const cpl_selected *what, const cpl_questions *q,
                                 const cpl_questions_options *options)
{
    const char *file = q->files.count ? q->files.at[q->files.count - 1] : options->data;
    if (options->offset > 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: there are no questions: %s has no rows after --offset %lld", what->key,
                        file, (long long)options->offset);
    if (options->limit > 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: there are no questions: none of the first %lld rows of %s can be used",
                        what->key, (long long)options->limit, file);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: there are no questions: %s has no rows that can be used",
                    what->key, file);
}

/* Sets the questions of a task. Fails if a question does not fit the model's window, or leaves out
 * its row if the row is bad and skip_bad is set. */
static cpl_status read_questions(cpl_questions *q, const cpl_evaluation *e,
                                 const cpl_selected *what)
{
    const bool alone = count_evaluated(e->selection) == 1;
    CPL_TRY(cpl_questions_read(q, what->task, what->profile, &e->options));
    cpl_status status = check_lengths(e, what, q, alone);
    if (status != CPL_OK) cpl_questions_free(q);
    return status;
}

/* Leaves a task without questions out, with a warning. For a single task, and in a training run, it
 * is an error. */
static cpl_status leave_out(cpl_evaluation *e, cpl_task_evaluation *one, cpl_status why)
{
    if (why == CPL_ERR_MEMORY || count_evaluated(e->selection) == 1 || e->options.of_run)
        return why;
    if (e->options.log) cpl_log_warn(e->options.log, "%s", cpl_last_error());
    one->missing = true;
    return CPL_OK;
}

/* Reads the questions of a task and checks them. */
static cpl_status check_task(cpl_evaluation *e, cpl_task_evaluation *one)
{
    cpl_questions q = {0};
    CPL_TRY(read_questions(&q, e, one->what));
    const int64_t own = cpl_eval_runner_window(q.question, q.count, e->model_window);
    cpl_status status = q.count ? check_questions(one->what, &q, &e->options)
                                : leave_out(e, one, refuse_nothing(one->what, &q, &e->options));
    one->n            = q.count;
    e->n_questions += q.count;
    if (own > e->window) e->window = own;
    cpl_questions_free(&q);
    return status;
}

/* Fails with the names of the tasks without rows, if there are any. */
static cpl_status fail_missing(const cpl_evaluation *e, const char *others)
{
    cpl_text names   = {0};
    const bool yours = !cpl_questions_of_samples(&e->options);
    for (int64_t i = 0; i < e->count; i++)
        if (e->at[i].missing)
            cpl_text_printf(&names, "%s%s", names.length ? ", " : "", e->at[i].what->key);
    cpl_status status = cpl_text_status(&names);
    if (status == CPL_OK && names.length)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "there are no rows of %s%s%s%s; %s DIR names a folder of yours with "
                          "their files, and `couplet eval --list` lists where they are published",
                          names.bytes, yours ? " in " : "", yours ? e->options.data : "", others,
                          cpl_questions_data_word(&e->options));
    cpl_text_free(&names);
    return status;
}

cpl_status cpl_evaluation_missing(const cpl_evaluation *e)
{
    return fail_missing(e, ", and the other tasks were evaluated");
}

/* Finds the tasks without rows, and logs the files that each needs. In a training run they are an
 * error. A single task is not checked, since reading it reports the error. */
static cpl_status check_rows(cpl_evaluation *e)
{
    for (int64_t i = 0; i < e->count && count_evaluated(e->selection) > 1; i++) {
        const cpl_selected *what = e->at[i].what;
        if (!is_evaluated(what)) continue;
        bool there;
        CPL_TRY(cpl_questions_there(&there, what->task, what->profile, &e->options));
        if (there) continue;
        if (e->options.log) cpl_log_warn(e->options.log, "%s", cpl_last_error());
        e->at[i].missing = true;
    }
    return e->options.of_run ? fail_missing(e, "") : CPL_OK;
}

/* Fails if no task has rows. */
static cpl_status check_some(const cpl_evaluation *e)
{
    for (int64_t i = 0; i < e->count; i++)
        if (is_evaluated(e->at[i].what) && !e->at[i].missing) return CPL_OK;
    return fail_missing(e, "");
}

cpl_status cpl_evaluation_open(cpl_evaluation *e, const cpl_selection *selection,
                               const cpl_questions_options *options, int64_t window,
                               const cpl_tokenizer *tokenizer)
{
    const size_t room = (size_t)(selection->count > 0 ? selection->count : 1) * sizeof *e->at;
    *e                = (cpl_evaluation){.selection    = selection,
                                         .options      = *options,
                                         .tokenizer    = tokenizer,
                                         .model_window = window,
                                         .window       = window};
    e->at             = cpl_alloc(room);
    if (!e->at) return CPL_ERR_MEMORY;
    memset(e->at, 0, room);
    e->count = selection->count;
    for (int64_t i = 0; i < e->count; i++) e->at[i].what = &selection->at[i];
    cpl_status status = check_rows(e);
    for (int64_t i = 0; i < e->count && status == CPL_OK; i++) {
        if (is_evaluated(e->at[i].what) && !e->at[i].missing) status = check_task(e, &e->at[i]);
    }
    if (status == CPL_OK) status = check_some(e);
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

/* Sets the result of entry `of` from its form with the best headline. */
static cpl_status best_form(cpl_evaluation *e, int64_t of)
{
    const cpl_task_evaluation *best = NULL;
    double most                     = -INFINITY, value, error;
    for (int64_t i = 0; i < e->count; i++) {
        if (e->at[i].what->form_of != of || !e->at[i].result) continue;
        cpl_evaluation_headline(e->at[i].result, &value, &error);
        if (best && !(value > most)) continue;
        best = &e->at[i];
        most = value;
    }
    if (!best) return CPL_OK;
    static const char *const kept[] = {"split",    "num_fewshot", "n",    "metrics",
                                       "headline", "chance",      "shots"};
    cpl_task_evaluation *one        = &e->at[of];
    bool failed                     = false;
    json_decref(one->result);
    one->n      = best->n;
    one->result = json_pack("{s:s,s:s,s:s}", "task", one->what->task->id, "profile",
                            one->what->profile->name, "best_of", best->what->key);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *member = json_object_get(best->result, kept[i]);
        if (member) cpl_json_put(&failed, one->result, kept[i], json_incref(member));
    }
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

/* Checks that all ranks have the same questions, since their blocks would differ otherwise.
 * `status` is the status of reading the questions. Collective. */
static cpl_status check_ranks(cpl_group *group, cpl_status status, const cpl_task_evaluation *one,
                              const cpl_questions *q)
{
    char name[256], sum[SHA256_DIGEST_STRING_LENGTH], hex[17];
    XXH3_state_t *state = cpl_gather_is_alone(group) ? NULL : XXH3_createState();
    if (cpl_gather_is_alone(group)) return status;
    if (state) XXH3_64bits_reset(state);
    for (int64_t i = 0; state && i < q->count; i++) {
        cpl_question_sum(sum, &q->question[i]);
        XXH3_64bits_update(state, sum, sizeof sum);
    }
    if (state) snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    snprintf(name, sizeof name, "the check sum of the questions of %.200s", one->what->key);
    return cpl_gather_equal(group, status, state ? json_pack("{s:s}", name, hex) : NULL);
}

/* Sets "rows" of a result: the number of usable questions of each subject without --limit and
 * --offset. The member is left out if the files are damaged after the rows that were asked for. */
static cpl_status count_rows(const cpl_evaluation *e, const cpl_task_evaluation *one)
{
    cpl_questions q               = {0};
    cpl_questions_options options = e->options;
    bool failed                   = false;
    if (options.of_run || (options.limit == CPL_UNSET && options.offset == 0)) return CPL_OK;
    options.limit     = CPL_UNSET;
    options.offset    = 0;
    options.skip_bad  = true;
    cpl_status status = cpl_questions_read(&q, one->what->task, one->what->profile, &options);
    if (status != CPL_OK) return status == CPL_ERR_INPUT ? CPL_OK : status;
    json_t *rows = cpl_json_open(&failed, one->result, "rows", json_object());
    for (int64_t i = 0; i < q.count; i++) {
        const char *subject = q.question[i].subject ? q.question[i].subject : "";
        const json_t *seen  = json_object_get(rows, subject);
        cpl_json_put(&failed, rows, subject, json_integer(json_integer_value(seen) + 1));
    }
    cpl_questions_free(&q);
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

cpl_status cpl_evaluation_run(cpl_evaluation *e, const cpl_eval_runner *runner,
                              cpl_eval_journal *journal, bool samples,
                              const cpl_evaluation_callbacks *callbacks)
{
    for (int64_t i = 0; i < e->count; i++) {
        cpl_task_evaluation *one = &e->at[i];
        cpl_questions q          = {0};
        if (!is_evaluated(one->what)) {
            CPL_TRY(best_form(e, i));
            continue;
        }
        if (one->missing) continue;
        cpl_status status = read_questions(&q, e, one->what);
        status            = check_ranks(runner->group, status, one, &q);
        if (status == CPL_OK)
            status = cpl_evaluation_run_task(one, &q, runner, journal, samples, callbacks);
        cpl_questions_free(&q);
        if (status == CPL_OK) status = count_rows(e, one);
        CPL_TRY(status);
    }
    return CPL_OK;
}

/* ---- the rows that come with the program ---- */

static const char *const places[] = {"../share/couplet/eval", "../../data/eval"};

/* Returns the folder of the program, from cpl_alloc, or NULL. */
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
        "the rows that come with the program are not there: in %s, where it lies, neither %s nor "
        "%s is a folder, nor is %s here. Put the program back where it was installed or built (a "
        "link to it may be elsewhere), or name a folder of rows with %s DIR",
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
