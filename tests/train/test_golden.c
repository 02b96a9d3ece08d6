/* test_golden.c - whole models against PyTorch in float64: logits, losses, M, eps and every
 * gradient of tests/golden/model, in f32 and in bf16, with the tolerances of its README. */
#include <math.h>

#include "checkpoint/stored.h"
#include "io/json.h"
#include "store/hf.h"
#include "store/named.h"
#include "support/run_settings.h"
#include "tensor/backend/backend.h"
#include "tensor/poison/poison.h"
#include "train/step.h"

/* The README's limits on norm(got - ref) / norm(ref). */
typedef struct limits {
    cpl_dtype dtype;
    double value, gradient, gradient_all;
} limits;

static const limits f32  = {CPL_F32, 1e-4, 1e-4, 1e-4};
static const limits bf16 = {CPL_BF16, 2e-2, 6e-2, 3e-2};

enum { ABSOLUTE_BELOW = 10 }; /* decimal digits: reference norms below 1e-10 are compared to 1e-6 */

static void load_settings(cpl_settings *s, const char *folder)
{
    char path[512];
    json_t *json = NULL, *value;
    const char *key;
    *s = default_settings();
    snprintf(path, sizeof path, "%s/case.json", folder);
    assert_ok(cpl_json_load(&json, path));
    json_object_foreach(json_object_get(json, "settings"), key, value)
    {
        char assignment[160];
        if (json_is_string(value))
            snprintf(assignment, sizeof assignment, "%s=%s", key, json_string_value(value));
        else
            snprintf(assignment, sizeof assignment, "%s=%.17g", key, json_number_value(value));
        set(s, assignment);
    }
    json_decref(json);
}

/* ids and targets [B,S], malloc'd. */
static cpl_step_batch load_tokens(const char *folder, int64_t *seq_len)
{
    char path[512];
    json_t *json = NULL;
    snprintf(path, sizeof path, "%s/tokens.json", folder);
    assert_ok(cpl_json_load(&json, path));
    json_t *rows = json_object_get(json, "input_ids");
    int64_t b    = (int64_t)json_array_size(rows),
            t    = (int64_t)json_array_size(json_array_get(rows, 0));
    int32_t *ids = malloc((size_t)(b * t) * 4), *target = malloc((size_t)(b * t) * 4);
    for (int64_t i = 0; i < b * t; i++)
        ids[i] = (int32_t)json_integer_value(
            json_array_get(json_array_get(rows, (size_t)(i / t)), (size_t)(i % t)));
    for (int64_t i = 0; i < b * t; i++) target[i] = i % t == t - 1 ? -1 : ids[i + 1];
    json_decref(json);
    *seq_len             = t;
    cpl_step_batch batch = {ids, target, NULL, b, b * (t - 1)};
    return batch;
}

typedef struct sums {
    double difference, reference; /* squares, over all gradients */
} sums;

static void compare(const cpl_safetensors *file, const char *name, const float *got, int64_t count,
                    double limit, sums *all)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    if (!entry) fail_msg("the reference has no %s", name);
    assert_int_equal(entry->n_elements, count);
    float *want = malloc((size_t)count * sizeof *want + 1);
    assert_ok(cpl_safetensors_read_f32(file, entry, want, 0, count));
    double difference = 0, reference = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        reference += (double)want[i] * want[i];
    }
    free(want);
    if (sqrt(reference) < pow(10, -ABSOLUTE_BELOW))
        assert_near(sqrt(difference), 0, 1e-6);
    else if (!(sqrt(difference / reference) < limit))
        fail_msg("%s is off by %.3g of its norm, allowed %.3g", name, sqrt(difference / reference),
                 limit);
    if (all) {
        all->difference += difference;
        all->reference += reference;
    }
}

static void compare_scalar(const cpl_safetensors *file, const char *name, double got, double limit)
{
    float x = (float)got;
    compare(file, name, &x, 1, limit, NULL);
}

static void compare_outputs(const cpl_safetensors *expected, cpl_model *model, cpl_step *step,
                            const cpl_metrics *m, const limits *limit)
{
    char name[64];
    compare_scalar(expected, "loss.ce", m->loss, limit->value);
    compare_scalar(expected, "loss.erc", m->aux[CPL_AUX_ERC].value, limit->value);
    compare_scalar(expected, "loss.balance", m->aux[CPL_AUX_BALANCE].value, limit->value);
    compare_scalar(expected, "loss.z", m->aux[CPL_AUX_Z].value, limit->value);
    compare_scalar(expected, "loss.total", m->loss_total, limit->value);
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        snprintf(name, sizeof name, "erc.%d.M", (int)l);
        compare(expected, name, cpl_f32(step->M[l]), cpl_tensor_count(step->M[l]), limit->value,
                NULL);
        snprintf(name, sizeof name, "erc.%d.eps", (int)l);
        compare(expected, name, cpl_f32(step->eps[l]), cpl_tensor_count(step->eps[l]), 1e-4, NULL);
    }
    int64_t t = step->micro * step->seq_len, v = model->config.vocab_size;
    float *logits = malloc((size_t)(t * v) * sizeof *logits);
    cpl_model_logits(model, &step->pass, cpl_tensor_2d(logits, CPL_F32, t, v), 0);
    compare(expected, "logits", logits, t * v, limit->value, NULL);
    free(logits);
}

