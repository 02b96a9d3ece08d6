/* product.c - see product.h. Four rows at a time, so that each number read serves
 * four products; the loops over the width are those that become vectors. */
#include "certify/product.h"

#include <string.h>

double cpl_certify_dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < count; k++) sum += a[k] * b[k];
    return sum;
}

/* Four rows of X with one of W. */
static void dots_of_four(double sums[4], const double *x, const double *w, int64_t d)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    const double *y = x + d, *z = x + 2 * d, *v = x + 3 * d;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t k = 0; k < d; k++) {
        s0 += x[k] * w[k];
        s1 += y[k] * w[k];
        s2 += z[k] * w[k];
        s3 += v[k] * w[k];
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
}

void cpl_certify_dots(double *A, const double *X, const double *W, int64_t n, int64_t m, int64_t d)
{
    const int64_t whole = n / 4 * 4;
    for (int64_t c = 0; c < m; c++) {
        double sums[4];
        for (int64_t i = 0; i < whole; i += 4) {
            dots_of_four(sums, X + i * d, W + c * d, d);
            for (int64_t r = 0; r < 4; r++) A[(i + r) * m + c] = sums[r];
        }
        for (int64_t i = whole; i < n; i++) A[i * m + c] = cpl_certify_dot(X + i * d, W + c * d, d);
    }
}

/* v += sum over r < 4 of a[r * step] * rows r of w [4,d] */
static void add_four(double *v, const double *a, int64_t step, const double *w, int64_t d)
{
    const double a0 = a[0], a1 = a[step], a2 = a[2 * step], a3 = a[3 * step];
#pragma omp simd
    for (int64_t k = 0; k < d; k++)
        v[k] += a0 * w[k] + a1 * w[d + k] + a2 * w[2 * d + k] + a3 * w[3 * d + k];
}

/* v += the sum over r < count of a[r * step] times row r of w [count,d] */
static void add_rows(double *v, const double *a, int64_t step, const double *w, int64_t count,
                     int64_t d)
{
    const int64_t whole = count / 4 * 4;
    for (int64_t r = 0; r < whole; r += 4) add_four(v, a + r * step, step, w + r * d, d);
    for (int64_t r = whole; r < count; r++) {
        const double factor = a[r * step];
#pragma omp simd
        for (int64_t k = 0; k < d; k++) v[k] += factor * w[r * d + k];
    }
}

enum { ROWS_AT_ONCE = 32 }; /* of w: they stay in the cache while all of V takes them */

void cpl_certify_spread(double *V, const double *A, const double *W, int64_t n, int64_t m,
                        int64_t d)
{
    for (int64_t c = 0; c < m; c += ROWS_AT_ONCE) {
        const int64_t rows = m - c < ROWS_AT_ONCE ? m - c : ROWS_AT_ONCE;
        for (int64_t i = 0; i < n; i++) add_rows(V + i * d, A + i * m + c, 1, W + c * d, rows, d);
    }
}

void cpl_certify_outer(double *G, const double *A, const double *X, int64_t n, int64_t m, int64_t d)
{
    memset(G, 0, (size_t)(m * d) * sizeof *G);
    for (int64_t c = 0; c < m; c++) add_rows(G + c * d, A + c, m, X, n, d);
}
