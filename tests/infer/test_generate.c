/* test_generate.c - generation with a cache against the whole forward pass without a cache, and the
 * effects of temperature, top-p, seed, eos and the context. */
#include "infer/generate.h"

#include <float.h>
#include <math.h>

#include "support/plain_pass.h"
#include "support/tiny_world.h"

enum { TEXT = WORLD_TEXT, MOST_NEW = 12 };

static const double logit_slack = 64; /* rounding errors of some hundred sums, in units of eps */

static void compare_logits(const cpl_generator *g, const float *want)
{
    int64_t vocab     = g->model->config.vocab_size;
    const float *ours = cpl_f32(seen(g->model->be, g->logits));
    double largest    = 0;
    for (int64_t v = 0; v < vocab; v++) largest = fmax(largest, fabs(want[v]));
    double tolerance = logit_slack * FLT_EPSILON * largest;
    for (int64_t v = 0; v < vocab; v++) assert_near(ours[v], want[v], tolerance);
}

/* The logits behind each cut of a text equal the logits of the whole text. */
static void check_cuts(cpl_model_settings config)
{
    static const int64_t chunks[] = {1, 4, 7, TEXT};
    world w;
    open_world(&w, config, CPL_F32);
    float *want   = plain_logits(&w.model, w.text, TEXT);
    int64_t vocab = config.vocab_size;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
        for (int64_t first = 1; first < TEXT; first += 5) {
            cpl_generator g;
            assert_ok(cpl_generator_init(&g, &w.model, TEXT, chunks[i]));
            assert_ok(cpl_generator_feed(&g, w.text, first));
            compare_logits(&g, want + (first - 1) * vocab);
            assert_ok(cpl_generator_feed(&g, w.text + first, TEXT - first));
            compare_logits(&g, want + (TEXT - 1) * vocab);
            cpl_generator_reset(&g);
            assert_ok(cpl_generator_feed(&g, w.text, 2));
            compare_logits(&g, want + vocab);
            cpl_generator_free(&g);
        }
    free(want);
    close_world(&w);
}

TEST(cache_changes_nothing)
{
    cpl_model_settings plain = tiny(), other = tiny();
    check_cuts(plain);
    other.n_kv_heads = 2;
    other.clip_qkv   = 0.8;
    other.tied       = 1;
    other.norm_topk  = 1;
    check_cuts(other);
}

/* ---- a tiny world and a generator of its model, for each of the following tests ---- */

static world w;
static cpl_generator g;

static int begin(void **state)
{
    (void)state;
    open_world(&w, tiny(), CPL_F32);
    return cpl_generator_init(&g, &w.model, 6 + MOST_NEW, 4) != CPL_OK;
}

static int end(void **state)
{
    (void)state;
    cpl_generator_free(&g);
    close_world(&w);
    return 0;
}

TESTS_DO(before_each, begin);
TESTS_DO(after_each, end);

typedef struct heard {
    int32_t id[MOST_NEW];
    int64_t count, most;
} heard;

static bool on_token(void *ctx, int32_t id)
{
    heard *h          = ctx;
    h->id[h->count++] = id;
    return h->count < h->most;
}

static cpl_generate_settings greedy(void)
{
    cpl_generate_settings s = {.max_tokens = MOST_NEW, .top_p = 1, .eos = -1};
    return s;
}

static heard generate(cpl_generator *by, cpl_generate_settings s)
{
    heard h = {.most = MOST_NEW};
    int64_t n_new;
    assert_ok(cpl_generate(by, w.text, 6, &s, on_token, &h, &n_new));
    assert_int_equal(n_new, h.count);
    return h;
}

