/* statistics.h - correlations of two lists (of values, of ranks), and quantiles.
 *
 * Room:  base/stats. Works in double. */
#ifndef CPL_BASE_STATS_STATISTICS_H
#define CPL_BASE_STATS_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Returns Pearson's r, or NaN if all values of a list are equal, or n < 2. */
double cpl_correlation_pearson(const double *x, const double *y, int64_t n);

/* Returns the bytes of scratch for lists of n. */
size_t cpl_correlation_scratch(int64_t n);

/* Sets rank [n], from 1 for the smallest. Equal values have the mean of their ranks. */
void cpl_rank_of(double *rank, const double *x, int64_t n, void *scratch);

/* Returns Spearman's rho: Pearson's r of the ranks. */
double cpl_correlation_spearman(const double *x, const double *y, int64_t n, void *scratch);

/* Returns the quantile 0 <= share <= 1 of `values` [n], with linear interpolation like
 * numpy.quantile, or NaN if n is 0. Sorts `values`. */
double cpl_quantile(double *values, int64_t n, double share);

#endif /* CPL_BASE_STATS_STATISTICS_H */
