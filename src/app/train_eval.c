/* train_eval.c - see train_eval.h */
#include "app/train_eval.h"

#include <string.h>

#include "base/arena.h"
#include "eval/evaluation.h"
#include "io/json.h"
#include "parallel/gather.h"

/* ---- samples: the texts of eval.prompts, continued ---- */

/* Appends one id. */
static cpl_status push(cpl_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        const int64_t more = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *room      = cpl_realloc(ids->at, (size_t)more * sizeof *room);
        if (!room) return CPL_ERR_MEMORY;
        ids->at       = room;
        ids->capacity = more;
    }
    ids->at[ids->count++] = id;
    return CPL_OK;
}

static cpl_status check_room(const cpl_settings *settings, const char *text, int64_t n_tokens)
{
    const int64_t most = settings->model.max_positions;
    if (most == CPL_UNSET || n_tokens <= most) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "eval.prompts: \"%.60s\" and eval.prompt_tokens are %lld tokens together, "
                    "model.max_position_embeddings is %lld",
                    text, (long long)n_tokens, (long long)most);
}

static cpl_status encode(cpl_train_samples *s, const cpl_settings *settings,
                         const cpl_tokenizer *tokenizer, cpl_encoder *encoder, int64_t i)
{
    const char *text  = s->texts->at[i];
    const int32_t eos = cpl_tokenizer_eos(tokenizer);
    cpl_ids *ids      = &s->ids[i];
    CPL_TRY(cpl_encoder_append(encoder, ids, text, strlen(text)));
    if (ids->count == 0 && eos < 0)
        return CPL_FAIL(CPL_ERR_INPUT, "eval.prompts: a prompt is empty, and the tokenizer has no "
                                       "end-of-text token to begin with");
    if (ids->count == 0) CPL_TRY(push(ids, eos));
    const int64_t whole = ids->count + s->max_tokens;
    if (whole > s->window) s->window = whole;
    s->prompts[i] = (cpl_sequence){ids->at, ids->count};
    return check_room(settings, text, whole);
}

static void close_samples(cpl_train_samples *s)
{
    for (int64_t i = 0; s->ids && i < s->texts->count; i++) cpl_ids_free(&s->ids[i]);
    cpl_free(s->ids);
    cpl_free(s->prompts);
    memset(s, 0, sizeof *s);
}

/* Encodes eval.prompts. An empty prompt becomes the end-of-text token. */
static cpl_status open_samples(cpl_train_samples *s, const cpl_settings *settings,
                               const cpl_tokenizer *tokenizer)
{
    const cpl_strings *texts = &settings->eval.prompts;
    cpl_encoder *encoder     = NULL;
    cpl_status status        = CPL_OK;
    *s = (cpl_train_samples){.texts = texts, .max_tokens = settings->eval.prompt_tokens};
    if (texts->count == 0) return CPL_OK;
    s->ids     = cpl_alloc((size_t)texts->count * sizeof *s->ids);
    s->prompts = cpl_alloc((size_t)texts->count * sizeof *s->prompts);
    if (s->ids) memset(s->ids, 0, (size_t)texts->count * sizeof *s->ids);
    if (!s->ids || !s->prompts) status = CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_encoder_init(&encoder, tokenizer, false);
    for (int64_t i = 0; i < texts->count && status == CPL_OK; i++)
        status = encode(s, settings, tokenizer, encoder, i);
    cpl_encoder_free(encoder);
    if (status != CPL_OK) close_samples(s);
    return status;
}

/* The new tokens of each prompt. */
typedef struct heard {
    cpl_ids *ids; /* [count] */
    cpl_status status;
} heard;

static bool append_token(void *ctx, int64_t index, int32_t id)
{
    heard *h = ctx;
    if (h->status == CPL_OK) h->status = push(&h->ids[index], id);
    return h->status == CPL_OK;
}

/* Appends {"prompt", "text"} to the list. Ill-formed UTF-8 becomes U+FFFD. */
static cpl_status add(json_t *list, const char *prompt, const cpl_ids *ids,
                      const cpl_tokenizer *tokenizer)
{
    cpl_text raw = {0}, text = {0};
    bool failed       = false;
    json_t *one       = json_object();
    cpl_status status = cpl_tokenizer_decode(tokenizer, &raw, ids->at, ids->count, false);
    if (raw.length) cpl_utf8_repair(&text, raw.bytes, raw.length);
    if (status == CPL_OK) status = cpl_text_status(&text);
    if (status == CPL_OK) {
        cpl_json_put(&failed, one, "prompt", json_string(prompt));
        cpl_json_put(&failed, one, "text",
                     json_stringn(text.length ? text.bytes : "", text.length));
        failed = failed || json_array_append(list, one) != 0;
    }
    json_decref(one);
    cpl_text_free(&raw);
    cpl_text_free(&text);
    return status == CPL_OK && failed ? CPL_ERR_MEMORY : status;
}

/* Continues all prompts greedily and sets [{"prompt", "text"}]. Runs on one rank. Other ranks that
 * hold experts of the model call cpl_lm_batch_serve. */
static cpl_status continue_samples(const cpl_train_samples *s, cpl_lm_batch *batch,
                                   const cpl_tokenizer *tokenizer, json_t **samples)
{
    const int64_t n   = s->texts->count;
    cpl_status status = CPL_OK;
    heard h           = {.ids = cpl_alloc((size_t)n * sizeof *h.ids)};
    json_t *list      = json_array();
    if (!h.ids || !list) CPL_TRY_DONE(CPL_ERR_MEMORY);
    memset(h.ids, 0, (size_t)n * sizeof *h.ids);
    const cpl_lm_batch_callbacks callbacks = {.eos      = cpl_tokenizer_eos(tokenizer),
                                              .n_ids    = cpl_tokenizer_vocab_size(tokenizer),
                                              .on_token = append_token,
                                              .ctx      = &h};
    CPL_TRY_DONE(cpl_lm_batch_continue(batch, s->prompts, n, s->max_tokens, &callbacks));
    CPL_TRY_DONE(h.status);
    for (int64_t i = 0; i < n; i++) CPL_TRY_DONE(add(list, s->texts->at[i], &h.ids[i], tokenizer));
    *samples = json_incref(list);
done:
    for (int64_t i = 0; h.ids && i < n; i++) cpl_ids_free(&h.ids[i]);
    cpl_free(h.ids);
    json_decref(list);
    return status;
}

/* ---- tasks and samples ---- */

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
    if (status == CPL_OK) status = open_samples(&t->samples, s, t->tokenizer);
    if (status != CPL_OK) cpl_train_eval_close(t);
    return status;
}

void cpl_train_eval_close(cpl_train_eval *t)
{
    cpl_evaluation_close(&t->evaluation);
    cpl_selection_free(&t->selection);
    close_samples(&t->samples);
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

/* Sets {TASK: {METRIC: value}} from the evaluation. */
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
        status = continue_samples(&t->samples, &t->batch, t->tokenizer, samples);
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
