/* null_model_ratios.c - by what factors off-diagonal numbers of M exceed the diagonal; see null_model.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/null_model.h"

/* The quotient, one step up where rounding left it too small to close the hinge m - alpha own: so
 * ERC at the largest quotient is 0 and not a rounding error. */
static double quotient(double m, double own)
{
    if (!(m > 0)) return 0;
    if (!(own > 0)) return INFINITY;
    double alpha = m / own;
    return m - alpha * own > 0 ? nextafter(alpha, INFINITY) : alpha;
}

/* A total order, NaN last, so that sorting is sound whatever it is given. */
static int rising(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    if (isnan(a) || isnan(b)) return !!isnan(a) - !!isnan(b);
    return (a > b) - (a < b);
}

/* At place q (count - 1) of the sorted numbers, linear between neighbours. */
static double quantile(const double *sorted, int64_t count, double q)
{
    double place  = q * (double)(count - 1);
    int64_t below = (int64_t)place;
    double weight = place - (double)below;
    if (!(weight > 0)) return sorted[below];
    if (isinf(sorted[below + 1])) return sorted[below + 1];
    return sorted[below] + weight * (sorted[below + 1] - sorted[below]);
}

/* Sets ratio [n (n-1)] row by row, and what needs to know the place. */
static void fill_ratios(cpl_null_model_ratios *out, double *ratio, const float *M, int64_t n)
{
    int64_t k = 0, violated = 0;
    out->most = -1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            double m = M[i * n + j];
            double r = fmax(quotient(m, M[i * n + i]), quotient(m, M[j * n + j]));
            violated += r > 1;
            if (r > out->most) {
                out->most        = r;
                out->most_row    = i;
                out->most_column = j;
            }
            ratio[k++] = r;
        }
    out->violated = (double)violated / (double)k;
}

cpl_status cpl_null_model_ratios_of(cpl_null_model_ratios *out, const float *M, int64_t n)
{
    memset(out, 0, sizeof *out);
    if (n < 2) return CPL_OK;
    int64_t pairs = n * (n - 1);
    double *ratio = cpl_alloc((size_t)pairs * sizeof *ratio);
    if (!ratio) return CPL_ERR_MEMORY;
    fill_ratios(out, ratio, M, n);
    qsort(ratio, (size_t)pairs, sizeof *ratio, rising);
    out->q50 = quantile(ratio, pairs, 0.50);
    out->q90 = quantile(ratio, pairs, 0.90);
    out->q99 = quantile(ratio, pairs, 0.99);
    cpl_free(ratio);
    return CPL_OK;
}
