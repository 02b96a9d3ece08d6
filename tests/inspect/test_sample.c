/* test_sample.c - the rows of a sample; its estimates against a jackknife written plainly and
 * against the figures of all rows; the size of standard errors against that of the errors. */
#include "inspect/sample_case.h"

/* ---- the choice of rows ---- */

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

/* Every set of 4 of 6 blocks has an equal chance. */
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
    assert_true(chi < 36.1); /* 14 degrees of freedom: a larger value has a chance of 0.001 */
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

/* Computes the figures of expert j from a set of blocks, a bit for each: kappa on and off the
 * diagonal, M on and off the diagonal, |W|. */
static void plain_figures(double out[CPL_SAMPLE_FIGURES], const cpl_row_sums *s, const rows_case *c,
                          int j, int set)
{
    double norm = 0, blocks = 0;
    for (int k = 0; k < 4; k++) {
        norm += set >> k & 1 ? s->norms[j * 4 + k] : 0;
        blocks += set >> k & 1;
    }
    memset(out, 0, CPL_SAMPLE_FIGURES * sizeof *out);
    out[4] = sqrt(norm * (double)s->n_blocks / blocks);
    for (int i = 0; i < c->n; i++) {
        double square = 0;
        for (int k = 0; k < 4; k++) square += set >> k & 1 ? s->squares[(j * 4 + k) * c->n + i] : 0;
        out[i != j] += sqrt(square / norm) / c->row_norm[i];
        out[2 + (i != j)] += sqrt(square * (double)s->n_blocks / blocks);
    }
}

/* Returns the estimate of figure f, as docs/method.md has it for four blocks. */
static cpl_estimate plain_estimate(const cpl_row_sums *s, const rows_case *c, int f)
{
    const double G = (double)s->n_blocks, count = f == 1 || f == 3 ? c->n * (c->n - 1) : c->n;
    double sum = 0, variance = 0;
    for (int j = 0; j < c->n; j++) {
        double all[CPL_SAMPLE_FIGURES], less[4][CPL_SAMPLE_FIGURES], mean = 0;
        plain_figures(all, s, c, j, 15);
        for (int k = 0; k < 4; k++) {
            plain_figures(less[k], s, c, j, 15 - (1 << k));
            mean += less[k][f] / 4;
        }
        sum += 4 * (1 - 3 / G) * all[f] - 3 * (1 - 4 / G) * mean;
        for (int k = 0; k < 4; k++) variance += (1 - 4 / G) * 3 / 4 * pow(less[k][f] - mean, 2);
    }
    return (cpl_estimate){sum / count, sqrt(variance) / count};
}

TEST(jackknife_as_written)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        rows_case c             = rows_random(5, 12, 120, 1, seed);
        const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
        cpl_row_sums s          = rows_draw(&c, &plan, seed);
        cpl_estimate e[CPL_SAMPLE_FIGURES];
        assert_int_equal(s.n_read, 4);
        cpl_sample_estimate(e, &s, c.row_norm);
        for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) {
            const cpl_estimate want = plain_estimate(&s, &c, f);
            assert_near(e[f].estimate, want.estimate, 1e-12 * want.estimate);
            assert_near(e[f].standard_error, want.standard_error, 1e-12 * want.estimate);
        }
        rows_free_sums(&s);
        rows_free(&c);
    }
}

/* All blocks are equal: no figure is random, and each is that of all rows. */
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
    double want[CPL_SAMPLE_FIGURES];
    cpl_estimate e[CPL_SAMPLE_FIGURES];
    rows_truth(want, &c);
    cpl_sample_estimate(e, &s, c.row_norm);
    for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) {
        assert_near(e[f].estimate, want[f], 1e-12 * want[f]);
        assert_near(e[f].standard_error, 0, 1e-12 * want[f]);
    }
    rows_free_sums(&s);
    rows_free(&c);
}

/* Checks many draws: the mean estimate is nearer to the figure than the mean of plain quotients is,
 * and the errors are as large as the standard errors, for layers with and without coupling. */