static void compare_gradients(const cpl_safetensors *expected, cpl_model *model, cpl_params *grads,
                              const limits *limit)
{
    cpl_named_list list = {0};
    sums all            = {0};
    assert_ok(cpl_named_params(&list, grads, &model->config, "grad."));
    for (int64_t i = 0; i < list.count; i++) {
        const cpl_named *n = &list.at[i];
        compare(expected, n->name, n->data, n->shape[0] * n->shape[1] * n->shape[2],
                limit->gradient, &all);
    }
    if (!(sqrt(all.difference / all.reference) < limit->gradient_all))
        fail_msg("all gradients together are off by %.3g", sqrt(all.difference / all.reference));
    int64_t in_reference = 0;
    for (int64_t i = 0; i < cpl_safetensors_count(expected); i++)
        in_reference += strncmp(cpl_safetensors_at(expected, i)->name, "grad.", 5) == 0;
    assert_int_equal(list.count, in_reference);
    cpl_named_free(&list);
}

static void load_delta(cpl_step *step, const char *folder, int64_t n_layers)
{
    char path[512], name[32];
    cpl_safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/delta.safetensors", folder);
    assert_ok(cpl_safetensors_open(&file, path));
    for (int64_t l = 0; l < n_layers; l++) {
        snprintf(name, sizeof name, "delta.%d", (int)l);
        assert_ok(cpl_safetensors_read_f32(file, cpl_safetensors_find(file, name),
                                           cpl_f32(step->delta[l]), 0,
                                           cpl_tensor_count(step->delta[l])));
    }
    cpl_safetensors_close(file);
    step->has_delta = true;
}

/* `micro` sequences at a time; `figures` makes the coupling gradient apart and adds it. */
static void run_case(const char *name, const limits *limit, bool poisoned, int64_t micro,
                     bool figures)
{
    char folder[256], path[512];
    cpl_settings settings;
    cpl_hf *hf = NULL;
    cpl_backend cpu, poison, *be = &cpu;
    cpl_model model;
    cpl_step step;
    cpl_metrics metrics;
    cpl_arena arena, run;
    cpl_params grads;
    cpl_safetensors *expected = NULL;
    snprintf(folder, sizeof folder, "%s", golden_path("model/"));
    snprintf(folder + strlen(folder), sizeof folder - strlen(folder), "%s", name);
    load_settings(&settings, folder);
    cpl_step_batch batch = load_tokens(folder, &settings.data.seq_len);
    if (!micro) micro = batch.n_sequences;
    assert_ok(cpl_hf_open(&hf, folder, NULL));
    const cpl_model_settings *config = cpl_hf_config(hf);
    cpl_work work                    = cpl_step_work(&settings, config, micro);
    cpl_backend_cpu(&cpu, limit->dtype, 2);
    if (poisoned) cpl_backend_poison(be = &poison, &cpu);
    assert_ok(cpl_backend_reserve(be, &work));
    assert_ok(cpl_model_init(&model, be, config, settings.data.seq_len));
    assert_ok(cpl_hf_load(hf, &model));
    assert_ok(cpl_step_init(&step, &settings, config, micro, NULL));
    load_delta(&step, folder, config->n_layers);
    assert_ok(cpl_arena_init(&arena, 1 << 20, "metrics"));
    cpl_metrics_take(&metrics, &arena, config, 0);
    assert_ok(cpl_arena_init(&run, (size_t)cpl_params_numbers(config) * 4 + (1 << 20), "grads"));
    cpl_params_take(&grads, &run, config, CPL_F32);

    int64_t before = cpl_alloc_count();
    cpl_step_gradient(&step, &model, &grads, &settings, &batch, figures, true, &metrics);
    assert_int_equal(cpl_alloc_count(), before); /* nothing is allocated inside a step */
    assert_ok(be->ops->sync(be));

    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    assert_ok(cpl_safetensors_open(&expected, path));
    if (micro == batch.n_sequences && !figures)
        compare_outputs(expected, &model, &step, &metrics, limit);
    if (micro == batch.n_sequences) /* balance is counted per micro-batch */
        compare_gradients(expected, &model, &grads, limit);
    else
        compare_scalar(expected, "loss.ce", metrics.loss, limit->value);

    drop(&settings);
    cpl_safetensors_close(expected);
    free((void *)(uintptr_t)batch.ids);
    free((void *)(uintptr_t)batch.target);
    cpl_arena_free(&arena);
    cpl_arena_free(&run);
    cpl_step_free(&step);
    cpl_model_free(&model);
    cpl_backend_free(be);
    cpl_hf_close(hf);
}

static const char *const cases[] = {"base", "alpha-half-sum", "bf16",      "grouped-query",
                                    "long", "no-erc",         "norm-topk", "rope-and-eps",
                                    "tied", "top-1"};
enum { N_CASES = sizeof cases / sizeof *cases };

static void in_f32(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) run_case(cases[i], &f32, false, 0, false);
}

static void in_bf16(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) run_case(cases[i], &bf16, false, 0, false);
}

static void reads_nothing_unset(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) run_case(cases[i], &f32, true, 0, false);
}

static void in_micro_batches(void **state)
{
    (void)state;
    run_case("base", &f32, false, 1, false);
    run_case("long", &f32, false, 1, true);
}

static void coupling_apart_is_the_same(void **state)
{
    (void)state;
    run_case("base", &f32, false, 0, true);
    run_case("tied", &f32, true, 0, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_f32),
        cmocka_unit_test(in_bf16),
        cmocka_unit_test(reads_nothing_unset),
        cmocka_unit_test(in_micro_batches),
        cmocka_unit_test(coupling_apart_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
