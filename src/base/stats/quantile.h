/* quantile.h - quantiles of a sample.
 *
 * Room:  base/stats; plain doubles. */
#ifndef CPL_BASE_STATS_QUANTILE_H
#define CPL_BASE_STATS_QUANTILE_H

#include <stdint.h>

/* The value below which the share 0 <= share <= 1 of `values` [n] lies, between two neighbours linearly,
 * as numpy.quantile. Sorts them; NaN for none. */
double cpl_quantile(double *values, int64_t n, double share);

#endif /* CPL_BASE_STATS_QUANTILE_H */
