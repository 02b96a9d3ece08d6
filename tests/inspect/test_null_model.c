/* test_null_model.c - figures of coupling matrices against sums written plainly in double, against all
 * n! pairings of small ones, and against what chance gives on random weights. */
#include "inspect/null_model.h"

#include <float.h>
#include <limits.h>
#include <math.h>

#include "base/arena.h"
#include "base/rng.h"
#include "check.h"

enum { MOST_N = 64, MOST_D = 96, SMALL = 6 };

static const double slack = 64; /* rounding errors of a sum, in units of eps times its terms */

static const double alphas[] = {0, 0.4, 1, 1.3, 2, 3, 5};
enum { N_ALPHAS = sizeof alphas / sizeof alphas[0] };

static void draw_uniform(float *x, int64_t count, uint64_t seed, double low, double high)
{
    cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TEST};
    for (int64_t k = 0; k < count; k++)
        x[k] = (float)(low + (high - low) * cpl_rng_uniform(&key, (uint64_t)k));
}

static void draw_normal(float *x, int64_t count, uint64_t seed, uint64_t step)
{
    cpl_rng_key key = {.seed = seed, .step = step, .stream = CPL_STREAM_TEST};
    for (int64_t k = 0; k < count; k++) x[k] = cpl_rng_normal(&key, (uint64_t)k);
}

/* ---- oracles ---- */

/* docs/method.md 3.3, as it stands there. */
static double plain_erc(const float *M, int64_t n, double alpha)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            sum += fmax((double)M[i * n + j] - alpha * M[i * n + i], 0);
            sum += fmax((double)M[j * n + i] - alpha * M[i * n + i], 0);
        }
    return sum / (double)(n * n);
}

static void plain_kappa(double *kappa, const float *M, const double *row, const double *gate,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            kappa[i * n + j] = row[i] == 0 || gate[j] == 0 ? 0 : M[i * n + j] / row[i] / gate[j];
}

/* What all n! pairings give of the sum over score[i, p(i)]. */
typedef struct census {
    double sum, squares, most; /* of the sums */
    int64_t count;
    int32_t best[SMALL];
} census;

static void visit(census *c, const double *score, int64_t n, int32_t *pairing, int64_t fixed)
{
    if (fixed < n) {
        for (int64_t k = fixed; k < n; k++) {
            int32_t first  = pairing[fixed];
            pairing[fixed] = pairing[k], pairing[k] = first;
            visit(c, score, n, pairing, fixed + 1);
            pairing[k] = pairing[fixed], pairing[fixed] = first;
        }
        return;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += score[i * n + pairing[i]];
    c->sum += sum;
    c->squares += sum * sum;
    c->count++;
    if (sum <= c->most) return;
    c->most = sum;
    memcpy(c->best, pairing, (size_t)n * sizeof *pairing);
}

static census take_census(const double *score, int64_t n)
{
    census c               = {.most = -INFINITY};
    int32_t pairing[SMALL] = {0, 1, 2, 3, 4, 5};
    visit(&c, score, n, pairing, 0);
    return c;
}

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

/* ---- weights ---- */

typedef struct weights {
    int64_t n, d, D;
    float R[MOST_N * MOST_D];
    float W[MOST_N * 12 * MOST_D]; /* [n,D,d] */
    float M[MOST_N * MOST_N];
    double row_norm[MOST_N], gate_norm[MOST_N];
} weights;

static double norm_of(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++) sum += (double)x[k] * x[k];
    return sqrt(sum);
}

/* M[i,j] = |R_i . W_g^j| and the norms. */
static void measure(weights *w)
{
    for (int64_t i = 0; i < w->n; i++) {
        w->row_norm[i]  = norm_of(w->R + i * w->d, w->d);
        w->gate_norm[i] = norm_of(w->W + i * w->D * w->d, w->D * w->d);
        for (int64_t j = 0; j < w->n; j++) {
            double squares = 0;
            for (int64_t c = 0; c < w->D; c++) {
                const float *gate = w->W + (j * w->D + c) * w->d;
                double dot        = 0;
                for (int64_t a = 0; a < w->d; a++) dot += (double)w->R[i * w->d + a] * gate[a];
                squares += dot * dot;
            }
            w->M[i * w->n + j] = (float)sqrt(squares);
        }
    }
}

