/* test_launches.c - the work that a training step enqueues on a GPU: kernels and products of a
 * layer, forward and backward, for each kind of router, in the sizes of the paper's 3B.
 *
 * Method: the emulation counts and runs nothing (COUPLET_TEST_CUDA_DRY). Models of two layers and
 *         of one differ by a layer. Steps with and without losses of the router's rows (coupling,
 *         for softmax also orthogonality) differ by these losses. */
#include <stdlib.h>

#include "support/run_settings.h"
#include "tensor/backend/backend.h"
#include "tensor/cuda/counts.h"
#include "train/step.h"

enum { MICRO = 8, SEQ_LEN = 4096 };

/* Limits of a layer. The goal is 45 a pass. A shared expert is one more operation of experts.
 * Losses of the router's rows are computed once a step. */
enum { MOST = 45, SHARED_MOST = 5, ROWS_MOST = 21 };

static const char *const base[] = {
    "model.vocab_size=50304",
    "model.hidden_size=1536",
    "model.intermediate_size=768",
    "model.num_attention_heads=16",
    "model.num_experts=64",
    "model.num_experts_per_tok=8",
    "model.max_position_embeddings=4096",
    "data.seq_len=4096",
    "balance.weight=0.01",
    "z.weight=0",
};

static const struct {
    const char *what, *settings[4];
} cases[] = {
    {"softmax", {"model.router=softmax", "z.weight=0.001"}},
    {"sigmoid, bias, a shared expert",
     {"model.router=sigmoid", "model.router_bias=true", "model.norm_topk_prob=true",
      "model.n_shared_experts=1"}},
    {"aoe", {"model.router=aoe"}},
};

typedef struct counted {
    int64_t forward, all, waits; /* work of a forward pass, of a step without the optimizer */
    int64_t bytes;               /* bytes that the step copies */
} counted;

static counted now(void)
{
    cpl_on_host_counts c;
    cpl_on_host_counted(&c);
    return (counted){0, c.kernels + c.products + c.copies, c.waits, c.bytes};
}

/* Counts a forward pass, then a step, of the run that `settings` describe. */
static counted count_step(cpl_settings *settings, cpl_dtype compute, bool figures)
{
    static int32_t ids[MICRO * SEQ_LEN], targets[MICRO * SEQ_LEN];
    cpl_model_settings config = settings->model;
    cpl_backend be;
    cpl_model model;
    cpl_step step;
    cpl_metrics metrics;
    cpl_params grads;
    cpl_arena arena;
    cpl_tensor_arena run       = cpl_tensor_arena_measure();
    const cpl_step_batch batch = {ids, targets, NULL, MICRO, MICRO * (SEQ_LEN - 1)};
    assert_ok(cpl_model_resolve(&config));
    config.activations  = compute;
    const cpl_work work = cpl_step_work(settings, &config, MICRO);
    assert_ok(cpl_backend_open(&be, "cuda", compute, 2));
    assert_ok(cpl_backend_reserve(&be, &work));
    assert_ok(cpl_model_init(&model, &be, &config, SEQ_LEN));
    assert_ok(cpl_step_init(&step, &be, settings, &config, MICRO, NULL));
    assert_ok(cpl_arena_init(&arena, 1 << 20, "metrics"));
    cpl_metrics_take(&metrics, &arena, &config, 0);
    cpl_params_take(&grads, &run, &config, CPL_F32);
    assert_ok(cpl_tensor_arena_init(&run, &be, &run, "grads"));
    cpl_params_take(&grads, &run, &config, CPL_F32);

    const counted before = now();
    cpl_model_forward(&model, &step.pass, step.tokens.ids, cpl_tensor_none(), NULL);
    const counted between = now();
    cpl_step_gradient(&step, &model, &grads, settings, &batch, figures, false, &metrics);
    const counted after = now();

    cpl_arena_free(&arena);
    cpl_tensor_arena_free(&run);
    cpl_step_free(&step);
    cpl_model_free(&model);
    cpl_backend_free(&be);
    return (counted){between.all - before.all, after.all - between.all, after.waits - between.waits,
                     after.bytes - between.bytes};
}

static cpl_settings sizes(void)
{
    cpl_settings settings = default_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(&settings, base[i]);
    return settings;
}

static counted count(int which, int layers, bool of_rows, cpl_dtype compute)
{
    char assignment[64];
    cpl_settings settings = sizes();
    for (int i = 0; i < 4 && cases[which].settings[i]; i++)
        set(&settings, cases[which].settings[i]);
    snprintf(assignment, sizeof assignment, "model.num_hidden_layers=%d", layers);
    set(&settings, assignment);
    set(&settings, of_rows ? "erc.weight=1" : "erc.weight=0");
    if (of_rows && which == 0) set(&settings, "orth.weight=0.1");
    set(&settings, compute == CPL_BF16 ? "compute.dtype=bf16" : "compute.dtype=f32");
    const counted all = count_step(&settings, compute, false);
    drop(&settings);
    return all;
}

/* Checks one row of the table. */
static void check_layer(int which, cpl_dtype compute)
{
    const counted one = count(which, 1, false, compute), two = count(which, 2, false, compute);
    const counted with = count(which, 2, true, compute), less = count(which, 1, true, compute);
    const int64_t layer = two.all - one.all, forward = two.forward - one.forward;
    const int64_t erc = with.all - less.all - layer;
    print_message("%-32s %-5s %8d %9d %14d %12d\n", cases[which].what,
                  compute == CPL_BF16 ? "bf16" : "f32", (int)forward, (int)(layer - forward),
                  (int)erc, (int)(one.all - layer));
    assert_in_range(forward, 1, MOST);
    assert_in_range(layer - forward, 1,
                    strstr(cases[which].what, "shared") ? MOST + SHARED_MOST : MOST);
    assert_in_range(erc, 0, ROWS_MOST); /* no such losses where experts choose themselves */
    assert_int_equal(with.waits, 1);    /* the wait for the results of the step */
}

static void a_layer_is_few_launches(void **state)
{
    (void)state;
    setenv("COUPLET_TEST_CUDA_DRY", "1", 1);
    print_message("%-32s %-5s %8s %9s %14s %12s\n", "launches of a layer", "", "forward",
                  "backward", "losses of rows", "outside");
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) check_layer(i, bf16 ? CPL_BF16 : CPL_F32);
    unsetenv("COUPLET_TEST_CUDA_DRY");
}

/* Besides the gates only vectors of the router and figures are copied. */
static void figures_copy_the_gates_once(void **state)
{
    const int64_t gates   = INT64_C(2) * 64 * 256 * 1536 * 2; /* two layers in bf16 */
    cpl_settings settings = sizes();
    (void)state;
    set(&settings, "model.num_hidden_layers=2");
    set(&settings, "model.intermediate_size=256");
    set(&settings, "compute.dtype=bf16");
    setenv("COUPLET_TEST_CUDA_DRY", "1", 1);
    const counted plain = count_step(&settings, CPL_BF16, false);
    const counted with  = count_step(&settings, CPL_BF16, true);
    unsetenv("COUPLET_TEST_CUDA_DRY");
    drop(&settings);
    assert_in_range(with.bytes - plain.bytes, gates, gates + gates / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_layer_is_few_launches),
                                       cmocka_unit_test(figures_copy_the_gates_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
