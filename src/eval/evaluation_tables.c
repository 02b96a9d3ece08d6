/* evaluation_tables.c - see evaluation.h: results read and shown as tables */
#include "eval/evaluation.h"

#include <math.h>
#include <string.h>

/* ---- figures ---- */

bool cpl_evaluation_is_loss(const char *metric)
{
    for (size_t i = 0; i < cpl_n_scores; i++) {
        const size_t length = strlen(cpl_scores[i].name);
        if (cpl_scores[i].loss && strncmp(metric, cpl_scores[i].name, length) == 0) return true;
    }
    return false;
}

const char *cpl_evaluation_value(cpl_pool *pool, const char *metric, double value)
{
    if (!isfinite(value)) return "-";
    if (cpl_evaluation_is_loss(metric)) return cpl_pool_printf(pool, "%.4f", value);
    return cpl_pool_printf(pool, "%.2f", 100 * value);
}

/* Returns a member of the metrics, or NaN if it is missing. */
static double number_of(const json_t *metrics, const char *name)
{
    const json_t *value = json_object_get(metrics, name);
    return value ? json_number_value(value) : NAN;
}

/* Returns the standard error of a metric, or NaN. "_stderr" is inserted before the name of a
 * filter: "a_stderr,filter". */
static double error_of(const json_t *metrics, const char *name)
{
    char with[160];
    const int stem = (int)strcspn(name, ",");
    snprintf(with, sizeof with, "%.*s_stderr%s", stem, name, name + stem);
    return number_of(metrics, with);
}

static bool is_error(const char *name)
{
    return strstr(name, "_stderr") != NULL;
}

const char *cpl_evaluation_headline(const json_t *result, double *value, double *error)
{
    const char *name      = json_string_value(json_object_get(result, "headline"));
    const json_t *metrics = json_object_get(result, "metrics");
    if (!name) name = "";
    *value = number_of(metrics, name);
    *error = error_of(metrics, name);
    return name;
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
        if (!cpl_selection_is_of(e->selection, i, set)) continue;
        const cpl_task_evaluation *one = under_set(e, e->selection->tasks[i], set);
        if (!one) return NAN;
        cpl_evaluation_headline(one->result, &value, &error);
        sum += value;
        n++;
    }
    return n ? sum / (double)n : NAN;
}

/* ---- the table of results ---- */

enum { PROFILE, SPLIT, SHOTS, METRIC, VALUE, ERROR, CHANCE, QUESTIONS, N_COLUMNS };

static const char *const columns[N_COLUMNS] = {"profile", "split", "shots",  "metric",
                                               "value",   "+-",    "chance", "questions"};

static int64_t count_rows(const json_t *metrics)
{
    int64_t rows = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)metrics, name, value) rows += !is_error(name);
    return rows;
}

static const char *profile_words(cpl_pool *pool, const json_t *result)
{
    const char *variant = json_string_value(json_object_get(result, "variant"));
    const char *profile = json_string_value(json_object_get(result, "profile"));
    return variant ? cpl_pool_printf(pool, "%s/%s", profile, variant) : profile;
}

static void put_metric(cpl_grid *g, cpl_pool *pool, int64_t row, const json_t *metrics,
                       const char *name, const json_t *value)
{
    cpl_grid_set(g, row, METRIC, name);
    cpl_grid_set(g, row, VALUE, cpl_evaluation_value(pool, name, json_number_value(value)));
    cpl_grid_set(g, row, ERROR, cpl_evaluation_value(pool, name, error_of(metrics, name)));
}

/* Sets the columns that are set only in the headline's row. */
static void put_task(cpl_grid *g, cpl_pool *pool, int64_t row, const cpl_task_evaluation *one)
{
    const json_t *r      = one->result;
    const json_t *chance = json_object_get(r, "chance");
    const char *best     = json_string_value(json_object_get(r, "best_of"));
    const long long n    = json_integer_value(json_object_get(r, "n"));
    g->rows[row]         = one->what->key;
    cpl_grid_set(g, row, PROFILE,
                 best ? cpl_pool_printf(pool, "best: %s", strchr(best, '/') + 1)
                      : profile_words(pool, r));
    cpl_grid_set(g, row, SPLIT, json_string_value(json_object_get(r, "split")));
    const char *shots = json_string_value(json_object_get(r, "shots"));
    if (!shots)
        shots =
            cpl_pool_printf(pool, "%lld", json_integer_value(json_object_get(r, "num_fewshot")));
    cpl_grid_set(g, row, SHOTS, shots);
    cpl_grid_set(g, row, QUESTIONS, cpl_pool_printf(pool, "%lld", n));
    if (chance)
        cpl_grid_set(g, row, CHANCE, cpl_evaluation_value(pool, "acc", json_number_value(chance)));
}

