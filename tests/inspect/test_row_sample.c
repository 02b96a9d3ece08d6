/* test_row_sample.c - which rows a sample has; its estimates and intervals against a jackknife
 * written plainly, against the figures of all rows, and how often they hold. */
#include "inspect/row_sample_case.h"

#include "base/stats/statistics.h"

/* ---- which rows ---- */

static void check_plan(int64_t rows, int64_t aligned, double share)
{
    const cpl_row_plan p = cpl_row_plan_of(rows, aligned, share);
    int64_t next = 0, most = 0, least = INT64_MAX, here;
    for (int64_t b = 0; b < p.n_blocks; b++) {
        assert_int_equal(cpl_row_plan_block(&p, b, &here), next);
        assert_true(here >= 1);
        const int64_t last = next + here - 1;
        if (aligned > 1 && here > 1 && p.unit > 1 && next / aligned != last / aligned)
            assert_true(next % aligned == 0 && ((last + 1) % aligned == 0 || last + 1 == rows));
        if (b + 1 < p.n_blocks) least = here < least ? here : least;
        most = here > most ? here : most;
        next += here;
    }
    assert_int_equal(next, rows);
    assert_int_equal(p.n_read, p.whole ? 1 : CPL_ROW_BLOCKS);
    assert_true(p.whole ? p.n_blocks == 1 : p.n_blocks > p.n_read && most - least <= p.unit);
    const double read   = (double)p.n_read / (double)p.n_blocks,
                 wanted = fmax(share, 16.0 / (double)rows);
    if (p.whole ? wanted < (aligned > 1 ? 0.7 : 0.8) : read < 0.4 * wanted || read > 1.5 * wanted)
        fail_msg("%g of %d rows in groups of %d: %d of %d blocks", share, (int)rows, (int)aligned,
                 (int)p.n_read, (int)p.n_blocks);
    assert_true(p.whole || aligned > 1 || fabs(read - wanted) <= 0.2 * wanted);
}

TEST(blocks_are_all_the_rows)
{
    static const int64_t rows[]  = {1, 2, 3, 7, 16, 17, 40, 128, 768, 1000, 1024, 1536, 14336};
    static const int64_t group[] = {1, 2, 3, 32, 128, 5000};
    static const double shares[] = {1e-6, 0.01, 0.02, 0.1, 0.25, 0.5, 0.75, 0.99};
    for (int r = 0; r < 13; r++)
        for (int g = 0; g < 6; g++)
            for (int s = 0; s < 8; s++) check_plan(rows[r], group[g], shares[s]);
    assert_true(cpl_row_plan_of(1024, 1, 0.99).whole);
    assert_int_equal(cpl_row_plan_of(2048, 128, 0.02).unit, 8);
    assert_int_equal(cpl_row_plan_of(14336, 128, 0.05).unit, 128);
}

/* Every set of 4 of 6 blocks is as probable as any other. */
TEST(every_choice_is_as_probable)
{
    const cpl_row_plan plan = {.rows = 60, .unit = 1, .n_blocks = 6, .n_read = 4};
    enum { DRAWS = 15000 };
    int count[64] = {0};
    double chi    = 0;
    int64_t at[CPL_ROW_BLOCKS], again[CPL_ROW_BLOCKS];
    for (int t = 0; t < DRAWS; t++) {
        int set = 0;
        cpl_row_plan_choose(at, &plan, (uint64_t)t, t % 2, t % 7, t % 11);
        cpl_row_plan_choose(again, &plan, (uint64_t)t, t % 2, t % 7, t % 11);
        assert_memory_equal(at, again, sizeof at);
        for (int k = 0; k < 4; k++) {
            assert_true(at[k] >= (k ? at[k - 1] + 1 : 0) && at[k] < 6);
            set |= 1 << at[k];
        }
        count[set]++;
    }
    for (int s = 0; s < 64; s++)
        if (count[s]) chi += pow(count[s] - DRAWS / 15.0, 2) / (DRAWS / 15.0);
    assert_true(chi < 36.1); /* 14 degrees of freedom: one in a thousand is more */
}

