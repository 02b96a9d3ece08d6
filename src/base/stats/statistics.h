/* statistics.h - correlations of two lists of numbers, of their values and of their ranks; quantiles.
 *
 * Room:  base/stats. In double. */
#ifndef CPL_BASE_STATS_STATISTICS_H
#define CPL_BASE_STATS_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Pearson's r; NaN if all values of a list are equal, or n < 2. */
double cpl_correlation_pearson(const double *x, const double *y, int64_t n);

/* Bytes of scratch for lists of n. */
size_t cpl_correlation_scratch(int64_t n);

/* Sets rank [n], from 1 for the smallest; equal values have the mean of their ranks. */
void cpl_rank_of(double *rank, const double *x, int64_t n, void *scratch);

/* Spearman's rho: Pearson's r of the ranks. */
double cpl_correlation_spearman(const double *x, const double *y, int64_t n, void *scratch);

/* The quantile 0 <= share <= 1 of `values` [n], with linear interpolation as numpy.quantile. Sorts
 * `values`. NaN if n is 0. */
double cpl_quantile(double *values, int64_t n, double share);

#endif /* CPL_BASE_STATS_STATISTICS_H */
