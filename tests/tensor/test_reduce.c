/* Sums: exact where doubles are, and the same bits whatever the number of threads. */
#include "ops_check.h"

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads, (cpl_work){0});
}

static const int64_t counts[] = {0, 1, 17, 16384, 100003, 2000001};
enum { N_COUNTS = sizeof counts / sizeof *counts };

/* The tolerance is that of `count` additions in double, and some. */
static void test_against_plain_loops(void **state)
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
        assert_near(be->ops->sum(be, x), sum, tolerance);
        assert_near(be->ops->dot(be, x, y), dot, tolerance);
    }
}

/* Whole numbers far beyond what F32 sums hold. */
static void test_sums_are_in_double(void **state)
{
    enum { N = 50000 };
    cpl_tensor x    = new_1d(CPL_F32, N);
    cpl_backend *be = backend(2);
    (void)state;
    for (int i = 0; i < N; i++) cpl_f32(x)[i] = i % 2 ? 1.0f : 0x1p30f;
    assert_true(be->ops->sum(be, x) == N / 2 * (0x1p30 + 1));
}

static void test_same_bits_with_any_threads(void **state)
{
    for (int k = 0; k < N_COUNTS; k++, release_all(state)) {
        cpl_tensor x = normal_1d(counts[k], 1);
        double sum[3], dot[3];
        for (int i = 0; i < 3; i++) {
            cpl_backend *be = backend(i + 1);
            sum[i]          = be->ops->sum(be, x);
            dot[i]          = be->ops->dot(be, x, x);
        }
        assert_true(sum[0] == sum[1] && sum[0] == sum[2]);
        assert_true(dot[0] == dot[1] && dot[0] == dot[2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_against_plain_loops, release_all),
        cmocka_unit_test_teardown(test_sums_are_in_double, release_all),
        cmocka_unit_test_teardown(test_same_bits_with_any_threads, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
