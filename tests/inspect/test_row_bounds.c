/* test_row_bounds.c - bounds of a sample: they hold whatever M lies within the intervals of its
 * entries, and these hold all together. */
#include "inspect/row_sample_case.h"

static double uniform(uint64_t seed, int64_t i)
{
    cpl_rng_key key = {.seed = seed, .step = 9, .stream = CPL_STREAM_TEST};
    return (double)cpl_rng_uniform(&key, (uint64_t)i);
}

/* A matrix between low and high, at their ends more often than not. */
static void pick(double *out, const double *low, const double *high, int count, uint64_t seed)
{
    for (int k = 0; k < count; k++) {
        const double u = 2 * uniform(seed, k) - 0.5;
        out[k]         = low[k] + fmin(fmax(u, 0), 1) * (fmin(high[k], 1e6) - low[k]);
    }
}

static double share_of(const float *M, int n, bool row)
{
    double count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            count += i != j && M[i * n + j] >= M[row ? i * n + i : j * n + j];
    return count / (n * (n - 1));
}

static void check_coupling(const cpl_row_bounds *b, const float *M, int n)
{
    static const double alphas[] = {0.5, 1};
    cpl_null_model_ratios ratios;
    double diagonal = 0;
    for (int i = 0; i < n; i++) diagonal += (double)M[i * n + i] / n;
    assert_ok(cpl_null_model_ratios_of(&ratios, M, n));
    for (int a = 0; a < 2; a++) {
        const double erc = cpl_null_model_erc(M, n, alphas[a]);
        assert_true(rows_holds(b->erc[a], erc));
        assert_true(rows_holds(b->erc_relative[a], erc / diagonal));
    }
    assert_true(rows_holds(b->ratio_50, ratios.q50) && rows_holds(b->ratio_90, ratios.q90));
    assert_true(rows_holds(b->ratio_99, ratios.q99) && rows_holds(b->alpha_min, ratios.most));
    assert_true(rows_holds(b->violated, ratios.violated));
    assert_true(rows_holds(b->active_rows, share_of(M, n, true)));
    assert_true(rows_holds(b->active_columns, share_of(M, n, false)));
}

static void check_kappa(const cpl_row_bounds *b, const double *kappa, int n)
{
    int32_t pairing[ROWS_MOST_N];
    double rows = 0, columns = 0, own = 0;
    assert_ok(cpl_null_model_assign(pairing, kappa, n));
    for (int i = 0; i < n; i++) {
        bool row = true, column = true;
        for (int j = 0; j < n; j++) {
            row    = row && kappa[i * n + j] <= kappa[i * n + i];
            column = column && kappa[j * n + i] <= kappa[i * n + i];
        }
        rows += row;
        columns += column;
        own += pairing[i] == i;
    }
    assert_true(rows_holds(b->rows_own, rows / n) && rows_holds(b->columns_own, columns / n));
    assert_true(rows_holds(b->assigned, own / n));
}

TEST(bounds_hold_within_the_intervals)
{
    static const double own[] = {0, 1, 3}, shares[] = {0.03, 0.1, 0.5};
    static const double alphas[] = {0.5, 1};
    double low[2][ROWS_MOST_N * ROWS_MOST_N], high[2][ROWS_MOST_N * ROWS_MOST_N];
    double x[ROWS_MOST_N * ROWS_MOST_N];
    float M[ROWS_MOST_N * ROWS_MOST_N];
    for (int t = 0; t < 9; t++) {
        rows_case c             = rows_random(6, 16, 1024, own[t % 3], (uint64_t)t + 1);
        const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, shares[t / 3]);
        cpl_row_sums s          = rows_draw(&c, &plan, 1);
        cpl_row_bounds b;
        assert_ok(cpl_row_sums_bound(&b, &s, c.row_norm, alphas, 2));
        for (int k = 0; k < 2; k++) cpl_row_sums_entries(low[k], high[k], &s, c.row_norm, k);
        for (uint64_t seed = 0; seed < 200; seed++) {
            pick(x, low[0], high[0], 36, seed);
            for (int k = 0; k < 36; k++) M[k] = (float)x[k];
            check_coupling(&b, M, 6);
            pick(x, low[1], high[1], 36, seed);
            check_kappa(&b, x, 6);
        }
        rows_free_sums(&s);
        rows_free(&c);
    }
}

