/* answering.c - see answering.h: questions in blocks. */
#include "study/eval/answering_parts.h"

int64_t cpl_answering_window(const cpl_question *questions, int64_t n, int64_t window)
{
    for (int64_t i = 0; i < n; i++)
        if (questions[i].form->window > window) window = questions[i].form->window;
    return window;
}

/* ---- what both kinds need ---- */

int64_t cpl_answering_requests(const cpl_question *q)
{
    return q->n_options * (q->unconditional ? 2 : 1);
}

int64_t cpl_answering_window_of(const cpl_answering *a, const cpl_form *form)
{
    const int64_t window = form->window > 0 ? form->window : a->window;
    CPL_ASSERT(window <= a->asker->how.window);
    return window;
}

cpl_status cpl_answering_about(cpl_status status, const cpl_question *q)
{
    if (status != CPL_ERR_INPUT) return status;
    return CPL_FAIL(status, "question %s: %s", q->id, cpl_last_error());
}

cpl_status cpl_answering_fits(const cpl_encoded *encoded, const cpl_form *form)
{
    if (encoded->cut == 0 || !form->stop_beyond) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "it has %lld tokens more than fit into the window, and its profile does not "
                    "let it be cut",
                    (long long)encoded->cut);
}

cpl_status cpl_answering_count(void *work, int64_t index)
{
    cpl_answering_work *w = work;
    (void)index;
    w->done++;
    if (w->listener->progress) w->listener->progress(w->listener->who, w->done, w->of);
    return CPL_OK;
}

/* ---- all of them ---- */

static int64_t count_all(const cpl_question *questions, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += questions[i].form->ask == CPL_ASK_RANK ? cpl_answering_requests(&questions[i]) : 1;
    return count;
}

cpl_status cpl_answering_ask(const cpl_answering *a, const cpl_question *questions, int64_t n,
                             const cpl_answering_listener *listener)
{
    cpl_answering_work w = {.a        = a,
                            .listener = listener,
                            .question = questions,
                            .n        = n,
                            .encoding = {.eos = a->eos},
                            .of       = count_all(questions, n)};
    CPL_TRY(cpl_encoder_init(&w.encoding.encoder, a->tokenizer, false));
    cpl_status status = CPL_OK;
    for (int64_t first = 0, last; status == CPL_OK && first < n; first = last)
        status = questions[first].form->ask == CPL_ASK_RANK
                     ? cpl_answering_rank(&w, first, &last)
                     : cpl_answering_generate(&w, first, &last);
    cpl_ids_free(&w.ids);
    cpl_text_free(&w.encoding.joined);
    cpl_encoder_free(w.encoding.encoder);
    return status;
}