TEST(choices_differ)
{
    const cpl_row_plan plan = cpl_row_plan_of(4096, 1, 0.01);
    int64_t base[CPL_ROW_BLOCKS], other[4][CPL_ROW_BLOCKS];
    cpl_row_plan_choose(base, &plan, 1, 0, 2, 3);
    cpl_row_plan_choose(other[0], &plan, 2, 0, 2, 3);
    cpl_row_plan_choose(other[1], &plan, 1, 1, 2, 3);
    cpl_row_plan_choose(other[2], &plan, 1, 0, 3, 3);
    cpl_row_plan_choose(other[3], &plan, 1, 0, 2, 4);
    for (int k = 0; k < 4; k++) assert_memory_not_equal(base, other[k], sizeof base);
}

/* ---- estimates ---- */

/* kappa of row i of expert j from a set of blocks, a bit for each. */
static double plain_kappa(const cpl_row_sums *s, const rows_case *c, int j, int i, int set)
{
    double square = 0, norm = 0;
    for (int k = 0; k < (int)s->n_read; k++) {
        if (!(set >> k & 1)) continue;
        square += s->squares[(j * s->n_read + k) * s->n + i];
        norm += s->norms[j * s->n_read + k];
    }
    return sqrt(square / norm) / c->row_norm[i];
}

/* Of expert j, the sum of kappa on (off) the diagonal from each set of blocks. */
static void plain_sums(double out[16], const cpl_row_sums *s, const rows_case *c, int j, bool own)
{
    for (int set = 1; set < 16; set++) {
        out[set] = 0;
        for (int i = 0; i < c->n; i++)
            if ((i == j) == own) out[set] += plain_kappa(s, c, j, i, set);
    }
}

/* The mean over the sets of `count` blocks. */
static double mean_of_sets(const double of[16], int count)
{
    double sum = 0;
    int sets   = 0;
    for (int set = 1; set < 16; set++) {
        if ((set & 1) + (set >> 1 & 1) + (set >> 2 & 1) + (set >> 3) != count) continue;
        sum += of[set];
        sets++;
    }
    return sum / sets;
}

/* The mean of kappa on (off) the diagonal, corrected, with its interval, as docs/method.md says of four
 * blocks. */
static cpl_interval plain_mean(const cpl_row_sums *s, const rows_case *c, bool own)
{
    const int n    = c->n;
    const double G = (double)s->n_blocks, f = 4 / G, count = own ? n : n * (n - 1);
    double sum = 0, variance = 0, squares = 0;
    for (int j = 0; j < n; j++) {
        double of[16], v = 0;
        plain_sums(of, s, c, j, own);
        for (int k = 0; k < 4; k++)
            v += (1 - f) * 3 / 4 * pow(of[15 - (1 << k)] - mean_of_sets(of, 3), 2);
        if (own)
            sum += 4 * (1 - 3 / G) * of[15] - 3 * (1 - 4 / G) * mean_of_sets(of, 3);
        else
            sum += 8 * (1 - 3 / G) * (1 - 2 / G) * of[15] -
                   9 * (1 - 4 / G) * (1 - 2 / G) * mean_of_sets(of, 3) +
                   2 * (1 - 4 / G) * (1 - 3 / G) * mean_of_sets(of, 2);
        variance += v;
        squares += v * v;
    }
    const double half =
        cpl_student_quantile(0.975, 3 * variance * variance / squares) * sqrt(variance);
    return (cpl_interval){sum / count, (sum - half) / count, (sum + half) / count};
}

static void check_interval(cpl_interval got, cpl_interval want)
{
    const double size = 1e-7 * (1 + fabs(want.estimate)); /* of M in F32 */
    assert_near(got.estimate, want.estimate, size);
    assert_near(got.low, want.low, size);
    assert_near(got.high, want.high, size);
}

