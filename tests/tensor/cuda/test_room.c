/* test_room.c - the memory of a device: what is left of it, what does not fit, how fast it multiplies; on
 * the emulation, with a device of 1 MiB. */
#include <stdlib.h>

#include "tensor/backend/backend.h"
#include "tensor/memory.h"
#include "tensor/ops_check.h"

static void memory_of_the_device(void **state)
{
    double there, all, flops;
    cpl_backend cuda;
    cpl_tensor x           = cpl_tensor_none();
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    (void)state;
    setenv("COUPLET_TEST_CUDA", "bytes=1048576", 1);
    assert_ok(cpl_backend_open(&cuda, "cuda", CPL_F32, 1));
    assert_ok(cpl_backend_fits(&cuda, 1048576, "this"));
    assert_fails(
        CPL_ERR_MEMORY,
        "not enough memory: this needs 1.0 MiB on cuda:0 host, of whose 1.0 MiB 1.0 MiB are free",
        cpl_backend_fits(&cuda, 1048577, "this"));
    assert_ok(cpl_tensor_reserve(&x, &cuda, CPL_F32, 131072));
    cuda.room(&cuda, &there, &all);
    assert_near(all, 1048576, 0);
    assert_near(there, 524288, 4096);
    assert_ok(cpl_backend_peak(&flops, &cuda, 1e-3));
    assert_true(flops > 0);
    cpl_tensor_take_1d(&arena, 262144);
    assert_fails(CPL_ERR_MEMORY,
                 "out of memory on cuda:0 host: 1.0 MiB for a pass, and of its 1.0 MiB ",
                 cpl_tensor_arena_init(&arena, &cuda, &arena, "a pass"));
    cpl_tensor_free(&x, &cuda);
    cuda.room(&cuda, &there, &all);
    assert_near(there, all, 0);
    cpl_backend_free(&cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_of_the_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
