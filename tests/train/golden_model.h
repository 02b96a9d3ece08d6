/* golden_model.h - the model cases of tests/golden/model, whose README lists their contents:
 * settings, tokens, noise, and the comparison of gradients. */
#ifndef CPL_TESTS_TRAIN_GOLDEN_MODEL_H
#define CPL_TESTS_TRAIN_GOLDEN_MODEL_H

#include <math.h>

#include "checkpoint/stored.h"
#include "io/json.h"
#include "store/hf.h"
#include "store/named.h"
#include "support/mirror.h"
#include "support/run_settings.h"
#include "train/step.h"

/* Limits of that README on norm(got - ref) / norm(ref). */
typedef struct golden_limits {
    cpl_dtype dtype, activations;
    double value, gradient, gradient_all;
} golden_limits;

enum { ABSOLUTE_BELOW = 10 }; /* decimal digits: reference norms below 1e-10 are compared to 1e-6 */

static inline void golden_settings(cpl_settings *s, const char *folder)
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

/* Returns ids and targets [B,S], malloc'd. */
static inline cpl_step_batch golden_tokens(const char *folder, int64_t *seq_len)
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

typedef struct golden_sums {
    double difference, reference; /* squares, over all gradients */
} golden_sums;

/* Returns the whole tensor, malloc'd. */
static inline float *golden_numbers(const cpl_safetensors *file, const char *name, int64_t *count)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    if (!entry) fail_msg("the reference has no %s", name);
    float *out = malloc((size_t)entry->n_elements * sizeof *out + 1);
    assert_ok(cpl_safetensors_read_f32(file, entry, out, 0, entry->n_elements));
    *count = entry->n_elements;
    return out;
}

/* Compares two arrays and adds the squares to `all`, unless that is NULL. */
static inline void golden_near(const char *name, const float *got, const float *want, int64_t count,
                               double limit, golden_sums *all)
{
    double difference = 0, reference = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        reference += (double)want[i] * want[i];
    }
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

static inline void golden_compare(const cpl_safetensors *file, const char *name, const float *got,
                                  int64_t count, double limit, golden_sums *all)
{
    int64_t in_file = 0;
    float *want     = golden_numbers(file, name, &in_file);
    assert_int_equal(in_file, count);
    golden_near(name, got, want, count, limit, all);
    free(want);
}

static inline void golden_compare_gradients(const cpl_safetensors *expected, cpl_model *model,
                                            cpl_params *grads, const golden_limits *limit)
{
    cpl_named_list list = {.be = model->be};
    golden_sums all     = {0};
    assert_ok(cpl_named_params(&list, grads, &model->config, "grad."));
    for (int64_t i = 0; i < list.count; i++) {
        const cpl_named *n = &list.at[i];
        golden_compare(expected, n->name, cpl_f32(seen(model->be, n->tensor)),
                       cpl_tensor_count(n->tensor), limit->gradient, &all);
    }
    if (!(sqrt(all.difference / all.reference) < limit->gradient_all))
        fail_msg("all gradients together are off by %.3g", sqrt(all.difference / all.reference));
    int64_t in_reference = 0;
    for (int64_t i = 0; i < expected->count; i++)
        in_reference += strncmp(expected->entries[i].name, "grad.", 5) == 0;
    if (cpl_model_local_experts(&model->config) == model->config.n_experts)
        assert_int_equal(list.count, in_reference);
    cpl_named_free(&list);
}

static inline void golden_delta(cpl_backend *be, cpl_step *step, const char *folder,
                                int64_t n_layers)
{
    char path[512], name[32];
    cpl_safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/delta.safetensors", folder);
    assert_ok(cpl_safetensors_open(&file, path));
    for (int64_t l = 0; l < n_layers; l++) {
        snprintf(name, sizeof name, "delta.%d", (int)l);
        int64_t count = 0;
        float *delta  = golden_numbers(file, name, &count);
        assert_int_equal(count, cpl_tensor_count(step->delta[l]));
        be->ops->put(be, step->delta[l], delta);
        free(delta);
    }
    cpl_safetensors_close(file);
    step->has_delta = true;
}

static const char *const golden_cases[] = {
    "base",   "alpha-half-sum", "bf16",         "grouped-query", "latent", "long",
    "no-erc", "norm-topk",      "rope-and-eps", "tied",          "top-1"};
enum { N_GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

#endif /* CPL_TESTS_TRAIN_GOLDEN_MODEL_H */
