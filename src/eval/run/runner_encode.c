/* runner_encode.c - see runner_internal.h: texts of questions as ids, and whether they fit. */
#include <string.h>

#include "eval/run/runner_internal.h"

int64_t cpl_eval_runner_window_of(const cpl_request_spec *form, int64_t window)
{
    if (form->window <= 0 || (form->window > window && !form->fixed)) return window;
    return form->window;
}

cpl_status cpl_eval_runner_about(cpl_status status, const cpl_question *q)
{
    if (status != CPL_ERR_INPUT) return status;
    return CPL_FAIL(status, "question %s: %s", q->id, cpl_last_error());
}

/* ---- one text ---- */

static cpl_status fits(const cpl_encoded *encoded, const cpl_request_spec *form)
{
    if (encoded->cut == 0 || !form->stop_beyond) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "it has %lld token%s more than fit%s into the window, and its profile does not "
                    "let it be cut",
                    (long long)encoded->cut, encoded->cut == 1 ? "" : "s",
                    encoded->cut == 1 ? "s" : "");
}

static cpl_status leaves_room(const cpl_request_spec *form, int64_t window)
{
    if (form->max_gen_toks < window) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%lld generated tokens leave a window of %lld no room for the prompt",
                    (long long)form->max_gen_toks, (long long)window);
}

cpl_status cpl_eval_runner_encode_option(cpl_encoding *e, cpl_ids *ids, cpl_encoded *out,
                                         const cpl_request_spec *form, int64_t window,
                                         const cpl_option *option)
{
    CPL_TRY(
        cpl_encode_pair(e, ids, out, option->context, option->continuation, form->joining, window));
    return fits(out, form);
}

cpl_status cpl_eval_runner_encode_prompt(cpl_encoding *e, cpl_ids *ids, cpl_encoded *out,
                                         const cpl_request_spec *form, int64_t window,
                                         const char *prompt)
{
    CPL_TRY(leaves_room(form, window));
    CPL_TRY(cpl_encode_prompt(e, ids, out, prompt, window - form->max_gen_toks));
    return fits(out, form);
}

/* ---- before a model is there ---- */

/* Puts the way out behind a failure. */
static cpl_status advise(cpl_status status, const char *way_out)
{
    if (status != CPL_ERR_INPUT || !way_out) return status;
    return CPL_FAIL(status, "%s; %s", cpl_last_error(), way_out);
}

typedef struct checking {
    cpl_encoding encoding;
    cpl_ids ids;
    cpl_eval_runner_advice advice;
} checking;

/* A token has a byte at least: what has no more bytes than the window has tokens fits. Others are
 * encoded. */
static cpl_status check_option(checking *c, const cpl_request_spec *form, int64_t window,
                               const cpl_option *option)
{
    cpl_encoded encoded;
    size_t bytes = strlen(option->continuation);
    if (form->stop_beyond) bytes += strlen(option->context);
    if (bytes <= (size_t)window) return CPL_OK;
    c->ids.count = 0;
    CPL_TRY(cpl_encode_pair(&c->encoding, &c->ids, &encoded, option->context, option->continuation,
                            form->joining, window));
    return advise(fits(&encoded, form), c->advice.beyond);
}

static cpl_status check_prompt(checking *c, const cpl_request_spec *form, int64_t window,
                               const char *prompt)
{
    cpl_encoded encoded;
    CPL_TRY(advise(leaves_room(form, window), c->advice.room));
    const int64_t room = window - form->max_gen_toks;
    if (!form->stop_beyond || strlen(prompt) <= (size_t)room) return CPL_OK;
    c->ids.count = 0;
    CPL_TRY(cpl_encode_prompt(&c->encoding, &c->ids, &encoded, prompt, room));
    return advise(fits(&encoded, form), c->advice.beyond);
}

static cpl_status check(checking *c, const cpl_question *q, int64_t window)
{
    window = cpl_eval_runner_window_of(q->form, window);
    if (q->form->ask == CPL_ASK_GENERATE) return check_prompt(c, q->form, window, q->prompt);
    for (int64_t i = 0; i < q->n_options; i++)
        CPL_TRY(check_option(c, q->form, window, &q->options[i]));
    return CPL_OK;
}

cpl_status cpl_eval_runner_check(const cpl_question *questions, int64_t n, int64_t window,
                                 const cpl_tokenizer *tokenizer,
                                 const cpl_eval_runner_advice *advice)
{
    checking c        = {.encoding = {.eos = 0}}; /* whether there is one is told later */
    cpl_status status = cpl_encoder_init(&c.encoding.encoder, tokenizer, false);
    if (advice) c.advice = *advice;
    for (int64_t i = 0; status == CPL_OK && i < n; i++)
        status = cpl_eval_runner_about(check(&c, &questions[i], window), &questions[i]);
    cpl_ids_free(&c.ids);
    cpl_text_free(&c.encoding.joined);
    cpl_encoder_free(c.encoding.encoder);
    return status;
}
