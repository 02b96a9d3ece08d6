/* statistics.c - see statistics.h */
#include "base/stats/statistics.h"

#include <math.h>
#include <stdlib.h>

typedef struct item {
    double value;
    int64_t index;
} item;

double cpl_correlation_pearson(const double *x, const double *y, int64_t n)
{
    double mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    if (n < 2) return (double)NAN;
    for (int64_t i = 0; i < n; i++) { /* less x[0], so that equal values have variance 0 */
        mx += (x[i] - x[0]) / (double)n;
        my += (y[i] - y[0]) / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        const double dx = x[i] - x[0] - mx, dy = y[i] - y[0] - my;
        xx += dx * dx;
        yy += dy * dy;
        xy += dx * dy;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : (double)NAN;
}

size_t cpl_correlation_scratch(int64_t n)
{
    return (size_t)n * (sizeof(item) + 2 * sizeof(double)) + 1;
}

static int by_item_value(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

void cpl_rank_of(double *rank, const double *x, int64_t n, void *scratch)
{
    item *items = scratch;
    for (int64_t i = 0; i < n; i++) items[i] = (item){x[i], i};
    qsort(items, (size_t)n, sizeof *items, by_item_value);
    for (int64_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && items[end].value == items[first].value;) end++;
        for (int64_t i = first; i < end; i++)
            rank[items[i].index] = 0.5 * (double)(first + end + 1);
    }
}

double cpl_correlation_spearman(const double *x, const double *y, int64_t n, void *scratch)
{
    double *rx = (double *)((item *)scratch + n), *ry = rx + n;
    cpl_rank_of(rx, x, n, scratch);
    cpl_rank_of(ry, y, n, scratch);
    return cpl_correlation_pearson(rx, ry, n);
}

/* ---- quantiles ---- */

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
