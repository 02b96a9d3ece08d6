/* test_gguf_export.c - models as GGUF files compute what llama.cpp computes: logits and greedy
 * tokens.
 *
 * Method: a model is built again from the file alone, and our forward pass computes it.
 *         golden/llama has the results of llama.cpp for the same files, which
 *         `test_gguf_export write DIR` writes for golden/llama/make_llama.py. */
#include "infer/generate.h"
#include "store/gguf_export_case.h"

enum { PROMPT = 8, NEW = 16 };

/* ---- the file computed ---- */

static int64_t size_in(const cpl_gguf *g, const char *key)
{
    char name[100];
    snprintf(name, sizeof name, "%s.%s",
             json_string_value(json_object_get(g->metadata, CPL_GGUF_KEY_ARCHITECTURE)), key);
    return (int64_t)json_number_value(json_object_get(g->metadata, name));
}

/* Returns the settings that the metadata give. */
static cpl_model_settings config_in(const cpl_gguf *g)
{
    cpl_model_settings c = small_config();
    char name[100];
    const char *architecture =
        json_string_value(json_object_get(g->metadata, CPL_GGUF_KEY_ARCHITECTURE));
    c.vocab_size = size_in(g, "vocab_size"), c.d_model = size_in(g, CPL_GGUF_KEY_WIDTH);
    c.d_expert = size_in(g, CPL_GGUF_KEY_EXPERT_WIDTH);
    c.n_layers = size_in(g, CPL_GGUF_KEY_LAYERS), c.n_heads = size_in(g, "attention.head_count");
    c.n_kv_heads = size_in(g, "attention.head_count_kv");
    c.n_experts = size_in(g, CPL_GGUF_KEY_EXPERTS), c.top_k = size_in(g, CPL_GGUF_KEY_TOP_K);
    c.max_positions = size_in(g, "context_length");
    c.norm_topk     = strcmp(architecture, "olmoe") != 0;
    c.router_bias   = size_in(g, "expert_gating_func") == 2;
    c.router        = c.router_bias ? CPL_ROUTER_SIGMOID : CPL_ROUTER_SOFTMAX;
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", architecture);
    c.norm_eps = json_number_value(json_object_get(g->metadata, name));
    snprintf(name, sizeof name, "%s.rope.freq_base", architecture);
    c.rope_theta = json_number_value(json_object_get(g->metadata, name));
    assert_ok(cpl_model_resolve(&c));
    return c;
}

/* Returns a model built from the file alone. */
static model_case *model_in(const cpl_gguf *g)
{
    const cpl_model_settings c = config_in(g);
    model_case *m              = model_empty(&c, 64);
    char name[CPL_GGUF_MAX_NAME + 1];
    for (int64_t i = 0; i < cpl_params_count(&c); i++) {
        const cpl_param p       = cpl_params_at(&c, i);
        const cpl_tensor t      = *cpl_params_tensor(&m->model.master, &p);
        const cpl_gguf_entry *e = entry_of(g, cpl_gguf_export_name(name, &p));
        float *numbers          = numbers_of(g, e);
        assert_int_equal(e->n_elements, cpl_tensor_count(t));
        m->be.ops->put(&m->be, t, numbers);
        free(numbers);
    }
    cpl_model_refresh(&m->model);
    return m;
}

static int32_t prompt_at(int64_t i)
{
    return (int32_t)(2 + i * 37 % (ROWS - 2));
}

static double range_of(const float *numbers, int64_t count)
{
    float low = numbers[0], high = numbers[0];
    for (int64_t i = 1; i < count; i++) {
        low  = fminf(low, numbers[i]);
        high = fmaxf(high, numbers[i]);
    }
    return (double)high - (double)low;
}

/* Reads llama.cpp's part of the list: [PROMPT,ROWS] logits, or (NEW) ids as floats. */
static void recorded(float *out, const cpl_safetensors *file, const char *variant, const char *what,
                     int64_t count)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", variant, what);
    const cpl_safetensors_entry *e = cpl_safetensors_find(file, name);
    assert_non_null(e);
    assert_ok(cpl_safetensors_read_f32(file, e, out, 0, count));
}

/* Compares the logits after every token of the prompt. The bound covers sums in another order. */
static void check_logits(cpl_generator *g, const cpl_safetensors *file, const char *variant)
{
    const double slack = 1e-5; /* relative to the range of the logits */
    float want[PROMPT * ROWS];
    recorded(want, file, variant, "logits", PROMPT * ROWS);
    for (int64_t i = 0; i < PROMPT; i++) {
        const int32_t id   = prompt_at(i);
        const float *row   = want + i * ROWS;
        const double range = range_of(row, ROWS);
        assert_ok(cpl_generator_feed(g, &id, 1));
        assert_true(range > 1);
        const float *logits = cpl_f32(seen(g->model->be, g->logits));
        for (int v = 0; v < ROWS; v++)
            assert_near((double)logits[v], (double)row[v], slack * range);
    }
}

typedef struct heard {
    int32_t at[NEW];
    int count;
} heard;

static bool hear(void *ctx, int32_t id)
{
    heard *h          = ctx;
    h->at[h->count++] = id;
    return true;
}

static void check_greedy(cpl_generator *g, const cpl_safetensors *file, const char *variant)
{
    const cpl_generate_settings settings = {.max_tokens = NEW, .top_p = 1, .eos = -1};
    int32_t prompt[PROMPT];
    float want[NEW];
    heard got = {.count = 0};
    for (int i = 0; i < PROMPT; i++) prompt[i] = prompt_at(i);
    recorded(want, file, variant, "greedy", NEW);
    assert_ok(cpl_generate(g, prompt, PROMPT, &settings, hear, &got, NULL));
    assert_int_equal(got.count, NEW);
    for (int i = 0; i < NEW; i++) assert_int_equal(got.at[i], (int)want[i]);
}

TEST(what_llama_cpp_computes)
{
    cpl_safetensors *file;
    assert_ok(cpl_safetensors_open(&file, golden_path("llama/logits.safetensors")));
    for (size_t v = 0; v < N_VARIANTS; v++) {
        model_case *m     = variant_filled(v);
        cpl_gguf *g       = exported(m, CPL_FORMAT_F32);
        model_case *again = model_in(g);
        cpl_generator generator;
        assert_ok(cpl_generator_init(&generator, &again->model, PROMPT + NEW, PROMPT));
        check_logits(&generator, file, variants[v].name);
        check_greedy(&generator, file, variants[v].name);
        cpl_generator_free(&generator);
        model_gone(again);
        cpl_gguf_close(g);
        model_gone(m);
    }
    cpl_safetensors_close(file);
}

/* ---- files for llama.cpp ---- */

/* Writes the files of the tests to folder `to`. */
static int write_files(const char *to)
{
    char path[600];
    for (size_t v = 0; v < N_VARIANTS; v++) {
        model_case *m = variant_filled(v);
        snprintf(path, sizeof path, "%.400s/%s.gguf", to, variants[v].name);
        assert_ok(export_to(path, saved(m), CPL_FORMAT_F32, NULL));
        model_gone(m);
    }
    return 0;
}
TESTS_DO(with_argument, write_files);
