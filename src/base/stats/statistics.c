/* statistics.c - see statistics.h */
#include "base/stats/statistics.h"

#include <math.h>
#include <stdlib.h>

cpl_spread cpl_spread_of(const double *values, int64_t n)
{
    double sum = 0, squares = 0;
    cpl_spread s = {(double)NAN, (double)NAN, 0};
    for (int64_t i = 0; i < n; i++) {
        if (isnan(values[i])) continue;
        sum += values[i];
        s.n++;
    }
    if (s.n) s.mean = sum / (double)s.n;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(values[i])) squares += (values[i] - s.mean) * (values[i] - s.mean);
    if (s.n > 1) s.sd = sqrt(squares / (double)(s.n - 1));
    return s;
}

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

double cpl_median(double *values, int64_t n)
{
    return cpl_quantile(values, n, 0.5);
}

double cpl_fair_coin(int64_t k, int64_t n)
{
    const int64_t less = k < n - k ? k : n - k;
    double sum         = 0;
    for (int64_t i = 0; i <= less; i++)
        sum += exp(lgamma((double)n + 1) - lgamma((double)i + 1) - lgamma((double)(n - i) + 1) -
                   (double)n * log(2));
    return fmin(1, 2 * sum);
}
