/* test_golden.c - whole models against PyTorch in float64: logits, losses, M, eps and every
 * gradient of tests/golden/model, in f32 and in bf16, with the tolerances of its README. */
#include "support/mirror.h"
#include "tensor/backend/backend.h"
#include "tensor/numbers.h"
#include "tensor/poison/poison.h"
#include "train/golden_model.h"

static const golden_limits f32      = {CPL_F32, CPL_F32, 2e-6, 1e-5, 5e-6};
static const golden_limits bf16     = {CPL_BF16, CPL_F32, 2e-2, 6e-2, 3e-2};
static const golden_limits all_bf16 = {CPL_BF16, CPL_BF16, 2e-2, 6e-2, 3e-2};

static void compare_scalar(const cpl_safetensors *file, const char *name, double got, double limit)
{
    float x = (float)got;
    golden_compare(file, name, &x, 1, limit, NULL);
}

static void compare_outputs(const cpl_safetensors *expected, cpl_model *model, cpl_step *step,
                            const cpl_metrics *m, const golden_limits *limit)
{
    char name[64];
    compare_scalar(expected, "loss.ce", m->loss, limit->value);
    compare_scalar(expected, "loss.erc", m->aux[CPL_AUX_ERC].value, limit->value);
    compare_scalar(expected, "loss.balance", m->aux[CPL_AUX_BALANCE].value, limit->value);
    compare_scalar(expected, "loss.z", m->aux[CPL_AUX_Z].value, limit->value);
    compare_scalar(expected, "loss.total", m->loss_total, limit->value);
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        snprintf(name, sizeof name, "erc.%d.M", (int)l);
        golden_compare(expected, name, cpl_f32(seen(model->be, step->M[l])),
                       cpl_tensor_count(step->M[l]), limit->value, NULL);
        snprintf(name, sizeof name, "erc.%d.eps", (int)l);
        golden_compare(expected, name, cpl_f32(seen(model->be, step->eps[l])),
                       cpl_tensor_count(step->eps[l]), 1e-4, NULL);
    }
    int64_t t = step->micro * step->seq_len, v = model->config.vocab_size;
    float *logits = calloc((size_t)(t * v), sizeof *logits);
    cpl_model_forward(model, &step->pass, step->tokens.ids, cpl_tensor_none(), NULL);
    cpl_model_logits(model, &step->pass, mirrored(model->be, cpl_tensor_2d(logits, CPL_F32, t, v)),
                     0);
    mirrors_end(model->be);
    golden_compare(expected, "logits", logits, t * v, limit->value, NULL);
    free(logits);
}

enum { MOST_LAYERS = 8 };

/* Returns number i of a tensor that a pass keeps. */
static double kept_number(cpl_tensor x, int64_t i)
{
    return (double)(x.dtype == CPL_BF16 ? cpl_bf16_to_f32(((const uint16_t *)x.storage)[i])
                                        : cpl_f32(x)[i]);
}

/* Counts the share of logits below 0 in each layer, from what passes over micro-batches keep. */
static void count_plainly(double *share, cpl_model *model, cpl_step *step,
                          const cpl_step_batch *batch)
{
    const int64_t T = step->micro * step->seq_len, d = model->config.d_model;
    const int64_t n = model->config.n_experts, all = batch->n_sequences * step->seq_len * n;
    cpl_tensor kept = cpl_tensor_none(), rows = kept; /* tensors of a layer */
    memset(share, 0, MOST_LAYERS * sizeof *share);
    assert_true(model->config.n_layers <= MOST_LAYERS && !batch->doc_start);
    for (int64_t first = 0; first < batch->n_sequences; first += step->micro) {
        const int32_t *ids = batch->ids + first * step->seq_len;
        cpl_model_forward(model, &step->pass,
                          mirrored(model->be, cpl_tensor_1d((void *)(uintptr_t)ids, CPL_I32, T)),
                          cpl_tensor_none(), NULL);
        mirrors_end(model->be);
        for (int64_t i = 0; i < model->config.n_layers * T * n; i++) {
            const int64_t l = i / (T * n), at = i % (T * n);
            if (at == 0) {
                kept = seen(model->be, step->pass.moe[l].b);
                rows = seen(model->be, model->master.layer[l].router);
            }
            const float *R = cpl_f32(rows) + at % n * d;
            double score   = 0;
            for (int64_t k = 0; k < d; k++)
                score += kept_number(kept, at / n * d + k) * (double)R[k];
            share[l] += (score < 0) / (double)all;
        }
    }
}

