/* encode.c - see kinds.h and runner.h: texts of requests as token ids, and their lengths */
#include "eval/run/kinds.h"

#include <string.h>

#include "base/arena.h"
#include "eval/grade/words.h"

cpl_status cpl_encode_open(cpl_encoding *e, const cpl_tokenizer *tokenizer, int64_t eos,
                           int64_t window)
{
    *e = (cpl_encoding){.eos = eos, .window = window};
    return cpl_encoder_init(&e->encoder, tokenizer, false);
}

void cpl_encode_close(cpl_encoding *e)
{
    cpl_ids_free(&e->ids);
    cpl_text_free(&e->joined);
    cpl_encoder_free(e->encoder);
}

static cpl_status append(cpl_encoding *e, cpl_span text)
{
    return cpl_encoder_append(e->encoder, &e->ids, text.length ? text.bytes : "", text.length);
}

/* Appends the end-of-text id in place of a context. */
static cpl_status append_eos(cpl_encoding *e)
{
    cpl_ids *ids = &e->ids;
    if (e->eos < 0)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "its context is empty, and there is no end-of-text token to feed in its place");
    if (ids->count == ids->capacity) {
        const int64_t capacity = 2 * ids->capacity + 64;
        int32_t *grown         = cpl_realloc(ids->at, (size_t)capacity * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        ids->at       = grown;
        ids->capacity = capacity;
    }
    ids->at[ids->count++] = (int32_t)e->eos;
    return CPL_OK;
}

/* Appends the tokens of context and continuation together, without the first `n`. */
static cpl_status append_joint(cpl_encoding *e, const char *context, const char *continuation,
                               int64_t n)
{
    cpl_ids *ids        = &e->ids;
    const int64_t first = ids->count;
    cpl_text_clear(&e->joined);
    cpl_text_append(&e->joined, context, strlen(context));
    cpl_text_append(&e->joined, continuation, strlen(continuation));
    CPL_TRY(cpl_text_status(&e->joined));
    CPL_TRY(append(e, cpl_span_text(&e->joined)));
    const int64_t left = ids->count - first - n;
    ids->count         = left > 0 ? first + left : first;
    memmove(ids->at + first, ids->at + first + n, (size_t)(ids->count - first) * sizeof *ids->at);
    return CPL_OK;
}

/* Keeps the last `most` of the ids from out->first on. */
static void keep_last(cpl_ids *ids, cpl_encoded *out, int64_t most)
{
    const int64_t length = ids->count - out->first;
    int32_t *at          = ids->at + out->first;
    out->cut             = length > most ? length - most : 0;
    out->length          = length - out->cut;
    memmove(at, at + out->cut, (size_t)out->length * sizeof *at);
    ids->count = out->first + out->length;
}

/* Appends the advice `way_out`, which may be NULL, to a failure. */
static cpl_status advise(cpl_status status, const char *way_out)
{
    if (status != CPL_ERR_INPUT || !way_out) return status;
    return CPL_FAIL(status, "%s; %s", cpl_last_error(), way_out);
}

static cpl_status bad_row(cpl_encoding *e, cpl_status status)
{
    e->bad_row = true;
    return advise(status, e->advice.row);
}

cpl_status cpl_encode_pair(cpl_encoding *e, cpl_encoded *out, const char *context,
                           const char *continuation, cpl_joining joining, int64_t window)
{
    cpl_ids *ids        = &e->ids;
    const bool joint    = joining == CPL_JOIN_JOINT;
    const cpl_span text = cpl_span_of(context);
    *out                = (cpl_encoded){.first = ids->count};
    CPL_TRY(append(e, joint ? cpl_words_rstrip(text) : text));
    const int64_t own = ids->count - out->first;
    if (own == 0) CPL_TRY(append_eos(e));
    out->context = ids->count - out->first;
    CPL_TRY(joint ? append_joint(e, context, continuation, own)
                  : append(e, cpl_span_of(continuation)));
    out->scored = ids->count - out->first - out->context;
    if (out->scored == 0)
        return bad_row(e,
                       CPL_FAIL(CPL_ERR_INPUT,
                                "the continuation \"%.80s\" has no token of its own: the tokenizer "
                                "joins it to the last token of the context; `tokens: separate` in "
                                "the profile of the task file encodes the two apart",
                                continuation));
    if (out->scored > window)
        return bad_row(e, CPL_FAIL(CPL_ERR_INPUT,
                                   "a continuation of it has %lld tokens, but the window is %lld; "
                                   "take its row out of the file, or a model with a longer window",
                                   (long long)out->scored, (long long)window));
    keep_last(ids, out, window + 1);
    return CPL_OK;
}

cpl_status cpl_encode_prompt(cpl_encoding *e, cpl_encoded *out, const char *prompt, int64_t room)
{
    cpl_ids *ids = &e->ids;
    CPL_ASSERT(room >= 1);
    *out = (cpl_encoded){.first = ids->count};
    CPL_TRY(append(e, cpl_span_of(prompt)));
    if (ids->count == out->first) CPL_TRY(append_eos(e));
    out->context = ids->count - out->first;
    keep_last(ids, out, room);
    return CPL_OK;
}

