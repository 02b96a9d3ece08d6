/* Largest singular values against all eigenvalues of the Gram matrix, in double. */
#include "base/stats/eigen.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double PROMISED = 1e-5; /* relative error that ops.h promises */

static cpl_tensor gates_of(cpl_tensor x, int64_t n, int64_t D, int64_t d)
{
    return cpl_tensor_3d(x.storage, x.dtype, n, D, d);
}

static double entry(cpl_tensor x, int64_t i)
{
    if (x.dtype == CPL_BF16) return (double)cpl_bf16_to_f32(((uint16_t *)x.storage)[i]);
    return (double)cpl_f32(x)[i];
}

/* Returns the norm of W [D,d] from all eigenvalues of the smaller of W W^T and W^T W. */
static double exact_norm(cpl_tensor W)
{
    const int64_t D = W.shape[0], d = W.shape[1], m = D < d ? D : d, count = D < d ? d : D;
    const int64_t step = D < d ? d : 1, stride = D < d ? 1 : d;
    double *gram  = take((size_t)(m * m) * sizeof *gram);
    double *value = take((size_t)m * sizeof *value), *spare = take((size_t)m * sizeof *spare);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++) {
            gram[i * m + j] = 0;
            for (int64_t k = 0; k < count; k++)
                gram[i * m + j] +=
                    entry(W, i * step + k * stride) * entry(W, j * step + k * stride);
        }
    cpl_eigenvalues(value, gram, spare, m);
    return sqrt(fmax(value[0], 0));
}

static cpl_tensor norms_of(cpl_tensor gates, int n_threads)
{
    const cpl_work work = {.d_expert = gates.shape[1], .d_model = gates.shape[2]};
    cpl_backend *be     = new_cpu(CPL_F32, n_threads, work);
    cpl_tensor norms    = new_1d(CPL_F32, gates.shape[0]);
    be->ops->spectral_norms(be, norms, gates);
    return norms;
}

static void check(cpl_tensor gates)
{
    const cpl_tensor norms = norms_of(gates, 2);
    for (int64_t j = 0; j < gates.shape[0]; j++) {
        const double want = exact_norm(cpl_tensor_at(gates, j));
        assert_near(cpl_f32(norms)[j], want, (PROMISED + FLT_EPSILON) * want);
    }
}

TEST(test_random_matrices)
{
    static const int64_t sizes[][2] = {{1, 1},  {1, 7},    {7, 1},    {2, 2},     {5, 17},
                                       {17, 5}, {64, 128}, {128, 64}, {200, 210}, {9, 300}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++, release_all(state)) {
        const int64_t D = sizes[k][0], d = sizes[k][1];
        check(gates_of(normal_2d(3 * D, d, 1), 3, D, d));
        check(gates_of(normal_2d(2 * D, d, 1e-25f), 2, D, d));
        check(gates_of(normal_2d(2 * D, d, 1e25f), 2, D, d));
    }
}

/* Returns the sum of `rank` products of random vectors. */
static cpl_tensor of_rank(int64_t rank, int64_t D, int64_t d)
{
    cpl_tensor a = normal_2d(rank, D, 1), b = normal_2d(rank, d, 1), W = normal_2d(D, d, 0);
    for (int64_t r = 0; r < rank; r++)
        for (int64_t i = 0; i < D * d; i++)
            cpl_f32(W)[i] += cpl_f32(a)[r * D + i / d] * cpl_f32(b)[r * d + i % d];
    return gates_of(W, 1, D, d);
}

TEST(test_few_singular_values)
{
    check(of_rank(1, 40, 60));
    check(of_rank(1, 60, 40));
    check(of_rank(3, 40, 60));
    check(of_rank(19, 20, 20));
}

/* Returns a D x d matrix with singular values value(k) along the axes. */
static cpl_tensor along_axes(int64_t D, int64_t d, double (*value)(int64_t k))
{
    cpl_tensor W = normal_2d(D, d, 0);
    for (int64_t k = 0; k < D && k < d; k++) cpl_f32(W)[k * d + (k * 7 + 3) % d] = (float)value(k);
    return gates_of(W, 1, D, d);
}

static double equal(int64_t k)
{
    (void)k;
    return 2.5;
}

static double close_together(int64_t k)
{
    return 1 - 1e-4 * (double)k;
}

static double one_above(int64_t k)
{
    return k == 37 ? 1.01 : 1;
}

TEST(test_singular_values_that_are_equal_or_nearly)
{
    check(along_axes(30, 50, equal));
    check(along_axes(50, 50, equal));
    check(along_axes(100, 101, close_together));
    check(along_axes(100, 101, one_above));
}

/* A start of ones, as is usual, never finds this vector. */
TEST(test_a_singular_vector_at_right_angles_to_ones)
{
    enum { D = 24, WIDTH = 32 };
    cpl_tensor W = normal_2d(D, WIDTH, 0);
    for (int64_t i = 0; i < D * WIDTH; i++)
        cpl_f32(W)[i] = 1 + ((i / WIDTH + i % WIDTH) % 2 ? 3.0f : -3.0f);
    check(gates_of(W, 1, D, WIDTH));
}

TEST(test_zero_nan_and_infinity)
{
    cpl_tensor zero = gates_of(normal_2d(6, 5, 0), 2, 3, 5), bad = copy_of(zero);
    cpl_f32(bad)[7]       = NAN;
    cpl_f32(bad)[15 + 14] = -INFINITY;
    for (int64_t j = 0; j < 2; j++) {
        assert_true(cpl_f32(norms_of(zero, 1))[j] == 0);
        assert_true(isnan(cpl_f32(norms_of(bad, 1))[j]));
    }
}

TEST(test_bf16)
{
    cpl_tensor low = new_tensor(CPL_BF16, 2 * 33, 47);
    randomise(low, 1);
    check(gates_of(low, 2, 33, 47));
}

/* Threads, and the other gates of a call, change no bit. */
TEST(test_threads_and_neighbours)
{
    enum { N = 7, D = 65, WIDTH = 80 };
    const cpl_tensor gates = gates_of(normal_2d(N * D, WIDTH, 1), N, D, WIDTH);
    const cpl_tensor one = norms_of(gates, 1), three = norms_of(gates, 3);
    assert_memory_equal(one.storage, three.storage, cpl_tensor_bytes(one));
    for (int64_t j = 0; j < N; j++)
        assert_true(cpl_f32(norms_of(cpl_tensor_range(gates, j, 1), 1))[0] == cpl_f32(one)[j]);
}
