/* Principal components of points that are put together from known ones. */
#include "inspect/pca.h"

#include "tensor/ops_check.h"

/* Entry i of column k of an orthonormal cosine basis of length n; all but k = 0 have mean zero. */
static double cosine(int64_t n, int64_t k, int64_t i)
{
    return sqrt((k ? 2.0 : 1.0) / n) * cos(M_PI * k * (i + 0.5) / n);
}

/* x [n,d] = sum over k of size[k] u_k v_k^T, u_k and v_k cosines k + 1. */
static cpl_tensor points_of(int64_t n, int64_t d, const double *size, int count)
{
    cpl_tensor x = new_tensor(CPL_F32, n, d);
    for (int64_t i = 0; i < n * d; i++) {
        double sum = 0;
        for (int k = 0; k < count; k++)
            sum += size[k] * cosine(n, k + 1, i / d) * cosine(d, k + 1, i % d);
        cpl_f32(x)[i] = (float)sum;
    }
    return x;
}

static cpl_tensor principal_of(cpl_tensor x, uint64_t seed)
{
    cpl_arena arena;
    const int64_t n = x.shape[0], d = x.shape[1];
    cpl_tensor out = new_tensor(CPL_F32, 2, n);
    cpl_arena_measure(&arena);
    (void)cpl_pca_take(&arena, n, d);
    assert_ok(cpl_arena_init(&arena, arena.used, "a test"));
    cpl_pca_space space = cpl_pca_take(&arena, n, d);
    assert_ok(cpl_pca(matrix_of(out), matrix_of(x), &space, seed, 2));
    cpl_arena_free(&arena);
    return out;
}

/* The cosine's own sign, turned so that the largest number of v_k is positive: it is at one of the
 * ends or equally large with them, and the first of v_k is positive. */
static void check_component(cpl_tensor out, int c, int k, double size, double tolerance)
{
    const int64_t n = out.shape[1];
    double off      = 0;
    for (int64_t i = 0; i < n; i++)
        off = fmax(off, fabs(cpl_f32(out)[c * n + i] - size * cosine(n, k + 1, i)));
    assert_near(off, 0, tolerance * size);
}

static void test_known_components(void **state)
{
    enum { COUNT = 20, N = 60, D = 25 };
    double size[COUNT];
    (void)state;
    for (int k = 0; k < COUNT; k++) size[k] = 3 * pow(0.9, (k + 5) % COUNT);
    cpl_tensor x = points_of(N, D, size, COUNT), out = principal_of(x, 3);
    const int first = COUNT - 5, second = first + 1;
    float *y      = cpl_f32(out);
    double sum[2] = {0};
    for (int64_t i = 0; i < N; i++) sum[0] += y[i] * cosine(N, first + 1, i);
    for (int64_t i = 0; i < N; i++) sum[1] += y[N + i] * cosine(N, second + 1, i);
    for (int64_t i = 0; i < N; i++) y[i] *= sum[0] < 0 ? -1 : 1, y[N + i] *= sum[1] < 0 ? -1 : 1;
    check_component(out, 0, first, 3, 1e-3);
    check_component(out, 1, second, 2.7, 1e-3);
}

/* v_1 has its largest numbers at both ends, one of each sign; with one of them made larger, the
 * sign is known. */
static void test_sign(void **state)
{
    enum { N = 30, D = 6 };
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        cpl_tensor x = new_tensor(CPL_F32, N, D);
        for (int64_t i = 0; i < N; i++) {
            const double u = cosine(N, 1, i), sign = turn ? -1 : 1;
            cpl_f32(x)[i * D + 2] = (float)(5 * sign * u);
            cpl_f32(x)[i * D + 4] = (float)(4 * u);
            cpl_f32(x)[i * D + 1] = (float)(-2 * cosine(N, 2, i));
        }
        cpl_tensor out = principal_of(x, 1);
        for (int64_t i = 0; i < N; i++) {
            const double want = (turn ? -1 : 1) * sqrt(41) * cosine(N, 1, i);
            assert_near(cpl_f32(out)[i], want, 1e-5);
            assert_near(cpl_f32(out)[N + i], -2 * cosine(N, 2, i), 1e-5);
        }
    }
}

/* Components of equal size: any two orthogonal ones of their space, and nothing of the others. */
static void test_equal_components(void **state)
{
    enum { COUNT = 40, EQUAL = 24, N = 80, D = 50 };
    double size[COUNT], square[3] = {0}, within[2] = {0};
    (void)state;
    for (int k = 0; k < COUNT; k++) size[k] = k < EQUAL ? 2 : 1;
    cpl_tensor out = principal_of(points_of(N, D, size, COUNT), 5);
    const float *y = cpl_f32(out);
    for (int64_t i = 0; i < N; i++) {
        square[0] += (double)y[i] * y[i];
        square[1] += (double)y[N + i] * y[N + i];
        square[2] += (double)y[i] * y[N + i];
    }
    for (int k = 0; k < EQUAL; k++)
        for (int c = 0; c < 2; c++) {
            double sum = 0;
            for (int64_t i = 0; i < N; i++) sum += y[c * N + i] * cosine(N, k + 1, i);
            within[c] += sum * sum;
        }
    for (int c = 0; c < 2; c++) {
        assert_near(square[c], 4, 1e-4);
        assert_near(within[c], square[c], 1e-4);
    }
    assert_near(square[2], 0, 1e-4);
}

/* Sizes that fall by a thousandth: the variance of the first two is found nearly whole. */
static void test_nearly_equal_components(void **state)
{
    enum { COUNT = 99, N = 200, D = 100 };
    double size[COUNT], variance = 0;
    (void)state;
    for (int k = 0; k < COUNT; k++) size[k] = 2 - 0.002 * k;
    cpl_tensor out = principal_of(points_of(N, D, size, COUNT), 7);
    for (int64_t i = 0; i < 2 * N; i++) variance += (double)cpl_f32(out)[i] * cpl_f32(out)[i];
    const double want = size[0] * size[0] + size[1] * size[1];
    assert_true(variance <= want * (1 + 1e-5) && variance >= want * (1 - 2e-3));
}

static void test_fewer_dimensions(void **state)
{
    enum { N = 10 };
    const double size[1] = {3};
    cpl_tensor line = points_of(N, 7, size, 1), column = new_tensor(CPL_F32, N, 1);
    (void)state;
    for (int64_t i = 0; i < N; i++) cpl_f32(column)[i] = (float)cosine(N, 1, i);
    check_component(principal_of(line, 1), 0, 0, 3, 1e-5);
    check_component(principal_of(column, 1), 0, 0, 1, 1e-5);
    cpl_tensor flat = principal_of(line, 1), none = principal_of(new_tensor(CPL_F32, N, 7), 1);
    for (int64_t i = 0; i < N; i++) assert_near(cpl_f32(flat)[N + i], 0, 1e-5);
    for (int64_t i = 0; i < 2 * N; i++) assert_true(cpl_f32(none)[i] == 0);
}

static void test_same_bits(void **state)
{
    cpl_tensor x = normal_2d(300, 90, 1);
    (void)state;
    assert_same_bits(principal_of(x, 4), principal_of(x, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_known_components, release_all),
        cmocka_unit_test_teardown(test_sign, release_all),
        cmocka_unit_test_teardown(test_equal_components, release_all),
        cmocka_unit_test_teardown(test_nearly_equal_components, release_all),
        cmocka_unit_test_teardown(test_fewer_dimensions, release_all),
        cmocka_unit_test_teardown(test_same_bits, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