static void check_draws(double own, double share)
{
    enum { DRAWS = 2000 };
    rows_case c             = rows_random(6, 12, 200, own, 9);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, share);
    double want[CPL_SAMPLE_FIGURES], mean[CPL_SAMPLE_FIGURES] = {0}, plain = 0;
    double errors[CPL_SAMPLE_FIGURES] = {0}, said[CPL_SAMPLE_FIGURES] = {0};
    rows_truth(want, &c);
    for (int r = 0; r < DRAWS; r++) {
        cpl_row_sums s = rows_draw(&c, &plan, (uint64_t)r);
        cpl_estimate e[CPL_SAMPLE_FIGURES];
        cpl_sample_estimate(e, &s, c.row_norm);
        for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) {
            mean[f] += e[f].estimate / DRAWS;
            errors[f] += pow(e[f].estimate - want[f], 2) / DRAWS;
            said[f] += pow(e[f].standard_error, 2) / DRAWS;
        }
        for (int j = 0; j < c.n; j++) {
            double all[CPL_SAMPLE_FIGURES];
            plain_figures(all, &s, &c, j, 15);
            plain += all[CPL_SAMPLE_KAPPA_OTHERS] / (DRAWS * 30.0);
        }
        rows_free_sums(&s);
    }
    const double is = want[CPL_SAMPLE_KAPPA_OTHERS];
    assert_true(fabs(mean[CPL_SAMPLE_KAPPA_OTHERS] - is) < 0.25 * fabs(plain - is));
    for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) {
        if (fabs(mean[f] - want[f]) > 0.02 * want[f] || errors[f] > 1.5 * said[f] ||
            said[f] > 1.5 * errors[f])
            fail_msg("figure %d: %g for %g, error %g for %g", f, mean[f], want[f], sqrt(said[f]),
                     sqrt(errors[f]));
    }
    rows_free(&c);
}

TEST(errors_are_as_large_as_said)
{
    check_draws(0, 0.08);
    check_draws(1.5, 0.08);
    check_draws(0.7, 0.5);
}

/* ---- edges ---- */

TEST(single_expert)
{
    rows_case c             = rows_random(1, 12, 100, 1, 2);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
    cpl_row_sums s          = rows_draw(&c, &plan, 1);
    cpl_estimate e[CPL_SAMPLE_FIGURES];
    cpl_sample_estimate(e, &s, c.row_norm);
    assert_true(e[CPL_SAMPLE_KAPPA_OTHERS].estimate == 0 && e[CPL_SAMPLE_M_OTHERS].estimate == 0);
    assert_true(e[CPL_SAMPLE_KAPPA_OWN].estimate > 0 && e[CPL_SAMPLE_KAPPA_OWN].standard_error > 0);
    rows_free_sums(&s);
    rows_free(&c);
}

/* Router rows and gates may be zero: figures are finite, and 0 where all of their terms are 0. */
TEST(zero_rows)
{
    rows_case c = rows_random(4, 12, 100, 1, 2);
    memset(c.squares, 0, sizeof(double) * (size_t)(4 * 100 * 4));
    memset(c.norms, 0, sizeof(double) * 100);
    const cpl_row_plan plan = cpl_row_plan_of(c.D, 1, 0.2);
    cpl_row_sums s          = rows_draw(&c, &plan, 1);
    cpl_estimate e[CPL_SAMPLE_FIGURES];
    c.row_norm[2] = 0;
    cpl_sample_estimate(e, &s, c.row_norm);
    for (int f = 0; f < CPL_SAMPLE_GATE_NORM; f++)
        assert_true(e[f].estimate == 0 && e[f].standard_error == 0);
    assert_true(e[CPL_SAMPLE_GATE_NORM].estimate > 0);
    assert_true(isfinite(e[CPL_SAMPLE_GATE_NORM].standard_error));
    rows_free_sums(&s);
    rows_free(&c);
}
