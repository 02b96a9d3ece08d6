/* train_eval.c - see train_eval.h */
#include "app/train_eval.h"

#include <string.h>

#include "base/arena.h"
#include "eval/evaluation.h"
#include "io/json.h"
#include "parallel/gather.h"

static cpl_status open_tasks(cpl_train_eval *t, const cpl_settings *s, const cpl_log *log)
{
    const int64_t limit               = s->eval.tasks_limit;
    cpl_questions_options options     = {.limit      = limit ? limit : CPL_UNSET,
                                         .shots      = CPL_UNSET,
                                         .max_tokens = CPL_UNSET,
                                         .of_run     = true,
                                         .log        = log};
    const cpl_selection_options tasks = {.words   = (const char *const *)s->eval.tasks.at,
                                         .n_words = s->eval.tasks.count};
    if (s->eval.tasks.count == 0) return CPL_OK;
    t->own = cpl_eval_data_dir();
    if (t->own) t->data = cpl_text_copy(s->eval.tasks_data ? s->eval.tasks_data : t->own);
    if (!t->data) return CPL_ERR_MEMORY;
    if (!s->eval.tasks_data) CPL_TRY(cpl_eval_data_dir_check(t->own, "eval.tasks_data:"));
    options.data = t->data;
    options.own  = t->own;
    CPL_TRY(cpl_selection_init(&t->selection, cpl_request_kinds));
    CPL_TRY(cpl_selection_add(&t->selection, &tasks));
    return cpl_evaluation_open(&t->evaluation, &t->selection, &options, s->model.max_positions,
                               t->tokenizer);
}

cpl_status cpl_train_eval_open(cpl_train_eval *t, const cpl_settings *s, const cpl_log *log)
{
    memset(t, 0, sizeof *t);
    if (s->eval.tasks.count == 0 && s->eval.prompts.count == 0) return CPL_OK;
    if (!s->data.tokenizer)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s needs data.tokenizer: questions and prompts are texts, and token shards "
            "do not say how to read them",
            s->eval.tasks.count ? "eval.tasks" : "eval.prompts");
    cpl_status status = cpl_tokenizer_load(&t->tokenizer, s->data.tokenizer);
    if (status == CPL_OK) status = open_tasks(t, s, log);
    if (status == CPL_OK) status = cpl_train_samples_open(&t->samples, s, t->tokenizer);
    if (status != CPL_OK) cpl_train_eval_close(t);
    return status;
}

void cpl_train_eval_close(cpl_train_eval *t)
{
    cpl_evaluation_close(&t->evaluation);
    cpl_selection_free(&t->selection);
    cpl_train_samples_close(&t->samples);
    cpl_tokenizer_free(t->tokenizer);
    cpl_free(t->data);
    cpl_free(t->own);
    memset(t, 0, sizeof *t);
}

int64_t cpl_train_eval_window(const cpl_train_eval *t)
{
    const int64_t of_tasks = t->evaluation.window, of_samples = t->samples.window;
    return of_tasks > of_samples ? of_tasks : of_samples;
}

/* Sets {TASK: {METRIC: value}} of what was evaluated. */
static cpl_status collect(const cpl_train_eval *t, json_t **figures)
{
    *figures    = json_object();
    bool failed = !*figures;
    for (int64_t i = 0; i < t->evaluation.count; i++) {
        const cpl_task_evaluation *one = &t->evaluation.at[i];
        json_t *metrics                = json_object_get(one->result, "metrics");
        if (metrics) cpl_json_put(&failed, *figures, one->what->key, json_incref(metrics));
    }
    if (!failed) return CPL_OK;
    json_decref(*figures);
    *figures = NULL;
    return CPL_ERR_MEMORY;
}

static cpl_status run_tasks(cpl_train_eval *t, cpl_model *model, cpl_group *world, json_t **figures)
{
    const cpl_evaluation_callbacks callbacks = {0};
    const cpl_eval_runner runner             = {.batch     = &t->batch,
                                                .tokenizer = t->tokenizer,
                                                .group     = world,
                                                .window    = model->config.max_positions,
                                                .eos       = cpl_tokenizer_eos(t->tokenizer)};
    CPL_TRY(cpl_evaluation_run(&t->evaluation, &runner, NULL, false, &callbacks));
    return collect(t, figures);
}

static cpl_status run_samples(cpl_train_eval *t, cpl_group *world, json_t **samples)
{
    cpl_status status = CPL_OK;
    if (cpl_gather_is_first(world))
        status = cpl_train_samples_run(&t->samples, &t->batch, t->tokenizer, samples);
    cpl_lm_batch_serve(&t->batch);
    return cpl_gather_status(world, status);
}

cpl_status cpl_train_eval_run(cpl_train_eval *t, cpl_model *model, cpl_exchange *exchange,
                              cpl_group *world, json_t **figures, json_t **samples)
{
    const cpl_lm_batch_settings how = {.window = cpl_train_eval_window(t)};
    cpl_status status = cpl_gather_status(world, cpl_lm_batch_init(&t->batch, model, &how));
    t->batch.exchange = exchange;
    if (status == CPL_OK && t->evaluation.count) status = run_tasks(t, model, world, figures);
    if (status == CPL_OK && t->samples.window) status = run_samples(t, world, samples);
    cpl_lm_batch_free(&t->batch);
    return status;
}

void cpl_train_eval_words(cpl_text *out, const cpl_train_eval *t)
{
    cpl_pool pool = {0};
    for (int64_t i = 0; i < t->evaluation.count; i++) {
        const cpl_task_evaluation *one = &t->evaluation.at[i];
        double value, error;
        if (!one->result) continue;
        const char *name = cpl_evaluation_headline(one->result, &value, &error);
        cpl_text_printf(out, "%s%s %s %s", out->length ? ", " : "", one->what->key, name,
                        cpl_evaluation_value(&pool, name, value));
    }
    cpl_pool_free(&pool);
}
