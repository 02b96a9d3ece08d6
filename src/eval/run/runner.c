/* runner.c - see runner.h: questions in blocks. */
#include <string.h>

#include "eval/run/kinds.h"
#include "io/json.h"

int64_t cpl_eval_runner_window(const cpl_question *questions, int64_t n, int64_t window)
{
    int64_t longest = window;
    for (int64_t i = 0; i < n; i++) {
        const int64_t own = cpl_eval_runner_window_of(questions[i].form, window);
        if (own > longest) longest = own;
    }
    return longest;
}

/* ---- all questions ---- */

static int64_t count_all(const cpl_question *questions, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += questions[i].form->kind->count(&questions[i]);
    return count;
}

cpl_status cpl_eval_runner_count(void *work, int64_t index)
{
    cpl_eval_runner_work *w = work;
    (void)index;
    w->done++;
    if (w->callbacks->progress) w->callbacks->progress(w->callbacks->ctx, w->done, w->of);
    return CPL_OK;
}

static cpl_status run_all(cpl_eval_runner_work *w)
{
    for (int64_t first = 0, last; first < w->n; first = last)
        CPL_TRY(w->question[first].form->kind->run(w, first, &last));
    return CPL_OK;
}

/* ---- shared out over ranks ---- */

/* This rank's answers in a round. */
typedef struct answered_round {
    const cpl_eval_runner_callbacks *callbacks;
    json_t *answers;
} answered_round;

static cpl_status keep_answer(void *ctx, int64_t index, json_t *sample)
{
    const answered_round *r = ctx;
    json_t *answer          = json_pack("[I,o]", (json_int_t)index, sample);
    if (json_array_append_new(r->answers, answer) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for an answered question");
}

static void pass_on(void *ctx, int64_t done, int64_t of)
{
    const answered_round *r = ctx;
    if (r->callbacks->progress) r->callbacks->progress(r->callbacks->ctx, done, of);
}

/* Runs this rank's block of the round that begins at `*first`. Sets `*first` to the round's end. */
static cpl_status run_round(cpl_eval_runner_work *w, int64_t *first)
{
    for (int r = 0; r < w->a->group->size && *first < w->n; r++) {
        const cpl_request_kind *kind = w->question[*first].form->kind;
        CPL_TRY((r == w->a->group->rank ? kind->run : kind->block_end)(w, *first, first));
    }
    return CPL_OK;
}

static cpl_status run_dealt(cpl_eval_runner_work *w, cpl_status status)
{
    const cpl_eval_runner_callbacks *callbacks = w->callbacks;
    for (int64_t first = 0; first < w->n;) {
        answered_round r                      = {callbacks, json_array()};
        const cpl_eval_runner_callbacks keeps = {keep_answer, pass_on, &r};
        w->callbacks                          = &keeps;
        if (status == CPL_OK) status = r.answers ? run_round(w, &first) : CPL_ERR_MEMORY;
        w->callbacks = callbacks;
        cpl_lm_batch_serve(w->a->batch);
        CPL_TRY(cpl_eval_runner_share(w->a->group, status, r.answers, callbacks));
        w->done = count_all(w->question, first);
        if (callbacks->progress) callbacks->progress(callbacks->ctx, w->done, w->of);
    }
    return status;
}

static cpl_status take_all(const char *text, size_t length,
                           const cpl_eval_runner_callbacks *callbacks)
{
    json_t *answers   = json_loadb(text, length, 0, NULL), *answer;
    cpl_status status = answers ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for answers");
    size_t i;
    json_array_foreach(answers, i, answer)
    {
        if (status != CPL_OK) break;
        status = callbacks->take(callbacks->ctx, json_integer_value(json_array_get(answer, 0)),
                                 json_incref(json_array_get(answer, 1)));
    }
    json_decref(answers);
    return status;
}

cpl_status cpl_eval_runner_share(cpl_group *group, cpl_status status, json_t *answers,
                                 const cpl_eval_runner_callbacks *callbacks)
{
    cpl_gathered all = {0};
    cpl_text own     = {0};
    char *text       = answers ? json_dumps(answers, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    if (text) cpl_text_append(&own, text, strlen(text));
    if (status == CPL_OK && !text) status = CPL_FAIL(CPL_ERR_MEMORY, "out of memory for answers");
    cpl_json_text_free(text);
    json_decref(answers);
    status = cpl_gather_texts(&all, group, status, &own);
    cpl_text_free(&own);
    CPL_TRY(status);
    const char *at = all.bytes;
    for (int r = 0; r < group->size && status == CPL_OK; at += all.length[r++])
        status = take_all(at, (size_t)all.length[r], callbacks);
    cpl_gathered_free(&all);
    return cpl_gather_status(group, status);
}

/* ---- a run ---- */

cpl_status cpl_eval_runner_run(const cpl_eval_runner *a, const cpl_question *questions, int64_t n,
                               const cpl_eval_runner_callbacks *callbacks)
{
    cpl_eval_runner_work w = {.a = a, .callbacks = callbacks, .question = questions, .n = n};
    cpl_status status      = cpl_encode_open(&w.encoding, a->tokenizer, a->eos, a->window);
    w.of                   = count_all(questions, n);
    CPL_ASSERT(cpl_eval_runner_window(questions, n, a->window) <= a->batch->settings.window);
    if (!cpl_gather_is_alone(a->group))
        status = run_dealt(&w, status);
    else if (status == CPL_OK)
        status = run_all(&w);
    cpl_encode_close(&w.encoding);
    return status;
}

/* ---- resuming ---- */

static void keep_whole(bool *answered, int64_t first, int64_t last)
{
    bool whole = true;
    for (int64_t i = first; i < last; i++) whole &= answered[i];
    for (int64_t i = first; i < last; i++) answered[i] = whole;
}

cpl_status cpl_eval_runner_keep_blocks(const cpl_eval_runner *a, const cpl_question *questions,
                                       int64_t n, bool *answered)
{
    cpl_eval_runner_work w = {.a = a, .question = questions, .n = n};
    cpl_status status      = cpl_encode_open(&w.encoding, a->tokenizer, a->eos, a->window);
    for (int64_t first = 0, last; status == CPL_OK && first < n; first = last) {
        status = questions[first].form->kind->block_end(&w, first, &last);
        if (status == CPL_OK) keep_whole(answered, first, last);
    }
    cpl_encode_close(&w.encoding);
    return status;
}
