/* test_mean_token.c - agreement without main effects and without the mean token: figures of numpy
 * and scipy (tests/golden/mean_token), and properties that hold for any router. */
#include "model/tokens/mean_token.h"

#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "io/json.h"
#include "tensor/backend/backend.h"

/* Holds a layer with T sampled tokens. */
typedef struct layer {
    int64_t n, d, D, T, K;
    cpl_backend be;
    cpl_tensor_arena arena;
    cpl_layer_params params;
    cpl_pool pool;
    cpl_token_samples samples;
    cpl_token_scratch scratch;
    float *R, *W, *x, *s, *answer; /* [n,d], [n,D,d], [T,d], [T,n], [T,n] */
    cpl_mean_token found;
    double *curve;
} layer;

static void take_params(layer *l, cpl_tensor_arena *arena)
{
    enum { ROOM = 16 }; /* fewer than most layers have tokens */
    const cpl_model_settings sizes = {.n_experts = l->n, .d_model = l->d, .d_expert = l->D};
    cpl_token_scratch_take(&l->scratch, arena, &sizes, ROOM, NULL);
    l->params.router = cpl_tensor_take_2d(arena, l->n, l->d);
    l->params.w_gate = cpl_tensor_take_3d(arena, l->n, l->D, l->d);
}

static layer *layer_new(int64_t n, int64_t d, int64_t D, int64_t T, int64_t K)
{
    layer *l                  = calloc(1, sizeof *l);
    cpl_tensor_arena measured = cpl_tensor_arena_measure();
    *l                        = (layer){.n = n, .d = d, .D = D, .T = T, .K = K};
    assert_ok(cpl_backend_open(&l->be, "cpu", CPL_F32, 1));
    take_params(l, &measured);
    assert_ok(cpl_tensor_arena_init(&l->arena, &l->be, &measured, "a layer"));
    take_params(l, &l->arena);
    l->R      = cpl_pool_take(&l->pool, (size_t)(n * d) * sizeof(float));
    l->W      = cpl_pool_take(&l->pool, (size_t)(n * D * d) * sizeof(float));
    l->x      = cpl_pool_take(&l->pool, (size_t)(T * d) * sizeof(float));
    l->s      = cpl_pool_take(&l->pool, (size_t)(T * n) * sizeof(float));
    l->answer = cpl_pool_take(&l->pool, (size_t)(T * n) * sizeof(float));
    l->curve  = cpl_pool_take(&l->pool, (size_t)n * sizeof(double));
    return l;
}

static void layer_gone(layer *l)
{
    cpl_pool_free(&l->pool);
    cpl_tensor_arena_free(&l->arena);
    cpl_backend_free(&l->be);
    free(l);
}

/* Chooses the K largest scores, the lower expert among equal ones. */
static void choose(int32_t *chosen, const float *s, int64_t n, int64_t K)
{
    for (int64_t k = 0; k < K; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            bool taken = false;
            for (int64_t l = 0; l < k; l++) taken = taken || chosen[l] == i;
            if (!taken && (best < 0 || s[i] > s[best])) best = i;
        }
        chosen[k] = best;
    }
}

/* Computes scores and responses from R, W and x. */
static void respond(layer *l)
{
    for (int64_t t = 0; t < l->T; t++)
        for (int64_t i = 0; i < l->n; i++) {
            double score = 0, squares = 0;
            const float *x = l->x + t * l->d;
            for (int64_t k = 0; k < l->d; k++) score += (double)l->R[i * l->d + k] * (double)x[k];
            for (int64_t c = 0; c < l->D; c++) {
                double sum = 0;
                for (int64_t k = 0; k < l->d; k++)
                    sum += (double)l->W[(i * l->D + c) * l->d + k] * (double)x[k];
                squares += sum * sum;
            }
            l->s[t * l->n + i]      = (float)score;
            l->answer[t * l->n + i] = (float)sqrt(squares);
        }
}

