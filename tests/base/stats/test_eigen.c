/* Eigenvalues: planted ones, turned by reflections, and a tridiagonal matrix of known ones. */
#include "base/stats/eigen.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "check.h"

/* Returns a symmetric matrix [n,n] with these eigenvalues: a diagonal matrix, reflected n times. */
static double *planted(const double *value, int n)
{
    const cpl_rng_key key = {.seed = 9, .stream = CPL_STREAM_TEST};
    double *a             = calloc((size_t)(n * n), sizeof *a), v[64], p[64];
    for (int i = 0; i < n; i++) a[i * n + i] = value[i];
    for (int k = 0; k < n; k++) {
        double norm = 0, along = 0;
        for (int i = 0; i < n; i++) v[i] = cpl_rng_normal(&key, (uint64_t)(k * n + i));
        for (int i = 0; i < n; i++) norm += v[i] * v[i];
        for (int i = 0; i < n; i++) {
            p[i] = 0;
            for (int j = 0; j < n; j++) p[i] += 2 / norm * a[i * n + j] * v[j];
        }
        for (int i = 0; i < n; i++) along += p[i] * v[i] / norm;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                a[i * n + j] -= v[i] * p[j] + p[i] * v[j] - 2 * along * v[i] * v[j];
    }
    return a;
}

static void check_planted(const double *value, int n)
{
    double *a = planted(value, n), got[64], scratch[64], most = DBL_MIN;
    for (int i = 0; i < n; i++) most = fmax(most, fabs(value[i]));
    cpl_eigenvalues(got, a, scratch, n);
    for (int i = 0; i < n; i++) assert_near(got[i], value[i], 200 * DBL_EPSILON * most);
    free(a);
}

TEST(planted_eigenvalues_are_found)
{
    double value[64];
    for (int n = 1; n <= 64; n += n < 6 ? 1 : 29) {
        for (int i = 0; i < n; i++) value[i] = n - i;
        check_planted(value, n);
        for (int i = 0; i < n; i++) value[i] = i < n / 2 ? 3 : -2; /* repeated */
        check_planted(value, n);
        for (int i = 0; i < n; i++) value[i] = pow(0.5, i); /* far apart */
        check_planted(value, n);
        for (int i = 0; i < n; i++) value[i] = i == 0; /* rank 1 */
        check_planted(value, n);
        for (int i = 0; i < n; i++) value[i] = 0;
        check_planted(value, n);
    }
}

/* With 2 on the diagonal and 1 beside it, the eigenvalues are 2 + 2 cos(k pi / (n + 1)). */
TEST(a_tridiagonal_matrix_has_its_cosines)
{
    enum { N = 50 };
    const double pi = acos(-1);
    double d[N], e[N];
    for (int i = 0; i < N; i++) {
        d[i] = 2;
        e[i] = 1;
    }
    cpl_eigenvalues_tridiagonal(d, e, N);
    for (int i = 0; i < N; i++) assert_near(d[i], 2 + 2 * cos((i + 1) * pi / (N + 1)), 1e-13);
}

/* The function reads only the lower half. */
TEST(the_upper_half_does_not_count)
{
    double a[9] = {2, NAN, NAN, 1, 2, NAN, 0, 1, 2}, value[3], scratch[3];
    cpl_eigenvalues(value, a, scratch, 3);
    assert_near(value[0], 2 + sqrt(2), 1e-14);
    assert_near(value[1], 2, 1e-14);
    assert_near(value[2], 2 - sqrt(2), 1e-14);
}

TEST(what_is_not_finite_has_none)
{
    double a[4] = {1, 0, INFINITY, 1}, b[4] = {1, 0, 0, NAN}, value[2], scratch[2];
    cpl_eigenvalues(value, a, scratch, 2);
    assert_true(isnan(value[0]) && isnan(value[1]));
    cpl_eigenvalues(value, b, scratch, 2);
    assert_true(isnan(value[0]) && isnan(value[1]));
}
