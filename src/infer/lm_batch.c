/* lm_batch.c - see lm_batch.h */
#include <string.h>

#include "infer/internal.h"

enum { CHUNK = 1024, LEAST_ROWS = 8192 };

/* ---- memory ---- */

static cpl_lm_batch_settings with_defaults(cpl_lm_batch_settings settings)
{
    if (settings.chunk == 0) settings.chunk = CHUNK;
    if (settings.rows == 0)
        settings.rows = 2 * settings.window > LEAST_ROWS ? 2 * settings.window : LEAST_ROWS;
    return settings;
}

/* Allocates everything except the pass, which is allocated after the mark for each chunk. */
static void take_all(cpl_lm_batch *a, const cpl_model_settings *config)
{
    const int64_t chunk  = a->settings.chunk;
    const size_t numbers = (size_t)chunk * sizeof(int32_t);
    cpl_pass largest;
    a->list.ids      = cpl_tensor_take_host(&a->arena, numbers);
    a->list.position = cpl_tensor_take_host(&a->arena, numbers);
    a->list.requests = cpl_tensor_take_host(&a->arena, numbers);
    a->list.segment  = cpl_tensor_take_host(&a->arena, (size_t)chunk * sizeof *a->list.segment);
    cpl_cache_take(&a->cache, &a->arena, config, a->settings.rows);
    a->ids      = cpl_tensor_take_ids(&a->arena, chunk);
    a->position = cpl_tensor_take_ids(&a->arena, chunk);
    a->requests = cpl_tensor_take_ids(&a->arena, chunk);
    a->segments = cpl_tensor_as_2d(cpl_tensor_take_ids(&a->arena, 4 * chunk), chunk, 4);
    a->pick_row = cpl_tensor_take_ids(&a->arena, CPL_LM_BATCH_PICKS);
    a->pick_id  = cpl_tensor_take_ids(&a->arena, CPL_LM_BATCH_PICKS);
    a->pick     = cpl_tensor_take_1d(&a->arena, CPL_LM_BATCH_PICKS);
    a->logits   = cpl_tensor_take_2d(&a->arena, CPL_LM_BATCH_PICKS, config->vocab_size);
    a->held     = cpl_tensor_take_host(&a->arena, (size_t)a->settings.window * sizeof(int32_t));
    a->held_row = cpl_tensor_take_host(&a->arena, (size_t)a->settings.window * sizeof(int32_t));
    a->mark     = cpl_tensor_arena_mark(&a->arena);
    cpl_pass_take(&largest, &a->arena, config, 1, a->settings.chunk, false, true);
    cpl_pass_select(&largest, &a->arena, config, a->requests);
}

static cpl_tensor_arena measure(const cpl_model_settings *config,
                                const cpl_lm_batch_settings *settings)
{
    cpl_lm_batch a = {.settings = with_defaults(*settings)};
    a.arena        = cpl_tensor_arena_measure();
    take_all(&a, config);
    return a.arena;
}

size_t cpl_lm_batch_bytes(const cpl_model_settings *config, const cpl_lm_batch_settings *settings)
{
    const cpl_tensor_arena measured = measure(config, settings);
    return cpl_tensor_arena_bytes(&measured);
}

cpl_work cpl_lm_batch_work(const cpl_model_settings *config, const cpl_lm_batch_settings *settings)
{
    const cpl_lm_batch_settings s = with_defaults(*settings);
    return cpl_pass_work(config, s.chunk, false);
}

cpl_status cpl_lm_batch_init(cpl_lm_batch *a, cpl_model *model,
                             const cpl_lm_batch_settings *settings)
{
    memset(a, 0, sizeof *a);
    a->model    = model;
    a->settings = with_defaults(*settings);
    CPL_ASSERT(a->settings.window >= 1 && a->settings.window <= a->settings.rows);
    CPL_ASSERT(a->settings.window <= model->rope.shape[0] && a->settings.chunk >= 1);
    const cpl_work work = cpl_lm_batch_work(&model->config, &a->settings);
    CPL_TRY(cpl_backend_reserve(model->be, &work));
    const cpl_tensor_arena measured = measure(&model->config, &a->settings);
    CPL_TRY(cpl_tensor_arena_init(&a->arena, model->be, &measured, "keys, values and activations"));
    take_all(a, &model->config);
    return CPL_OK;
}

void cpl_lm_batch_free(cpl_lm_batch *a)
{
    cpl_free(a->list.key_row);
    if (a->model) cpl_tensor_free(&a->key_rows, a->model->be);
    cpl_tensor_arena_free(&a->arena);
    memset(a, 0, sizeof *a);
}

