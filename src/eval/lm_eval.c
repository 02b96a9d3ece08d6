/* lm_eval.c - see lm_eval.h: the results file. Groups are computed from their tasks, as
 * lm-evaluation-harness does (api/group.py and api/metrics.py of 0.4.13). */
#include "eval/lm_eval.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_internal.h"
#include "io/json.h"

static const char program[] = "couplet " COUPLET_VERSION;

typedef struct writer {
    cpl_lm_eval *l;
    const cpl_lm_eval_run *run;
    json_t *root;
    bool failed;
} writer;

/* The object of that name in the root, by task; it is made if it is not there. */
static json_t *by_task(writer *w, const char *name)
{
    json_t *object = json_object_get(w->root, name);
    return object ? object : cpl_json_open(&w->failed, w->root, name, json_object());
}

static void put(writer *w, const char *of, const char *task, json_t *value)
{
    cpl_json_put(&w->failed, by_task(w, of), task, value);
}

/* ---- tasks ---- */

/* Whether standard errors are those of lm-evaluation-harness: not where a question counts once for
 * several prompts. */
static bool has_errors(const cpl_lm_eval_task *t)
{
    return !json_object_get(t->of->result, "shots");
}

static void put_figure(writer *w, json_t *object, const char *name, const char *filter,
                       double value, double error)
{
    cpl_pool *pool = &w->l->pool;
    cpl_json_put(&w->failed, object, cpl_pool_printf(pool, "%s,%s", name, filter),
                 json_real(value));
    cpl_json_put(&w->failed, object, cpl_pool_printf(pool, "%s_stderr,%s", name, filter),
                 isfinite(error) ? json_real(error) : json_string("N/A"));
}

