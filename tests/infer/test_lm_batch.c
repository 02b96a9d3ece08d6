/* Scores of many sequences against a separate pass over each, and continuations against
 * cpl_generate, for small caches and chunks and for any set of requests. */
#include "infer/lm_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/generate.h"
#include "support/plain_pass.h"
#include "support/tiny_world.h"

enum { WINDOW = 30, MOST = 24 };

static const double SLACK = 2e-5; /* sums of some dozen logs of F32 probabilities */

typedef struct lines {
    int32_t ids[MOST][WINDOW + 1];
    cpl_lm_request asked[MOST];
    int64_t n;
} lines;

/* Draws sequences that share beginnings of several lengths. Some sequences are equal. */
static void draw(lines *l, int64_t n, int64_t vocab, unsigned seed)
{
    srand(seed);
    l->n = n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t length = 2 + rand() % WINDOW, from = i ? rand() % i : 0;
        const int64_t same = i ? rand() % (length + 1) : 0;
        for (int64_t k = 0; k < length; k++)
            l->ids[i][k] =
                k < same && k < l->asked[from].length ? l->ids[from][k] : (int32_t)(rand() % vocab);
        l->asked[i] = (cpl_lm_request){l->ids[i], length, 1 + rand() % (length - 1), NAN};
    }
}

static cpl_status count_done(void *ctx, int64_t index)
{
    ((int *)ctx)[index]++;
    return CPL_OK;
}

static void check_scores(world *w, lines *l, int64_t rows, int64_t chunk)
{
    cpl_lm_batch a;
    int done[MOST] = {0};
    assert_ok(cpl_lm_batch_init(&a, &w->model, &(cpl_lm_batch_settings){WINDOW, rows, chunk}));
    assert_ok(cpl_lm_batch_score(&a, l->asked, l->n, count_done, done));
    for (int64_t i = 0; i < l->n; i++) {
        assert_int_equal(done[i], 1);
        const double want = plain_score(&w->model, &l->asked[i]);
        assert_near(l->asked[i].log_prob, want, SLACK * (1 + fabs(want)));
    }
    cpl_lm_batch_free(&a);
}

TEST(scores)
{
    static const int64_t sizes[][2] = {{WINDOW, 1}, {WINDOW, 7}, {45, 16}, {70, 5}, {400, 64}};
    static lines l;
    cpl_model_settings plain = tiny(), other = tiny();
    other.n_kv_heads = 2;
    other.clip_qkv   = 0.8;
    other.tied       = 1;
    for (int kind = 0; kind < 2; kind++) {
        world w;
        open_world(&w, kind ? other : plain, CPL_F32);
        for (unsigned seed = 0; seed < 6; seed++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                draw(&l, seed ? MOST - seed : 1, plain.vocab_size, seed);
                check_scores(&w, &l, sizes[i][0], sizes[i][1]);
            }
        close_world(&w);
    }
}

/* A common beginning passes through the model once, also across groups. */
TEST(scores_share)
{
    static lines l;
    world w;
    cpl_lm_batch a;
    open_world(&w, tiny(), CPL_F32);
    draw(&l, 1, 61, 3);
    for (int64_t i = 0; i < MOST; i++) {
        for (int64_t k = 0; k < 20; k++) l.ids[i][k] = (int32_t)(k * 5 % 61);
        l.ids[i][20] = (int32_t)i;
        l.ids[i][21] = (int32_t)(i + 30);
        l.asked[i]   = (cpl_lm_request){l.ids[i], 22, 2, NAN};
    }
    l.n = MOST;
    assert_ok(cpl_lm_batch_init(&a, &w.model, &(cpl_lm_batch_settings){WINDOW, 32, 8}));
    assert_ok(cpl_lm_batch_score(&a, l.asked, l.n, NULL, NULL));
    /* Groups have 12 sequences: 20 rows and one for each. The second group found 19 rows to use. */
    assert_int_equal(a.n_held, 21);
    for (int64_t i = 0; i < 19; i++) assert_int_equal(a.held_row[i], i);
    for (int64_t i = 0; i < MOST; i++)
        assert_near(l.asked[i].log_prob, plain_score(&w.model, &l.asked[i]), 1e-3);
    cpl_lm_batch_free(&a);
    close_world(&w);
}

/* ---- continuations ---- */

typedef struct heard {
    int32_t ids[MOST][WINDOW];
    int64_t count[MOST];
    int64_t enough[MOST]; /* tokens after which a sequence ends */
    int done[MOST];
} heard;

static bool on_token(void *ctx, int64_t index, int32_t id)
{
    heard *h                         = ctx;
    h->ids[index][h->count[index]++] = id;
    return h->count[index] < h->enough[index];
}

static cpl_status mark_done(void *ctx, int64_t index)
{
    ((heard *)ctx)->done[index]++;
    return CPL_OK;
}

typedef struct alone {
    int32_t ids[WINDOW];
    int64_t count, enough;
} alone;

static bool hear_alone(void *ctx, int32_t id)
{
    alone *one             = ctx;
    one->ids[one->count++] = id;
    return one->count < one->enough;
}

