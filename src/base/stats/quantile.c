/* quantile.c - see quantile.h */
#include "base/stats/quantile.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cpl_quantile(double *values, int64_t n, double share)
{
    if (n == 0) return (double)NAN;
    qsort(values, (size_t)n, sizeof *values, by_value);
    const double at  = share * (double)(n - 1);
    const int64_t i  = (int64_t)at;
    const double low = values[i], high = values[i + 1 < n ? i + 1 : i];
    return low + (high - low) * (at - (double)i);
}