static void scale(float *x, int64_t count, double factor)
{
    for (int64_t k = 0; k < count; k++) x[k] = (float)(x[k] * factor);
}

/* Independent normal numbers, every row and every expert at a scale of its own from 1/4 to 4. */
static void draw_weights(weights *w, int64_t n, int64_t d, int64_t D, uint64_t seed)
{
    float size[2 * MOST_N];
    w->n = n, w->d = d, w->D = D;
    draw_normal(w->R, n * d, seed, 1);
    draw_normal(w->W, n * D * d, seed, 2);
    draw_uniform(size, 2 * n, seed, -2, 2);
    for (int64_t i = 0; i < n; i++) {
        scale(w->R + i * d, d, exp2(size[i]));
        scale(w->W + i * D * d, D * d, exp2(size[n + i]));
    }
}

/* Turns the rows of every expert towards its own router row: in units of their root mean square. */
static void couple(weights *w, double strength)
{
    int64_t d = w->d, D = w->D;
    for (int64_t j = 0; j < w->n; j++) {
        double size = strength * norm_of(w->W + j * D * d, D * d) / sqrt((double)D);
        double unit = size / norm_of(w->R + j * d, d);
        for (int64_t k = 0; k < D * d; k++)
            w->W[j * D * d + k] += (float)(unit * w->R[j * d + k % d]);
    }
}

static cpl_null_model chance_of(const weights *w, int n_alphas)
{
    cpl_null_model chance;
    assert_ok(cpl_null_model_of(&chance, NULL, w->M, w->row_norm, w->gate_norm, w->n, alphas,
                                n_alphas, 11, 2));
    return chance;
}

/* ---- ERC ---- */

static void test_erc_is_the_equation(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 17, 64};
    static float M[MOST_N * MOST_N];
    for (uint64_t s = 0; s < 5; s++) {
        int64_t n = sizes[s];
        draw_uniform(M, n * n, s, 0, 3);
        for (int a = 0; a < N_ALPHAS; a++) {
            double want = plain_erc(M, n, alphas[a]);
            assert_near(cpl_null_model_erc(M, n, alphas[a]), want, slack * DBL_EPSILON * 6);
        }
    }
    const float by_hand[] = {1, 3, 2.5f, 2}; /* row hinges 2 and 0.5, column hinges 1 and 1.5 */
    assert_near(cpl_null_model_erc(by_hand, 2, 1), 5.0 / 4, DBL_EPSILON);
}

static void test_erc_falls_and_is_convex_in_alpha(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    static float M[MOST_N * MOST_N];
    for (uint64_t seed = 0; seed < 8; seed++) {
        int64_t n = 2 + 7 * (int64_t)seed;
        double erc[STEPS];
        draw_uniform(M, n * n, 100 + seed, 0.1, 1);
        for (int k = 0; k < STEPS; k++) erc[k] = cpl_null_model_erc(M, n, k / 6.0);
        double tolerance = slack * DBL_EPSILON * erc[0];
        assert_true(erc[0] > 0);
        for (int k = 1; k < STEPS; k++)
            assert_true(erc[k] < erc[k - 1] || (erc[k] == 0 && erc[k - 1] == 0));
        for (int k = 1; k < STEPS - 1; k++)
            assert_true(erc[k - 1] + erc[k + 1] - 2 * erc[k] >= -tolerance);
    }
}