TEST(jackknife_as_written)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        rows_case c             = rows_random(5, 12, 120, 1, seed);
        const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
        cpl_row_sums s          = rows_draw(&c, &plan, seed);
        cpl_row_estimates e;
        assert_int_equal(s.n_read, 4);
        assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
        check_interval(e.kappa_diagonal, plain_mean(&s, &c, true));
        check_interval(e.kappa_off_diagonal, plain_mean(&s, &c, false));
        rows_free_sums(&s);
        rows_free(&c);
    }
}

/* Every block the same: nothing is random, and the figures are those of all rows. */
TEST(equal_blocks_are_exact)
{
    rows_case c = rows_random(7, 12, 80, 0.5, 4);
    for (int j = 0; j < c.n; j++)
        for (int k = 10; k < c.D; k++) {
            c.norms[j * c.D + k] = c.norms[j * c.D + k - 10];
            memcpy(c.squares + (j * c.D + k) * c.n, c.squares + (j * c.D + k - 10) * c.n,
                   (size_t)c.n * sizeof *c.squares);
        }
    const cpl_row_plan plan = {.rows = 80, .unit = 10, .n_blocks = 8, .n_read = 4};
    cpl_row_sums s          = rows_draw(&c, &plan, 1);
    const rows_truth t      = rows_truth_of(&c);
    cpl_row_estimates e;
    assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
    const cpl_interval got[] = {e.kappa_diagonal, e.kappa_off_diagonal, e.m_diagonal,
                                e.m_off_diagonal, e.gate_norm,          e.z};
    const double want[]      = {
             t.chance.kappa_diagonal, t.chance.kappa_off_diagonal, t.m[0], t.m[1], t.norm, t.chance.z};
    for (int k = 0; k < 6; k++)
        check_interval(
            (cpl_interval){got[k].estimate / want[k], got[k].low / want[k], got[k].high / want[k]},
            (cpl_interval){1, 1, 1});
    rows_free_sums(&s);
    rows_free(&c);
}

/* The mean over many draws is nearer to the figure than that of the plain quotients. */
TEST(the_bias_is_taken_out)
{
    enum { DRAWS = 4000 };
    rows_case c             = rows_random(6, 12, 200, 0, 9);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.08);
    const rows_truth t      = rows_truth_of(&c);
    double corrected = 0, plain = 0;
    for (int r = 0; r < DRAWS; r++) {
        cpl_row_sums s = rows_draw(&c, &plan, (uint64_t)r);
        cpl_row_estimates e;
        assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
        corrected += e.kappa_off_diagonal.estimate / DRAWS;
        for (int j = 0; j < c.n; j++)
            for (int i = 0; i < c.n; i++)
                if (i != j) plain += plain_kappa(&s, &c, j, i, -1) / (DRAWS * 30.0);
        rows_free_sums(&s);
    }
    const double is = t.chance.kappa_off_diagonal;
    assert_true(plain < 0.99 * is);
    assert_true(fabs(corrected - is) < 0.15 * fabs(plain - is));
    rows_free(&c);
}

/* ---- how often intervals hold ---- */

enum { LAYERS = 400 };

/* Of so many intervals at 95 %, the shares that hold lie within 3.5 deviations of 92.5 and 97.5 %. */
static void check_coverage(const char *what, int held)
{
    const double least = 0.925 * LAYERS - 3.5 * sqrt(0.925 * 0.075 * LAYERS);
    const double most  = 0.975 * LAYERS + 3.5 * sqrt(0.975 * 0.025 * LAYERS);
    if (held < least || held > fmin(most, LAYERS - 1))
        fail_msg("%s: %d of %d intervals hold", what, held, LAYERS);
}