static void check_negative(const double *want, const cpl_metrics *m, bool figures)
{
    for (int64_t l = 0; l < m->n_layers; l++) {
        assert_true(want[l] > 0.1 && want[l] < 0.9);
        assert_near(m->layer[l].scores_negative, figures ? want[l] : 0, 1e-9);
    }
}

/* Runs a case, `micro` sequences at a time. `figures` adds a coupling gradient computed apart. */
static void run_case(const char *name, const golden_limits *limit, bool poisoned, int64_t micro,
                     bool figures)
{
    char folder[256], path[512];
    cpl_settings settings;
    cpl_hf *hf = NULL;
    cpl_backend cpu, poison, *be = &cpu;
    cpl_model model;
    cpl_step step;
    cpl_metrics metrics;
    cpl_arena arena;
    cpl_tensor_arena run = cpl_tensor_arena_measure();
    cpl_params grads;
    cpl_safetensors *expected = NULL;
    double negative[MOST_LAYERS];
    snprintf(folder, sizeof folder, "%s", golden_path("model/"));
    snprintf(folder + strlen(folder), sizeof folder - strlen(folder), "%s", name);
    golden_settings(&settings, folder);
    cpl_step_batch batch = golden_tokens(folder, &settings.data.seq_len);
    if (!micro) micro = batch.n_sequences;
    assert_ok(cpl_hf_open(&hf, folder, NULL));
    cpl_model_settings own           = *cpl_hf_config(hf);
    const cpl_model_settings *config = &own;
    own.activations                  = limit->activations;
    cpl_work work                    = cpl_step_work(&settings, config, micro);
    assert_ok(cpl_backend_open(&cpu, "cpu", limit->dtype, 2));
    if (poisoned) cpl_backend_poison(be = &poison, &cpu);
    assert_ok(cpl_backend_reserve(be, &work));
    assert_ok(cpl_model_init(&model, be, config, settings.data.seq_len));
    assert_ok(cpl_hf_load(hf, &model));
    assert_ok(cpl_step_init(&step, be, &settings, config, micro, NULL));
    golden_delta(be, &step, folder, config->n_layers);
    assert_ok(cpl_arena_init(&arena, 1 << 20, "metrics"));
    cpl_metrics_take(&metrics, &arena, config, 0);
    cpl_params_take(&grads, &run, config, CPL_F32);
    assert_ok(cpl_tensor_arena_init(&run, be, &run, "grads"));
    cpl_params_take(&grads, &run, config, CPL_F32);

    count_plainly(negative, &model, &step, &batch);
    int64_t before = cpl_alloc_count();
    cpl_step_gradient(&step, &model, &grads, &settings, &batch, figures, true, &metrics);
    if (!(figures && be->note)) /* operations without a GPU kernel allocate copies */
        assert_int_equal(cpl_alloc_count(), before); /* nothing is allocated inside a step */
    assert_ok(be->ops->sync(be));
    check_negative(negative, &metrics, figures);

    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    assert_ok(cpl_safetensors_open(&expected, path));
    if (micro == batch.n_sequences && !figures)
        compare_outputs(expected, &model, &step, &metrics, limit);
    if (micro == batch.n_sequences) /* balance is counted per micro-batch */
        golden_compare_gradients(expected, &model, &grads, limit);
    else
        compare_scalar(expected, "loss.ce", metrics.loss, limit->value);

    drop(&settings);
    cpl_safetensors_close(expected);
    free((void *)(uintptr_t)batch.ids);
    free((void *)(uintptr_t)batch.target);
    cpl_arena_free(&arena);
    cpl_tensor_arena_free(&run);
    cpl_step_free(&step);
    cpl_model_free(&model);
    cpl_backend_free(be);
    cpl_hf_close(hf);
}

TEST(in_f32)
{
    for (int i = 0; i < N_GOLDEN_CASES; i++) run_case(golden_cases[i], &f32, false, 0, false);
}

TEST(in_bf16)
{
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        run_case(golden_cases[i], &bf16, false, 0, false);
        run_case(golden_cases[i], &all_bf16, false, 0, false);
    }
}

TEST(reads_nothing_unset)
{
    for (int i = 0; i < N_GOLDEN_CASES; i++) run_case(golden_cases[i], &f32, true, 0, false);
}

TEST(in_micro_batches)
{
    run_case("base", &f32, false, 1, false);
    run_case("long", &f32, false, 1, true);
}

TEST(coupling_apart_is_the_same)
{
    run_case("base", &f32, false, 0, true);
    run_case("tied", &f32, true, 0, true);
}