static void check_continuations(world *w, const lines *l, int64_t max_tokens, int64_t rows,
                                int64_t chunk)
{
    static heard h;
    static const int64_t others[] = {5, 23, 40};
    const int64_t eos = 17, n_ids = 55;
    const cpl_stop_ids extra_stop_ids = {others, 3};
    cpl_sequence prompt[MOST];
    cpl_lm_batch a;
    memset(&h, 0, sizeof h);
    for (int64_t i = 0; i < l->n; i++) {
        prompt[i]   = (cpl_sequence){l->ids[i], 1 + l->asked[i].length % (WINDOW - max_tokens)};
        h.enough[i] = 1 + i % (max_tokens + 2);
    }
    const cpl_lm_batch_callbacks callbacks = {eos, n_ids, on_token, mark_done, &h, extra_stop_ids};
    assert_ok(cpl_lm_batch_init(&a, &w->model, &(cpl_lm_batch_settings){WINDOW, rows, chunk}));
    assert_ok(cpl_lm_batch_continue(&a, prompt, l->n, max_tokens, &callbacks));
    cpl_lm_batch_free(&a);
    for (int64_t i = 0; i < l->n; i++) {
        cpl_generator g;
        alone one                     = {.enough = h.enough[i]};
        const cpl_generate_settings s = {max_tokens, 0, 1, 0, eos, n_ids, extra_stop_ids};
        assert_ok(cpl_generator_init(&g, &w->model, WINDOW, WINDOW));
        assert_ok(cpl_generate(&g, prompt[i].ids, prompt[i].length, &s, hear_alone, &one, NULL));
        cpl_generator_free(&g);
        assert_int_equal(h.done[i], 1);
        assert_int_equal(h.count[i], one.count);
        for (int64_t k = 0; k < one.count; k++)
            assert_false(cpl_stop_ids_hold(&extra_stop_ids, one.ids[k]) || one.ids[k] == eos);
        assert_memory_equal(h.ids[i], one.ids, (size_t)one.count * sizeof *one.ids);
    }
}

TEST(continuations)
{
    static lines l;
    world w;
    open_world(&w, tiny(), CPL_F32);
    for (unsigned seed = 1; seed < 5; seed++) {
        draw(&l, MOST, 61, seed);
        check_continuations(&w, &l, 1, 60, 16);
        check_continuations(&w, &l, 9, WINDOW, 4);
        check_continuations(&w, &l, 9, 100, 16);
        check_continuations(&w, &l, 9, 900, 200);
    }
    close_world(&w);
}

/* ---- refusals ---- */

TEST(refusals)
{
    world w;
    cpl_lm_batch a;
    const int32_t ids[WINDOW + 2]     = {1, 2, 61};
    const cpl_lm_batch_callbacks deaf = {.eos = -1, .on_token = on_token};
    open_world(&w, tiny(), CPL_F32);
    assert_ok(cpl_lm_batch_init(&a, &w.model, &(cpl_lm_batch_settings){WINDOW, 0, 0}));
    assert_int_equal(a.settings.rows, 8192);
    const int64_t wrong[][2] = {{2, 0}, {2, 2}, {WINDOW + 2, 1}, {3, 1}};
    for (size_t i = 0; i < 4; i++) {
        cpl_lm_request one = {ids, wrong[i][0], wrong[i][1], 0};
        assert_int_equal(cpl_lm_batch_score(&a, &one, 1, NULL, NULL), CPL_ERR_INPUT);
    }
    assert_non_null(strstr(cpl_last_error(), "vocabulary has 61"));
    cpl_sequence prompt = {ids, 2};
    assert_int_equal(cpl_lm_batch_continue(&a, &prompt, 1, WINDOW - 1, &deaf), CPL_ERR_INPUT);
    assert_int_equal(cpl_lm_batch_continue(&a, &prompt, 1, 0, &deaf), CPL_ERR_INPUT);
    assert_ok(cpl_lm_batch_score(&a, NULL, 0, NULL, NULL));
    w.be.ops->fill(&w.be, cpl_tensor_numbers(w.model.master.layer[1].w_q, 5, 1), NAN);
    cpl_lm_request one = {ids, 2, 1, 0};
    assert_int_equal(cpl_lm_batch_score(&a, &one, 1, NULL, NULL), CPL_ERR_INPUT);
    assert_non_null(strstr(cpl_last_error(), "not finite"));
    cpl_lm_batch_free(&a);
    close_world(&w);
}

TEST(no_memory)
{
    static lines l;
    world w;
    cpl_lm_batch a;
    open_world(&w, tiny(), CPL_F32);
    draw(&l, 5, 61, 2);
    assert_ok(cpl_lm_batch_init(&a, &w.model, &(cpl_lm_batch_settings){WINDOW, 60, 8}));
    int64_t failures = 0;
    for (int64_t at = 1;; at++) {
        cpl_alloc_fail_at(at);
        const cpl_status status = cpl_lm_batch_score(&a, l.asked, l.n, NULL, NULL);
        cpl_alloc_fail_at(0);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
        failures++;
    }
    assert_true(failures >= 8);
    cpl_lm_batch_free(&a);
    close_world(&w);
}