void cpl_lm_batch_serve(cpl_lm_batch *a)
{
    if (a->exchange) cpl_model_serve(a->model, a->exchange);
}

/* ---- log-probabilities ---- */

static cpl_status check_ids(const cpl_lm_batch *a, const int32_t *ids, int64_t length)
{
    const int64_t size = a->model->config.vocab_size;
    for (int64_t i = 0; i < length; i++)
        if (ids[i] < 0 || ids[i] >= size)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "a token has id %ld, but the model's vocabulary has %lld", (long)ids[i],
                            (long long)size);
    return CPL_OK;
}

typedef struct scoring {
    cpl_lm_request *requests;
    cpl_lm_batch_done done;
    void *ctx;
} scoring;

static cpl_status score_group(void *ctx, cpl_lm_batch_group *g)
{
    const scoring *s = ctx;
    int64_t count    = 0;
    for (int64_t i = 0; i < g->n; i++) count += s->requests[g->index[i]].scored;
    CPL_TRY(cpl_lm_batch_take_picks(g, count));
    for (int64_t i = 0; i < g->n; i++) {
        const cpl_lm_request *one = &s->requests[g->index[i]];
        for (int64_t k = one->length - one->scored; k < one->length; k++)
            g->picks[g->n_picks++] =
                (cpl_lm_batch_pick){.token    = cpl_lm_batch_token(g, i, k - 1 - g->shared),
                                    .sequence = i,
                                    .id       = one->ids[k]};
    }
    CPL_TRY(cpl_lm_batch_run(g));
    /* The sum is in the order of the tokens, so that it does not depend on the group. */
    for (int64_t i = 0; i < g->n_picks; i++)
        s->requests[g->index[g->picks[i].sequence]].log_prob += g->picks[i].log_prob;
    for (int64_t i = 0; s->done && i < g->n; i++) CPL_TRY(s->done(s->ctx, g->index[i]));
    return CPL_OK;
}

/* Sets the tokens to feed for each request, and the number of last tokens that need logits. */
static cpl_status list_requests(const cpl_lm_batch *a, cpl_sequence *fed, int64_t *needed,
                                cpl_lm_request *requests, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        cpl_lm_request *one = &requests[i];
        if (one->scored < 1 || one->scored >= one->length || one->length > a->settings.window + 1)
            return CPL_FAIL(
                CPL_ERR_INPUT, "%lld scored tokens of %lld do not fit into a window of %lld",
                (long long)one->scored, (long long)one->length, (long long)a->settings.window);
        CPL_TRY(check_ids(a, one->ids, one->length));
        one->log_prob = 0;
        fed[i]        = (cpl_sequence){one->ids, one->length - 1};
        needed[i]     = one->scored;
    }
    return CPL_OK;
}

cpl_status cpl_lm_batch_score(cpl_lm_batch *a, cpl_lm_request *requests, int64_t n,
                              cpl_lm_batch_done done, void *ctx)
{
    scoring s                    = {.requests = requests, .done = done, .ctx = ctx};
    cpl_sequence *fed            = cpl_alloc((size_t)n * sizeof *fed + 1);
    int64_t *needed              = fed ? cpl_alloc((size_t)n * sizeof *needed + 1) : NULL;
    const cpl_lm_batch_plan plan = {
        .a = a, .fed = fed, .needed = needed, .n = n, .work = score_group, .ctx = &s};
    cpl_status status = needed ? list_requests(a, fed, needed, requests, n) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_lm_batch_groups(&plan);
    cpl_free(needed);
    cpl_free(fed);
    return status;
}

/* ---- greedy continuations ---- */

/* A continuation that has not ended. */
typedef struct live {
    int64_t sequence; /* index in the cpl_lm_batch_group */
    int32_t *rows;    /* [length + max_tokens] rows of the cache */
    int64_t length;   /* tokens fed so far */
    int64_t n_new;
    int32_t next;
} live;

typedef struct continuing {
    int64_t max_tokens;
    const cpl_lm_batch_callbacks *callbacks;
    live *live; /* [most] */
    int64_t count;
    int32_t *rows; /* [most, window] */
} continuing;

/* Returns whether a continuation continues after its new token. */
static bool goes_on(const continuing *c, live *one, int64_t index)
{
    const cpl_lm_batch_callbacks *l = c->callbacks;
    if (one->next == l->eos || cpl_stop_ids_hold(&l->extra_stop_ids, one->next)) return false;
    one->n_new++;
    return l->on_token(l->ctx, index, one->next) && one->n_new < c->max_tokens;
}

