/* test_room.c - the memory of a device: its free memory, requests that do not fit, the speed of
 * products, the scratch that couplet plan predicts. On the emulation, with a device of 1 MiB. */
#include <stdlib.h>

#include "tensor/backend/backend.h"
#include "tensor/backend/gpu.h"
#include "tensor/memory.h"
#include "tensor/ops_check.h"

static const struct cpl_work planned[] = {
    {.d_model    = 1536,
     .d_expert   = 768,
     .n_experts  = 64,
     .top_k      = 8,
     .n_heads    = 16,
     .vocab_size = 50304},
    {.d_model    = 2048,
     .d_expert   = 1024,
     .n_experts  = 64,
     .top_k      = 8,
     .n_heads    = 16,
     .vocab_size = 50304},
    {.d_model    = 1536,
     .d_expert   = 768,
     .n_experts  = 256,
     .top_k      = 8,
     .n_heads    = 16,
     .vocab_size = 50304},
    {.d_model    = 768,
     .d_expert   = 352,
     .n_experts  = 16,
     .top_k      = 4,
     .n_heads    = 12,
     .vocab_size = 32000,
     .d_shared   = 704},
    {.d_model    = 512,
     .d_expert   = 256,
     .n_experts  = 32,
     .top_k      = 2,
     .n_heads    = 8,
     .vocab_size = 50304,
     .gate_rank  = 170},
    {.d_model = 128, .d_expert = 64, .n_experts = 16, .top_k = 4, .n_heads = 4, .vocab_size = 4096},
};

/* The scratch that the plan predicts differs from the backend's by at most 2 %, the padding. */
static void scratch_without_a_gpu(void **state)
{
    static const int64_t tokens[] = {256, 4096, 32768, 49152};
    (void)state;
    for (int compute = 0; compute < 2; compute++) {
        cpl_backend cuda;
        assert_ok(cpl_backend_open(&cuda, "cuda", (cpl_dtype)compute, 1));
        for (size_t i = 0; i < sizeof planned / sizeof *planned * 8; i++) {
            cpl_work work  = planned[i / 8];
            work.n_tokens  = tokens[i / 2 % 4];
            work.training  = i % 2;
            const double n = (double)cuda.ops->scratch_bytes(&cuda, &work);
            assert_near((double)cpl_gpu_scratch((cpl_dtype)compute, &work), n, 0.02 * n);
        }
        cpl_backend_free(&cuda);
    }
}

/* Memory comes from the device. An error names a request that the device refuses. */
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
        "not enough memory: this needs 1.0 MiB on cuda:0 host, and 1.0 MiB of 1.0 MiB are free",
        cpl_backend_fits(&cuda, 1048577, "this"));
    assert_ok(cpl_tensor_reserve(&x, &cuda, CPL_F32, 131072));
    cuda.room(&cuda, &there, &all);
    assert_near(all, 1048576, 0);
    assert_near(there, 524288, 4096);
    assert_ok(cpl_backend_peak(&flops, &cuda, 1e-3));
    assert_true(flops > 0);
    cpl_tensor_take_1d(&arena, 262144);
    assert_fails(CPL_ERR_MEMORY,
                 "out of memory on cuda:0 host: 1.0 MiB are needed for a pass, and ",
                 cpl_tensor_arena_init(&arena, &cuda, &arena, "a pass"));
    assert_non_null(strstr(cpl_last_error(), " of the device's 1.0 MiB are free"));
    cpl_tensor_free(&x, &cuda);
    cuda.room(&cuda, &there, &all);
    assert_near(there, all, 0);
    cpl_backend_free(&cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scratch_without_a_gpu),
        cmocka_unit_test(memory_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