int64_t cpl_eval_runner_window_of(const cpl_request_spec *form, int64_t window)
{
    if (form->window <= 0 || (form->window > window && !form->fixed)) return window;
    return form->window;
}

cpl_status cpl_eval_runner_about(cpl_status status, const cpl_question *q)
{
    if (status != CPL_ERR_INPUT) return status;
    if (!q->path) return CPL_FAIL(status, "question %s: %s", q->id, cpl_last_error());
    return CPL_FAIL(status, "question %s (%s, line %lld): %s", q->id, q->path, (long long)q->line,
                    cpl_last_error());
}

/* ---- lengths ---- */

static cpl_status fits(const cpl_encoding *e, const cpl_encoded *encoded,
                       const cpl_request_spec *form)
{
    if (encoded->cut == 0 || !form->stop_beyond) return CPL_OK;
    return advise(CPL_FAIL(CPL_ERR_INPUT,
                           "it has %lld token%s more than fit%s into the window, and its profile "
                           "does not let it be cut",
                           (long long)encoded->cut, encoded->cut == 1 ? "" : "s",
                           encoded->cut == 1 ? "s" : ""),
                  e->advice.beyond);
}

static cpl_status leaves_room(const cpl_encoding *e, const cpl_request_spec *form, int64_t window)
{
    if (form->max_gen_toks < window) return CPL_OK;
    return advise(CPL_FAIL(CPL_ERR_INPUT,
                           "%lld generated tokens leave a window of %lld no room for the prompt",
                           (long long)form->max_gen_toks, (long long)window),
                  e->advice.room);
}

cpl_status cpl_encode_option(cpl_encoding *e, cpl_encoded *out, const cpl_request_spec *form,
                             const cpl_option *option)
{
    const int64_t window = cpl_eval_runner_window_of(form, e->window);
    CPL_TRY(cpl_encode_pair(e, out, option->context, option->continuation, form->joining, window));
    return fits(e, out, form);
}

cpl_status cpl_encode_question(cpl_encoding *e, cpl_encoded *out, const cpl_question *q)
{
    const int64_t window = cpl_eval_runner_window_of(q->form, e->window);
    CPL_TRY(leaves_room(e, q->form, window));
    CPL_TRY(cpl_encode_prompt(e, out, q->prompt, window - q->form->max_gen_toks));
    return fits(e, out, q->form);
}

/* Returns whether a token may reach over the border of the texts, which has no white space. */
static bool may_be_joined(const cpl_request_spec *form, const cpl_option *option)
{
    const cpl_span context = cpl_span_of(option->context), text = cpl_span_of(option->continuation);
    uint32_t last, first;
    if (form->joining != CPL_JOIN_JOINT || !context.length || !text.length) return false;
    cpl_words_previous(&last, context, context.length);
    cpl_words_next(&first, text, 0);
    return !cpl_words_is_space(last) && !cpl_words_is_space(first);
}

/* Checks the lengths of the options. A token has at least one byte, so texts of at most as many
 * bytes as the window has tokens fit. Only longer texts, and texts that may be joined, are
 * encoded. */
cpl_status cpl_encode_check_options(cpl_encoding *e, const cpl_question *q)
{
    const int64_t window = cpl_eval_runner_window_of(q->form, e->window);
    cpl_encoded encoded;
    for (int64_t i = 0; i < q->n_options; i++) {
        const cpl_option *option = &q->options[i];
        size_t bytes             = strlen(option->continuation);
        if (q->form->stop_beyond) bytes += strlen(option->context);
        e->ids.count = 0;
        if (bytes > (size_t)window || may_be_joined(q->form, option))
            CPL_TRY(cpl_encode_option(e, &encoded, q->form, option));
    }
    return CPL_OK;
}

cpl_status cpl_encode_check_prompt(cpl_encoding *e, const cpl_question *q)
{
    const int64_t window = cpl_eval_runner_window_of(q->form, e->window);
    cpl_encoded encoded;
    CPL_TRY(leaves_room(e, q->form, window));
    e->ids.count = 0;
    if (!q->form->stop_beyond || strlen(q->prompt) <= (size_t)(window - q->form->max_gen_toks))
        return CPL_OK;
    return cpl_encode_question(e, &encoded, q);
}

cpl_status cpl_eval_runner_check(const cpl_question *questions, int64_t n, int64_t window,
                                 const cpl_tokenizer *tokenizer,
                                 const cpl_eval_runner_advice *advice)
{
    cpl_encoding e;
    cpl_status status =
        cpl_encode_open(&e, tokenizer, 0, window); /* an absent end of text fails later */
    if (advice) e.advice = *advice;
    for (int64_t i = 0; status == CPL_OK && i < n; i++) {
        e.bad_row = false;
        status =
            cpl_eval_runner_about(questions[i].form->kind->check(&e, &questions[i]), &questions[i]);
        if (status != CPL_ERR_INPUT || !e.bad_row || !e.advice.bad) continue;
        if (e.advice.log) cpl_log_warn(e.advice.log, "%s; the row is left out", cpl_last_error());
        e.advice.bad[i] = true;
        status          = CPL_OK;
    }
    cpl_encode_close(&e);
    return status;
}
