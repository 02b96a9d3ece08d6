/* runner.c - see runner.h: questions in blocks. */
#include "eval/run/kinds.h"

int64_t cpl_eval_runner_window(const cpl_question *questions, int64_t n, int64_t window)
{
    int64_t longest = window;
    for (int64_t i = 0; i < n; i++) {
        const int64_t own = cpl_eval_runner_window_of(questions[i].form, window);
        if (own > longest) longest = own;
    }
    return longest;
}

/* ---- all of them ---- */

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

cpl_status cpl_eval_runner_run(const cpl_eval_runner *a, const cpl_question *questions, int64_t n,
                               const cpl_eval_runner_callbacks *callbacks)
{
    cpl_eval_runner_work w = {.a = a, .callbacks = callbacks, .question = questions, .n = n};
    cpl_status status      = cpl_encode_open(&w.encoding, a->tokenizer, a->eos, a->window);
    w.of                   = count_all(questions, n);
    CPL_ASSERT(cpl_eval_runner_window(questions, n, a->window) <= a->batch->settings.window);
    for (int64_t first = 0, last; status == CPL_OK && first < n; first = last)
        status = questions[first].form->kind->run(&w, first, &last);
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
