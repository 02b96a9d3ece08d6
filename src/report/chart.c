/* chart.c - ranges and quantiles; see chart.h */
#include "report/chart.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

cpl_chart_range cpl_chart_range_none(void)
{
    return (cpl_chart_range){DBL_MAX, -DBL_MAX};
}

void cpl_chart_range_add(cpl_chart_range *range, double value)
{
    if (!isfinite(value)) return;
    if (value < range->low) range->low = value;
    if (value > range->high) range->high = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t n, double share)
{
    double at = share * (double)(n - 1);
    int64_t i = (int64_t)at;
    if (i >= n - 1) return sorted[n - 1];
    return sorted[i] + (sorted[i + 1] - sorted[i]) * (at - (double)i);
}

cpl_status cpl_chart_box_of(cpl_chart_box *out, const double *values, int64_t n)
{
    *out       = (cpl_chart_box){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, n};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i];
    if (n <= 0 || !isfinite(sum)) return CPL_OK;
    double *sorted = cpl_alloc((size_t)n * sizeof *sorted);
    if (!sorted) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the quantiles of a chart");
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    *out = (cpl_chart_box){.low  = sorted[0],
                           .q05  = quantile(sorted, n, 0.05),
                           .q25  = quantile(sorted, n, 0.25),
                           .q50  = quantile(sorted, n, 0.5),
                           .q75  = quantile(sorted, n, 0.75),
                           .q95  = quantile(sorted, n, 0.95),
                           .high = sorted[n - 1],
                           .mean = sum / (double)n,
                           .n    = n};
    cpl_free(sorted);
    return CPL_OK;
}
