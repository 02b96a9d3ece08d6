/* test_correlation.c - correlations, with ties, against SciPy's values for the same numbers. */
#include "base/stats/statistics.h"

#include <math.h>

#include "check.h"

enum { N = 11 };

static const double some[N]  = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
static const double other[N] = {2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4};

/* The values come from scipy.stats.rankdata. */
TEST(equal_values_share_a_rank)
{
    static const double want[N] = {4.5, 1.5, 6.0, 1.5, 8.0, 11.0, 3.0, 10.0, 8.0, 4.5, 8.0};
    double rank[N];
    void *scratch = malloc(cpl_correlation_scratch(N));
    cpl_rank_of(rank, some, N, scratch);
    for (int i = 0; i < N; i++) assert_near(rank[i], want[i], 0);
    free(scratch);
}

/* The values come from scipy.stats.spearmanr and pearsonr. */
TEST(correlations_are_scipys)
{
    static const double a[] = {0.5, 0.5, 0.1, 0.9, 0.1}, b[] = {10, 20, 30, 20, 5};
    void *scratch = malloc(cpl_correlation_scratch(N));
    assert_near(cpl_correlation_spearman(some, other, N, scratch), 0.1384567651467695, 1e-14);
    assert_near(cpl_correlation_pearson(some, other, N), 0.09422924859889797, 1e-14);
    assert_near(cpl_correlation_spearman(a, b, 5, scratch), 0.08111071056538127, 1e-14);
    assert_near(cpl_correlation_pearson(a, b, 5), 0.061313933948496546, 1e-14);
    free(scratch);
}

/* Spearman's correlation uses the order alone. Both change sign with one of the lists. */
TEST(order_and_sign)
{
    double grown[N], fallen[N];
    void *scratch = malloc(cpl_correlation_scratch(N));
    for (int i = 0; i < N; i++) {
        grown[i]  = exp(some[i]);
        fallen[i] = 3 - 2 * some[i];
    }
    assert_near(cpl_correlation_spearman(some, grown, N, scratch), 1, 1e-15);
    assert_true(cpl_correlation_pearson(some, grown, N) < 0.9);
    assert_near(cpl_correlation_spearman(some, fallen, N, scratch), -1, 1e-15);
    assert_near(cpl_correlation_pearson(some, fallen, N), -1, 1e-14);
    free(scratch);
}

TEST(nothing_to_correlate)
{
    static const double flat[] = {2, 2, 2}, rising[] = {1, 2, 3};
    double tenths[N]; /* their mean, summed in doubles, is not 0.1 */
    void *memory = malloc(cpl_correlation_scratch(3));
    assert_true(isnan(cpl_correlation_pearson(flat, rising, 3)));
    assert_true(isnan(cpl_correlation_spearman(rising, flat, 3, memory)));
    assert_true(isnan(cpl_correlation_pearson(rising, rising, 1)));
    for (int i = 0; i < N; i++) tenths[i] = 0.1;
    assert_true(isnan(cpl_correlation_pearson(tenths, some, N)));
    assert_true(isnan(cpl_correlation_pearson(some, tenths, N)));
    free(memory);
}
