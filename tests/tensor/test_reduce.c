/* Sums and norms: exact where doubles are, and the same bits for any number of threads. */
#include "tensor/ops_check.h"

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads, (cpl_work){0});
}

static const int64_t counts[] = {0, 1, 17, 16384, 100003, 2000001};
enum { N_COUNTS = sizeof counts / sizeof *counts };

/* The tolerance is the error of `count` additions in double, and a margin. */
TEST(test_against_plain_loops)
{
    for (int k = 0; k < N_COUNTS; k++, release_all(state)) {
        cpl_tensor x = normal_1d(counts[k], 1), y = normal_1d(counts[k], 1);
        double sum = 0, dot = 0, size = 0;
        cpl_backend *be = backend(2);
        for (int64_t i = 0; i < counts[k]; i++) {
            double a = cpl_f32(x)[i], b = cpl_f32(y)[i];
            sum += a;
            dot += a * b;
            size += fabs(a) + fabs(a * b);
        }
        const double tolerance = 4 * DBL_EPSILON * sqrt((double)counts[k]) * size;
        assert_near(sum_of(be, x), sum, tolerance);
        assert_near(dot_of(be, x, y), dot, tolerance);
    }
}

/* Sums whole numbers far beyond the range of exact sums in F32. */
TEST(test_sums_are_in_double)
{
    enum { N = 50000 };
    cpl_tensor x    = new_1d(CPL_F32, N);
    cpl_backend *be = backend(2);
    for (int i = 0; i < N; i++) cpl_f32(x)[i] = i % 2 ? 1.0f : 0x1p30f;
    assert_true(sum_of(be, x) == N / 2 * (0x1p30 + 1));
}

TEST(test_same_bits_with_any_threads)
{
    for (int k = 0; k < N_COUNTS; k++, release_all(state)) {
        cpl_tensor x = normal_1d(counts[k], 1);
        double sum[3], dot[3];
        for (int i = 0; i < 3; i++) {
            cpl_backend *be = backend(i + 1);
            sum[i]          = sum_of(be, x);
            dot[i]          = dot_of(be, x, x);
        }
        assert_true(sum[0] == sum[1] && sum[0] == sum[2]);
        assert_true(dot[0] == dot[1] && dot[0] == dot[2]);
    }
}

/* ---- norms ---- */

static double plain_norm(cpl_tensor x, int64_t i)
{
    const int64_t length = cpl_tensor_count(x) / x.shape[0];
    double squares       = 0;
    for (int64_t k = 0; k < length; k++)
        squares += (double)cpl_f32(x)[i * length + k] * (double)cpl_f32(x)[i * length + k];
    return sqrt(squares);
}

static void check_row_norms(int64_t n, int64_t rows, int64_t cols, float scale)
{
    cpl_tensor x = cpl_tensor_3d(normal_2d(n * rows, cols, scale).storage, CPL_F32, n, rows, cols);
    cpl_tensor norms[3];
    for (int k = 0; k < 3; k++) {
        cpl_backend *be = backend(k + 1);
        norms[k]        = new_1d(CPL_F32, n);
        be->ops->row_norms(be, norms[k], x);
        assert_same_bits(norms[k], norms[0]);
    }
    for (int64_t i = 0; i < n; i++) { /* rounded to F32 once: half a unit of the last place */
        double want = plain_norm(x, i);
        assert_near(cpl_f32(norms[0])[i], want, 0.5 * (double)FLT_EPSILON * want * (1 + 1e-9));
    }
}

/* F32 cannot hold the squares of the smallest and largest of these numbers. */
TEST(test_row_norms)
{
    check_row_norms(1, 1, 1, 1);
    check_row_norms(5, 3, 21, 1e-25f);
    check_row_norms(3, 1, 32, 1e25f);
    check_row_norms(7, 64, 129, 0.02f);
    check_row_norms(9, 1, 43, 1e-30f);
    check_row_norms(2, 1, 1023, 1);
    check_row_norms(2, 1, 1024, 1);
    check_row_norms(2, 700, 300, 1);
    cpl_backend *be = backend(2);
    be->ops->row_norms(be, new_1d(CPL_F32, 0), new_tensor(CPL_F32, 0, 4));
}

/* NaN and infinity show in their own row, wherever they stand, and in no other row. */
TEST(test_row_norms_show_nan_and_infinity)
{
    enum { N = 3, D = 77 };
    cpl_backend *be  = backend(1);
    cpl_tensor norms = new_1d(CPL_F32, N);
    for (int k = 0; k < D; k++) {
        cpl_tensor x                  = normal_2d(N, D, 1);
        cpl_f32(x)[0 * D + k]         = NAN;
        cpl_f32(x)[2 * D + D - 1 - k] = -INFINITY;
        be->ops->row_norms(be, norms, x);
        assert_true(isnan(cpl_f32(norms)[0]));
        assert_true(isfinite(cpl_f32(norms)[1]));
        assert_true(isinf(cpl_f32(norms)[2]));
    }
}

/* ---- moments of columns ---- */

static void check_column_moments(cpl_dtype type, int64_t T, int64_t d)
{
    cpl_tensor x = new_tensor(type, T, d);
    double *out[3], *want = new_doubles(2 * d);
    randomise(x, 1);
    for (int64_t i = 0; i < 2 * d; i++) want[i] = 100;
    for (int64_t i = 0; i < T * d; i++) {
        const double v = type == CPL_F32 ? (double)cpl_f32(x)[i]
                                         : (double)cpl_bf16_to_f32(((uint16_t *)x.storage)[i]);
        want[i % d] += v;
        want[d + i % d] += v * v;
    }
    for (int i = 0; i < 3; i++) {
        cpl_backend *be = backend(i + 1);
        out[i]          = new_doubles(2 * d);
        for (int64_t k = 0; k < 2 * d; k++) out[i][k] = 100;
        be->ops->column_moments(be, cpl_tensor_2d(out[i], CPL_F64, 2, d), x);
        assert_memory_equal(out[i], out[0], (size_t)(2 * d) * sizeof(double));
    }
    for (int64_t k = 0; k < 2 * d; k++)
        assert_near(out[0][k], want[k], 4 * DBL_EPSILON * (100 + (double)T));
}

TEST(test_column_moments)
{
    for (int type = CPL_F32; type <= CPL_BF16; type++) {
        check_column_moments((cpl_dtype)type, 0, 3);
        check_column_moments((cpl_dtype)type, 1, 1);
        check_column_moments((cpl_dtype)type, 300, 130);
    }
}
