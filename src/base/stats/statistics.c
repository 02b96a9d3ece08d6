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
    for (int64_t i = 0; i < n; i++) { /* less the first: exactly 0 if the list does not vary */
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

/* ---- Student's t ---- */

/* P(|T| > t) is the regularised incomplete beta function at f / (f + t^2), by its continued fraction
 * (Press et al., "Numerical Recipes", 6.4, with Lentz' method). */

/* The continued fraction of the incomplete beta function. */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d        = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m < 10000; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd  = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d                 = 1 + even * d;
        c                 = 1 + even / c;
        d                 = 1 / (fabs(d) < tiny ? tiny : d);
        c                 = fabs(c) < tiny ? tiny : c;
        h *= d * c;
        d = 1 + odd * d;
        c = 1 + odd / c;
        d = 1 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        h *= d * c;
        if (fabs(d * c - 1) < 1e-15) break;
    }
    return h;
}

/* I_x(a, b); `y` is 1 - x, given so that no digits are lost. */
static double beta_share(double a, double b, double x, double y)
{
    if (x <= 0) return 0;
    if (y <= 0) return 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(y));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, y) / b;
}

double cpl_student_cdf(double t, double freedom)
{
    const double square = t * t, whole = freedom + square;
    const double beyond = beta_share(freedom / 2, 0.5, freedom / whole, square / whole) / 2;
    return t > 0 ? 1 - beyond : beyond;
}

/* Halves an interval that holds the quantile; of a half on one side, so that tails keep digits. */
double cpl_student_quantile(double p, double freedom)
{
    double low = -1, high = 0;
    if (p > 0.5) return -cpl_student_quantile(1 - p, freedom);
    while (cpl_student_cdf(low, freedom) > p && low > -1e300) low *= 2;
    for (int i = 0; i < 200 && high - low > -low * 1e-15; i++) {
        const double middle = (low + high) / 2;
        if (cpl_student_cdf(middle, freedom) > p)
            high = middle;
        else
            low = middle;
    }
    return (low + high) / 2;
}
