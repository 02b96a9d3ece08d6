/* student_t.c - see student_t.h
 *
 * P(|T| > t) is the regularised incomplete beta function at f / (f + t^2), by its continued
 * fraction (Press et al., "Numerical Recipes", 6.4, with Lentz' method). */
#include <math.h>

#include "base/stats/student_t.h"

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