/* Removes continuations that have ended. */
static cpl_status drop_done(continuing *c, const cpl_lm_batch_group *g)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t index = g->index[c->live[i].sequence];
        if (goes_on(c, &c->live[i], index))
            c->live[kept++] = c->live[i];
        else if (c->callbacks->done)
            CPL_TRY(c->callbacks->done(c->callbacks->ctx, index));
    }
    c->count = kept;
    return CPL_OK;
}

/* Computes the first new token of each continuation, from the last token of its prompt. */
static cpl_status read_prompts(continuing *c, cpl_lm_batch_group *g)
{
    CPL_TRY(cpl_lm_batch_take_picks(g, g->n));
    for (int64_t i = 0; i < g->n; i++)
        g->picks[g->n_picks++] = (cpl_lm_batch_pick){
            .token = cpl_lm_batch_token(g, i, g->tail[i].length - 1), .sequence = i, .id = -1};
    CPL_TRY(cpl_lm_batch_run(g));
    for (int64_t i = 0; i < g->n; i++) {
        live *one = &c->live[i];
        *one      = (live){.sequence = i,
                           .rows     = c->rows + i * g->a->settings.window,
                           .length   = g->shared + g->tail[i].length,
                           .next     = g->picks[i].best};
        cpl_lm_batch_rows(g, &g->tree.node[g->tree.leaf[i]], g->tail[i].length, one->rows);
    }
    c->count = g->n;
    return CPL_OK;
}

/* Feeds one token of every live continuation, into rows first_row ..., and picks the next token. */
static cpl_status step(continuing *c, cpl_lm_batch_group *g, int64_t first_row)
{
    cpl_lm_batch *a = g->a;
    a->list.n_keys  = 0;
    for (int64_t i = 0; i < c->count; i++) {
        live *one = &c->live[i];
        int32_t *rows;
        one->rows[one->length] = (int32_t)(first_row + i);
        a->list.ids[i]         = one->next;
        a->list.position[i]    = (int32_t)one->length++;
        a->list.segment[i] =
            (cpl_segment){(int32_t)i, 1, (int32_t)a->list.n_keys, (int32_t)one->length};
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

static cpl_status continue_group(void *ctx, cpl_lm_batch_group *g)
{
    continuing *c = ctx;
    CPL_TRY(read_prompts(c, g));
    int64_t row = g->first_row + g->tree.tokens;
    for (;;) {
        CPL_TRY(drop_done(c, g));
        if (c->count == 0) return CPL_OK;
        CPL_TRY(step(c, g, row));
        row += c->count;
    }
}

static cpl_status check_prompts(const cpl_lm_batch *a, const cpl_sequence *prompts, int64_t n,
                                int64_t max_tokens)
{
    for (int64_t i = 0; i < n; i++) {
        if (prompts[i].length < 1 || max_tokens < 1 ||
            prompts[i].length + max_tokens > a->settings.window)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "a prompt of %lld tokens and %lld new ones do not fit into a window of "
                            "%lld",
                            (long long)prompts[i].length, (long long)max_tokens,
                            (long long)a->settings.window);
        CPL_TRY(check_ids(a, prompts[i].ids, prompts[i].length));
    }
    return CPL_OK;
}

cpl_status cpl_lm_batch_continue(cpl_lm_batch *a, const cpl_sequence *prompts, int64_t n,
                                 int64_t max_tokens, const cpl_lm_batch_callbacks *callbacks)
{
    enum { AT_ONCE = 64 };
    const int64_t most = a->settings.chunk < AT_ONCE ? a->settings.chunk : AT_ONCE;
    const int64_t size = a->model->config.vocab_size, n_ids = callbacks->n_ids;
    continuing c                 = {.max_tokens = max_tokens, .callbacks = callbacks};
    const cpl_lm_batch_plan plan = {.a     = a,
                                    .fed   = prompts,
                                    .n     = n,
                                    .extra = max_tokens,
                                    .most  = most,
                                    .n_ids = n_ids > 0 && n_ids < size ? n_ids : size,
                                    .work  = continue_group,
                                    .ctx   = &c};
    CPL_TRY(check_prompts(a, prompts, n, max_tokens));
    c.live            = cpl_alloc((size_t)most * sizeof *c.live);
    c.rows            = cpl_alloc((size_t)(most * a->settings.window) * sizeof *c.rows);
    cpl_status status = c.live && c.rows ? cpl_lm_batch_groups(&plan) : CPL_ERR_MEMORY;
    cpl_free(c.rows);
    cpl_free(c.live);
    return status;
}
