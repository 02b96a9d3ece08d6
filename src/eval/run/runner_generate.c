/* runner_generate.c - see runner_internal.h: what the model writes behind the prompts of a
 * block. */
#include <string.h>

#include "base/arena.h"
#include "eval/run/runner_internal.h"
#include "eval/run/sample.h"
#include "eval/run/stops.h"

enum { MOST_QUESTIONS = 128 }; /* of a block */

/* What is written behind one prompt. Special tokens are no part of the text, but a stop string may
 * be one: lm-eval looks for them before it leaves special tokens out. */
typedef struct written {
    cpl_text text, whole; /* without and with special tokens */
    int64_t tokens;
    bool enough; /* a stop string, or as many tokens as it may have */
} written;

typedef struct block {
    cpl_eval_runner_work *w;
    int64_t first, last;
    cpl_encoded *encoded;  /* (n) */
    cpl_sequence *prompts; /* (n) */
    written *written;      /* (n) */
    cpl_text eos, cut;     /* the text of the end-of-text token; of one answer */
    cpl_grading_scratch room;
    cpl_status heard;
} block;

static void free_block(block *b)
{
    for (int64_t i = 0; b->written && i < b->last - b->first; i++) {
        cpl_text_free(&b->written[i].text);
        cpl_text_free(&b->written[i].whole);
    }
    cpl_free(b->written);
    cpl_free(b->encoded);
    cpl_free(b->prompts);
    cpl_text_free(&b->eos);
    cpl_text_free(&b->cut);
    cpl_grading_scratch_free(&b->room);
}

/* A block is asked for equally many tokens at most. */
int64_t cpl_eval_runner_generate_end(const cpl_eval_runner_work *w, int64_t first)
{
    const cpl_question *q = w->question;
    int64_t last          = first;
    while (last < w->n && last - first < MOST_QUESTIONS && q[last].form->ask == CPL_ASK_GENERATE &&
           q[last].form->max_gen_toks == q[first].form->max_gen_toks)
        last++;
    return last;
}

static cpl_status make_room(block *b)
{
    const cpl_eval_runner *a = b->w->a;
    const size_t n           = (size_t)(b->last - b->first);
    const int32_t eos        = (int32_t)a->eos;
    b->encoded               = cpl_alloc(n * sizeof *b->encoded);
    b->prompts               = cpl_alloc(n * sizeof *b->prompts);
    b->written               = cpl_alloc(n * sizeof *b->written);
    if (b->written) memset(b->written, 0, n * sizeof *b->written);
    if (!b->encoded || !b->prompts || !b->written) return CPL_ERR_MEMORY;
    if (a->eos >= 0) CPL_TRY(cpl_tokenizer_decode(a->tokenizer, &b->eos, &eos, 1, false));
    return cpl_text_status(&b->eos);
}

static cpl_status encode(cpl_eval_runner_work *w, const cpl_question *q, cpl_encoded *encoded)
{
    const int64_t window = cpl_eval_runner_window_of(q->form, w->a->window);
    CPL_ASSERT(window <= w->a->asker->how.window);
    return cpl_eval_runner_encode_prompt(&w->encoding, &w->ids, encoded, q->form, window,
                                         q->prompt);
}

static cpl_status encode_all(block *b)
{
    cpl_eval_runner_work *w = b->w;
    w->ids.count            = 0;
    for (int64_t i = b->first; i < b->last; i++)
        CPL_TRY(cpl_eval_runner_about(encode(w, &w->question[i], &b->encoded[i - b->first]),
                                      &w->question[i]));
    for (int64_t i = 0; i < b->last - b->first; i++)
        b->prompts[i] = (cpl_sequence){w->ids.at + b->encoded[i].first, b->encoded[i].length};
    return CPL_OK;
}

/* The stop strings of the form, then the end-of-text token's text, as lm-eval has them. */
static bool reached(const block *b, const cpl_request_spec *form, const cpl_text *text,
                    size_t known)
{
    const char *eos     = b->eos.length ? b->eos.bytes : "";
    const cpl_span span = cpl_span_text(text);
    return cpl_stops_reached(span, known, form->until, form->n_until) ||
           cpl_stops_reached(span, known, &eos, 1);
}

static cpl_status add(block *b, written *one, const cpl_request_spec *form, int32_t id)
{
    const cpl_tokenizer *t = b->w->a->tokenizer;
    const size_t known     = one->whole.length;
    CPL_TRY(cpl_tokenizer_decode(t, &one->text, &id, 1, true));
    CPL_TRY(cpl_tokenizer_decode(t, &one->whole, &id, 1, false));
    one->tokens++;
    one->enough = one->tokens == form->max_gen_toks || reached(b, form, &one->whole, known);
    CPL_TRY(cpl_text_status(&one->whole));
    return cpl_text_status(&one->text);
}

static bool hear(void *ctx, int64_t index, int32_t id)
{
    block *b          = ctx;
    written *one      = &b->written[index];
    cpl_status status = add(b, one, b->w->question[b->first + index].form, id);
    if (status != CPL_OK) b->heard = status;
    return status == CPL_OK && !one->enough;
}

static cpl_status tell_one(block *b, int64_t i)
{
    const cpl_eval_runner_work *w = b->w;
    const cpl_question *q         = &w->question[b->first + i];
    const cpl_text *text          = &b->written[i].text;
    const char *eos               = b->eos.length ? b->eos.bytes : "";
    cpl_generated generated       = {.prompt = b->encoded[i], .tokens = b->written[i].tokens};
    json_t *sample                = NULL;
    cpl_text_clear(&b->cut);
    cpl_utf8_repair(&b->cut, text->length ? text->bytes : "", text->length);
    CPL_TRY(cpl_text_status(&b->cut));
    generated.text = cpl_stops_cut(cpl_span_text(&b->cut), q->form->until, q->form->n_until);
    generated.text = cpl_stops_cut(generated.text, &eos, 1);
    CPL_TRY(cpl_sample_generated(&sample, q, &generated, &b->room, w->a->texts));
    return w->listener->take(w->listener->ctx, b->first + i, sample);
}

/* What ended without having had enough has met the end-of-text, which counts as a token. */
static cpl_status finish(void *ctx, int64_t index)
{
    block *b = ctx;
    CPL_TRY(b->heard);
    if (!b->written[index].enough) b->written[index].tokens++;
    CPL_TRY(tell_one(b, index));
    return cpl_eval_runner_count(b->w, index);
}

static cpl_status ask(block *b)
{
    const cpl_eval_runner *a              = b->w->a;
    const cpl_lm_batch_callbacks listener = {.eos   = a->eos,
                                             .n_ids = cpl_tokenizer_vocab_size(a->tokenizer),
                                             .hear  = hear,
                                             .done  = finish,
                                             .ctx   = b,
                                             .also  = a->also};
    const int64_t n                       = b->last - b->first;
    CPL_TRY(make_room(b));
    CPL_TRY(encode_all(b));
    return cpl_lm_batch_continue(a->asker, b->prompts, n,
                                 b->w->question[b->first].form->max_gen_toks, &listener);
}

cpl_status cpl_eval_runner_generate(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    block b = {.w = w, .first = first, .last = cpl_eval_runner_generate_end(w, first)};
    const cpl_status status = ask(&b);
    *last                   = b.last;
    free_block(&b);
    return status;
}
