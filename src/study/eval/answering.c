/* answering.c - see answering.h: questions in blocks. */
#include "study/eval/answering_parts.h"

int64_t cpl_answering_window(const cpl_question *questions, int64_t n, int64_t window)
{
    int64_t longest = window;
    for (int64_t i = 0; i < n; i++) {
        const int64_t own = cpl_answering_window_of(questions[i].form, window);
        if (own > longest) longest = own;
    }
    return longest;
}

/* ---- what both kinds need ---- */

int64_t cpl_answering_requests(const cpl_question *q)
{
    return q->n_options * (q->unconditional ? 2 : 1);
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
