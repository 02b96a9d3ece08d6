/* test_null_model.c - figures of coupling matrices against sums written plainly in double and
 * against all n! pairings of small matrices; the best pairing: planted, with ties, and of any
 * numbers. Random weights are in test_null_model_weights.c. */
#include "inspect/null_model.h"

#include <float.h>

#include "inspect/null_model_case.h"
#include "support/scarce.h"

/* ---- kappa against chance ---- */

static void check_small_kappa(const float *M, const double *row, const double *gate, int64_t n)
{
    double kappa[SMALL * SMALL], off = 0;
    int rows = 0, columns = 0;
    cpl_null_model got;
    plain_kappa(kappa, M, row, gate, n);
    census all = take_census(kappa, n);
    assert_ok(cpl_null_model_of(&got, NULL, M, row, gate, n, NULL, 0, 1, 0));
    double count = (double)all.count, mean = all.sum / count / n;
    double sd  = sqrt(fmax(all.squares / count - all.sum / count * (all.sum / count), 0)) / n;
    double own = 0;
    for (int64_t i = 0; i < n; i++) {
        double in_row = 0, in_column = 0;
        own += kappa[i * n + i] / n;
        for (int64_t j = 0; j < n; j++) {
            if (j != i) off += kappa[i * n + j] / (n > 1 ? n * (n - 1) : 1);
            in_row    = fmax(in_row, kappa[i * n + j]);
            in_column = fmax(in_column, kappa[j * n + i]);
        }
        rows += kappa[i * n + i] == in_row;
        columns += kappa[i * n + i] == in_column;
    }
    double tolerance = slack * DBL_EPSILON * fmax(all.most, own);
    assert_near(got.kappa_diagonal, own, tolerance);
    assert_near(got.kappa_off_diagonal, off, tolerance);
    assert_near(got.expected, mean, tolerance);
    assert_near(got.deviation * got.deviation, sd * sd, tolerance * fmax(all.most, own));
    assert_near(got.kappa_row_top1, rows / (double)n, DBL_EPSILON);
    assert_near(got.kappa_column_top1, columns / (double)n, DBL_EPSILON);
    if (got.deviation > 0)
        assert_near(got.z * sd, own - mean, 1e6 * tolerance);
    else
        assert_true(isnan(got.z) && sd < 1e-7 * (own + 1));
}

TEST(test_moments_are_those_of_all_pairings)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        int64_t n = 1 + (int64_t)(seed % SMALL);
        float M[SMALL * SMALL], norms[2 * SMALL];
        double row[SMALL], gate[SMALL];
        draw_uniform(M, n * n, 500 + seed, 0.5, 2);
        draw_uniform(norms, 2 * n, 600 + seed, 0.5, 4);
        for (int64_t i = 0; i < n; i++) row[i] = norms[i], gate[i] = norms[n + i];
        check_small_kappa(M, row, gate, n);
        row[n / 2] = 0; /* a zero row with its numbers, then a zero expert too */
        for (int64_t j = 0; j < n; j++) M[n / 2 * n + j] = 0;
        check_small_kappa(M, row, gate, n);
        gate[0] = 0;
        for (int64_t i = 0; i < n; i++) M[i * n] = 0;
        check_small_kappa(M, row, gate, n);
    }
}

/* There are two pairings: the own one is one deviation above or below their mean. */
TEST(test_two_experts)
{
    const float M[]      = {3, 1, 2, 5};
    const double norms[] = {1, 1};
    cpl_null_model got;
    assert_ok(cpl_null_model_of(&got, NULL, M, norms, norms, 2, alphas, N_ALPHAS, 1, 0));
    assert_near(got.expected, 11.0 / 4, 4 * DBL_EPSILON);
    assert_near(got.deviation, 1.25, 4 * DBL_EPSILON);
    assert_near(got.z, 1, 8 * DBL_EPSILON);
    assert_near(got.assignment_accuracy, 1, 0);
    const float swapped[] = {1, 3, 5, 2};
    assert_ok(cpl_null_model_of(&got, NULL, swapped, norms, norms, 2, alphas, N_ALPHAS, 1, 0));
    assert_near(got.z, -1, 8 * DBL_EPSILON);
    assert_near(got.assignment_accuracy, 0, 0);
    assert_near(got.kappa_row_top1, 0, 0);
}