/* At half of the rows of strongly coupled gates the bounds say what is so; at few rows they are wide,
 * and widen as rows get fewer. */
TEST(bounds_say_something)
{
    const double one        = 1;
    rows_case c             = rows_random(6, 16, 1024, 5, 3);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.5), few = cpl_row_plan_of(c.D, 1, 0.02);
    cpl_row_sums s = rows_draw(&c, &plan, 1), t = rows_draw(&c, &few, 1);
    cpl_row_bounds b, wide;
    assert_ok(cpl_row_sums_bound(&b, &s, c.row_norm, &one, 1));
    assert_ok(cpl_row_sums_bound(&wide, &t, c.row_norm, &one, 1));
    assert_true(b.rows_own.low == 1 && b.columns_own.low == 1 && b.assigned.low == 1);
    assert_true(b.violated.high == 0 && b.erc[0].high == 0 && b.alpha_min.high < 1);
    assert_true(wide.alpha_min.high > 1.5 * b.alpha_min.high);
    assert_true(wide.alpha_min.low < b.alpha_min.low);
    rows_free_sums(&s);
    rows_free_sums(&t);
    rows_free(&c);
}

/* All entries of M, and of kappa, lie within their intervals in 95 of 100 layers: 4 deviations. */
TEST(entries_hold_together)
{
    enum { LAYERS = 300 };
    double low[ROWS_MOST_N * ROWS_MOST_N], high[ROWS_MOST_N * ROWS_MOST_N];
    int held[2] = {0}, above = 0;
    for (int r = 0; r < LAYERS; r++) {
        rows_case c             = rows_random(8, 16, 512, r % 2 ? 0 : 1, (uint64_t)r + 1);
        const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.1);
        const rows_truth t      = rows_truth_of(&c);
        cpl_row_sums s          = rows_draw(&c, &plan, (uint64_t)r);
        for (int scale_free = 0; scale_free < 2; scale_free++) {
            bool all = true;
            cpl_row_sums_entries(low, high, &s, c.row_norm, scale_free);
            for (int k = 0; k < 64; k++) {
                const double is = scale_free ? t.kappa[k] : (double)t.M[k];
                all             = all && rows_holds((cpl_interval){NAN, low[k], high[k]}, is);
                above += is > 0.8 * high[k];
            }
            held[scale_free] += all;
        }
        rows_free_sums(&s);
        rows_free(&c);
    }
    for (int k = 0; k < 2; k++)
        assert_true(held[k] >= 0.95 * LAYERS - 4 * sqrt(0.95 * 0.05 * LAYERS));
    assert_true(held[0] + held[1] < 2 * LAYERS); /* and are not far too wide */
    assert_true(above > 0);
}

TEST(nothing_read)
{
    const double one        = 1;
    rows_case c             = rows_random(3, 12, 100, 1, 2);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
    cpl_row_bounds b;
    double low[9], high[9];
    memset(c.squares, 0, sizeof(double) * (size_t)(3 * 100 * 3));
    memset(c.norms, 0, sizeof(double) * (size_t)(3 * 100));
    c.row_norm[1]  = 0;
    cpl_row_sums s = rows_draw(&c, &plan, 1);
    cpl_row_sums_entries(low, high, &s, c.row_norm, false);
    for (int k = 0; k < 9; k++)
        assert_true(low[k] == 0 && (k / 3 == 1 ? high[k] == 0 : isinf(high[k])));
    cpl_row_sums_entries(low, high, &s, c.row_norm, true);
    for (int k = 0; k < 9; k++) assert_true(low[k] == 0 && high[k] == (k / 3 == 1 ? 0 : 1));
    assert_ok(cpl_row_sums_bound(&b, &s, c.row_norm, &one, 1));
    assert_true(isinf(b.alpha_min.high) && isinf(b.erc[0].high) && b.alpha_min.low == 0);
    assert_true(b.violated.low == 0 && b.rows_own.high == 1);
    rows_free_sums(&s);
    rows_free(&c);
}