/* Measures the layer, which is layer 1 of its model. */
static void measure(layer *l, uint64_t seed)
{
    const cpl_rng_key key = {seed, 0, 1, CPL_STREAM_LABELS};
    const int64_t n       = l->n;
    int32_t chosen[16];
    l->be.ops->put(&l->be, l->params.router, l->R);
    l->be.ops->put(&l->be, l->params.w_gate, l->W);
    assert_ok(cpl_token_samples_init(&l->samples, &l->pool, l->T, n, l->d, l->K));
    for (int64_t t = 0; t < l->T; t++) {
        choose(chosen, l->s + t * n, n, l->K);
        cpl_token_samples_add(&l->samples, t, l->s + t * n, l->answer + t * n, l->x + t * l->d,
                              chosen);
    }
    assert_ok(
        cpl_mean_token_of(&l->found, l->curve, &l->be, &l->params, &l->samples, &l->scratch, &key));
}

/* ---- figures of numpy ---- */

static void read_numbers(float *to, const json_t *item, const char *key)
{
    const json_t *array = json_object_get(item, key);
    for (size_t i = 0; i < json_array_size(array); i++)
        to[i] = (float)json_real_value(json_array_get(array, i));
}

static int64_t count_of(const json_t *item, const char *key)
{
    return json_integer_value(json_object_get(item, key));
}

static double number_of(const json_t *item, const char *key)
{
    const json_t *value = json_object_get(item, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void near_or_none(double value, double want, const char *name)
{
    if (isnan(value) != isnan(want) || fabs(value - want) > 1e-6)
        fail_msg("%s: %.9g, numpy has %.9g", name, value, want);
}

static void check_figures(const layer *l, const json_t *want)
{
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) {
        const char *name                = cpl_mean_token_names[f];
        const json_t *figure            = json_object_get(want, name);
        const cpl_mean_token_null *null = &l->found.null[f];
        assert_non_null(figure);
        near_or_none(l->found.value[f], number_of(figure, "value"), name);
        near_or_none(null->mean, number_of(figure, "mean"), name);
        near_or_none(null->sd, number_of(figure, "std"), name);
        near_or_none(null->p, number_of(figure, "p"), name);
    }
    for (int f = CPL_MEAN_TOKEN_NULLS; f < CPL_MEAN_TOKEN_FIGURES; f++)
        near_or_none(l->found.value[f], number_of(want, cpl_mean_token_names[f]),
                     cpl_mean_token_names[f]);
    for (int64_t r = 0; r < l->n; r++)
        near_or_none(l->curve[r],
                     json_number_value(json_array_get(json_object_get(want, "curve"), (size_t)r)),
                     "curve");
}

TEST(figures_are_those_of_numpy)
{
    json_t *file, *item;
    size_t i;
    assert_ok(cpl_json_load(&file, golden_path("mean_token/reference.json")));
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 5);
    json_array_foreach(json_object_get(file, "cases"), i, item)
    {
        layer *l = layer_new(count_of(item, "n"), count_of(item, "d"), count_of(item, "D"),
                             count_of(item, "T"), count_of(item, "K"));
        read_numbers(l->R, item, "R");
        read_numbers(l->W, item, "W");
        read_numbers(l->x, item, "x");
        read_numbers(l->s, item, "s");
        read_numbers(l->answer, item, "a");
        measure(l, (uint64_t)count_of(file, "seed"));
        check_figures(l, json_object_get(item, "figures"));
        layer_gone(l);
    }
    json_decref(file);
}

/* ---- properties ---- */

static float random_at(uint64_t seed, int64_t index)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TEST};
    return cpl_rng_normal(&key, (uint64_t)index);
}

/* Draws a layer whose gates have their router row as a leading direction. */
static layer *random_layer(uint64_t seed)
{
    layer *l = layer_new(8, 12, 6, 200, 3);
    for (int64_t i = 0; i < l->n * l->d; i++) l->R[i] = random_at(seed, i);
    for (int64_t i = 0; i < l->n * l->D * l->d; i++)
        l->W[i] = random_at(seed + 1, i) +
                  2 * l->R[i / (l->D * l->d) * l->d + i % l->d] * random_at(seed + 2, i / l->d);
    for (int64_t i = 0; i < l->T * l->d; i++) l->x[i] = random_at(seed + 3, i);
    return l;
}

