/* test_cuda.c - every operation of the CUDA backend against the CPU's. Inputs and bounds are those
 * between instruction sets (test_twins). The module beside the program decides what runs: kernels
 * on a GPU, or on the host by the emulation.
 *
 * usage:  test_cuda [PATTERN]    runs the tests of these names: "f32, odd sizes", "bits*" */
#include <fnmatch.h>

#include "tensor/cuda/copies.h"
#include "tensor/twins.h"

static void open_cuda(cpl_backend *cuda, cpl_dtype compute)
{
    assert_ok(cpl_backend_open(cuda, "cuda", compute, 2));
    cpl_backend_copies(cuda);
}

static void check(void **state, cpl_dtype compute, double eps)
{
    const shape *s = *state;
    cpl_backend cpu, cuda;
    cpl_backend_cpu(&cpu, compute, 2);
    open_cuda(&cuda, compute);
    check_shape(state, &cpu, &cuda, s, CPL_F32, eps);
    if (compute == CPL_BF16) check_shape(state, &cpu, &cuda, s, CPL_BF16, eps);
    cpl_backend_free(&cpu);
    cpl_backend_free(&cuda);
}

static void test_f32(void **state)
{
    check(state, CPL_F32, (double)FLT_EPSILON);
}

static void test_bf16(void **state)
{
    check(state, CPL_BF16, 0x1p-9);
}

/* Checks the operations whose names begin with `prefix`, in bf16. */
static void check_some(void **state, const char *prefix, const shape *s, int count)
{
    const cpl_work work = whole_work(work_of(s));
    cpl_backend cpu, cuda;
    int n_done = 0;
    cpl_backend_cpu(&cpu, CPL_BF16, 2);
    open_cuda(&cuda, CPL_BF16);
    assert_ok(cpl_backend_reserve(&cpu, &work));
    assert_ok(cpl_backend_reserve(&cuda, &work));
    for (int i = 0; i < N_OPERATIONS; i++, release_all(state)) {
        if (strncmp(operations[i].name, prefix, strlen(prefix)) != 0) continue;
        const results right = run_on(&cpu, i, s, CPL_BF16, false);
        const results here  = run_on(&cuda, i, s, CPL_BF16, false);
        compare(operations[i].name, &right, &here, 0x1p-9);
        n_done++;
    }
    assert_int_equal(n_done, count);
    cpl_backend_free(&cpu);
    cpl_backend_free(&cuda);
}

/* Checks shapes with so many and so wide rows that the kernels take their large tiles. */
static void test_large_tiles(void **state)
{
    const shape of_experts  = {"large tiles", 1, 260, 200, 2, 2, 80, 16, 1, 1, 8, false};
    const shape of_coupling = {"large tiles", 1, 2, 24, 66, 2, 72, 16, 1, 1, 8, false};
    check_some(state, "experts", &of_experts, 2);
    check_some(state, "erc.run_local, output", &of_coupling, 1);
}

/* Repeats each call. In the emulation the order of blocks and of their threads changes with every
 * call. */
static void the_same_call_gives_the_same_bits(void **state)
{
    const shape *s      = *state;
    const cpl_work work = whole_work(work_of(s));
    cpl_backend cuda;
    open_cuda(&cuda, CPL_F32);
    assert_ok(cpl_backend_reserve(&cuda, &work));
    for (int i = 0; i < N_OPERATIONS; i++, release_all(state)) {
        const results once  = run_on(&cuda, i, s, CPL_F32, false);
        const results again = run_on(&cuda, i, s, CPL_F32, false);
        compare(operations[i].name, &once, &again, 0);
    }
    cpl_backend_free(&cuda);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } groups[] = {
        {"f32", test_f32}, {"bf16", test_bf16}, {"bits", the_same_call_gives_the_same_bits}};
    enum { N_GROUPS = sizeof groups / sizeof *groups, N_TESTS = N_GROUPS * N_SHAPES };
    static char names[N_TESTS][64];
    static const char large[]            = "bf16, large tiles";
    struct CMUnitTest tests[N_TESTS + 1] = {0};
    size_t count                         = 0;
    for (int i = 0; i < N_TESTS; i++) {
        char *name = names[i];
        snprintf(name, sizeof names[i], "%s, %s", groups[i / N_SHAPES].name,
                 shapes[i % N_SHAPES].what);
        if (argc > 1 && fnmatch(argv[1], name, 0)) continue;
        tests[count++] = (struct CMUnitTest){.name          = name,
                                             .test_func     = groups[i / N_SHAPES].run,
                                             .initial_state = (void *)&shapes[i % N_SHAPES]};
    }
    if (argc < 2 || !fnmatch(argv[1], large, 0))
        tests[count++] = (struct CMUnitTest){.name = large, .test_func = test_large_tiles};
    if (count == 0) fprintf(stderr, "no test has such a name: %s\n", argv[1]);
    return count == 0 || _cmocka_run_group_tests("cuda", tests, count, NULL, NULL);
}