static int64_t put_result(cpl_grid *g, cpl_pool *pool, int64_t row, const cpl_task_evaluation *one)
{
    const json_t *metrics = json_object_get(one->result, "metrics");
    double value, error;
    const char *headline = cpl_evaluation_headline(one->result, &value, &error), *name;
    json_t *number;
    put_task(g, pool, row, one);
    put_metric(g, pool, row++, metrics, headline, json_object_get(metrics, headline));
    json_object_foreach((json_t *)metrics, name, number)
    {
        if (is_error(name) || strcmp(name, headline) == 0) continue;
        g->rows[row] = "";
        put_metric(g, pool, row++, metrics, name, number);
    }
    return row;
}

cpl_status cpl_evaluation_table(cpl_grid *g, cpl_pool *pool, const cpl_evaluation *e)
{
    double mean[CPL_SELECTION_SETS];
    int64_t rows = 0, row = 0;
    for (int i = 0; i < CPL_SELECTION_SETS; i++) {
        mean[i] = cpl_evaluation_average(e, cpl_selection_sets[i].set);
        rows += isfinite(mean[i]) != 0;
    }
    for (int64_t i = 0; i < e->count; i++)
        rows += count_rows(json_object_get(e->at[i].result, "metrics"));
    CPL_TRY(cpl_grid_open(g, pool, rows, N_COLUMNS));
    g->title  = "Results";
    g->note   = "Shares in percent; +- is the standard error.";
    g->corner = "task";
    for (int k = 0; k < N_COLUMNS; k++) g->columns[k] = columns[k];
    for (int64_t i = 0; i < e->count; i++)
        if (e->at[i].result) row = put_result(g, pool, row, &e->at[i]);
    for (int i = 0; i < CPL_SELECTION_SETS; i++) {
        if (!isfinite(mean[i])) continue;
        g->rows[row] = cpl_selection_sets[i].word;
        cpl_grid_set(g, row, METRIC, "mean headline");
        cpl_grid_set(g, row++, VALUE, cpl_evaluation_value(pool, "acc", mean[i]));
    }
    return cpl_pool_status(pool);
}

/* ---- text ---- */

void cpl_evaluation_remarks(cpl_text *out, const cpl_evaluation *e)
{
    static const struct {
        const char *member, *one, *several;
    } remarks[] = {{"cut", "question was longer than the window and lost its beginning",
                    "questions were longer than the window and lost their beginning"},
                   {"beyond",
                    "question was longer than the model's context, and was evaluated beyond it",
                    "questions were longer than the model's context, and were evaluated beyond it"},
                   {"skipped", "bad row was left out", "bad rows were left out"}};
    if (e->options.limit != CPL_UNSET || cpl_questions_of_samples(&e->options))
        cpl_text_printf(out, "These are figures of a sample of the rows, not scores to report.\n");
    for (int64_t i = 0; i < e->count; i++)
        for (int k = 0; k < 3; k++) {
            const json_t *count = json_object_get(e->at[i].result, remarks[k].member);
            const long long n   = json_integer_value(count);
            if (n > 0)
                cpl_text_printf(out, "%s: %lld %s\n", e->at[i].what->key, n,
                                n == 1 ? remarks[k].one : remarks[k].several);
        }
}

cpl_status cpl_evaluation_text(cpl_text *out, const cpl_evaluation *e)
{
    cpl_pool pool = {0};
    cpl_grid g;
    cpl_status status = cpl_evaluation_table(&g, &pool, e);
    if (status == CPL_OK) {
        cpl_grid_text(out, &g);
        cpl_evaluation_remarks(out, e);
        status = cpl_text_status(out);
    }
    cpl_pool_free(&pool);
    return status;
}