/* A member of our totals; NaN: there is none. */
static double total(const json_t *totals, const char *name)
{
    const json_t *value = json_object_get(totals, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double error_of(const cpl_lm_eval_task *t, const json_t *totals, const char *name)
{
    return has_errors(t) ? total(totals, name) : NAN;
}

static json_t *open_result(writer *w, const char *name, const char *alias, int64_t n)
{
    put(w, "results", name,
        json_pack("{s:s,s:o,s:I}", "name", name, "alias", cpl_json_words(alias), "sample_len",
                  (json_int_t)n));
    return json_object_get(by_task(w, "results"), name);
}

static void put_metrics(writer *w, const cpl_lm_eval_task *t)
{
    json_t *result = open_result(w, t->name, t->subject ? t->subject : t->name, t->n);
    for (int64_t m = 0; m < t->n_metrics; m++) {
        const cpl_lm_eval_metric *one = &t->metric[m];
        put_figure(w, result, one->name, one->filter, total(t->totals, one->value),
                   error_of(t, t->totals, one->error));
    }
}

/* Adds to `higher` whether more is better, of every metric of the task. */
static void put_directions(writer *w, json_t *higher, const cpl_lm_eval_task *t)
{
    for (int64_t m = 0; m < t->n_metrics; m++)
        cpl_json_put(&w->failed, higher, t->metric[m].name,
                     json_boolean(!cpl_metric_is_loss(t->metric[m].key.name)));
}

/* What a task and a group of tasks have of the evaluation that they are from. */
static void put_common(writer *w, const char *name, const cpl_task_evaluation *of, json_t *higher)
{
    json_t *shots = json_object_get(of->result, "shots");
    if (!shots) shots = json_object_get(of->result, "num_fewshot");
    put(w, "versions", name, json_string(program));
    put(w, "n-shot", name, json_incref(shots));
    put(w, "higher_is_better", name, higher);
}

static json_t *metric_list(writer *w, const cpl_lm_eval_task *t)
{
    json_t *list = json_array();
    for (int64_t m = 0; m < t->n_metrics; m++) {
        const cpl_lm_eval_metric *one = &t->metric[m];
        const bool again  = m > 0 && strcmp(one->name, t->metric[m - 1].name) == 0; /* a filter */
        const bool higher = !cpl_metric_is_loss(one->key.name);
        if (!again)
            cpl_json_add(&w->failed, list,
                         json_pack("{s:s,s:s,s:b}", "metric", one->name, "aggregation", "mean",
                                   "higher_is_better", higher));
    }
    return list;
}

/* What only our results have. */
static json_t *metadata(writer *w, const cpl_task_evaluation *of)
{
    static const char *const kept[] = {"task",  "profile", "variant", "split",  "files",
                                       "shots", "skipped", "cut",     "beyond", "chance"};
    json_t *made                    = json_pack("{s:s}", "version", program);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *value = json_object_get(of->result, kept[i]);
        if (value) cpl_json_put(&w->failed, made, kept[i], json_incref(value));
    }
    return made;
}

static json_t *configuration(writer *w, const cpl_lm_eval_task *t)
{
    json_t *made = json_pack("{s:s,s:o,s:o,s:s,s:s,s:O,s:i,s:o}", "task", t->name, "dataset_path",
                             cpl_json_words(w->l->e->options.data), "dataset_name",
                             t->subject ? cpl_json_words(t->subject) : json_null(), "test_split",
                             t->of->what->profile->split, "output_type", t->form->kind->output_type,
                             "num_fewshot", json_object_get(t->of->result, "num_fewshot"),
                             "repeats", 1, "metric_list", metric_list(w, t));
    if (t->subject) cpl_json_put(&w->failed, made, "task_alias", cpl_json_words(t->subject));
    if (t->max_gen_toks)
        cpl_json_put(&w->failed, made, "generation_kwargs", cpl_lm_eval_generation(t));
    cpl_json_put(&w->failed, made, "metadata", metadata(w, t->of));
    return made;
}

static void put_task(writer *w, const cpl_lm_eval_task *t)
{
    json_t *higher = json_object();
    put_metrics(w, t);
    put_directions(w, higher, t);
    put_common(w, t->name, t->of, higher);
    put(w, "configs", t->name, configuration(w, t));
    put(w, "n-samples", t->name,
        json_pack("{s:I,s:I}", "original", (json_int_t)t->original, "effective", (json_int_t)t->n));
    if (t->lines) put(w, "task_hashes", t->name, cpl_lm_eval_hash(t->lines));
}

/* ---- groups ---- */

/* The values of one metric over the tasks of a group. */
typedef struct sums {
    int64_t tasks, n;       /* tasks that have it, and their questions */
    double plain, weighted; /* of the values: the sum, and that times the questions */
    double squares, pooled; /* of the errors: of squares, and those times n (n - 1) */
} sums;

static void add_value(sums *s, int64_t n, double value, double error)
{
    s->tasks++;
    s->n += n;
    s->plain += value;
    s->weighted += (double)n * value;
    s->squares += error * error;
    s->pooled += (double)(n - 1) * error * error * (double)n;
}

/* A group of an evaluation. */
typedef struct group {
    const cpl_task_evaluation *of;
    const cpl_task_group *group; /* NULL: all subjects */
    const char *name;
    bool by_size; /* a question counts once; otherwise a subject does */
} group;

static bool is_in(const group *g, const cpl_lm_eval_task *t)
{
    if (t->of != g->of) return false;
    return !g->group || cpl_string_list_holds(&g->group->subjects, t->subject);
}

static bool is_reported(const group *g, const char *metric)
{
    return !g->group || g->group->metrics.count == 0 ||
           cpl_string_list_holds(&g->group->metrics, metric);
}

/* The metric of a task that has the name and filter of `m`; NULL: it has none. */
static const cpl_lm_eval_metric *same_metric(const cpl_lm_eval_task *t, const cpl_lm_eval_metric *m)
{
    for (int64_t i = 0; i < t->n_metrics; i++)
        if (strcmp(t->metric[i].name, m->name) == 0 && strcmp(t->metric[i].filter, m->filter) == 0)
            return &t->metric[i];
    return NULL;
}

static void put_mean(writer *w, json_t *result, const group *g, const cpl_lm_eval_metric *m)
{
    sums s = {0};
    for (int64_t i = 0; i < w->l->n_tasks; i++) {
        const cpl_lm_eval_task *t      = &w->l->task[i];
        const cpl_lm_eval_metric *have = is_in(g, t) ? same_metric(t, m) : NULL;
        if (have)
            add_value(&s, t->n, total(t->totals, have->value), error_of(t, t->totals, have->error));
    }
    const double n = (double)s.n, tasks = (double)s.tasks;
    if (g->by_size)
        put_figure(w, result, m->name, m->filter, s.weighted / n, sqrt(s.pooled / (n - tasks) / n));
    else
        put_figure(w, result, m->name, m->filter, s.plain / tasks, sqrt(s.squares) / tasks);
    const char *key = cpl_pool_printf(&w->l->pool, "%s,%s", m->name, m->filter);
    cpl_json_put(&w->failed, json_object_get(result, "sample_count"), key, json_integer(s.n));
}

/* The mean of groups, each counting once, has no name there. */
static void put_group_mean(writer *w, json_t *result, const cpl_lm_eval_task *t,
                           const cpl_lm_eval_metric *m)
{
    const json_t *totals = json_object_get(t->of->result, "metrics");
    put_figure(w, result, cpl_pool_printf(&w->l->pool, "%s_group_mean", m->name), m->filter,
               total(totals, m->value), error_of(t, totals, m->error));
}

/* Every metric of the group's tasks, once. */
static void put_means(writer *w, json_t *result, json_t *higher, const group *g)
{
    const bool of_groups =
        !g->group && g->of->what->profile->headline == CPL_OF_GROUPS; /* the whole task */
    for (int64_t i = 0; i < w->l->n_tasks; i++) {
        const cpl_lm_eval_task *t = &w->l->task[i];
        for (int64_t m = 0; is_in(g, t) && m < t->n_metrics; m++) {
            const cpl_lm_eval_metric *one = &t->metric[m];
            const char *key = cpl_pool_printf(&w->l->pool, "%s,%s", one->name, one->filter);
            if (json_object_get(result, key) || !is_reported(g, one->key.name)) continue;
            put_mean(w, result, g, one);
            if (of_groups) put_group_mean(w, result, t, one);
        }
        if (is_in(g, t)) put_directions(w, higher, t);
    }
}

static int64_t count_questions(const writer *w, const group *g)
{
    int64_t n = 0;
    for (int64_t i = 0; i < w->l->n_tasks; i++)
        if (is_in(g, &w->l->task[i])) n += w->l->task[i].n;
    return n;
}

/* Its figures, as a result and as a group. */
static void put_group_result(writer *w, const group *g)
{
    json_t *result = open_result(w, g->name, g->name, count_questions(w, g));
    json_t *higher = json_object();
    cpl_json_put(&w->failed, result, "sample_count", json_object());
    put_means(w, result, higher, g);
    put(w, "groups", g->name, json_deep_copy(result));
    put_common(w, g->name, g->of, higher);
}

static void put_children(writer *w, json_t *names, const group *g)
{
    for (int64_t i = 0; i < w->l->n_tasks; i++)
        if (is_in(g, &w->l->task[i]))
            cpl_json_add(&w->failed, names, json_string(w->l->task[i].name));
}

static bool is_in_any(const cpl_profile *profile, const char *subject)
{
    for (int64_t g = 0; g < profile->n_groups; g++)
        if (cpl_string_list_holds(&profile->groups[g].subjects, subject)) return true;
    return false;
}

/* Below the whole task: its groups that have questions, and the subjects that are in none. */
static void put_parts(writer *w, json_t *names, const cpl_task_evaluation *of)
{
    const cpl_profile *profile = of->what->profile;
    for (int64_t i = 0; i < profile->n_groups; i++) {
        const cpl_task_group *part = &profile->groups[i];
        const group g = {of, part, cpl_lm_eval_name(&w->l->pool, of->what, part), true};
        if (part->subjects.count == 0 || !count_questions(w, &g)) continue;
        cpl_json_add(&w->failed, names, json_string(g.name));
        put_group_result(w, &g);
        put_children(
            w, cpl_json_open(&w->failed, by_task(w, "group_subtasks"), g.name, json_array()), &g);
    }
    for (int64_t i = 0; i < w->l->n_tasks; i++) {
        const cpl_lm_eval_task *t = &w->l->task[i];
        if (t->of == of && !is_in_any(profile, t->subject))
            cpl_json_add(&w->failed, names, json_string(t->name));
    }
}

static void put_groups(writer *w, const cpl_task_evaluation *of)
{
    if (!json_object_get(of->result, "subjects")) return;
    const group all = {of, NULL, cpl_lm_eval_name(&w->l->pool, of->what, NULL),
                       of->what->profile->headline != CPL_OF_SUBJECTS};
    put_group_result(w, &all);
    json_t *names = cpl_json_open(&w->failed, by_task(w, "group_subtasks"), all.name, json_array());
    put_parts(w, names, of);
}

/* ---- the run ---- */

/* "pretrained=MODEL,dtype=...", in the form of their --model_args. */
static json_t *model_args(const writer *w)
{
    const json_t *s = w->run->settings;
    const char *all =
        cpl_pool_printf(&w->l->pool, "pretrained=%s,dtype=%s,max_length=%lld", w->run->model,
                        json_string_value(json_object_get(s, "dtype")),
                        (long long)json_integer_value(json_object_get(s, "max_length")));
    return cpl_json_words(all);
}

static void put_config(writer *w)
{
    static const char *const none[] = {"batch_size", "use_cache",   "bootstrap_iters",
                                       "gen_kwargs", "random_seed", "numpy_seed",
                                       "torch_seed", "fewshot_seed"};
    const int64_t limit             = w->l->e->options.limit;
    json_t *config = json_pack("{s:s,s:o,s:[],s:s,s:o}", "model", "couplet", "model_args",
                               model_args(w), "batch_sizes", "device", "cpu", "limit",
                               limit == CPL_UNSET ? json_null() : json_integer(limit));
    cpl_json_put(&w->failed, w->root, "config", config);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cpl_json_put(&w->failed, config, none[i], json_null());
}

/* Every run of the characters that a file's name cannot have is two underscores, as theirs. */
static json_t *sanitized(const char *name)
{
    cpl_text text = {0};
    while (*name) {
        const size_t plain = strcspn(name, "\"<>:/|\\?*[]");
        cpl_text_append(&text, name, plain);
        name += plain;
        const size_t other = strspn(name, "\"<>:/|\\?*[]");
        if (other) cpl_text_append(&text, "__", 2);
        name += other;
    }
    json_t *made = text.failed ? NULL : cpl_json_words(text.bytes ? text.bytes : "");
    cpl_text_free(&text);
    return made;
}

static void put_model(writer *w)
{
    static const char *const none[] = {"system_instruction", "system_instruction_sha",
                                       "fewshot_as_multiturn", "chat_template",
                                       "chat_template_sha"};
    cpl_json_put(&w->failed, w->root, "model_source", json_string("couplet"));
    cpl_json_put(&w->failed, w->root, "model_name", cpl_json_words(w->run->model));
    cpl_json_put(&w->failed, w->root, "model_name_sanitized", sanitized(w->run->model));
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cpl_json_put(&w->failed, w->root, none[i], json_null());
}

static void put_times(writer *w)
{
    const cpl_lm_eval_run *run = w->run;
    const char *seconds        = cpl_pool_printf(&w->l->pool, "%.6f", run->end - run->start);
    cpl_json_put(&w->failed, w->root, "date", json_real((double)run->date));
    cpl_json_put(&w->failed, w->root, "start_time", json_real(run->start));
    cpl_json_put(&w->failed, w->root, "end_time", json_real(run->end));
    cpl_json_put(&w->failed, w->root, "total_evaluation_time_seconds", json_string(seconds));
}

/* What there is nothing to say of, and which program wrote the file. */
static void put_origin(writer *w)
{
    static const char *const none[] = {"git_hash", "upper_git_hash", "pretty_env_info",
                                       "transformers_version", "lm_eval_version"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cpl_json_put(&w->failed, w->root, none[i], json_null());
    cpl_json_put(&w->failed, w->root, "eot_token_id",
                 w->run->eot < 0 ? json_null() : json_integer(w->run->eot));
    cpl_json_put(&w->failed, w->root, "max_length",
                 json_incref(json_object_get(w->run->settings, "max_length")));
    cpl_json_put(&w->failed, w->root, "couplet",
                 json_pack("{s:s,s:O}", "program", program, "settings", w->run->settings));
}

json_t *cpl_lm_eval_json(cpl_lm_eval *l, const cpl_lm_eval_run *run)
{
    static const char *const always[] = {"results", "group_subtasks",   "configs",   "versions",
                                         "n-shot",  "higher_is_better", "n-samples", "task_hashes"};
    writer w                          = {.l = l, .run = run, .root = json_object()};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) (void)by_task(&w, always[i]);
    for (int64_t i = 0; i < l->e->count; i++) put_groups(&w, &l->e->at[i]);
    for (int64_t i = 0; i < l->n_tasks; i++) put_task(&w, &l->task[i]);
    put_config(&w);
    put_origin(&w);
    put_model(&w);
    put_times(&w);
    if (!w.failed && cpl_pool_status(&l->pool) == CPL_OK) return w.root;
    json_decref(w.root);
    return NULL;
}
