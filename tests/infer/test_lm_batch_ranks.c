/* test_lm_batch_ranks.c - scores and continuations of a model whose experts several ranks hold.
 * They equal the results of the whole model, with other sequences on every rank, and with no
 * sequence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/lm_batch.h"
#include "parallel/threads.h"
#include "support/tiny_world.h"

enum { RANKS = 4, EXPERTS = 8, WINDOW = 20, MOST = 9, LENGTH = 12, NEW = 6 };

static const double SLACK = 2e-5; /* rows are in other products: the order of sums differs */

/* The requests of a rank, and its results. */
typedef struct lines {
    int64_t n;
    int32_t ids[MOST][LENGTH];
    double log_prob[MOST];
    int32_t fresh[MOST][NEW];
    int64_t n_fresh[MOST];
} lines;

static lines draw(int64_t n, unsigned seed)
{
    lines l = {.n = n};
    srand(seed);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < LENGTH; k++)
            l.ids[i][k] = k < i ? l.ids[0][k] : (int32_t)(rand() % 61); /* shared beginnings */
    return l;
}

static cpl_model_settings settings(int place, int size)
{
    cpl_model_settings c = tiny();
    c.n_experts          = EXPERTS;
    c.n_local            = EXPERTS / size;
    c.first_expert       = place * c.n_local;
    assert_ok(cpl_model_resolve(&c));
    return c;
}

/* ---- the work of a rank ---- */

static bool on_token(void *ctx, int64_t index, int32_t id)
{
    lines *l                             = ctx;
    l->fresh[index][l->n_fresh[index]++] = id;
    return true;
}

static cpl_status compute(cpl_lm_batch *batch, lines *l)
{
    cpl_lm_request scored[MOST];
    cpl_sequence prompt[MOST];
    const cpl_lm_batch_callbacks callbacks = {.eos = -1, .on_token = on_token, .ctx = l};
    for (int64_t i = 0; i < l->n; i++) {
        scored[i] = (cpl_lm_request){l->ids[i], LENGTH, 1 + i % (LENGTH - 2), NAN};
        prompt[i] = (cpl_sequence){l->ids[i], LENGTH - i % 3};
    }
    CPL_TRY(cpl_lm_batch_score(batch, scored, l->n, NULL, NULL));
    CPL_TRY(cpl_lm_batch_continue(batch, prompt, l->n, NEW, &callbacks));
    for (int64_t i = 0; i < l->n; i++) l->log_prob[i] = scored[i].log_prob;
    return CPL_OK;
}

/* Runs the requests of a rank. `exchange` NULL: the rank has the whole model. */
static cpl_status run(lines *l, cpl_backend *be, const cpl_model_settings *c,
                      cpl_exchange *exchange)
{
    cpl_model model;
    cpl_lm_batch batch;
    const cpl_lm_batch_settings how = {.window = WINDOW, .rows = 2 * WINDOW, .chunk = 7};
    CPL_TRY(cpl_model_init(&model, be, c, c->max_positions));
    cpl_model_randomize(&model, 7);
    cpl_status status = cpl_lm_batch_init(&batch, &model, &how);
    batch.exchange    = exchange;
    if (status == CPL_OK) status = compute(&batch, l);
    cpl_lm_batch_serve(&batch);
    cpl_lm_batch_free(&batch);
    cpl_model_free(&model);
    return status;
}

typedef struct rank {
    int experts; /* ranks that divide the experts */
    cpl_model_settings config;
    lines lines;
    cpl_status status;
} rank;

static cpl_status exchange_and_run(rank *r, cpl_group *all)
{
    cpl_mesh mesh;
    cpl_exchange *exchange;
    cpl_backend be;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 1));
    CPL_TRY(cpl_mesh_init(&mesh, all, r->experts, EXPERTS));
    CPL_TRY(cpl_exchange_init(&exchange, &be, &r->config, &mesh, 1));
    cpl_status status = run(&r->lines, &be, &r->config, exchange);
    if (status == CPL_OK) status = cpl_group_status(all);
    cpl_exchange_free(exchange);
    cpl_backend_free(&be);
    cpl_mesh_close(&mesh);
    return status;
}

static void run_rank(void *context, cpl_group *all)
{
    rank *r   = context;
    r->status = exchange_and_run(r, all);
}

/* ---- against the whole model ---- */

static void check(const lines *got, int number)
{
    lines want                 = *got;
    const cpl_model_settings c = settings(0, 1);
    memset(want.n_fresh, 0, sizeof want.n_fresh);
    cpl_backend be;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 1));
    assert_ok(run(&want, &be, &c, NULL));
    cpl_backend_free(&be);
    for (int64_t i = 0; i < got->n; i++) {
        assert_near(got->log_prob[i], want.log_prob[i], SLACK * (1 + fabs(want.log_prob[i])));
        assert_int_equal(got->n_fresh[i], NEW);
        for (int64_t k = 0; k < NEW; k++)
            if (got->fresh[i][k] != want.fresh[i][k])
                fail_msg("rank %d: new token %d of prompt %d is %d, not %d", number, (int)k, (int)i,
                         (int)got->fresh[i][k], (int)want.fresh[i][k]);
    }
}

static void compare(int size, int experts, const int64_t *n)
{
    rank r[RANKS];
    for (int i = 0; i < size; i++)
        r[i] = (rank){.experts = experts,
                      .config  = settings(i % experts, experts),
                      .lines   = draw(n[i], 5 + (unsigned)i)};
    cpl_thread_ranks_run(size, run_rank, r, sizeof *r);
    for (int i = 0; i < size; i++) assert_int_equal(r[i].status, CPL_OK);
    for (int i = 0; i < size; i++) check(&r[i].lines, i);
}

TEST(ranks_that_hold_the_experts_compute_as_one)
{
    compare(2, 2, (int64_t[]){MOST, MOST});
    compare(2, 2, (int64_t[]){MOST, 0});
    compare(2, 2, (int64_t[]){1, MOST});
    compare(4, 4, (int64_t[]){0, 3, MOST, 1});
    compare(4, 2, (int64_t[]){2, 0, 0, MOST}); /* two models, each over two ranks */
    compare(2, 2, (int64_t[]){0, 0});
}
