/* test_cuda.c - every operation of the CUDA backend against the CPU's: kernels run by the emulation, the
 * others borrowed; the same inputs and bounds as between instruction sets (test_twins). */
#include "tensor/cuda/module.h"
#include "tensor/twins.h"

extern const cpl_cuda_module cpl_cuda_module_entry;

static void check(void **state, cpl_dtype compute, double eps)
{
    cpl_backend cpu, inner, cuda;
    cpl_backend_cpu(&cpu, compute, 2);
    cpl_backend_cpu(&inner, compute, 2);
    assert_null(cpl_cuda_module_entry.open(&cuda, -1, &inner, cpl_fail));
    check_pair(state, &cpu, &cuda, eps);
}

static void test_f32(void **state)
{
    check(state, CPL_F32, (double)FLT_EPSILON);
}

static void test_bf16(void **state)
{
    check(state, CPL_BF16, 0x1p-9);
}

/* The order in which the threads of a block run, and blocks, changes with every call. */
static void the_same_call_gives_the_same_bits(void **state)
{
    cpl_backend inner, cuda;
    cpl_backend_cpu(&inner, CPL_F32, 2);
    assert_null(cpl_cuda_module_entry.open(&cuda, -1, &inner, cpl_fail));
    for (int s = 0; s < N_SHAPES; s++) {
        const cpl_work work = whole_work(work_of(&shapes[s]));
        assert_ok(cpl_backend_reserve(&cuda, &work));
        for (int i = 0; i < N_OPERATIONS; i++, release_all(state)) {
            const results once  = run_on(&cuda, i, &shapes[s], CPL_F32, false);
            const results again = run_on(&cuda, i, &shapes[s], CPL_F32, false);
            compare(operations[i].name, &once, &again, 0);
        }
    }
    cpl_backend_free(&cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
