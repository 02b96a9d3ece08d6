/* Drawing a token: greedy, by probability, and from the most likely tokens. */
#include "tensor/ops_check.h"

static cpl_backend *backend(void)
{
    return new_cpu(CPL_F32, 2, (cpl_work){.vocab_size = 1000});
}

static cpl_tensor logits_of(int64_t V, const float *values)
{
    cpl_tensor logits = new_1d(CPL_F32, V);
    memcpy(logits.storage, values, (size_t)V * sizeof(float));
    return logits;
}

static int32_t draw(cpl_tensor logits, float temperature, float top_p, float uniform)
{
    cpl_backend *be = backend();
    return sample_of(be, logits, temperature, top_p, uniform);
}

TEST(test_greedy_takes_the_lowest_of_equals)
{
    const float values[] = {1, 5, -2, 5, 4};
    cpl_tensor logits    = logits_of(5, values);
    assert_int_equal(draw(logits, 0, 1, 0.99f), 1);
    assert_int_equal(draw(logits, 0, 0.5f, 0), 1);
    assert_int_equal(draw(logits_of(1, values), 1, 1, 0.5f), 0);
}

/* Many evenly spaced uniforms must give each id its share of the draws. The shares differ from the
 * probabilities by at most one spacing at each of two ends, and by the rounding of exp. */
static void check_shares(cpl_tensor logits, float temperature, float top_p, const double *want)
{
    enum { DRAWS = 4000 };
    const int64_t V = cpl_tensor_count(logits);
    int64_t *seen   = take((size_t)V * sizeof *seen);
    cpl_backend *be = backend();
    for (int64_t i = 0; i < V; i++) seen[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        float uniform = ((float)i + 0.5f) / DRAWS;
        int32_t id    = sample_of(be, logits, temperature, top_p, uniform);
        assert_true(id >= 0 && id < V);
        seen[id]++;
    }
    for (int64_t i = 0; i < V; i++) assert_near((double)seen[i] / DRAWS, want[i], 2.0 / DRAWS);
}

TEST(test_shares_are_probabilities)
{
    const float values[] = {0.5f, -1, 2, 0, 1.5f};
    double want[5], sum = 0;
    for (int i = 0; i < 5; i++) sum += want[i] = exp((double)values[i] / 0.7);
    for (int i = 0; i < 5; i++) want[i] /= sum;
    check_shares(logits_of(5, values), 0.7f, 1, want);
}

/* The probabilities are 0.4, 0.3, 0.2, 0.1: two ids reach 0.65, three reach 0.75. */
TEST(test_top_p_keeps_the_smallest_set)
{
    const float values[]    = {logf(0.2f), logf(0.4f), logf(0.1f), logf(0.3f)};
    const double two[]      = {0, 4.0 / 7, 0, 3.0 / 7};
    const double three[]    = {2.0 / 9, 4.0 / 9, 0, 3.0 / 9};
    const double first[]    = {0, 1, 0, 0};
    const cpl_tensor logits = logits_of(4, values);
    check_shares(logits, 1, 0.65f, two);
    check_shares(logits, 1, 0.75f, three);
    check_shares(logits, 1, 0.05f, first);
    check_shares(logits, 1, 0, first);
}

TEST(test_top_p_breaks_ties_by_index)
{
    const float values[] = {1, 1, 1, 1};
    const double want[]  = {0.5, 0.5, 0, 0};
    check_shares(logits_of(4, values), 1, 0.45f, want);
}

/* Finds by sorting the set that top_p keeps, for many random logits. */
TEST(test_top_p_against_sorting)
{
    enum { V = 1000 };
    for (int round = 0; round < 20; round++) {
        cpl_tensor logits = normal_1d(V, 2);
        double prob[V], total = 0, above = 0;
        int32_t id = draw(logits, 1, 0.8f, 0.04999f * (float)(round + 1));
        for (int i = 0; i < V; i++) total += prob[i] = exp((double)cpl_f32(logits)[i]);
        for (int i = 0; i < V; i++) above += prob[i] > prob[id] ? prob[i] / total : 0;
        assert_true(above < 0.8 + 1e-6); /* the ids before do not reach top_p */
    }
}

TEST(test_extremes)
{
    const float huge[]      = {-INFINITY, 3e38f, -3e38f, 1};
    const float infinite[]  = {1, INFINITY, 2, INFINITY};
    const float no_number[] = {NAN, 1, NAN, NAN};
    const float nothing[]   = {NAN, NAN, -INFINITY};
    const float almost_one  = 1 - 0x1p-24f;
    assert_int_equal(draw(logits_of(4, huge), 1, 1, almost_one), 1);
    assert_int_equal(draw(logits_of(4, huge), 1e-30f, 0.9f, almost_one), 1);
    assert_int_equal(draw(logits_of(4, infinite), 1, 1, 0), 1);
    assert_int_equal(draw(logits_of(4, infinite), 1, 1, almost_one), 3);
    assert_int_equal(draw(logits_of(4, no_number), 1, 0.9f, almost_one), 1);
    assert_int_equal(draw(logits_of(4, no_number), 1, 1, almost_one), 1);
    assert_int_equal(draw(logits_of(3, nothing), 1, 1, 0.5f), 0);
}
