/* eigen.c - see eigen.h */
#include "base/stats/eigen.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

enum { MOST_STEPS = 60 }; /* limit of steps for one eigenvalue, which usually needs two or three */

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* ---- to a tridiagonal matrix ---- */

/* Makes x [n] the vector v of the reflection I - beta v v^T that turns x into (0, ..., 0, edge).
 * Returns beta, or 0 if x has that form already. */
static double reflection(double *x, double *edge, int64_t n)
{
    const double last = x[n - 1], rest = dot(x, x, n - 1);
    const double norm = sqrt(rest + last * last);
    *edge             = rest == 0 ? last : last > 0 ? -norm : norm;
    if (rest == 0) return 0;
    x[n - 1] = last - *edge;
    return 2 / (rest + x[n - 1] * x[n - 1]);
}

/* Sets p [n] to the symmetric a [n,n] (its lower half, rows `stride` apart) times x. */
static void multiply(double *p, const double *a, const double *x, int64_t n, int64_t stride)
{
    for (int64_t i = 0; i < n; i++) {
        const double *row = a + i * stride;
        p[i]              = dot(row, x, i + 1);
        for (int64_t k = 0; k < i; k++) p[k] += row[k] * x[i];
    }
}

/* Replaces a [m,m] (lower half) by H a H with H = I - beta v v^T. p [m] is scratch. */
static void reflect(double *a, const double *v, double beta, double *p, int64_t m, int64_t stride)
{
    multiply(p, a, v, m, stride);
    const double along = beta * dot(p, v, m) / 2;
    for (int64_t i = 0; i < m; i++) p[i] = beta * (p[i] - along * v[i]);
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k <= i; k++) a[i * stride + k] -= v[i] * p[k] + p[i] * v[k];
}

/* Sets d [n] and e [n] of cpl_eigenvalues_tridiagonal from the lower half of a [n,n]. */
static void tridiagonal(double *d, double *e, double *a, int64_t n)
{
    for (int64_t m = n - 1; m > 0; m--) {
        double *row       = a + m * n;
        const double beta = reflection(row, &e[m - 1], m);
        if (beta != 0) reflect(a, row, beta, d, m, n);
    }
    for (int64_t i = 0; i < n; i++) d[i] = a[i * n + i];
}

/* ---- to a diagonal matrix ---- */

/* Returns whether the entry below i is smaller than the rounding of its neighbours. */
static bool is_negligible(const double *d, const double *e, int64_t i)
{
    return fabs(e[i]) <= DBL_EPSILON * (fabs(d[i]) + fabs(d[i + 1])) || fabs(e[i]) < DBL_MIN;
}

/* Makes one step on the block first ... last, with a shift from its first two rows. */
static void ql_step(double *d, double *e, int64_t first, int64_t last)
{
    const double half = (d[first + 1] - d[first]) / (2 * e[first]);
    const double root = copysign(hypot(half, 1), half);
    double g = d[last] - d[first] + e[first] / (half + root), s = 1, c = 1, moved = 0;
    for (int64_t i = last - 1; i >= first; i--) {
        const double f = s * e[i], b = c * e[i], r = hypot(f, g);
        e[i + 1] = r;
        if (r == 0) { /* the block splits here */
            d[i + 1] -= moved;
            e[last] = 0;
            return;
        }
        s              = f / r;
        c              = g / r;
        const double h = d[i + 1] - moved, t = (d[i] - h) * s + 2 * c * b;
        moved    = s * t;
        d[i + 1] = h + moved;
        g        = c * t - b;
    }
    d[first] -= moved;
    e[first] = g;
    e[last]  = 0;
}

static void sort_falling(double *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        const double own = x[i];
        int64_t at       = i;
        for (; at > 0 && x[at - 1] < own; at--) x[at] = x[at - 1];
        x[at] = own;
    }
}

void cpl_eigenvalues_tridiagonal(double *d, double *e, int64_t n)
{
    if (n > 0) e[n - 1] = 0;
    for (int64_t first = 0; first < n; first++)
        for (int step = 0; step < MOST_STEPS; step++) {
            int64_t last = first;
            while (last + 1 < n && !is_negligible(d, e, last)) last++;
            if (last == first) break;
            ql_step(d, e, first, last);
        }
    sort_falling(d, n);
}

void cpl_eigenvalues(double *value, double *a, double *scratch, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += dot(a + i * n, a + i * n, i + 1);
    if (isfinite(squares)) {
        tridiagonal(value, scratch, a, n);
        cpl_eigenvalues_tridiagonal(value, scratch, n);
    }
    for (int64_t i = 0; i < n && !isfinite(squares); i++) value[i] = NAN;
}
