/* gguf_export_case.h - small models, their GGUF files, and the numbers of these files. The
 * definition of a type decodes its numbers. */
#ifndef CPL_TESTS_STORE_GGUF_EXPORT_CASE_H
#define CPL_TESTS_STORE_GGUF_EXPORT_CASE_H

#include <math.h>

#include "base/rng.h"
#include "store/gguf_export.h"
#include "store/model_case.h"
#include "tensor/numbers/small_floats.h"

enum { ROWS = 384 };

/* ---- models ---- */

/* Models for every way in which files differ. */
static const struct variant {
    const char *name, *architecture;
    int64_t n_kv_heads, top_k;
    bool tied, norm_topk, sigmoid, bias;
    double theta, eps;
} variants[] = {
    {"plain", "olmoe", 4, 2, false, false, false, false, 1e4, 1e-5},
    {"tied-grouped", "olmoe", 2, 3, true, false, false, false, 5e5, 1e-6},
    {"renormalised", "minimax-m2", 2, 3, false, true, false, false, 1e4, 1e-5},
    {"sigmoid-bias", "minimax-m2", 4, 2, false, true, true, true, 1e4, 1e-3},
};

enum { N_VARIANTS = sizeof variants / sizeof *variants };

static inline cpl_model_settings config_of(const struct variant *v)
{
    cpl_model_settings c = small_config();
    c.vocab_size = ROWS, c.d_model = 64, c.d_expert = 32, c.n_experts = 8;
    c.n_kv_heads = v->n_kv_heads, c.top_k = v->top_k, c.tied = v->tied;
    c.norm_topk = v->norm_topk, c.rope_theta = v->theta, c.norm_eps = v->eps;
    c.router      = v->sigmoid ? CPL_ROUTER_SIGMOID : CPL_ROUTER_SOFTMAX;
    c.router_bias = v->bias;
    assert_ok(cpl_model_resolve(&c));
    return c;
}

/* Returns a model, the same on every machine: matrices and biases in +-0.4, norms in 0.7 to 1.3. */
static inline model_case *model_filled(const cpl_model_settings *c)
{
    model_case *m   = model_empty(c, 64);
    cpl_rng_key key = {.seed = 11, .stream = CPL_STREAM_TEST};
    for (int64_t i = 0; i < cpl_params_count(c); i++, key.step++) {
        const cpl_param p   = cpl_params_at(c, i);
        const cpl_tensor to = *cpl_params_tensor(&m->model.master, &p), t = seen(&m->be, to);
        for (int64_t k = 0; k < cpl_tensor_count(t); k++) {
            const float u = cpl_rng_uniform(&key, (uint64_t)k) - 0.5f;
            cpl_f32(t)[k] = p.init == CPL_INIT_ONES ? 1 + 0.6f * u : 0.8f * u;
        }
        m->be.ops->put(&m->be, to, t.storage);
    }
    cpl_model_refresh(&m->model);
    return m;
}

static inline model_case *variant_filled(size_t i)
{
    const cpl_model_settings c = config_of(&variants[i]);
    return model_filled(&c);
}

static const cpl_hf_tokens ids = {.pad = 1, .bos = -1, .eos = 0};

static inline const char *saved(model_case *m)
{
    const char *folder = scratch_folder();
    assert_ok(cpl_hf_save(folder, &m->model, &ids, golden_path("tokenizers/small.json")));
    return folder;
}

static inline cpl_status export_into(cpl_gguf_export *done, const char *path, const char *folder,
                                     cpl_format type, const cpl_log *log)
{
    cpl_hf *hf        = NULL;
    cpl_tokenizer *t  = NULL;
    cpl_status status = cpl_hf_open(&hf, folder, NULL);
    if (status == CPL_OK) status = cpl_hf_load_tokenizer(&t, NULL, hf, NULL, NULL);
    if (status == CPL_OK) status = cpl_gguf_export_write(done, hf, t, path, type, "a name", log);
    cpl_tokenizer_free(t);
    cpl_hf_close(hf);
    return status;
}

static inline cpl_status export_to(const char *path, const char *folder, cpl_format type,
                                   const cpl_log *log)
{
    cpl_gguf_export done;
    return export_into(&done, path, folder, type, log);
}

/* Writes the file of a model and opens it. */
static inline cpl_gguf *exported(model_case *m, cpl_format type)
{
    cpl_gguf *g;
    cpl_gguf_export done;
    const char *folder = saved(m);
    const char *path   = in_folder(folder, "m.gguf");
    assert_ok(export_into(&done, path, folder, type, NULL));
    assert_ok(cpl_gguf_open(&g, NULL, path, (double)INFINITY));
    assert_int_equal(done.n_tensors, g->count);
    return g;
}

/* ---- numbers of a file ---- */

static inline const cpl_gguf_entry *entry_of(const cpl_gguf *g, const char *name)
{
    for (int64_t i = 0; i < g->count; i++)
        if (strcmp(g->entries[i].name, name) == 0) return &g->entries[i];
    fail_msg("the file has no tensor %s", name);
    return NULL;
}

static inline float number_at(const unsigned char *bytes, cpl_format format, int64_t i)
{
    float single;
    uint16_t half;
    if (format == CPL_FORMAT_F32) {
        memcpy(&single, bytes + 4 * i, sizeof single);
        return single;
    }
    memcpy(&half, bytes + (format == CPL_FORMAT_Q8_0 ? i / 32 * 34 : 2 * i), sizeof half);
    if (format == CPL_FORMAT_BF16) return cpl_bf16_to_f32(half);
    if (format == CPL_FORMAT_F16) return f16_to_f32(half);
    return f16_to_f32(half) * (float)(int8_t)bytes[i / 32 * 34 + 2 + i % 32];
}

/* Returns all numbers. The caller frees them. */
static inline float *numbers_of(const cpl_gguf *g, const cpl_gguf_entry *e)
{
    unsigned char *bytes = malloc(e->bytes);
    float *numbers       = malloc((size_t)e->n_elements * sizeof *numbers);
    assert_true(bytes && numbers);
    assert_ok(cpl_source_read_at(g->source, bytes, e->bytes, e->offset));
    for (int64_t i = 0; i < e->n_elements; i++) numbers[i] = number_at(bytes, e->format, i);
    free(bytes);
    return numbers;
}

#endif /* CPL_TESTS_STORE_GGUF_EXPORT_CASE_H */
