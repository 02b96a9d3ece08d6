/* model_case.h - small models with drawn weights for the tests of store and model, and their
 * tensors under the names and in the types a test wants them in a file. */
#ifndef CPL_TESTS_STORE_MODEL_CASE_H
#define CPL_TESTS_STORE_MODEL_CASE_H

#include <math.h>

#include "base/arena.h"
#include "check.h"
#include "io/file.h"
#include "io/json.h"
#include "model/model.h"
#include "store/hf_config.h"
#include "store/named.h"
#include "support/files.h"
#include "support/mirror.h"
#include "support/tensors.h"
#include "tensor/backend/backend.h"

/* Returns settings in which no two sizes of a tensor are alike: d = 24 in 4 heads and 2 key/value
 * heads, D = 10, 5 experts of which 2 are chosen, 2 layers, 37 rows. */
static inline cpl_model_settings small_config(void)
{
    cpl_model_settings c;
    memset(&c, 0, sizeof c);
    c.vocab_size = 37, c.d_model = 24, c.d_expert = 10, c.n_layers = 2, c.n_heads = 4;
    c.n_kv_heads = 2, c.n_experts = 5, c.top_k = 2, c.max_positions = 64;
    c.norm_eps = 1e-5, c.rope_theta = 1e4, c.clip_qkv = NAN, c.init_std = 0.25;
    c.aoe_rank = CPL_UNSET, c.router_scale = 1;
    return c;
}

/* A model on its own backend, at an address that does not change. */
typedef struct model_case {
    cpl_backend be;
    cpl_model model;
} model_case;

static inline model_case *model_empty(const cpl_model_settings *config, int64_t tokens)
{
    model_case *m = calloc(1, sizeof *m);
    cpl_work work = cpl_pass_work(config, 2 * tokens, true);
    assert_ok(cpl_backend_open(&m->be, "cpu", CPL_F32, 2));
    assert_ok(cpl_backend_reserve(&m->be, &work));
    assert_ok(cpl_model_init(&m->model, &m->be, config, tokens));
    return m;
}

static inline model_case *model_drawn(const cpl_model_settings *config, uint64_t seed)
{
    model_case *m = model_empty(config, 16);
    cpl_model_randomize(&m->model, seed);
    return m;
}

static inline model_case *small_model(uint64_t seed)
{
    const cpl_model_settings c = small_config();
    return model_drawn(&c, seed);
}

static inline void model_gone(model_case *m)
{
    mirrors_drop(&m->be);
    cpl_model_free(&m->model);
    cpl_backend_free(&m->be);
    free(m);
}

/* Returns all parameters under their Hugging Face names. */
static inline cpl_named_list names_of(model_case *m)
{
    cpl_named_list list = {.be = &m->be};
    assert_ok(cpl_named_params(&list, &m->model.master, &m->model.config, ""));
    return list;
}

/* Adds the experts of layer l as two fused tensors. The caller frees the result after the list. */
static inline float *add_fused(cpl_named_list *list, model_case *m, int64_t l)
{
    char name[128];
    const cpl_layer_params *w = &m->model.master.layer[l];
    const int64_t n = w->w_gate.shape[0], rows = w->w_gate.shape[1], cols = w->w_gate.shape[2];
    const int64_t each = rows * cols;
    float *both        = malloc((size_t)(2 * n * each) * sizeof *both);
    const float *gate = cpl_f32(seen(&m->be, w->w_gate)), *up = cpl_f32(seen(&m->be, w->w_up));
    for (int64_t e = 0; e < n; e++) {
        memcpy(both + 2 * e * each, gate + e * each, (size_t)each * sizeof *both);
        memcpy(both + (2 * e + 1) * each, up + e * each, (size_t)each * sizeof *both);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", (int)l);
    assert_ok(cpl_named_add(list, name,
                            mirrored(&m->be, cpl_tensor_3d(both, CPL_F32, n, 2 * rows, cols))));
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", (int)l);
    assert_ok(cpl_named_add(list, name, w->w_down));
    return both;
}

/* Asserts that both have the same numbers, bit for bit, or rounded to `dtype` of a file. */
static inline void assert_same_weights(model_case *got, model_case *want,
                                       cpl_safetensors_dtype dtype)
{
    cpl_named_list a = names_of(got), b = names_of(want);
    double bits = dtype == CPL_SAFETENSORS_BF16 ? 8 : dtype == CPL_SAFETENSORS_F16 ? 11 : 60;
    double tiny = dtype == CPL_SAFETENSORS_F16 ? 0x1p-14 : 0; /* to_f16 makes these zero */
    assert_int_equal(a.count, b.count);
    for (int64_t i = 0; i < a.count; i++) {
        const float *x = cpl_f32(seen(a.be, a.at[i].tensor));
        const float *y = cpl_f32(seen(b.be, b.at[i].tensor));
        assert_string_equal(a.at[i].name, b.at[i].name);
        for (int64_t k = 0; k < cpl_tensor_count(a.at[i].tensor); k++)
            if (!(fabs((double)x[k] - (double)y[k]) <= exp2(-bits) * fabs((double)y[k]) + tiny))
                fail_msg("%s[%d] is %.9g, wanted %.9g", a.at[i].name, (int)k, (double)x[k],
                         (double)y[k]);
    }
    cpl_named_free(&a);
    cpl_named_free(&b);
}

/* ---- files ---- */

static inline uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline uint16_t to_f16(float x) /* subnormal numbers become zero */
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = (u >> 16) & 0x8000, rest = u & 0x7fffffff;
    if (rest < (uint32_t)(127 - 14) << 23) return (uint16_t)sign;
    rest += 0xfff + ((rest >> 13) & 1);
    return (uint16_t)(sign | ((rest - ((uint32_t)(127 - 15) << 23)) >> 13));
}

/* Returns the numbers of a tensor in another type. The caller frees them. */
static inline void *converted(cpl_safetensors_dtype dtype, const float *data, int64_t count)
{
    uint16_t *half = malloc((size_t)count * 4 + 1);
    if (dtype == CPL_SAFETENSORS_F32) return memcpy(half, data, (size_t)count * 4);
    for (int64_t i = 0; i < count; i++)
        half[i] = dtype == CPL_SAFETENSORS_F16 ? to_f16(data[i]) : to_bf16(data[i]);
    return half;
}

/* Writes the tensors of the list for which (index % parts) == part to `path`. Leaves out the tensor
 * named `without` (NULL: no tensor). */
static inline void write_part(const cpl_named_list *list, const char *path,
                              cpl_safetensors_dtype dtype, int parts, int part, const char *without)
{
    cpl_safetensors_tensor *tensors = calloc((size_t)list->count + 1, sizeof *tensors);
    int64_t count                   = 0;
    for (int64_t i = part; i < list->count; i += parts) {
        const cpl_named *n  = &list->at[i];
        const cpl_tensor *t = &n->tensor;
        if (without && strcmp(n->name, without) == 0) continue;
        void *data       = converted(dtype, cpl_f32(seen(list->be, *t)), cpl_tensor_count(*t));
        tensors[count++] = (cpl_safetensors_tensor){n->name, dtype, t->rank, t->shape, data};
    }
    assert_ok(write_tensors(path, tensors, count, NULL));
    for (int64_t i = 0; i < count; i++) free((void *)(uintptr_t)tensors[i].data);
    free(tensors);
}

#endif /* CPL_TESTS_STORE_MODEL_CASE_H */