TEST(test_where_every_pairing_is_the_same)
{
    enum { N = 37 };
    static float M[N * N];
    float row[N];
    double row_norm[N], gate_norm[N];
    cpl_null_model got;
    draw_uniform(row, N, 8, 0.3, 0.9);
    for (int i = 0; i < N; i++) {
        row_norm[i] = 3, gate_norm[i] = 0.7; /* all experts alike */
        for (int j = 0; j < N; j++) M[i * N + j] = row[i];
    }
    assert_ok(cpl_null_model_of(&got, NULL, M, row_norm, gate_norm, N, alphas, N_ALPHAS, 1, 0));
    assert_true(got.deviation == 0 && isnan(got.z));
    assert_near(got.expected, got.kappa_diagonal, slack * DBL_EPSILON);
    assert_near(got.kappa_row_top1, 1, 0);
    assert_near(got.assignment_accuracy, 1, 0);
    for (int a = 0; a < N_ALPHAS; a++) {
        assert_near(got.erc_sd[a], 0, slack * DBL_EPSILON);
        assert_near(got.erc_mean[a], plain_erc(M, N, alphas[a]), slack * DBL_EPSILON * N);
    }

    memset(M, 0, sizeof M); /* all zeros */
    memset(row_norm, 0, sizeof row_norm);
    memset(gate_norm, 0, sizeof gate_norm);
    assert_ok(cpl_null_model_of(&got, NULL, M, row_norm, gate_norm, N, alphas, N_ALPHAS, 1, 0));
    assert_true(got.kappa_diagonal == 0 && got.expected == 0 && got.deviation == 0);
    assert_true(isnan(got.z) && got.erc_mean[0] == 0 && got.erc_sd[0] == 0);

    M[0] = 2, row_norm[0] = gate_norm[0] = 2; /* one expert */
    assert_ok(cpl_null_model_of(&got, NULL, M, row_norm, gate_norm, 1, alphas, N_ALPHAS, 1, 0));
    assert_near(got.kappa_diagonal, 0.5, 0);
    assert_near(got.kappa_off_diagonal, 0, 0);
    assert_near(got.expected, 0.5, 0);
    assert_true(got.deviation == 0 && isnan(got.z) && got.assignment_accuracy == 1);
    assert_true(got.erc_mean[0] == 0 && got.erc_sd[0] == 0);
}

/* ---- random pairings ---- */

TEST(test_erc_of_the_same_pairings)
{
    static const int64_t sizes[] = {1, 2, 5, 33};
    static float M[33 * 33], paired[33 * 33];
    double norms[33], erc[N_ALPHAS][CPL_NULL_MODEL_PAIRINGS];
    int32_t p[33];
    for (int i = 0; i < 33; i++) norms[i] = 1;
    for (uint64_t s = 0; s < 4; s++) {
        int64_t n = sizes[s];
        cpl_null_model got;
        draw_uniform(M, n * n, 700 + s, 0, 2);
        for (int64_t j = 0; s > 1 && j < n; j++) M[n + j] = M[j * n + 2] = 0;
        assert_ok(cpl_null_model_of(&got, NULL, M, norms, norms, n, alphas, N_ALPHAS, 21 + s, 6));
        for (uint64_t t = 0; t < CPL_NULL_MODEL_PAIRINGS; t++) {
            plain_pairing(p, n, 21 + s, 6, t);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < n; j++) paired[i * n + j] = M[i * n + p[j]];
            for (int a = 0; a < N_ALPHAS; a++) erc[a][t] = plain_erc(paired, n, alphas[a]);
        }
        for (int a = 0; a < N_ALPHAS; a++) {
            double mean = 0, squares = 0;
            for (int t = 0; t < CPL_NULL_MODEL_PAIRINGS; t++)
                mean += erc[a][t] / CPL_NULL_MODEL_PAIRINGS;
            for (int t = 0; t < CPL_NULL_MODEL_PAIRINGS; t++)
                squares += (erc[a][t] - mean) * (erc[a][t] - mean) / CPL_NULL_MODEL_PAIRINGS;
            assert_near(got.erc_mean[a], mean, slack * DBL_EPSILON * 4);
            assert_near(got.erc_sd[a], sqrt(squares), 1e-12);
        }
    }
}

/* 100 pairings of 3 are drawn. Each of the 6 comes 16.7 times on average, and the chance that one
 * of them stays outside 2 .. 40 is below 1e-5. Other seeds, layers and pairings draw others. */
TEST(test_pairings_are_uniform_and_keyed)
{
    int seen[27] = {0}, kinds = 0;
    int32_t p[3];
    for (uint64_t t = 0; t < CPL_NULL_MODEL_PAIRINGS; t++) {
        plain_pairing(p, 3, 1, 0, t);
        seen[9 * p[0] + 3 * p[1] + p[2]]++;
    }
    for (int k = 0; k < 27; k++) {
        kinds += seen[k] > 0;
        assert_true(seen[k] == 0 || (seen[k] >= 2 && seen[k] <= 40));
    }
    assert_int_equal(kinds, 6);

    float M[64];
    double norms[8] = {1, 1, 1, 1, 1, 1, 1, 1}, one = 1;
    static const struct {
        uint64_t seed;
        int64_t layer;
    } other[] = {{2, 0}, {1, 1}, {1, 65536}, {1, INT64_MAX}, {1, -1}, {1 + (1ull << 40), 0}};
    cpl_null_model first, again;
    draw_uniform(M, 64, 77, 0, 1);
    assert_ok(cpl_null_model_of(&first, NULL, M, norms, norms, 8, &one, 1, 1, 0));
    assert_ok(cpl_null_model_of(&again, NULL, M, norms, norms, 8, &one, 1, 1, 0));
    assert_memory_equal(&first, &again, sizeof first);
    for (size_t k = 0; k < sizeof other / sizeof other[0]; k++) {
        assert_ok(cpl_null_model_of(&again, NULL, M, norms, norms, 8, &one, 1, other[k].seed,
                                    other[k].layer));
        assert_true(again.erc_mean[0] != first.erc_mean[0]);
        assert_true(again.z == first.z);
    }
}

