/* test_null_model_assign.c - the best pairing: against all n! of small matrices, planted ones, ties
 * and any numbers. */
#include <float.h>

#include "inspect/null_model_case.h"

static void assert_permutation(const int32_t *pairing, int64_t n)
{
    bool seen[512] = {false};
    for (int64_t i = 0; i < n; i++) {
        assert_in_range(pairing[i], 0, n - 1);
        assert_false(seen[pairing[i]]);
        seen[pairing[i]] = true;
    }
}

static double sum_of(const double *score, const int32_t *pairing, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += score[i * n + pairing[i]];
    return sum;
}

TEST(test_assignment_is_the_best_of_all)
{
    for (uint64_t seed = 0; seed < 120; seed++) {
        int64_t n = 1 + (int64_t)(seed % SMALL);
        float drawn[SMALL * SMALL];
        double score[SMALL * SMALL];
        int32_t pairing[SMALL];
        draw_uniform(drawn, n * n, 300 + seed, -1, 1);
        for (int64_t k = 0; k < n * n; k++) /* every other one with many ties */
            score[k] = seed % 2 ? round(2 * drawn[k]) : drawn[k];
        census all = take_census(score, n);
        assert_ok(cpl_null_model_assign(pairing, score, n));
        assert_permutation(pairing, n);
        assert_near(sum_of(score, pairing, n), all.most, slack * DBL_EPSILON);
        if (seed % 2 == 0) assert_memory_equal(pairing, all.best, (size_t)n * sizeof *pairing);
    }
}

/* Of 40 rows no exchange of two and no rotation of three gains. */
TEST(test_assignment_of_many)
{
    enum { N = 40 };
    static float drawn[N * N];
    static double score[N * N];
    int32_t p[N];
    draw_uniform(drawn, N * N, 9, 0, 1);
    for (int k = 0; k < N * N; k++) score[k] = drawn[k];
    assert_ok(cpl_null_model_assign(p, score, N));
    assert_permutation(p, N);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < N; k++) {
                if (i == j || j == k || i == k) continue;
                double now     = score[i * N + p[i]] + score[j * N + p[j]] + score[k * N + p[k]];
                double turned  = score[i * N + p[j]] + score[j * N + p[k]] + score[k * N + p[i]];
                double changed = score[i * N + p[j]] + score[j * N + p[i]] + score[k * N + p[k]];
                assert_true(turned <= now + 1e-12 && changed <= now + 1e-12);
            }
}

/* The sum over rows of u_i + v_j for any prices with u_i + v_j >= score_ij bounds every pairing: a
 * score built from such prices, with equality only on a planted pairing, has it as its best. */
TEST(test_assignment_reaches_its_bound)
{
    enum { N = 150 };
    static float drawn[N * N + 2 * N];
    static double score[N * N];
    int32_t p[N];
    draw_uniform(drawn, N * N + 2 * N, 10, 0, 1);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int planted      = (7 * i + 3) % N;
            double loss      = j == planted ? 0 : 1e-6 + 0.01 * drawn[i * N + j];
            score[i * N + j] = drawn[N * N + i] + drawn[N * N + N + j] - loss;
        }
    assert_ok(cpl_null_model_assign(p, score, N));
    for (int i = 0; i < N; i++) assert_int_equal(p[i], (7 * i + 3) % N);
}

TEST(test_equal_pairings_give_the_identity)
{
    enum { N = 50 };
    static double score[N * N];
    float part[2 * N];
    int32_t p[N];
    draw_uniform(part, 2 * N, 4, -1, 1);
    for (int i = 0; i < N; i++) /* every pairing has the same sum, but for rounding */
        for (int j = 0; j < N; j++) score[i * N + j] = part[i] + 0.1 * part[N + j];
    assert_ok(cpl_null_model_assign(p, score, N));
    for (int i = 0; i < N; i++) assert_int_equal(p[i], i);
    score[3 * N + 8] += 1e-6; /* and now the identity is not among the best */
    assert_ok(cpl_null_model_assign(p, score, N));
    assert_int_equal(p[3], 8);
    assert_permutation(p, N);
}

TEST(test_assignment_ends_on_any_numbers)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0, 1, 1e308, -1e308};
    cpl_rng_key key           = {.seed = 5, .stream = CPL_STREAM_TEST};
    double score[100];
    int32_t p[10];
    for (uint64_t turn = 0; turn < 300; turn++) {
        for (uint64_t k = 0; k < 100; k++)
            score[k] = odd[cpl_rng_u32(&key, 100 * turn + k) % (turn % 7 + 1)];
        assert_ok(cpl_null_model_assign(p, score, 10));
        assert_permutation(p, 10);
    }
}
