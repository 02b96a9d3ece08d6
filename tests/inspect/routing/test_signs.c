/* test_signs.c - rank correlations of scores of either sign with the experts' responses: planted
 * scores, and scores of routers that only know ids. */
#include "inspect/routing/signs.h"

#include <math.h>

#include "base/rng.h"
#include "check.h"

enum { TOKENS = 40, EXPERTS = 6, IDS = 8 };

typedef struct text {
    cpl_pool pool;
    cpl_token_samples samples;
    int32_t id[TOKENS];
} text;

static double random_at(uint64_t index)
{
    const cpl_rng_key key = {.seed = 3, .stream = CPL_STREAM_TEST};
    return cpl_rng_normal(&key, index);
}

/* Fills score(t, e) and answer(t, e) of every token and expert. Token t has the id t mod IDS. */
static void fill(text *x, double (*score)(int t, int e), double (*answer)(int t, int e))
{
    assert_ok(cpl_token_samples_init(&x->samples, &x->pool, TOKENS, EXPERTS, 0, 1));
    for (int t = 0; t < TOKENS; t++) {
        const int32_t chosen = 0;
        float s[EXPERTS], a[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) {
            s[e] = (float)score(t, e);
            a[e] = (float)answer(t, e);
        }
        cpl_token_samples_add(&x->samples, t, s, a, s, &chosen);
        x->id[t] = t % IDS;
    }
}

static cpl_routing_signs signs_of(const text *x, bool centred)
{
    cpl_routing_signs signs;
    assert_ok(cpl_routing_signs_of(&signs, &x->samples, x->id, centred));
    return signs;
}

static double any_score(int t, int e)
{
    return random_at((uint64_t)(t * EXPERTS + e)) + 0.3;
}

static double size_of_score(int t, int e)
{
    return fabs((double)(float)any_score(t, e));
}

/* Perfect coupling of the weights allows this case: an expert responds to |x . R_e|. */
TEST(an_answer_to_the_size_has_two_signs)
{
    text x = {0};
    fill(&x, any_score, size_of_score);
    const cpl_routing_signs s = signs_of(&x, false);
    int below                 = 0;
    for (int i = 0; i < TOKENS * EXPERTS; i++) below += any_score(i / EXPERTS, i % EXPERTS) < 0;
    assert_near(s.negative, (double)below / (TOKENS * EXPERTS), 0);
    assert_true(below > 20);
    assert_near(s.tokens.above, 1, 1e-12);
    assert_near(s.tokens.below, -1, 1e-12);
    assert_near(s.tokens_size, 1, 1e-12);
    assert_true(fabs(s.tokens.all) < 0.9);
    assert_near(s.experts.above, 1, 1e-12);
    assert_near(s.experts.below, -1, 1e-12);
    assert_near(s.experts_size, 1, 1e-12);
    cpl_pool_free(&x.pool);
}

/* Returns a score with a number added to all scores of its token: the figures of the scores change,
 * and the figures of the centred scores do not. */
static double moved_score(int t, int e)
{
    return any_score(t, e) + 4 * sin(t);
}

TEST(centred_figures_ignore_a_common_shift)
{
    text a = {0}, b = {0};
    fill(&a, any_score, size_of_score);
    fill(&b, moved_score, size_of_score);
    const cpl_routing_signs at = signs_of(&a, true), to = signs_of(&b, true);
    const cpl_routing_signs raw = signs_of(&a, false), moved = signs_of(&b, false);
    assert_near(to.negative, at.negative, 0);
    assert_near(to.tokens.all, at.tokens.all, 1e-12);
    assert_near(to.tokens.above, at.tokens.above, 1e-12);
    assert_near(to.tokens.below, at.tokens.below, 1e-12);
    assert_near(to.tokens_size, at.tokens_size, 1e-12);
    assert_near(to.experts.all, at.experts.all, 0.02); /* F32 may change a rank */
    assert_near(moved.tokens.all, raw.tokens.all, 1e-12);
    assert_near(raw.tokens.all, at.tokens.all, 1e-12);
    assert_true(fabs(moved.negative - raw.negative) > 0.05);
    assert_true(fabs(moved.experts.all - raw.experts.all) > 0.05);
    cpl_pool_free(&a.pool);
    cpl_pool_free(&b.pool);
}

/* ---- within an id ---- */

/* Returns the score: large numbers of an id and an expert, and small numbers of the token. */
static double base_of(int t, int e)
{
    return 5 * random_at((uint64_t)(10000 + t % IDS * EXPERTS + e));
}

static double own_of(int t, int e)
{
    return 0.001 * random_at((uint64_t)(20000 + t * EXPERTS + e));
}

static double score_of_id(int t, int e)
{
    return base_of(t, e) + own_of(t, e);
}

/* Returns the response: a number of the id and the expert, plus the token's own with base_of's
 * sign. */
static double answer_of_id(int t, int e)
{
    return 100 + 10 * random_at((uint64_t)(30000 + t % IDS * EXPERTS + e)) +
           (base_of(t, e) > 0 ? 500 : -500) * own_of(t, e);
}

TEST(what_an_id_explains_is_left_out)
{
    text x = {0};
    fill(&x, score_of_id, answer_of_id);
    const cpl_routing_signs s = signs_of(&x, false);
    assert_true(s.ids.above > 0.9);
    assert_true(s.ids.below < -0.9);
    assert_true(fabs(s.tokens.above) < 0.5);
    assert_true(fabs(s.tokens.below) < 0.5);
    cpl_pool_free(&x.pool);
}

TEST(lists_that_are_too_short_have_none)
{
    text x = {0};
    fill(&x, any_score, size_of_score);
    x.samples.count           = 1; /* each id once, an expert with one token */
    const cpl_routing_signs s = signs_of(&x, false);
    assert_true(isnan(s.ids.all) && isnan(s.ids.above) && isnan(s.experts.all));
    assert_true(!isnan(s.tokens.all));
    x.samples.count = 0;
    assert_true(isnan(signs_of(&x, false).negative));
    cpl_pool_free(&x.pool);
}
