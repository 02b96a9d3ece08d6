/* train_samples.c - see train_samples.h */
#include "app/train_samples.h"

#include <string.h>

#include "base/arena.h"
#include "io/json.h"

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

cpl_status cpl_train_samples_open(cpl_train_samples *s, const cpl_settings *settings,
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
    if (status != CPL_OK) cpl_train_samples_close(s);
    return status;
}

void cpl_train_samples_close(cpl_train_samples *s)
{
    for (int64_t i = 0; s->ids && i < s->texts->count; i++) cpl_ids_free(&s->ids[i]);
    cpl_free(s->ids);
    cpl_free(s->prompts);
    memset(s, 0, sizeof *s);
}

/* ---- continuing ---- */

/* What came, by prompt. */
typedef struct heard {
    cpl_ids *ids; /* [count] */
    cpl_status status;
} heard;

static bool hear(void *ctx, int64_t index, int32_t id)
{
    heard *h = ctx;
    if (h->status == CPL_OK) h->status = push(&h->ids[index], id);
    return h->status == CPL_OK;
}

/* Appends {"prompt", "text"} to the list. Bytes that are no UTF-8 become U+FFFD. */
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

cpl_status cpl_train_samples_run(const cpl_train_samples *s, cpl_lm_batch *batch,
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
                                              .on_token = hear,
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
