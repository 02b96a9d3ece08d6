/* test_quantile.c - quantiles against numpy's values. */
#include "base/stats/statistics.h"

#include <math.h>

#include "check.h"

TEST(quantiles_are_numpys)
{
    double values[] = {5, 1, 2, 3};
    assert_near(cpl_quantile(values, 4, 0.5), 2.5, 1e-15);
    assert_near(cpl_quantile(values, 4, 0.025), 1.075, 1e-14);
    assert_near(cpl_quantile(values, 4, 1), 5, 0);
    assert_near(cpl_quantile(values, 4, 0), 1, 0);
    assert_true(isnan(cpl_quantile(values, 0, 0.5)));
}
