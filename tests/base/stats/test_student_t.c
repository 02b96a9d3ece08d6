/* test_student_t.c - Student's t against SciPy's values. */
#include "base/stats/statistics.h"

#include <math.h>

#include "check.h"

/* scipy.stats.t.ppf */
TEST(quantiles_of_t_are_scipys)
{
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
TEST(probabilities_of_t_are_scipys)
{
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
