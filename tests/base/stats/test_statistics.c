/* test_statistics.c - means, quantiles and tests against SciPy's values. */
#include "base/stats/statistics.h"

#include <math.h>

#include "check.h"

static void means_pass_over_what_is_missing(void **state)
{
    (void)state;
    const double values[] = {1, (double)NAN, 2, 6};
    cpl_spread s          = cpl_spread_of(values, 4);
    assert_int_equal(s.n, 3);
    assert_near(s.mean, 3, 1e-15);
    assert_near(s.sd, sqrt(7), 1e-15);
    s = cpl_spread_of(values, 2);
    assert_int_equal(s.n, 1);
    assert_near(s.mean, 1, 0);
    assert_true(isnan(s.sd));
    s = cpl_spread_of(values, 0);
    assert_true(isnan(s.mean) && isnan(s.sd) && s.n == 0);
}

static void quantiles_are_numpys(void **state)
{
    (void)state;
    double values[] = {5, 1, 3, 2};
    assert_near(cpl_median(values, 4), 2.5, 1e-15);
    assert_near(cpl_quantile(values, 4, 0.025), 1.075, 1e-14);
    assert_near(cpl_quantile(values, 4, 1), 5, 0);
    assert_near(cpl_quantile(values, 4, 0), 1, 0);
    assert_true(isnan(cpl_median(values, 0)));
}

/* scipy.stats.t.ppf */
static void quantiles_of_t_are_scipys(void **state)
{
    (void)state;
    static const struct {
        double p, freedom, want;
    } cases[] = {
        {0.975, 1, 12.7062047361747},
        {0.975, 2, 4.30265272974946},
        {0.975, 3, 3.18244630528371},
        {0.975, 4, 2.77644510519779},
        {0.975, 9, 2.2621571627982},
        {0.975, 29, 2.0452296421327},
        {0.975, 100.5, 1.9838506553358},
        {0.9, 1, 3.07768353717525},
        {0.9, 9, 1.38302873839663},
        {0.025, 3, -3.18244630528371},
        {0.5, 4, 0},
        {0.9995, 1, 636.61924876879},
        {0.9995, 29, 3.65940501946637},
        {0.9995, 100.5, 3.38998050112921},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_near(cpl_student_quantile(cases[i].p, cases[i].freedom), cases[i].want,
                    1e-9 * (1 + fabs(cases[i].want)));
}

/* scipy.stats.t.cdf */
static void probabilities_of_t_are_scipys(void **state)
{
    (void)state;
    static const struct {
        double t, freedom, want;
    } cases[] = {
        {0, 3, 0.5},
        {1.5, 1, 0.812832958189001},
        {-2.3, 4, 0.0414695185561912},
        {6, 2, 0.986664263392288},
        {0.1, 50, 0.539627893173515},
        {-40, 5, 9.20598108588648e-08},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_near(cpl_student_cdf(cases[i].t, cases[i].freedom), cases[i].want,
                    1e-10 * cases[i].want);
}

static void intervals_follow_from_them(void **state)
{
    (void)state;
    const cpl_spread three = {1, 0.5, 3}, one = {1, (double)NAN, 1};
    assert_near(cpl_spread_half(&three), 4.30265272974946 * 0.5 / sqrt(3), 1e-9);
    assert_true(isnan(cpl_spread_half(&one)));
}

/* The shift at which 1 - nct.cdf(t) + nct.cdf(-t) is 0.8, over sqrt(n): by scipy.integrate.quad
 * over the distribution of the estimated deviation. */
static void detectable_differences_are_exact(void **state)
{
    (void)state;
    static const struct {
        int64_t n;
        double want;
    } cases[] = {{2, 11.549888435882256},
                 {3, 3.2640435496995703},
                 {5, 1.6819969659555543},
                 {10, 0.9960013714554168},
                 {40, 0.45425693968356795}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cpl_spread s = {0, 2, cases[i].n};
        assert_near(cpl_spread_detectable(&s), 2 * cases[i].want, 1e-6 * cases[i].want);
    }
    const cpl_spread one = {0, (double)NAN, 1};
    assert_true(isnan(cpl_spread_detectable(&one)));
}

/* scipy.stats.binomtest(k, n).pvalue */
static void a_fair_coin_is_scipys(void **state)
{
    (void)state;
    static const struct {
        int64_t k, n;
        double want;
    } cases[] = {
        {0, 0, 1},
        {0, 1, 1},
        {1, 1, 1},
        {2, 10, 0.109375},
        {8, 10, 0.109375},
        {5, 10, 1},
        {3, 17, 0.012725830078125},
        {40, 100, 0.05688793364098089},
        {0, 30, 1.862645149230957e-09},
        {495, 1100, 0.001005717299357272},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_near(cpl_fair_coin(cases[i].k, cases[i].n), cases[i].want, 1e-10 * cases[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_pass_over_what_is_missing),
        cmocka_unit_test(quantiles_are_numpys),
        cmocka_unit_test(quantiles_of_t_are_scipys),
        cmocka_unit_test(probabilities_of_t_are_scipys),
        cmocka_unit_test(intervals_follow_from_them),
        cmocka_unit_test(detectable_differences_are_exact),
        cmocka_unit_test(a_fair_coin_is_scipys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
