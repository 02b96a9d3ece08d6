/* statistics.h - means, quantiles, intervals and exact tests on few numbers.
 *
 * Room:  base/stats; plain doubles. */
#ifndef CPL_BASE_STATS_STATISTICS_H
#define CPL_BASE_STATS_STATISTICS_H

#include <stdint.h>

/* Summary of several numbers. */
typedef struct cpl_spread {
    double mean, sd; /* NaN: of none; sd, over n - 1, of fewer than two */
    int64_t n;
} cpl_spread;

/* Over the values that are numbers; NaN is skipped. */
cpl_spread cpl_spread_of(const double *values, int64_t n);

/* Median and quantile, linear between neighbours as NumPy's; NaN for n = 0. Both sort `values`,
 * none of which may be NaN. */
double cpl_median(double *values, int64_t n);
double cpl_quantile(double *values, int64_t n, double share);

/* Student's t with `freedom` > 0 degrees: P(T <= t), and its inverse for 0 < p < 1, to a relative
 * 1e-9 or better. */
double cpl_student_cdf(double t, double freedom);
double cpl_student_quantile(double p, double freedom);

/* Half of the 95 % interval around the mean, t(0.975) sd / sqrt(n); NaN for n < 2. */
double cpl_spread_half(const cpl_spread *spread);

/* The smallest true difference that a two-sided t-test at 5 % on n pairs with this standard
 * deviation finds with a power of 80 %: exact, by the noncentral t. NaN for n < 2. */
double cpl_spread_detectable(const cpl_spread *spread);

/* The two-sided exact p value of `k` of `n` throws of a fair coin; 1 for n = 0. */
double cpl_fair_coin(int64_t k, int64_t n);

#endif /* CPL_BASE_STATS_STATISTICS_H */