static void test_alpha_min_is_where_erc_ends(void **state)
{
    (void)state;
    static float M[20 * 20];
    for (uint64_t seed = 0; seed < 200; seed++) {
        cpl_null_model_ratios ratios;
        draw_uniform(M, 400, 200 + seed, 0.05, 1);
        assert_ok(cpl_null_model_ratios_of(&ratios, M, 20));
        double most = 0;
        for (int i = 0; i < 20; i++)
            for (int j = 0; j < 20; j++)
                if (i != j)
                    most = fmax(most, fmax((double)M[i * 20 + j] / M[i * 21],
                                           (double)M[i * 20 + j] / M[j * 21]));
        assert_near(ratios.most, most, DBL_EPSILON * most);
        assert_true(cpl_null_model_erc(M, 20, ratios.most) == 0);
        assert_true(cpl_null_model_erc(M, 20, ratios.most * (1 - 1e-12)) > 0);
    }
}

/* ---- ratios ---- */

static void test_ratios_by_hand(void **state)
{
    (void)state;
    /* Ratios: (0,1) 3, (0,2) 1, (1,0) 1, (1,2) 0.5, (2,0) 2, (2,1) 0.25: sorted
     * 0.25 0.5 1 1 2 3, at places 2.5, 4.5 and 4.95. */
    const float M[] = {2, 3, 2, 1, 1, 0.5f, 4, 0.5f, 2};
    cpl_null_model_ratios r;
    assert_ok(cpl_null_model_ratios_of(&r, M, 3));
    assert_near(r.q50, 1, DBL_EPSILON);
    assert_near(r.q90, 2.5, 4 * DBL_EPSILON);
    assert_near(r.q99, 2.95, 8 * DBL_EPSILON);
    assert_near(r.most, 3, 4 * DBL_EPSILON);
    assert_near(r.violated, 2.0 / 6, DBL_EPSILON);
    assert_int_equal(r.most_row, 0);
    assert_int_equal(r.most_column, 1);
}

/* numpy.quantile of the same ratios, k / 64 for k = 1 .. 90 in mixed order, diagonal 1: the place
 * q 89 lies between k = 1 + floor(q 89) and the next. */
static void test_quantiles_as_numpys(void **state)
{
    (void)state;
    float M[100];
    cpl_null_model_ratios r;
    for (int i = 0, k = 0; i < 10; i++)
        for (int j = 0; j < 10; j++) M[i * 10 + j] = i == j ? 1 : (float)(1 + 37 * k++ % 90) / 64;
    assert_ok(cpl_null_model_ratios_of(&r, M, 10));
    assert_near(r.q50, 45.5 / 64, 4 * DBL_EPSILON);
    assert_near(r.q90, 81.1 / 64, 4 * DBL_EPSILON);
    assert_near(r.q99, 89.11 / 64, 4 * DBL_EPSILON);
    assert_near(r.most, 90.0 / 64, DBL_EPSILON);
    assert_near(r.violated, 26.0 / 90, DBL_EPSILON);
}

static void test_ratios_of_zero_diagonals(void **state)
{
    (void)state;
    cpl_null_model_ratios r;
    const float one_dead[] = {1, 0.5f, 0.5f, 0.5f, 1, 0.25f, 0, 0.5f, 0}; /* M_22 = 0 */
    assert_ok(cpl_null_model_ratios_of(&r, one_dead, 3));
    /* (0,2), (1,2) and (2,1) are infinite, (2,0) is 0/0 and 0: sorted 0 0.5 0.5 inf inf inf. */
    assert_true(isinf(r.q50) && isinf(r.q90) && isinf(r.q99) && isinf(r.most));
    assert_near(r.violated, 0.5, 0);
    assert_int_equal(r.most_row, 0);
    assert_int_equal(r.most_column, 2);

    const float dead_column[] = {0, 1, 1, 1, 0, 1, 1, 1,
                                 0, 0, 1, 1, 1, 0, 1, 1}; /* 4 x 4, M_00 = 0 */
    assert_ok(cpl_null_model_ratios_of(&r, dead_column, 4));
    assert_true(isinf(r.most) && !isnan(r.q50));

    const float zero[9] = {0};
    assert_ok(cpl_null_model_ratios_of(&r, zero, 3));
    assert_true(r.q50 == 0 && r.q99 == 0 && r.most == 0 && r.violated == 0);
    assert_int_equal(r.most_column, 1);
    assert_ok(cpl_null_model_ratios_of(&r, zero, 1));
    assert_true(r.q50 == 0 && r.q99 == 0 && r.most == 0 && r.violated == 0);
}

