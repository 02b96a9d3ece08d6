/* lm_batch_score.c - see lm_batch.h: log-probabilities. */
#include <stdlib.h>

#include "infer/lm_batch_internal.h"

typedef struct scoring {
    cpl_lm_batch_plan plan;
    cpl_lm_request *requests;
    cpl_sequence *fed;
    int64_t *needed; /* tokens whose outputs are looked at */
    cpl_lm_batch_done done;
    void *ctx;
} scoring;

static cpl_status take_score_picks(cpl_lm_batch_group *g, const scoring *s, int64_t first)
{
    int64_t count = 0;
    for (int64_t i = 0; i < g->n; i++) count += s->needed[s->plan.order[first + i]];
    g->picks = cpl_alloc((size_t)count * sizeof *g->picks + 1);
    if (!g->picks) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < g->n; i++) {
        const cpl_lm_request *one = &s->requests[s->plan.order[first + i]];
        for (int64_t k = one->length - one->scored; k < one->length; k++)
            g->picks[g->n_picks++] =
                (cpl_lm_batch_pick){.token    = cpl_lm_batch_token(g, i, k - 1 - g->shared),
                                    .sequence = i,
                                    .id       = one->ids[k]};
    }
    qsort(g->picks, (size_t)g->n_picks, sizeof *g->picks, cpl_lm_batch_by_token);
    return CPL_OK;
}

/* In the order of the tokens, so that a sum does not depend on the group. */
static cpl_status tell_scores(cpl_lm_batch_group *g, const scoring *s, int64_t first)
{
    qsort(g->picks, (size_t)g->n_picks, sizeof *g->picks, cpl_lm_batch_by_sequence);
    for (int64_t i = 0; i < g->n_picks; i++)
        s->requests[s->plan.order[first + g->picks[i].sequence]].log_prob += g->picks[i].log_prob;
    for (int64_t i = first; s->done && i < first + g->n; i++)
        CPL_TRY(s->done(s->ctx, s->plan.order[i]));
    return CPL_OK;
}

static cpl_status score_group(scoring *s, int64_t first, int64_t last)
{
    cpl_lm_batch_group g;
    CPL_TRY(cpl_lm_batch_open(&g, &s->plan, first, last, s->needed));
    cpl_status status = take_score_picks(&g, s, first);
    if (status == CPL_OK) status = cpl_lm_batch_run(&g);
    if (status == CPL_OK) {
        cpl_lm_batch_hold(&g, &s->plan, s->plan.order[last - 1]);
        status = tell_scores(&g, s, first);
    }
    cpl_lm_batch_close(&g);
    return status;
}

static cpl_status score_all(scoring *s, cpl_lm_batch *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        cpl_lm_request *one = &s->requests[i];
        if (one->scored < 1 || one->scored >= one->length || one->length > a->how.window + 1)
            return CPL_FAIL(
                CPL_ERR_INPUT, "%lld scored tokens of %lld do not fit into a window of %lld",
                (long long)one->scored, (long long)one->length, (long long)a->how.window);
        CPL_TRY(cpl_lm_batch_check_ids(a, one->ids, one->length));
        one->log_prob = 0;
        s->fed[i]     = (cpl_sequence){one->ids, one->length - 1};
        s->needed[i]  = one->scored;
    }
    CPL_TRY(cpl_lm_batch_plan_init(&s->plan, a, s->fed, n));
    cpl_status status = CPL_OK;
    for (int64_t first = 0, last; status == CPL_OK && first < n; first = last) {
        last   = cpl_lm_batch_group_end(&s->plan, first);
        status = score_group(s, first, last);
    }
    cpl_lm_batch_plan_free(&s->plan);
    return status;
}

cpl_status cpl_lm_batch_score(cpl_lm_batch *a, cpl_lm_request *requests, int64_t n,
                              cpl_lm_batch_done done, void *ctx)
{
    scoring s         = {.requests = requests, .done = done, .ctx = ctx};
    s.fed             = cpl_alloc((size_t)n * sizeof *s.fed + 1);
    s.needed          = s.fed ? cpl_alloc((size_t)n * sizeof *s.needed + 1) : NULL;
    cpl_status status = s.needed ? score_all(&s, a, n) : CPL_ERR_MEMORY;
    cpl_free(s.needed);
    cpl_free(s.fed);
    return status;
}