static int32_t best_of(const float *logits, int64_t count)
{
    int32_t best = 0;
    for (int32_t v = 1; v < count; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

TEST(greedy_takes_the_largest)
{
    cpl_generator check;
    assert_ok(cpl_generator_init(&check, &w.model, 6 + MOST_NEW, 3));
    heard first = generate(&g, greedy()), again = generate(&g, greedy());
    assert_int_equal(first.count, MOST_NEW);
    assert_memory_equal(&first, &again, sizeof first);
    assert_ok(cpl_generator_feed(&check, w.text, 6));
    for (int i = 0; i < MOST_NEW; i++) {
        assert_int_equal(first.id[i],
                         best_of(cpl_f32(seen(&w.be, check.logits)), w.model.config.vocab_size));
        assert_ok(cpl_generator_feed(&check, &first.id[i], 1));
    }
    cpl_generator_free(&check);
}

TEST(seeds_reproduce)
{
    cpl_generator cut;
    assert_ok(cpl_generator_init(&cut, &w.model, 6 + MOST_NEW, 1));
    cpl_generate_settings s = greedy();
    s.temperature           = 3;
    s.seed                  = 11;
    heard first = generate(&g, s), again = generate(&g, s), other = generate(&cut, s);
    assert_memory_equal(&first, &again, sizeof first);
    assert_memory_equal(&first, &other, sizeof first);
    s.seed = 12;
    other  = generate(&g, s);
    assert_memory_not_equal(first.id, other.id, sizeof first.id);
    cpl_generator_free(&cut);
}

/* Each token is drawn with the number of its own position. A text goes on in the same way when more
 * of it is given as the prompt, wherever the prompt is cut. */
TEST(draws_by_position)
{
    int32_t text[6 + MOST_NEW];
    cpl_generate_settings s = greedy();
    s.temperature           = 3;
    s.top_p                 = 0.9F;
    s.seed                  = 21;
    heard all               = generate(&g, s);
    memcpy(text, w.text, 6 * sizeof *text);
    memcpy(text + 6, all.id, sizeof all.id);
    for (int cut = 1; cut < MOST_NEW; cut++) {
        heard rest   = {.most = MOST_NEW};
        s.max_tokens = MOST_NEW - cut;
        assert_ok(cpl_generate(&g, text, 6 + cut, &s, on_token, &rest, NULL));
        assert_int_equal(rest.count, MOST_NEW - cut);
        assert_memory_equal(rest.id, all.id + cut, (size_t)rest.count * sizeof *rest.id);
    }
}

/* Returns Pearson's statistic of counts that should be even. Its mean is n - 1. */
static double chi_square(const int *count, int64_t n, double each)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (count[i] - each) * (count[i] - each) / each;
    return sum;
}

/* If all ids are equally likely, every position draws each id equally often, whatever its neighbour
 * and the same position of the next seed drew. */
TEST(draws_are_independent)
{
    enum { SEEDS = 600, V = 61 };
    static int count[V], after[V], next_seed[V];
    heard last = {0};
    w.be.ops->fill(&w.be, w.model.master.norm, 0);
    cpl_generate_settings s = greedy();
    s.temperature           = 1;
    for (s.seed = 0; s.seed < SEEDS; s.seed++) {
        heard h = generate(&g, s);
        for (int i = 0; i < MOST_NEW; i++) {
            count[h.id[i]]++;
            if (i) after[(h.id[i] - h.id[i - 1] + V) % V]++;
            if (s.seed) next_seed[(h.id[i] - last.id[i] + V) % V]++;
        }
        last = h;
    }
    const double limit = V - 1 + 6 * sqrt(2.0 * (V - 1)); /* six standard deviations */
    assert_true(chi_square(count, V, (double)SEEDS * MOST_NEW / V) < limit);
    assert_true(chi_square(after, V, (double)SEEDS * (MOST_NEW - 1) / V) < limit);
    assert_true(chi_square(next_seed, V, (double)(SEEDS - 1) * MOST_NEW / V) < limit);
}

/* A top-p so small that one token reaches it is greedy at any temperature, and so is a temperature
 * near 0. With temperature 1 the first token is drawn as often as the softmax says. */
TEST(temperature_and_top_p)
{
    enum { DRAWS = 400 };
    heard want              = generate(&g, greedy());
    cpl_generate_settings s = greedy();
    s.temperature           = 5;
    s.top_p                 = 1e-6F;
    heard got               = generate(&g, s);
    assert_memory_equal(&want, &got, sizeof want);
    s.temperature = 1e-4F;
    s.top_p       = 1;
    got           = generate(&g, s);
    assert_memory_equal(&want, &got, sizeof want);
    assert_ok(
        cpl_generate(&g, w.text, 6, &(cpl_generate_settings){.top_p = 1}, on_token, &got, NULL));
    double sum              = 0, p;
    const cpl_tensor logits = seen(&w.be, g.logits);
    for (int64_t v = 0; v < w.model.config.vocab_size; v++)
        sum += exp((double)cpl_f32(logits)[v] - cpl_f32(logits)[want.id[0]]);
    p             = 1 / sum;
    s.temperature = 1;
    s.max_tokens  = 1;
    int hits      = 0;
    for (s.seed = 0; s.seed < DRAWS; s.seed++) hits += generate(&g, s).id[0] == want.id[0];
    assert_near(hits, DRAWS * p, 5 * sqrt(DRAWS * p * (1 - p)));
}

TEST(ends_where_it_should)
{
    heard all               = generate(&g, greedy());
    cpl_generate_settings s = greedy();
    s.eos                   = all.id[3];
    int64_t before          = 0;
    while (all.id[before] != s.eos) before++;
    assert_int_equal(generate(&g, s).count, before);
    s.eos        = -1;
    s.max_tokens = 0;
    assert_int_equal(generate(&g, s).count, 0);
    heard two = {.most = 2};
    int64_t n_new;
    s.max_tokens = MOST_NEW;
    assert_ok(cpl_generate(&g, w.text, 6, &s, on_token, &two, &n_new));
    assert_int_equal(n_new, 2);
    s.n_ids     = 5;
    heard small = generate(&g, s);
    for (int i = 0; i < MOST_NEW; i++) assert_true(small.id[i] < 5);
}

TEST(refuses_in_words)
{
    cpl_generate_settings s = greedy();
    heard h                 = {.most = MOST_NEW};
    cpl_generator_free(&g);
    assert_fails(CPL_ERR_INPUT, "context is 40 (max_position_embeddings)",
                 cpl_generator_init(&g, &w.model, 41, 8));
    assert_ok(cpl_generator_init(&g, &w.model, 10, 8));
    assert_fails(CPL_ERR_INPUT, "do not fit", cpl_generate(&g, w.text, 6, &s, on_token, &h, NULL));
    assert_fails(CPL_ERR_INPUT, "do not fit", cpl_generate(&g, w.text, 11, &s, on_token, &h, NULL));
    s.max_tokens = 2;
    assert_fails(CPL_ERR_INPUT, "no token", cpl_generate(&g, w.text, 0, &s, on_token, &h, NULL));
    s.top_p = 0;
    assert_fails(CPL_ERR_USAGE, "top-p", cpl_generate(&g, w.text, 6, &s, on_token, &h, NULL));
    s.top_p       = 1;
    s.temperature = NAN;
    assert_fails(CPL_ERR_USAGE, "temperature", cpl_generate(&g, w.text, 6, &s, on_token, &h, NULL));
    s.temperature = 1;
    w.text[2]     = 61;
    assert_fails(CPL_ERR_INPUT, "token 2 has id 61",
                 cpl_generate(&g, w.text, 6, &s, on_token, &h, NULL));
    w.text[2] = -1;
    assert_fails(CPL_ERR_INPUT, "id -1", cpl_generate(&g, w.text, 6, &s, on_token, &h, NULL));
    w.text[2] = 1;
    w.be.ops->fill(&w.be, cpl_tensor_range(w.model.master.norm, 0, 1), NAN);
    assert_fails(CPL_ERR_INPUT, "not finite", cpl_generate(&g, w.text, 6, &s, on_token, &h, NULL));
}

TEST(allocates_nothing_while_it_runs)
{
    generate(&g, greedy());
    int64_t before = cpl_alloc_count();
    generate(&g, greedy());
    assert_int_equal(cpl_alloc_count(), before);
    cpl_generator_free(&g);
    for (int nth = 1; nth < 3; nth++) {
        w.be.ops->give(&w.be, w.be.scratch);
        w.be.scratch       = NULL;
        w.be.scratch_bytes = 0;
        cpl_alloc_fail_at(nth);
        assert_int_equal(cpl_generator_init(&g, &w.model, 6 + MOST_NEW, 4), CPL_ERR_MEMORY);
        cpl_alloc_fail_at(0);
        cpl_generator_free(&g);
    }
}