/* One infinite ratio of the 30: above the place of 90 %, a neighbour of that of 99 %. */
static void test_infinite_neighbours_count_by_weight(void **state)
{
    (void)state;
    float M[36];
    cpl_null_model_ratios r;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) M[i * 6 + j] = i == j ? 1 : 0.5f;
    for (int j = 0; j < 6; j++) M[j] = M[j * 6] = 0;
    M[3] = 1; /* M_00 = 0 < M_03 */
    assert_ok(cpl_null_model_ratios_of(&r, M, 6));
    assert_near(r.q50, 0.5, DBL_EPSILON);
    assert_near(r.q90, 0.5, DBL_EPSILON);
    assert_true(isinf(r.q99) && isinf(r.most));
    const float pair[] = {0, 1, 0, 1}; /* 0 and infinity: every place has weight above */
    assert_ok(cpl_null_model_ratios_of(&r, pair, 2));
    assert_true(isinf(r.q50) && isinf(r.most));
    assert_near(r.violated, 0.5, 0);
}

/* ---- assignment ---- */

static void test_assignment_is_the_best_of_all(void **state)
{
    (void)state;
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
static void test_assignment_of_many(void **state)
{
    (void)state;
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
static void test_assignment_reaches_its_bound(void **state)
{
    (void)state;
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

static void test_equal_pairings_give_the_identity(void **state)
{
    (void)state;
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

static void test_assignment_ends_on_any_numbers(void **state)
{
    (void)state;
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

static void test_moments_are_those_of_all_pairings(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        int64_t n = 1 + (int64_t)(seed % SMALL);
        float M[SMALL * SMALL], norms[2 * SMALL];
        double row[SMALL], gate[SMALL];
        draw_uniform(M, n * n, 500 + seed, 0.5, 2);
        draw_uniform(norms, 2 * n, 600 + seed, 0.5, 4);
        for (int64_t i = 0; i < n; i++) row[i] = norms[i], gate[i] = norms[n + i];
        check_small_kappa(M, row, gate, n);
        row[n / 2] = 0; /* a zero row and its numbers, then a zero expert too */
        for (int64_t j = 0; j < n; j++) M[n / 2 * n + j] = 0;
        check_small_kappa(M, row, gate, n);
        gate[0] = 0;
        for (int64_t i = 0; i < n; i++) M[i * n] = 0;
        check_small_kappa(M, row, gate, n);
    }
}

/* Two pairings: the own one is one deviation above or below their mean. */
static void test_two_experts(void **state)
{
    (void)state;
    const float M[]      = {3, 1, 2, 5};
    const double norms[] = {1, 1};
    cpl_null_model got;
    assert_ok(cpl_null_model_of(&got, NULL, M, norms, norms, 2, alphas, N_ALPHAS, 1, 0));
    assert_near(got.expected, 11.0 / 4, 4 * DBL_EPSILON);
    assert_near(got.deviation, 1.25, 4 * DBL_EPSILON);
    assert_near(got.z, 1, 8 * DBL_EPSILON);
    assert_near(got.assignment_own, 1, 0);
    const float swapped[] = {1, 3, 5, 2};
    assert_ok(cpl_null_model_of(&got, NULL, swapped, norms, norms, 2, alphas, N_ALPHAS, 1, 0));
    assert_near(got.z, -1, 8 * DBL_EPSILON);
    assert_near(got.assignment_own, 0, 0);
    assert_near(got.kappa_row_top1, 0, 0);
}

static void test_where_every_pairing_is_the_same(void **state)
{
    (void)state;
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
    assert_near(got.assignment_own, 1, 0);
    for (int a = 0; a < N_ALPHAS; a++) {
        assert_near(got.erc_sd[a], 0, slack * DBL_EPSILON);
        assert_near(got.erc_mean[a], plain_erc(M, N, alphas[a]), slack * DBL_EPSILON * N);
    }

    memset(M, 0, sizeof M); /* nothing at all */
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
    assert_true(got.deviation == 0 && isnan(got.z) && got.assignment_own == 1);
    assert_true(got.erc_mean[0] == 0 && got.erc_sd[0] == 0);
}

/* ---- random pairings ---- */

/* The shuffle that null_model.h describes. */
static void plain_pairing(int32_t *p, int64_t n, uint64_t seed, int64_t layer, uint64_t turn)
{
    cpl_rng_key key = {seed, turn, (uint32_t)layer, CPL_STREAM_PAIRING};
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)floor((double)cpl_rng_u32(&key, (uint64_t)i) * (i + 1) / 0x1p32);
        int32_t t = p[i];
        p[i] = p[j], p[j] = t;
    }
}

static void test_erc_of_the_same_pairings(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 5, 33};
    static float M[33 * 33], paired[33 * 33];
    double norms[33], erc[N_ALPHAS][CPL_CHANCE_PAIRINGS];
    int32_t p[33];
    for (int i = 0; i < 33; i++) norms[i] = 1;
    for (uint64_t s = 0; s < 4; s++) {
        int64_t n = sizes[s];
        cpl_null_model got;
        draw_uniform(M, n * n, 700 + s, 0, 2);
        for (int64_t j = 0; s > 1 && j < n; j++) M[n + j] = M[j * n + 2] = 0;
        assert_ok(cpl_null_model_of(&got, NULL, M, norms, norms, n, alphas, N_ALPHAS, 21 + s, 6));
        for (uint64_t t = 0; t < CPL_CHANCE_PAIRINGS; t++) {
            plain_pairing(p, n, 21 + s, 6, t);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < n; j++) paired[i * n + j] = M[i * n + p[j]];
            for (int a = 0; a < N_ALPHAS; a++) erc[a][t] = plain_erc(paired, n, alphas[a]);
        }
        for (int a = 0; a < N_ALPHAS; a++) {
            double mean = 0, squares = 0;
            for (int t = 0; t < CPL_CHANCE_PAIRINGS; t++) mean += erc[a][t] / CPL_CHANCE_PAIRINGS;
            for (int t = 0; t < CPL_CHANCE_PAIRINGS; t++)
                squares += (erc[a][t] - mean) * (erc[a][t] - mean) / CPL_CHANCE_PAIRINGS;
            assert_near(got.erc_mean[a], mean, slack * DBL_EPSILON * 4);
            assert_near(got.erc_sd[a], sqrt(squares), 1e-12);
        }
    }
}