/* The lemma of docs/coupling.md: |x W| is even in x, and a score is odd. */
TEST(symmetric_tokens_have_no_agreement)
{
    for (uint64_t seed = 10; seed < 30; seed += 10) {
        layer *l           = random_layer(seed);
        const int64_t half = l->T / 2 * l->d;
        for (int64_t i = 0; i < half; i++) l->x[half + i] = -l->x[i];
        respond(l);
        measure(l, 1);
        assert_near(l->found.value[CPL_MEAN_TOKEN_AGREEMENT], 0, 1e-12);
        assert_near(l->found.value[CPL_MEAN_TOKEN_AGREEMENT_MU_OFF], 0, 1e-12);
        assert_true(fabs(l->found.value[CPL_MEAN_TOKEN_AGREEMENT_CHOSEN]) > 0.1);
        layer_gone(l);
    }
}

/* An expert that responds more to every token changes the plain figure alone. */
TEST(a_main_effect_is_left_out)
{
    layer *l = random_layer(40), *m = random_layer(40);
    respond(l);
    respond(m);
    for (int64_t t = 0; t < m->T; t++) m->answer[t * m->n + 2] += 64;
    measure(l, 1);
    measure(m, 1);
    const double *before = l->found.value, *after = m->found.value;
    assert_true(fabs(after[CPL_MEAN_TOKEN_AGREEMENT] - before[CPL_MEAN_TOKEN_AGREEMENT]) > 0.01);
    assert_near(after[CPL_MEAN_TOKEN_AGREEMENT_CENTRED], before[CPL_MEAN_TOKEN_AGREEMENT_CENTRED],
                1e-4);
    assert_near(after[CPL_MEAN_TOKEN_PEARSON_CENTRED], before[CPL_MEAN_TOKEN_PEARSON_CENTRED],
                1e-5);
    assert_near(after[CPL_MEAN_TOKEN_DZ], before[CPL_MEAN_TOKEN_DZ], 1e-4);
    assert_true(after[CPL_MEAN_TOKEN_MAIN_EFFECT] > before[CPL_MEAN_TOKEN_MAIN_EFFECT] + 0.1);
    for (int64_t r = 0; r < l->n; r++) assert_near(m->curve[r], l->curve[r], 1e-4);
    layer_gone(l);
    layer_gone(m);
}

/* Experts whose responses are their scores are told from permuted experts, and a second seed gives
 * another null. */
TEST(own_responses_are_told_from_chance)
{
    layer *l = random_layer(50);
    respond(l);
    for (int64_t i = 0; i < l->T * l->n; i++) l->answer[i] = l->s[i];
    measure(l, 1);
    const cpl_mean_token first = l->found;
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) {
        if (f == CPL_MEAN_TOKEN_AGREEMENT_MU_OFF) continue;
        if (f != CPL_MEAN_TOKEN_DZ) assert_near(first.value[f], 1, 1e-12);
        assert_near(first.null[f].p, 1 / 1001.0, 1e-12);
        assert_true(fabs(first.null[f].mean) < 0.3 * first.null[f].sd);
    }
    for (int64_t r = 1; r < l->n; r++) assert_true(l->curve[r] > l->curve[r - 1]);
    measure(l, 1);
    assert_memory_equal(&l->found, &first, sizeof first);
    measure(l, 2);
    assert_near(l->found.value[CPL_MEAN_TOKEN_DZ], first.value[CPL_MEAN_TOKEN_DZ], 0);
    assert_true(l->found.null[CPL_MEAN_TOKEN_DZ].mean != first.null[CPL_MEAN_TOKEN_DZ].mean);
    layer_gone(l);
}

