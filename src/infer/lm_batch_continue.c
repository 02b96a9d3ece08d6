/* lm_batch_continue.c - see lm_batch.h: greedy continuations. */
#include <stdlib.h>
#include <string.h>

#include "infer/lm_batch_internal.h"

/* One that goes on. */
typedef struct live {
    int64_t sequence; /* of the cpl_lm_batch_group */
    int32_t *rows;    /* [length + max_tokens] of the cache */
    int64_t length;   /* tokens fed so far */
    int64_t n_new;
    int32_t next;
} live;

typedef struct continuing {
    cpl_lm_batch_plan plan;
    int64_t max_tokens;
    const cpl_lm_batch_callbacks *listener;
    live *live; /* [most] */
    int64_t count;
    int32_t *rows; /* [most, window] */
} continuing;

/* Whether the new token of a live one keeps it alive. */
static bool goes_on(const continuing *c, live *one, int64_t index)
{
    const cpl_lm_batch_callbacks *l = c->listener;
    if (one->next == l->eos || cpl_stop_ids_hold(&l->extra_stop_ids, one->next)) return false;
    one->n_new++;
    return l->on_token(l->ctx, index, one->next) && one->n_new < c->max_tokens;
}

/* Those that do not go on leave. */
static cpl_status drop_done(continuing *c, int64_t first)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t index = c->plan.order[first + c->live[i].sequence];
        if (goes_on(c, &c->live[i], index))
            c->live[kept++] = c->live[i];
        else if (c->listener->done)
            CPL_TRY(c->listener->done(c->listener->ctx, index));
    }
    c->count = kept;
    return CPL_OK;
}

/* The first new token of each, from its prompt's last. */
static cpl_status read_prompts(continuing *c, cpl_lm_batch_group *g)
{
    g->picks = cpl_alloc((size_t)g->n * sizeof *g->picks);
    if (!g->picks) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < g->n; i++)
        g->picks[g->n_picks++] = (cpl_lm_batch_pick){
            .token = cpl_lm_batch_token(g, i, g->tail[i].length - 1), .sequence = i, .id = -1};
    qsort(g->picks, (size_t)g->n_picks, sizeof *g->picks, cpl_lm_batch_by_token);
    CPL_TRY(cpl_lm_batch_run(g));
    qsort(g->picks, (size_t)g->n_picks, sizeof *g->picks, cpl_lm_batch_by_sequence);
    for (int64_t i = 0; i < g->n; i++) {
        live *one = &c->live[i];
        *one      = (live){.sequence = i,
                           .rows     = c->rows + i * c->plan.a->how.window,
                           .length   = g->shared + g->tail[i].length,
                           .next     = g->picks[i].best};
        cpl_lm_batch_rows(g, &g->tree.node[g->tree.leaf[i]], g->tail[i].length, one->rows);
    }
    c->count = g->n;
    return CPL_OK;
}

/* One token of every live one, into rows first_row ...; and the next. */
static cpl_status step(continuing *c, cpl_lm_batch_group *g, int64_t first_row)
{
    cpl_lm_batch *a = c->plan.a;
    a->key_rows     = 0;
    for (int64_t i = 0; i < c->count; i++) {
        live *one = &c->live[i];
        int32_t *rows;
        one->rows[one->length]  = (int32_t)(first_row + i);
        cpl_i32(a->ids)[i]      = one->next;
        cpl_i32(a->position)[i] = (int32_t)one->length++;
        a->segment[i]           = (cpl_segment){i, 1, a->key_rows, one->length};
        CPL_TRY(cpl_lm_batch_more_keys(a, one->length, &rows));
        memcpy(rows, one->rows, (size_t)one->length * sizeof *rows);
    }
    for (int64_t i = 0; i < c->count; i++)
        g->picks[i] = (cpl_lm_batch_pick){.token = i, .sequence = i, .id = -1};
    g->n_picks   = c->count;
    int64_t next = 0;
    CPL_TRY(cpl_lm_batch_answer(g, 0, c->count, c->count, first_row, &next));
    for (int64_t i = 0; i < c->count; i++) c->live[i].next = g->picks[i].best;
    return CPL_OK;
}

static cpl_status continue_group(continuing *c, cpl_lm_batch_group *g, int64_t first)
{
    CPL_TRY(read_prompts(c, g));
    cpl_lm_batch_hold(g, &c->plan, c->plan.order[first + g->n - 1]);
    int64_t row = g->first_row + g->tree.tokens;
    for (;;) {
        CPL_TRY(drop_done(c, first));
        if (c->count == 0) return CPL_OK;
        CPL_TRY(step(c, g, row));
        row += c->count;
    }
}

static cpl_status continue_all(continuing *c, const int64_t *needed)
{
    const int64_t size = c->plan.a->model->config.vocab_size, n_ids = c->listener->n_ids;
    cpl_status status = CPL_OK;
    for (int64_t first = 0, last; status == CPL_OK && first < c->plan.n; first = last) {
        cpl_lm_batch_group g;
        last = cpl_lm_batch_group_end(&c->plan, first);
        CPL_TRY(cpl_lm_batch_open(&g, &c->plan, first, last, needed));
        g.n_ids = n_ids > 0 && n_ids < size ? n_ids : size;
        status  = continue_group(c, &g, first);
        cpl_lm_batch_close(&g);
    }
    return status;
}

static cpl_status check_prompts(const cpl_lm_batch *a, const cpl_sequence *prompts, int64_t n,
                                int64_t max_tokens)
{
    for (int64_t i = 0; i < n; i++) {
        if (prompts[i].length < 1 || max_tokens < 1 ||
            prompts[i].length + max_tokens > a->how.window)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "a prompt of %lld tokens and %lld new ones do not fit into a window of "
                            "%lld",
                            (long long)prompts[i].length, (long long)max_tokens,
                            (long long)a->how.window);
        CPL_TRY(cpl_lm_batch_check_ids(a, prompts[i].ids, prompts[i].length));
    }
    return CPL_OK;
}

cpl_status cpl_lm_batch_continue(cpl_lm_batch *a, const cpl_sequence *prompts, int64_t n,
                                 int64_t max_tokens, const cpl_lm_batch_callbacks *listener)
{
    enum { AT_ONCE = 64 };
    const int64_t most = a->how.chunk < AT_ONCE ? a->how.chunk : AT_ONCE;
    continuing c       = {.max_tokens = max_tokens, .listener = listener};
    CPL_TRY(check_prompts(a, prompts, n, max_tokens));
    CPL_TRY(cpl_lm_batch_plan_init(&c.plan, a, prompts, n));
    c.plan.extra    = max_tokens;
    c.plan.most     = most;
    int64_t *needed = cpl_alloc((size_t)n * sizeof *needed + 1);
    c.live          = cpl_alloc((size_t)most * sizeof *c.live);
    c.rows          = cpl_alloc((size_t)(most * a->how.window) * sizeof *c.rows);
    for (int64_t i = 0; needed && i < n; i++) needed[i] = 1;
    cpl_status status = needed && c.live && c.rows ? continue_all(&c, needed) : CPL_ERR_MEMORY;
    cpl_free(c.rows);
    cpl_free(c.live);
    cpl_free(needed);
    cpl_lm_batch_plan_free(&c.plan);
    return status;
}