/* 100 drawn pairings of 3: each of the 6 comes 16.7 times on average, and the chance that one stays
 * outside 2 .. 40 is below 1e-5. Other seeds, layers and pairings are other draws. */
static void test_pairings_are_uniform_and_keyed(void **state)
{
    (void)state;
    int seen[27] = {0}, kinds = 0;
    int32_t p[3];
    for (uint64_t t = 0; t < CPL_CHANCE_PAIRINGS; t++) {
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

/* ERC of a pairing is itself a sum over i of numbers c[i, p(i)], so its mean over all n! pairings is
 * sum_ij c_ij / n: the mean of 100 lies within 5 of its standard errors (5.7e-7 by chance). */
static void test_mean_erc_of_all_pairings(void **state)
{
    (void)state;
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
        double error = got.erc_sd[a] / sqrt(CPL_CHANCE_PAIRINGS);
        assert_near(got.erc_mean[a], sum / N / (N * N), 5 * error + 1e-12);
    }
}

/* ---- weights ---- */

static void test_planted_pairing_is_found(void **state)
{
    (void)state;
    static weights w, shuffled;
    enum { N = 64, ROW = 8 * MOST_D };
    int32_t place[N], p[N];
    double kappa[N * N];
    draw_weights(&w, N, MOST_D, 8, 1);
    couple(&w, 0.7);
    measure(&w);
    cpl_null_model own = chance_of(&w, 3);
    assert_near(own.assignment_own, 1, 0);
    assert_near(own.kappa_row_top1, 1, 0);
    assert_near(own.kappa_column_top1, 1, 0);
    assert_true(own.z > 20 && own.kappa_diagonal > 2 * own.kappa_off_diagonal);
    assert_true(cpl_null_model_erc(w.M, N, 1) < own.erc_mean[2] - 5 * own.erc_sd[2]);

    shuffled = w;
    plain_pairing(place, N, 99, 0, 0);
    for (int j = 0; j < N; j++)
        memcpy(shuffled.W + place[j] * ROW, w.W + j * ROW, ROW * sizeof(float));
    measure(&shuffled);
    plain_kappa(kappa, shuffled.M, shuffled.row_norm, shuffled.gate_norm, N);
    assert_ok(cpl_null_model_assign(p, kappa, N));
    assert_memory_equal(p, place, sizeof p);
    cpl_null_model lost = chance_of(&shuffled, 0);
    int stayed          = 0;
    for (int j = 0; j < N; j++) stayed += place[j] == j;
    assert_near(lost.assignment_own, stayed / (double)N, DBL_EPSILON);
    assert_near(lost.kappa_row_top1, stayed / (double)N, DBL_EPSILON);
    assert_true(fabs(lost.z) < 5);
    assert_near(lost.expected, own.expected, 1e-6);
    assert_near(lost.deviation, own.deviation, 1e-6);
}

static void assert_same_kappa(const cpl_null_model *a, const cpl_null_model *b, double tolerance)
{
    assert_near(b->kappa_diagonal, a->kappa_diagonal, tolerance * a->expected);
    assert_near(b->kappa_off_diagonal, a->kappa_off_diagonal, tolerance * a->expected);
    assert_near(b->expected, a->expected, tolerance * a->expected);
    assert_near(b->deviation, a->deviation, tolerance * a->expected);
    assert_near(b->z * a->deviation, a->z * a->deviation, 8 * tolerance * a->expected);
    assert_near(b->kappa_row_top1, a->kappa_row_top1, 0);
    assert_near(b->kappa_column_top1, a->kappa_column_top1, 0);
    assert_near(b->assignment_own, a->assignment_own, 0);
}

/* Powers of two change no bit; other factors round the weights and M anew. */
static void test_scales_of_weights_do_not_matter(void **state)
{
    (void)state;
    static weights w;
    for (uint64_t seed = 0; seed < 10; seed++) {
        draw_weights(&w, 16, 24, 12, seed);
        couple(&w, 0.1 * (double)seed);
        measure(&w);
        cpl_null_model before = chance_of(&w, 0);
        for (int i = 0; i < 16; i++) {
            scale(w.R + i * 24, 24, exp2(i % 5 - 2));
            scale(w.W + i * 288, 288, exp2(3 - i % 7));
        }
        measure(&w);
        cpl_null_model exact = chance_of(&w, 0);
        assert_same_kappa(&before, &exact, 0);
        scale(w.R + 5 * 24, 24, 3.7);
        scale(w.W + 9 * 288, 288, 0.013);
        measure(&w);
        cpl_null_model rounded = chance_of(&w, 0);
        assert_same_kappa(&before, &rounded, 8 * FLT_EPSILON);
    }
}

/* 1,000 models without coupling, of rows and experts of very different norms.
 * z above the 95 % point of the normal distribution: of 1,000 draws at 5 % the binomial distribution
 * puts 99.9 % in 29 .. 74.
 * By symmetry an optimal pairing is any of the n! alike: its fixed points have mean 1 and variance 1.
 * Rows whose largest kappa is their own have mean 1 too; the spread is taken from the draws. */
static void test_rate_of_false_alarms(void **state)
{
    (void)state;
    enum { SEEDS = 1000, N = 16 };
    static weights w;
    int alarms   = 0;
    double fixed = 0, rows = 0, columns = 0, row_squares = 0, column_squares = 0;
    double z = 0, z_squares = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        draw_weights(&w, N, 24, 12, 1000 + seed);
        measure(&w);
        cpl_null_model c = chance_of(&w, 0);
        alarms += c.z > 1.6449;
        z += c.z / SEEDS;
        z_squares += c.z * c.z / SEEDS;
        fixed += N * c.assignment_own / SEEDS;
        rows += N * c.kappa_row_top1 / SEEDS;
        columns += N * c.kappa_column_top1 / SEEDS;
        row_squares += N * c.kappa_row_top1 * N * c.kappa_row_top1 / SEEDS;
        column_squares += N * c.kappa_column_top1 * N * c.kappa_column_top1 / SEEDS;
    }
    assert_in_range(alarms, 29, 74);
    assert_near(z, 0, 3.29 / sqrt(SEEDS));
    assert_near(z_squares, 1, 3.29 * sqrt(2.0 / SEEDS));
    assert_near(fixed, 1, 3.29 / sqrt(SEEDS));
    assert_near(rows, 1, 3.29 * sqrt((row_squares - rows * rows) / SEEDS));
    assert_near(columns, 1, 3.29 * sqrt((column_squares - columns * columns) / SEEDS));
    assert_true(row_squares - rows * rows < 2 && column_squares - columns * columns < 2);
}