/* ERC of a pairing is itself a sum over i of numbers c[i, p(i)], so its mean over all n! pairings
 * is sum_ij c_ij / n: the mean of 100 lies within 5 of its standard errors (5.7e-7 by chance). */
TEST(test_mean_erc_of_all_pairings)
{
    enum { N = 24 };
    float M[N * N];
    double norms[N];
    cpl_null_model got;
    draw_uniform(M, N * N, 31, 0, 1);
    for (int i = 0; i < N; i++) norms[i] = 1;
    assert_ok(cpl_null_model_of(&got, NULL, M, norms, norms, N, alphas, N_ALPHAS, 3, 0));
    for (int a = 0; a < N_ALPHAS; a++) {
        double sum = 0;
        for (int i = 0; i < N; i++)
            for (int k = 0; k < N; k++)
                for (int l = 0; l < N; l++) {
                    if (l != k) sum += fmax(M[i * N + l] - alphas[a] * M[i * N + k], 0);
                    if (l != i) sum += fmax(M[l * N + k] - alphas[a] * M[i * N + k], 0);
                }
        double error = got.erc_sd[a] / sqrt(CPL_NULL_MODEL_PAIRINGS);
        assert_near(got.erc_mean[a], sum / N / (N * N), 5 * error + 1e-12);
    }
}

/* ---- the best pairing ---- */

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

/* For 40 rows, no exchange of two and no rotation of three increases the sum. */
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

/* The sum over rows of u_i + v_j for any prices with u_i + v_j >= score_ij bounds every pairing. A
 * score built from such prices, with equality only on a planted pairing, has that pairing as its
 * best. */
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
    for (int i = 0; i < N; i++) /* every pairing has an equal sum, but for rounding */
        for (int j = 0; j < N; j++) score[i * N + j] = part[i] + 0.1 * part[N + j];
    assert_ok(cpl_null_model_assign(p, score, N));
    for (int i = 0; i < N; i++) assert_int_equal(p[i], i);
    score[3 * N + 8] += 1e-6; /* the identity is no longer among the best */
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

/* ---- failure ---- */

/* Callers refuse these numbers. Here the functions must neither hang nor leave their arrays. */
TEST(test_numbers_that_are_none)
{
    static const float odd[] = {NAN, INFINITY, 0, -1, FLT_MAX, 0x1p-149f};
    cpl_rng_key key          = {.seed = 6, .stream = CPL_STREAM_TEST};
    double norms[9]          = {1, NAN, INFINITY, 0, 1, 1, 1, 1, 1};
    float M[81];
    cpl_null_model chance;
    cpl_null_model_ratios r;
    for (uint64_t turn = 0; turn < 100; turn++) {
        for (uint64_t k = 0; k < 81; k++) M[k] = odd[cpl_rng_u32(&key, 81 * turn + k) % 6];
        assert_ok(cpl_null_model_of(&chance, NULL, M, norms, norms, 9, alphas, N_ALPHAS, turn, 0));
        assert_ok(cpl_null_model_ratios_of(&r, M, 9));
        assert_in_range(r.most_row, 0, 8);
        assert_in_range(r.most_column, 0, 8);
        assert_true(chance.assignment_accuracy >= 0 && chance.assignment_accuracy <= 1);
    }
}

TEST(test_no_memory)
{
    float M[25];
    double norms[5] = {1, 1, 1, 1, 1}, score[25];
    int32_t pairing[5];
    cpl_null_model chance;
    cpl_null_model_ratios ratios;
    draw_uniform(M, 25, 1, 0, 1);
    for (int k = 0; k < 25; k++) score[k] = M[k];
    scarce s = {0};
    while (scarce_begin(&s)) {
        scarce_end(&s,
                   cpl_null_model_of(&chance, NULL, M, norms, norms, 5, alphas, N_ALPHAS, 1, 0));
        if (!s.is_done) assert_non_null(strstr(cpl_last_error(), "out of memory"));
    }
    assert_int_equal(s.nth, 7);
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "out of memory", cpl_null_model_assign(pairing, score, 5));
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "out of memory", cpl_null_model_ratios_of(&ratios, M, 5));
    cpl_alloc_fail_at(0);
}
