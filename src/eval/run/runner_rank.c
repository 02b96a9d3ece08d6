/* runner_rank.c - see runner_internal.h: how likely every option of a block is. */
#include "base/arena.h"
#include "eval/grade/words.h"
#include "eval/run/runner_internal.h"
#include "eval/run/sample.h"

enum { MOST_QUESTIONS = 128, MOST_TOKENS = 1 << 20 }; /* of a block */

/* One block. Its sequences are those of its questions one after the other: the options, then the
 * same behind the bare context. Equal ones pass through the model once (lm_batch.h). */
typedef struct block {
    cpl_eval_runner_work *w;
    int64_t first, last;   /* of its questions */
    cpl_encoded *encoded;  /* (n) */
    cpl_lm_request *asked; /* (n) */
    int64_t n;
    cpl_option_facts *facts; /* of one question */
} block;

static void free_block(block *b)
{
    cpl_free(b->encoded);
    cpl_free(b->asked);
    cpl_free(b->facts);
}

/* Room for the sequences of as many questions as a block may have at most. */
static cpl_status make_room(block *b)
{
    int64_t requests = 0, options = 0;
    for (int64_t i = b->first; i < b->w->n && i - b->first < MOST_QUESTIONS; i++) {
        const cpl_question *q = &b->w->question[i];
        requests += cpl_eval_runner_requests(q);
        if (q->n_options > options) options = q->n_options;
    }
    b->encoded = cpl_alloc((size_t)requests * sizeof *b->encoded + 1);
    b->asked   = cpl_alloc((size_t)requests * sizeof *b->asked + 1);
    b->facts   = cpl_alloc((size_t)options * sizeof *b->facts + 1);
    return b->encoded && b->asked && b->facts ? CPL_OK : CPL_ERR_MEMORY;
}

static cpl_status encode_question(block *b, const cpl_question *q)
{
    cpl_eval_runner_work *w = b->w;
    const int64_t window    = cpl_eval_runner_window_of(q->form, w->a->window);
    CPL_ASSERT(window <= w->a->asker->how.window);
    for (int64_t i = 0; i < cpl_eval_runner_requests(q); i++) {
        cpl_option option = q->options[i % q->n_options];
        if (i >= q->n_options) option.context = q->unconditional;
        CPL_TRY(cpl_eval_runner_encode_option(&w->encoding, &w->ids, &b->encoded[b->n++], q->form,
                                              window, &option));
    }
    return CPL_OK;
}

static cpl_status encode_all(block *b)
{
    cpl_eval_runner_work *w = b->w;
    w->ids.count            = 0;
    for (b->last = b->first; b->last < w->n; b->last++) {
        const cpl_question *q = &w->question[b->last];
        if (q->form->ask != CPL_ASK_RANK || b->last - b->first == MOST_QUESTIONS ||
            w->ids.count > MOST_TOKENS)
            break;
        CPL_TRY(cpl_eval_runner_about(encode_question(b, q), q));
    }
    for (int64_t i = 0; i < b->n; i++) {
        const cpl_encoded *e = &b->encoded[i];
        b->asked[i]          = (cpl_lm_request){w->ids.at + e->first, e->length, e->scored, 0};
    }
    return CPL_OK;
}

static int64_t at_least_1(size_t length)
{
    return length > 0 ? (int64_t)length : 1;
}

/* Of option i, whose sequences are asked[i] and behind all options. */
static cpl_option_facts facts_of(const cpl_question *q, const cpl_lm_request *asked, int64_t i)
{
    const cpl_span whole = cpl_span_of(q->options[i].continuation);
    CPL_ASSERT(q->options[i].choice <= whole.length);
    const cpl_span choice = cpl_span_part(whole, q->options[i].choice, whole.length);
    return (cpl_option_facts){
        .loglik        = asked[i].log_prob,
        .unconditional = q->unconditional ? asked[q->n_options + i].log_prob : 0,
        .tokens        = asked[i].scored,
        .chars         = at_least_1(cpl_words_count(whole)),
        .bytes         = at_least_1(whole.length),
        .choice_chars  = at_least_1(cpl_words_count(choice)),
        .choice_bytes  = at_least_1(choice.length),
    };
}

static cpl_status tell(block *b)
{
    const cpl_eval_runner_work *w = b->w;
    int64_t at                    = 0;
    for (int64_t i = b->first; i < b->last; i++) {
        const cpl_question *q = &w->question[i];
        json_t *sample        = NULL;
        for (int64_t k = 0; k < q->n_options; k++) b->facts[k] = facts_of(q, b->asked + at, k);
        CPL_TRY(cpl_sample_ranked(&sample, q, b->encoded + at, b->facts, w->a->texts));
        CPL_TRY(w->listener->take(w->listener->ctx, i, sample));
        at += cpl_eval_runner_requests(q);
    }
    return CPL_OK;
}

cpl_status cpl_eval_runner_rank(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    block b           = {.w = w, .first = first};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(make_room(&b));
    CPL_TRY_DONE(encode_all(&b));
    CPL_TRY_DONE(cpl_lm_batch_score(w->a->asker, b.asked, b.n, cpl_eval_runner_count, w));
    status = tell(&b);
    *last  = b.last;
done:
    free_block(&b);
    return status;
}

cpl_status cpl_eval_runner_rank_end(cpl_eval_runner_work *w, int64_t first, int64_t *last)
{
    block b           = {.w = w, .first = first};
    cpl_status status = make_room(&b);
    if (status == CPL_OK) status = encode_all(&b);
    *last = b.last;
    free_block(&b);
    return status;
}
