/* Choosing a backend, its scratch, and what it reports of the machine. */
#include <omp.h>

#include "base/arena.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"
#include "tensor/product.h"

static const cpl_work small_work =
    LIST(.n_tokens = 8, .d_model = 8, .d_expert = 4, .n_experts = 3, .top_k = 2, .n_heads = 2,
         .vocab_size = 11, .training = true);

/* The level is the value of COUPLET_ISA, if given. Only the highest level has bf16 in hardware. */
TEST(level_is_the_one_asked_for)
{
    const char *asked = getenv("COUPLET_ISA");
    cpl_backend *be   = new_cpu(CPL_F32, 1, small_work);
    if (asked) assert_string_equal(cpl_cpu_isa(), asked);
    if (asked && strcmp(asked, "v4") != 0) assert_false(cpl_cpu_has_bf16());
    assert_non_null(strstr(be->name, cpl_cpu_isa()));
    assert_int_equal(cpl_cpu_has_bf16(), cpl_product_has_bf16());
    assert_true(strlen(cpl_cpu_name()) > 0 && strlen(cpl_product_library()) > 0);
    assert_true(cpl_cpu_count() >= 1);
}

/* Asserts that a table has no gap: it holds functions alone. */
static void assert_no_gap(const void *table, size_t bytes)
{
    void *slot;
    for (size_t at = 0; at < bytes; at += sizeof slot) {
        memcpy(&slot, (const char *)table + at, sizeof slot);
        assert_non_null(slot);
    }
}

TEST(every_operation_is_there)
{
    cpl_backend *be = new_cpu(CPL_F32, 0, small_work);
    assert_int_equal(be->n_threads, cpl_cpu_count());
    assert_no_gap(be->ops, sizeof *be->ops);
    assert_no_gap(cpl_cpu_on_host(), sizeof(cpl_host_ops));
}

TEST(scratch_grows_only)
{
    cpl_backend *be = new_cpu(CPL_BF16, 2, small_work);
    void *scratch   = be->scratch;
    size_t bytes    = be->scratch_bytes;
    cpl_work larger = small_work;
    assert_int_equal((uintptr_t)scratch % CPL_ALIGNMENT, 0);
    assert_int_equal(bytes, be->ops->scratch_bytes(be, &small_work));
    assert_ok(cpl_backend_reserve(be, &small_work));
    assert_ptr_equal(be->scratch, scratch);
    larger.n_tokens = 1 << 16;
    assert_ok(cpl_backend_reserve(be, &larger));
    assert_true(be->scratch_bytes > bytes);
    cpl_backend_free(be);
    cpl_backend_free(be);
    assert_null(be->scratch);
}

/* A reservation that fails leaves no scratch, and a later one succeeds. */
TEST(scratch_that_is_refused)
{
    cpl_backend *be = new_cpu(CPL_F32, 1, small_work);
    cpl_work larger = small_work;
    larger.n_tokens = 1 << 16;
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "scratch", cpl_backend_reserve(be, &larger));
    assert_true(!be->scratch && be->scratch_bytes == 0);
    assert_ok(cpl_backend_reserve(be, &larger));
}

/* Work without tokens, experts, heads and a vocabulary needs no scratch and no division by zero. */
TEST(work_of_nothing)
{
    const cpl_work nothing = {0};
    cpl_backend *be        = new_cpu(CPL_BF16, 2, nothing);
    assert_ok(be->ops->sync(be));
}

TEST(first_failure_is_kept)
{
    cpl_backend *be = new_cpu(CPL_F32, 1, small_work);
    cpl_tensor a = normal_2d(2, 3, 1), c = new_tensor(CPL_F32, 2, 2);
    be->failure = CPL_ERR_DEVICE;
    be->ops->gemm(be, c, CPL_AS_IS, a, CPL_TRANSPOSED, a, 0);
    assert_true(cpl_f32(c)[0] == 0);
    assert_fails(CPL_ERR_DEVICE, "failed", be->ops->sync(be));
    assert_fails(CPL_ERR_DEVICE, "failed", be->ops->sync(be));
}

/* Returns FLOP/s of the fastest of some products, in another shape than the peak's. */
static double speed_of_products(int n_threads)
{
    enum { SIDE = 768, TIMES = 5 };
    float *memory  = calloc(3 * SIDE * SIDE, sizeof *memory);
    cpl_operand x  = {memory, CPL_F32, CPL_AS_IS, SIDE};
    double fastest = INFINITY;
    for (int i = 0; i < TIMES; i++) {
        double begin = omp_get_wtime();
        assert_ok(cpl_product(memory + 2 * SIDE * SIDE, SIDE, x, x,
                              (cpl_product_shape){SIDE, SIDE, SIDE}, 0, n_threads));
        fastest = fmin(fastest, omp_get_wtime() - begin);
    }
    free(memory);
    return 2.0 * SIDE * SIDE * SIDE / fastest;
}

/* The operations of a product grow with its volume, and so does its time. The peak is within a
 * factor of the speed of other products (other shapes, bf16, a busy machine). */
TEST(peak_is_a_speed)
{
    static const double factor = 50;
    for (int compute = 0; compute < 2; compute++) {
        cpl_backend *be = new_cpu((cpl_dtype)compute, 2, small_work);
        double flops = 0, speed = speed_of_products(2);
        assert_ok(cpl_backend_peak(&flops, be, 0.01));
        assert_true(flops > speed / factor && flops < speed * factor);
        cpl_alloc_fail_at(1);
        assert_fails(CPL_ERR_MEMORY, "out of memory", cpl_backend_peak(&flops, be, 0.01));
    }
}

/* The number of threads that OpenMP uses by default does not change. */
TEST(products_leave_openmp_alone)
{
    int before    = omp_get_max_threads();
    float a[4]    = {1, 2, 3, 4}, c[4];
    cpl_operand x = {a, CPL_F32, CPL_AS_IS, 2};
    assert_ok(cpl_product(c, 2, x, x, (cpl_product_shape){2, 2, 2}, 0, before + 3));
    assert_int_equal(omp_get_max_threads(), before);
    assert_true(c[0] == 7 && c[1] == 10 && c[2] == 15 && c[3] == 22);
}