static void no_figure(const layer *l, int except)
{
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++)
        assert_true(isnan(l->found.value[f]) == (f != except));
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) assert_true(isnan(l->found.null[f].p));
}

/* Without a number that varies no figure exists, and none is 0 / 0 by accident. */
TEST(equal_numbers_have_no_figures)
{
    layer *l = layer_new(4, 3, 2, 20, 2);
    for (int64_t i = 0; i < 4 * 3; i++) l->R[i] = 0.1f;
    for (int64_t i = 0; i < 20 * 3; i++) l->x[i] = 0.1f;
    for (int64_t i = 0; i < 4 * 2 * 3; i++) l->W[i] = 0.1f;
    respond(l);
    measure(l, 1);
    no_figure(l, CPL_MEAN_TOKEN_ROUTER_MU_NEGATIVE);
    for (int64_t r = 0; r < l->n; r++) assert_near(l->curve[r], 0, 0);
    layer_gone(l);
}

/* Experts that are copies of one another (upcycling), and experts that all get every token, leave
 * nothing after the means are subtracted. Three numbers show it, since a third is no binary number. */
TEST(equal_experts_have_no_correlation)
{
    layer *l = layer_new(3, 4, 2, 30, 3);
    for (int64_t i = 0; i < 3 * 4; i++) l->R[i] = random_at(60, i);
    for (int64_t i = 0; i < 30 * 4; i++) l->x[i] = random_at(61, i);
    for (int64_t i = 0; i < 3 * 2 * 4; i++) l->W[i] = random_at(62, i);
    respond(l);
    measure(l, 1);
    assert_true(isnan(l->found.value[CPL_MEAN_TOKEN_DZ]));
    assert_true(isfinite(l->found.value[CPL_MEAN_TOKEN_PEARSON_CENTRED]));
    for (int64_t i = 0; i < 3 * 2 * 4; i++) l->W[i] = random_at(62, i % 8);
    respond(l);
    measure(l, 1);
    assert_true(isnan(l->found.value[CPL_MEAN_TOKEN_PEARSON_CENTRED]));
    layer_gone(l);
}

/* One number of one token that is not finite, and no token at all, leave no figure. */
TEST(figures_need_finite_tokens)
{
    for (int which = 0; which < 4; which++) {
        layer *l = random_layer(70);
        respond(l);
        float *const number[] = {l->s, l->answer, l->x, NULL};
        if (number[which]) number[which][5] = which ? NAN : INFINITY;
        if (!number[which]) l->T = 0;
        measure(l, 1);
        no_figure(l, -1);
        assert_true(isnan(l->curve[0]));
        layer_gone(l);
    }
}

/* Without nulls, as in training, the figures are the same to rounding. */
TEST(figures_do_not_need_their_nulls)
{
    layer *l = random_layer(80);
    cpl_mean_token alone;
    respond(l);
    measure(l, 1);
    assert_ok(cpl_mean_token_of(&alone, NULL, &l->be, &l->params, &l->samples, &l->scratch, NULL));
    for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++)
        assert_near(alone.value[f], l->found.value[f], 1e-12);
    for (int f = 0; f < CPL_MEAN_TOKEN_NULLS; f++) assert_true(isnan(alone.null[f].mean));
    layer_gone(l);
}

/* Scores and responses computed from the tokens alone, in parts of the tokens. */
TEST(samples_are_measured_from_their_tokens)
{
    layer *l = random_layer(90);
    respond(l);
    measure(l, 1);
    memset(l->samples.score, 0, (size_t)(l->T * l->n) * sizeof *l->samples.score);
    memset(l->samples.answer, 0, (size_t)(l->T * l->n) * sizeof *l->samples.answer);
    cpl_token_samples_measure(&l->samples, &l->be, &l->params, &l->scratch);
    for (int64_t i = 0; i < l->T * l->n; i++) {
        assert_near(l->samples.score[i], l->s[i], 1e-5);
        assert_near(l->samples.answer[i], l->answer[i], 1e-4);
    }
    layer_gone(l);
}
