/* Every operation of ops.h on every backend: the CPU's kernels for each instruction set that this
 * machine runs, and the poisoning backend around the best of them. The inputs are random and equal:
 * odd sizes, one row, no row, an expert without tokens, an expert with all of them. Where products
 * are in bf16, activations are F32 and BF16.
 *
 * The poisoning backend must give the same bits, for it calls the same kernels. A difference means
 * that a kernel reads memory that was never set. The instruction sets must agree as sums of k terms
 * in different orders do: c eps sqrt(k) of the norm, eps being that of the type of the operands. */
#include "tensor/poison/poison.h"
#include "tensor/twins.h"

/* Checks all operations of both backends on all shapes. */
static void check_pair(void **state, cpl_backend *a, cpl_backend *b, double eps)
{
    for (int s = 0; s < N_SHAPES; s++) {
        check_shape(state, a, b, &shapes[s], CPL_F32, eps);
        if (a->compute == CPL_BF16) check_shape(state, a, b, &shapes[s], CPL_BF16, eps);
    }
    cpl_backend_free(a);
    cpl_backend_free(b);
}

static void check_poison(void **state, cpl_dtype compute)
{
    cpl_backend inner, plain, poison;
    cpl_backend_cpu(&inner, compute, 2);
    cpl_backend_cpu(&plain, compute, 2);
    cpl_backend_poison(&poison, &inner);
    check_pair(state, &plain, &poison, 0);
}

TEST(test_poison_f32)
{
    check_poison(state, CPL_F32);
}

TEST(test_poison_bf16)
{
    check_poison(state, CPL_BF16);
}

/* ---- activations in BF16 ---- */

/* Results computed from BF16 numbers are the same in both types: the same bits, or rounded once. */
static void assert_rounded(const results *low, const results *wide)
{
    assert_int_equal(low->count, wide->count);
    for (int i = 0; i < low->count; i++) {
        const cpl_tensor a = low->at[i], b = wide->at[i];
        if (a.dtype != CPL_BF16) assert_same_bits(a, b);
        for (int64_t k = 0; a.dtype == CPL_BF16 && k < cpl_tensor_count(a); k++)
            assert_int_equal(((uint16_t *)a.storage)[k], cpl_bf16_from_f32(cpl_f32(b)[k]));
    }
}

TEST(test_activations)
{
    cpl_backend be;
    int with = 0;
    cpl_backend_cpu(&be, CPL_BF16, 2);
    for (int s = 0; s < N_SHAPES; s++) {
        const cpl_work work = whole_work(work_of(&shapes[s]));
        assert_ok(cpl_backend_reserve(&be, &work));
        for (int i = 0; i < N_OPERATIONS; i++, release_all(state)) {
            const results low  = run_on(&be, i, &shapes[s], CPL_BF16, false);
            const results wide = run_on(&be, i, &shapes[s], CPL_F32, true);
            assert_rounded(&low, &wide);
            for (int k = 0; k < low.count; k++) with += low.at[k].dtype == CPL_BF16;
        }
    }
    assert_true(with > 10 * N_SHAPES);
    cpl_backend_free(&be);
}

/* ---- instruction sets ---- */

#if defined(__x86_64__)
extern const cpl_ops cpl_cpu_ops_v2, cpl_cpu_ops_v3;

static void check_isa(void **state, const cpl_ops *ops)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cpl_backend best, other;
        cpl_backend_cpu(&best, bf16 ? CPL_BF16 : CPL_F32, 2);
        cpl_backend_cpu(&other, bf16 ? CPL_BF16 : CPL_F32, 2);
        other.ops = ops;
        check_pair(state, &best, &other, bf16 ? 0x1p-9 : (double)FLT_EPSILON);
    }
}

TEST(test_v2)
{
    check_isa(state, &cpl_cpu_ops_v2);
}

TEST(test_v3)
{
    if (!strcmp(cpl_cpu_isa(), "v2")) skip();
    check_isa(state, &cpl_cpu_ops_v3);
}
#endif