static void intervals_hold(double own, double share)
{
    static const char *const names[] = {"kappa own", "kappa others", "M own",
                                        "M others",  "norm",         "z"};
    int held[6]                      = {0};
    for (int r = 0; r < LAYERS; r++) {
        rows_case c             = rows_random(8, 16, 256, own, (uint64_t)r + 1);
        const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, share);
        const rows_truth t      = rows_truth_of(&c);
        cpl_row_sums s          = rows_draw(&c, &plan, (uint64_t)r + 1);
        cpl_row_estimates e;
        assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
        held[0] += rows_holds(e.kappa_diagonal, t.chance.kappa_diagonal);
        held[1] += rows_holds(e.kappa_off_diagonal, t.chance.kappa_off_diagonal);
        held[2] += rows_holds(e.m_diagonal, t.m[0]);
        held[3] += rows_holds(e.m_off_diagonal, t.m[1]);
        held[4] += rows_holds(e.gate_norm, t.norm);
        held[5] += rows_holds(e.z, t.chance.z);
        assert_true(e.z.low >= -7 && e.z.high <= 7);
        rows_free_sums(&s);
        rows_free(&c);
    }
    for (int k = 0; k < 6; k++)
        if (k < 5 || own > 1) check_coverage(names[k], held[k]);
}

TEST(intervals_hold_of_random_layers)
{
    intervals_hold(0, 0.125);
}

TEST(intervals_hold_of_coupled_layers)
{
    intervals_hold(1.5, 0.125);
}

TEST(intervals_hold_of_half_the_rows)
{
    intervals_hold(0.7, 0.5);
}

/* ---- edges ---- */

TEST(single_expert)
{
    rows_case c             = rows_random(1, 12, 100, 1, 2);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
    cpl_row_sums s          = rows_draw(&c, &plan, 1);
    cpl_row_estimates e;
    assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
    assert_true(isnan(e.z.low) && isnan(e.z.high) && e.kappa_off_diagonal.high == 0);
    assert_true(e.kappa_diagonal.low < e.kappa_diagonal.high);
    rows_free_sums(&s);
    rows_free(&c);
}

/* Router rows and gates that are zero: figures are finite, and 0 where they are 0. */
TEST(zero_rows)
{
    rows_case c = rows_random(4, 12, 100, 1, 2);
    memset(c.squares, 0, sizeof(double) * (size_t)(4 * 100 * 4));
    memset(c.norms, 0, sizeof(double) * 100);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
    cpl_row_sums s          = rows_draw(&c, &plan, 1);
    cpl_row_estimates e;
    c.row_norm[2] = 0;
    assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
    assert_true(e.kappa_diagonal.estimate == 0 && e.m_diagonal.high == 0);
    assert_true(e.gate_norm.estimate > 0 && isfinite(e.gate_norm.high));
    assert_true(isnan(e.z.estimate) && isnan(e.z.low) && isnan(e.z.high));
    rows_free_sums(&s);
    rows_free(&c);
}

/* Router rows that are all the same: no pairing gives more than another. With 1 % more of one there is
 * a z. */
TEST(equal_rows)
{
    rows_case c             = rows_random(4, 12, 100, 1, 2);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
    for (int k = 0; k < 4 * 100; k++)
        for (int i = 1; i < 4; i++) c.squares[k * 4 + i] = c.squares[k * 4];
    for (int i = 1; i < 4; i++) c.row_norm[i] = c.row_norm[0];
    for (int more = 0; more < 2; more++) {
        cpl_row_sums s = rows_draw(&c, &plan, 1);
        cpl_row_estimates e;
        assert_ok(cpl_row_sums_estimate(&e, &s, c.row_norm));
        assert_true(isnan(e.z.low) == !more && isnan(e.z.high) == !more);
        rows_free_sums(&s);
        for (int k = 0; k < 100; k++) c.squares[k * 4 + 1] *= 1 + 0.01 * (k % 3);
    }
    rows_free(&c);
}

TEST(sums_of_intervals)
{
    const cpl_interval parts[] = {{1, 0, 1.5}, {2, 1, 4}, {NAN, -3, 3}};
    check_interval(cpl_interval_sum(parts, 2, 0.5), (cpl_interval){1.5, 0.5, 2.75});
    const cpl_interval all = cpl_interval_sum(parts, 3, 1);
    assert_true(isnan(all.estimate));
    assert_near(all.low, -2, 1e-12);
    assert_near(all.high, 8.5, 1e-12);
    assert_true(isnan(cpl_interval_sum(parts, 0, 1).low));
}