/* ---- failure ---- */

/* Whoever calls has refused such numbers; here they only must not hang or stray. */
static void test_numbers_that_are_none(void **state)
{
    (void)state;
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
        assert_true(chance.assignment_own >= 0 && chance.assignment_own <= 1);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    float M[25];
    double norms[5] = {1, 1, 1, 1, 1}, score[25];
    int32_t pairing[5];
    cpl_null_model chance;
    cpl_null_model_ratios ratios;
    draw_uniform(M, 25, 1, 0, 1);
    for (int k = 0; k < 25; k++) score[k] = M[k];
    int failed = 0;
    for (cpl_status status = CPL_ERR_MEMORY; status != CPL_OK; failed++) {
        cpl_alloc_fail_at(failed + 1);
        status = cpl_null_model_of(&chance, NULL, M, norms, norms, 5, alphas, N_ALPHAS, 1, 0);
        cpl_alloc_fail_at(0);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
        assert_non_null(strstr(cpl_last_error(), "out of memory"));
    }
    assert_int_equal(failed, 6);
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "out of memory", cpl_null_model_assign(pairing, score, 5));
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "out of memory", cpl_null_model_ratios_of(&ratios, M, 5));
    cpl_alloc_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_erc_is_the_equation),
        cmocka_unit_test(test_erc_falls_and_is_convex_in_alpha),
        cmocka_unit_test(test_alpha_min_is_where_erc_ends),
        cmocka_unit_test(test_ratios_by_hand),
        cmocka_unit_test(test_quantiles_as_numpys),
        cmocka_unit_test(test_ratios_of_zero_diagonals),
        cmocka_unit_test(test_infinite_neighbours_count_by_weight),
        cmocka_unit_test(test_assignment_is_the_best_of_all),
        cmocka_unit_test(test_assignment_of_many),
        cmocka_unit_test(test_assignment_reaches_its_bound),
        cmocka_unit_test(test_equal_pairings_give_the_identity),
        cmocka_unit_test(test_assignment_ends_on_any_numbers),
        cmocka_unit_test(test_moments_are_those_of_all_pairings),
        cmocka_unit_test(test_two_experts),
        cmocka_unit_test(test_where_every_pairing_is_the_same),
        cmocka_unit_test(test_erc_of_the_same_pairings),
        cmocka_unit_test(test_pairings_are_uniform_and_keyed),
        cmocka_unit_test(test_mean_erc_of_all_pairings),
        cmocka_unit_test(test_planted_pairing_is_found),
        cmocka_unit_test(test_scales_of_weights_do_not_matter),
        cmocka_unit_test(test_rate_of_false_alarms),
        cmocka_unit_test(test_numbers_that_are_none),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
