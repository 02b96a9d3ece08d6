/* Products against plain double, in every layout, type and instruction set. */
#include "base/arena.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double C = 4;

typedef struct product {
    int64_t m, n, k;
    cpl_trans ta, tb;
    cpl_dtype a_type, b_type;
    float beta;
} product;

static cpl_work work_of(product p)
{
    int64_t most = p.m > p.n ? p.m : p.n;
    return (cpl_work){.n_tokens = most > p.k ? most : p.k};
}

static cpl_tensor operand(int64_t rows, int64_t cols, cpl_trans trans, cpl_dtype type)
{
    cpl_tensor x = trans == CPL_AS_IS ? new_tensor(type, rows, cols) : new_tensor(type, cols, rows);
    randomise(x, 1);
    return x;
}

/* Returns number (i, j) of op(x), rounded to bf16 if `rounds`. */
static double at(cpl_tensor x, cpl_trans trans, int64_t i, int64_t j, bool rounds)
{
    int64_t place = trans == CPL_AS_IS ? i * x.shape[1] + j : j * x.shape[1] + i;
    if (x.dtype == CPL_BF16) return (double)cpl_bf16_to_f32(((uint16_t *)x.storage)[place]);
    float value = cpl_f32(x)[place];
    return (double)(rounds ? cpl_bf16_to_f32(cpl_bf16_from_f32(value)) : value);
}

static double *oracle(product p, cpl_tensor c, cpl_tensor a, cpl_tensor b, bool rounds)
{
    double *want = new_doubles(p.m * p.n);
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++) {
            double sum = p.beta != 0 ? (double)cpl_f32(c)[i * p.n + j] : 0;
            for (int64_t q = 0; q < p.k; q++)
                sum += at(a, p.ta, i, q, rounds) * at(b, p.tb, q, j, rounds);
            want[i * p.n + j] = sum;
        }
    return want;
}

/* Checks a product against the oracle. A second call gives the same bits, other threads stay within
 * tolerance, and nothing is allocated. */
static void check(product p, cpl_dtype compute, bool f32_operands)
{
    cpl_backend *one = new_cpu(compute, 1, work_of(p)), *two = new_cpu(compute, 2, work_of(p));
    cpl_tensor a = operand(p.m, p.k, p.ta, p.a_type), b = operand(p.k, p.n, p.tb, p.b_type);
    cpl_tensor c = normal_2d(p.m, p.n, 1), again = copy_of(c), threaded = copy_of(c);
    if (p.beta == 0)
        for (int64_t i = 0; i < p.m * p.n; i++) cpl_f32(c)[i] = NAN;
    double *want                    = oracle(p, c, a, b, compute == CPL_BF16 && !f32_operands);
    int64_t before                  = cpl_alloc_count();
    __typeof__(one->ops->gemm) gemm = f32_operands ? one->ops->gemm_f32 : one->ops->gemm;
    gemm(one, c, p.ta, a, p.tb, b, p.beta);
    gemm(one, again, p.ta, a, p.tb, b, p.beta);
    gemm(two, threaded, p.ta, a, p.tb, b, p.beta);
    assert_int_equal(cpl_alloc_count(), before);
    assert_ok(one->ops->sync(one));
    assert_ok(two->ops->sync(two));
    assert_same_bits(c, again);
    assert_close("c", c, want, sum_tolerance(C, p.k), 1e-30);
    assert_close("c with two threads", threaded, want, sum_tolerance(C, p.k), 1e-30);
}

static void check_layouts(int64_t m, int64_t n, int64_t k, cpl_dtype compute, cpl_dtype a_type,
                          cpl_dtype b_type)
{
    for (int i = 0; i < 8; i++) {
        product p = {
            m, n, k, (cpl_trans)(i & 1), (cpl_trans)(i >> 1 & 1), a_type, b_type, (float)(i >> 2)};
        check(p, compute, false);
    }
    release_all(NULL);
}

static const int64_t sizes[][3] = {{1, 1, 1},   {1, 7, 5},    {7, 1, 5},
                                   {7, 5, 1},   {17, 33, 65}, {64, 48, 96},
                                   {1, 96, 64}, {96, 1, 64},  {130, 67, 31}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

TEST(f32_products)
{
    for (int i = 0; i < N_SIZES; i++)
        check_layouts(sizes[i][0], sizes[i][1], sizes[i][2], CPL_F32, CPL_F32, CPL_F32);
}

TEST(bf16_products)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int types = 0; types < 4; types++)
            check_layouts(sizes[i][0], sizes[i][1], sizes[i][2], CPL_BF16,
                          types & 1 ? CPL_BF16 : CPL_F32, types & 2 ? CPL_BF16 : CPL_F32);
}

TEST(nothing_to_multiply)
{
    for (int compute = 0; compute < 2; compute++) {
        check_layouts(3, 4, 0, (cpl_dtype)compute, CPL_F32, CPL_F32);
        check_layouts(0, 4, 5, (cpl_dtype)compute, CPL_F32, CPL_F32);
        check_layouts(3, 0, 5, (cpl_dtype)compute, CPL_F32, CPL_F32);
    }
}

/* Operands are copied into panels block by block along k, along m and along n. */
TEST(products_in_blocks)
{
    product deep = {550, 9, 8200, CPL_TRANSPOSED, CPL_AS_IS, CPL_F32, CPL_F32, 1};
    product wide = {9, 600, 8200, CPL_AS_IS, CPL_TRANSPOSED, CPL_BF16, CPL_F32, 0};
    check(deep, CPL_BF16, false);
    check(wide, CPL_BF16, false);
    release_all(NULL);
}

/* The router's logits are not rounded, whatever type the backend computes in. */
TEST(f32_operands_in_bf16)
{
    product p = {17, 33, 65, CPL_AS_IS, CPL_TRANSPOSED, CPL_F32, CPL_F32, 0};
    check(p, CPL_BF16, true);
    release_all(NULL);
}

/* The products satisfy (a b) e = a (b e), which needs no reference. */
TEST(products_associate)
{
    enum { N = 50 };
    cpl_backend *be = new_cpu(CPL_F32, 2, (cpl_work){.n_tokens = N});
    cpl_tensor a = normal_2d(N, N, 1), b = normal_2d(N, N, 1), e = normal_2d(N, N, 1);
    cpl_tensor ab = new_tensor(CPL_F32, N, N), be_ = new_tensor(CPL_F32, N, N);
    cpl_tensor left = new_tensor(CPL_F32, N, N), right = new_tensor(CPL_F32, N, N);
    be->ops->gemm(be, ab, CPL_AS_IS, a, CPL_AS_IS, b, 0);
    be->ops->gemm(be, left, CPL_AS_IS, ab, CPL_AS_IS, e, 0);
    be->ops->gemm(be, be_, CPL_AS_IS, b, CPL_AS_IS, e, 0);
    be->ops->gemm(be, right, CPL_AS_IS, a, CPL_AS_IS, be_, 0);
    assert_close("(a b) e", left, doubles_of(right), sum_tolerance(C, N) * sqrt(N), 0);
    release_all(NULL);
}
