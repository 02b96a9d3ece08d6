/* test_null_model_weights.c - the figures of random weights, and of planted weights. */
#include <float.h>

#include "inspect/null_model_case.h"

static void draw_normal(float *x, int64_t count, uint64_t seed, uint64_t step)
{
    cpl_rng_key key = {.seed = seed, .step = step, .stream = CPL_STREAM_TEST};
    for (int64_t k = 0; k < count; k++) x[k] = cpl_rng_normal(&key, (uint64_t)k);
}

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

/* Measures M[i,j] = |R_i . W_g^j| and the norms. */
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

/* Draws independent normal numbers, every row and every expert with its own scale from 1/4 to 4. */
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

/* Adds `strength` times its router row to every expert's rows, in units of their root mean
 * square. */
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

TEST(test_planted_pairing_is_found)
{
    static weights w, shuffled;
    enum { N = 64, ROW = 8 * MOST_D };
    int32_t place[N], p[N];
    double kappa[N * N];
    draw_weights(&w, N, MOST_D, 8, 1);
    couple(&w, 0.7);
    measure(&w);
    cpl_null_model own = chance_of(&w, 3);
    assert_near(own.assignment_accuracy, 1, 0);
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
    assert_near(lost.assignment_accuracy, stayed / (double)N, DBL_EPSILON);
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
    assert_near(b->assignment_accuracy, a->assignment_accuracy, 0);
}

/* Powers of two change no bit. Other factors round the weights and M anew. */
TEST(test_scales_of_weights_do_not_matter)
{
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

/* Draws 1,000 models without coupling, with rows and experts of very different norms. z above the
 * 95 % point of the normal distribution: for 1,000 draws at 5 % the binomial distribution has 99.9
 * % in 29 .. 74. By symmetry an optimal pairing is any of the n! with equal chance, so its fixed
 * points have mean 1 and variance 1. Rows whose largest kappa is their own have mean 1 too. Their
 * spread is taken from the draws. */
TEST(test_rate_of_false_alarms)
{
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
        fixed += N * c.assignment_accuracy / SEEDS;
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
