/* test_gguf_export.c - models as GGUF files: names, shapes, metadata and numbers against the model,
 * the logits and greedy tokens of llama.cpp for these files, models that it does not compute.
 *
 * Method: numbers of the file are decoded by their definition. A model is built again from the file
 * alone and computed by our forward pass; golden/llama has what llama.cpp computed from the same
 * files. `test_gguf_export write DIR` writes them for golden/llama/make_llama.py. */
#include "store/gguf_export.h"

#include "base/rng.h"
#include "infer/generate.h"
#include "store/model_case.h"
#include "support/warnings.h"
#include "tensor/small_floats.h"

enum { PROMPT = 8, NEW = 16, ROWS = 384 };

/* ---- models ---- */

/* One model for every way in which files differ. */
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

static cpl_model_settings config_of(const struct variant *v)
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

/* The same numbers on every machine: matrices and biases in +-0.4, norms in 0.7 to 1.3. */
static model_case *model_filled(const cpl_model_settings *c)
{
    model_case *m   = model_empty(c, 64);
    cpl_rng_key key = {.seed = 11, .stream = CPL_STREAM_TEST};
    for (int64_t i = 0; i < cpl_params_count(c); i++, key.step++) {
        const cpl_param p  = cpl_params_at(c, i);
        const cpl_tensor t = *cpl_params_tensor(&m->model.master, &p);
        for (int64_t k = 0; k < cpl_tensor_count(t); k++) {
            const float u = cpl_rng_uniform(&key, (uint64_t)k) - 0.5f;
            cpl_f32(t)[k] = p.init == CPL_INIT_ONES ? 1 + 0.6f * u : 0.8f * u;
        }
    }
    cpl_model_refresh(&m->model);
    return m;
}

static const cpl_hf_tokens ids = {.pad = 1, .bos = -1, .eos = 0};

static const char *saved(model_case *m)
{
    const char *folder = scratch_folder();
    assert_ok(cpl_hf_save(folder, &m->model, &ids, golden_path("tokenizers/small.json")));
    return folder;
}

static cpl_status export_to(const char *path, const char *folder, cpl_format type,
                            cpl_gguf_export *done, const cpl_log *log)
{
    cpl_hf *hf        = NULL;
    cpl_tokenizer *t  = NULL;
    cpl_status status = cpl_hf_open(&hf, folder, NULL);
    if (status == CPL_OK) status = cpl_hf_load_tokenizer(&t, NULL, hf, NULL);
    if (status == CPL_OK) status = cpl_gguf_export_write(done, hf, t, path, type, "a name", log);
    cpl_tokenizer_free(t);
    cpl_hf_close(hf);
    return status;
}

/* The file of a model, opened. */
static cpl_gguf *exported(model_case *m, cpl_format type)
{
    cpl_gguf *g;
    cpl_gguf_export done;
    const char *folder = saved(m);
    const char *path   = in_folder(folder, "m.gguf");
    assert_ok(export_to(path, folder, type, &done, NULL));
    assert_ok(cpl_gguf_open(&g, path));
    assert_int_equal(done.n_tensors, g->count);
    return g;
}

/* ---- numbers of a file ---- */

static const cpl_gguf_entry *entry_of(const cpl_gguf *g, const char *name)
{
    for (int64_t i = 0; i < g->count; i++)
        if (strcmp(g->entries[i].name, name) == 0) return &g->entries[i];
    fail_msg("the file has no tensor %s", name);
    return NULL;
}

static float number_at(const unsigned char *bytes, cpl_format format, int64_t i)
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

/* All numbers, for the caller to free. */
static float *numbers_of(const cpl_gguf *g, const cpl_gguf_entry *e)
{
    unsigned char *bytes = malloc(e->bytes);
    float *numbers       = malloc((size_t)e->n_elements * sizeof *numbers);
    assert_true(bytes && numbers);
    assert_ok(cpl_source_read_at(g->source, bytes, e->bytes, e->offset));
    for (int64_t i = 0; i < e->n_elements; i++) numbers[i] = number_at(bytes, e->format, i);
    free(bytes);
    return numbers;
}

/* The type that a tensor has where matrices have `type`; see docs/formats.md. */
static cpl_format expected_format(const cpl_param *p, cpl_format type)
{
    if (p->rank == 1 || strcmp(p->field, "router") == 0) return CPL_FORMAT_F32;
    const bool fits = type != CPL_FORMAT_Q8_0 || p->shape[p->rank - 1] % 32 == 0;
    return fits ? type : CPL_FORMAT_F16;
}

/* How far a number may be from the one it stands for: half a step of the type. */
static double slack_of(cpl_format format, double number, double largest)
{
    if (format == CPL_FORMAT_F32) return 0;
    if (format == CPL_FORMAT_BF16) return fabs(number) * 0x1p-8;
    if (format == CPL_FORMAT_F16) return fabs(number) * 0x1p-11 + 0x1p-25;
    return largest / 127 * 0.5 + largest * 0x1p-10;
}

static double largest_of(const float *numbers, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)numbers[i]));
    return largest;
}

/* Which number of the parameter number `i` of the file stands for: key/value heads may come several
 * times. */
static int64_t source_of(int64_t i, const cpl_param *p, int64_t head, int64_t repeats)
{
    const int64_t width = p->rank == 1 ? 1 : p->shape[1], each = head * width;
    return repeats == 1 ? i : i / (each * repeats) * each + i % each;
}

static bool is_of_kv_heads(const cpl_param *p)
{
    return strcmp(p->field, "w_k") == 0 || strcmp(p->field, "w_v") == 0 ||
           strcmp(p->field, "k_norm") == 0;
}

static void check_tensor(const cpl_gguf *g, const char *name, model_case *m, const cpl_param *p,
                         cpl_format type)
{
    const cpl_model_settings *c = &m->model.config;
    const cpl_gguf_entry *e     = entry_of(g, name);
    const int64_t repeats = !c->norm_topk && is_of_kv_heads(p) ? c->n_heads / c->n_kv_heads : 1;
    const float *want     = cpl_f32(*cpl_params_tensor(&m->model.master, p));
    const double largest  = largest_of(want, e->n_elements / repeats);
    float *got            = numbers_of(g, e);
    assert_int_equal(e->format, expected_format(p, type));
    assert_int_equal(e->rank, p->rank);
    for (int i = 0; i < p->rank; i++)
        assert_int_equal(e->shape[i], p->shape[i] * (i == 0 ? repeats : 1));
    for (int64_t i = 0; i < e->n_elements; i++) {
        const double number = want[source_of(i, p, c->d_model / c->n_heads, repeats)];
        assert_near((double)got[i], number, slack_of(e->format, number, largest));
    }
    free(got);
}

/* Every parameter is there under its name, and nothing else. */
static void check_tensors(const cpl_gguf *g, model_case *m, cpl_format type)
{
    const cpl_model_settings *c = &m->model.config;
    char name[CPL_GGUF_MAX_NAME + 1];
    int64_t count = cpl_params_count(c);
    for (int64_t i = 0; i < cpl_params_count(c); i++) {
        const cpl_param p = cpl_params_at(c, i);
        assert_ptr_equal(cpl_gguf_export_name(name, &p), name);
        check_tensor(g, name, m, &p, type);
        if (c->tied && strcmp(p.field, "embed") == 0) check_tensor(g, "output.weight", m, &p, type);
    }
    count += c->tied ? 1 : 0;
    if (c->norm_topk && !c->router_bias) {
        count += c->n_layers;
        float *zeros = numbers_of(g, entry_of(g, "blk.1.exp_probs_b.bias"));
        assert_true(largest_of(zeros, c->n_experts) == 0);
        free(zeros);
    }
    assert_int_equal(g->count, count);
}

static void every_tensor_of_every_type(void **state)
{
    (void)state;
    static const cpl_format types[] = {CPL_FORMAT_F32, CPL_FORMAT_BF16, CPL_FORMAT_F16,
                                       CPL_FORMAT_Q8_0};
    for (size_t v = 0; v < N_VARIANTS; v++) {
        const cpl_model_settings c = config_of(&variants[v]);
        model_case *m              = model_filled(&c);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            cpl_gguf *g = exported(m, types[t]);
            check_tensors(g, m, types[t]);
            cpl_gguf_close(g);
        }
        model_gone(m);
    }
}

/* 40 numbers fit no block of 32, the 64 of the down projections do. */
static void rows_that_no_block_fits(void **state)
{
    (void)state;
    cpl_model_settings c = small_config();
    cpl_gguf_export done;
    cpl_gguf *g;
    c.vocab_size = ROWS, c.d_model = 40, c.d_expert = 64;
    model_case *m      = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    assert_ok(export_to(path, folder, CPL_FORMAT_Q8_0, &done, NULL));
    assert_ok(cpl_gguf_open(&g, path));
    check_tensors(g, m, CPL_FORMAT_Q8_0);
    assert_int_equal(entry_of(g, "blk.0.ffn_down_exps.weight")->format, CPL_FORMAT_Q8_0);
    assert_int_equal(done.n_kept, 2 + 2 * 6); /* embedding, head; q, k, v, o, gate, up */
    cpl_gguf_close(g);
    model_gone(m);
}

/* ---- metadata ---- */

static void check_number(const cpl_gguf *g, const char *prefix, const char *key, double want)
{
    char name[100];
    snprintf(name, sizeof name, "%s%s", prefix, key);
    const json_t *value = json_object_get(g->metadata, name);
    if (!json_is_number(value)) fail_msg("no number %s", name);
    if ((float)json_number_value(value) != (float)want)
        fail_msg("%s is %.9g, wanted %.9g", name, json_number_value(value), want);
}

static void check_string(const cpl_gguf *g, const char *key, const char *want)
{
    const char *value = json_string_value(json_object_get(g->metadata, key));
    assert_non_null(value);
    assert_string_equal(value, want);
}

static void check_sizes(const cpl_gguf *g, const cpl_model_settings *c, const struct variant *v)
{
    char prefix[40];
    snprintf(prefix, sizeof prefix, "%s.", v->architecture);
    check_number(g, prefix, "vocab_size", ROWS);
    check_number(g, prefix, "context_length", 64);
    check_number(g, prefix, "embedding_length", 64);
    check_number(g, prefix, "block_count", 2);
    check_number(g, prefix, "feed_forward_length", 32);
    check_number(g, prefix, "expert_feed_forward_length", 32);
    check_number(g, prefix, "attention.head_count", 4);
    check_number(g, prefix, "attention.head_count_kv", v->norm_topk ? (double)c->n_kv_heads : 4);
    check_number(g, prefix, "attention.layer_norm_rms_epsilon", v->eps);
    check_number(g, prefix, "rope.freq_base", v->theta);
    check_number(g, prefix, "rope.dimension_count", 16);
    check_number(g, prefix, "expert_count", 8);
    check_number(g, prefix, "expert_used_count", (double)v->top_k);
    if (v->norm_topk) check_number(g, prefix, "expert_gating_func", v->sigmoid ? 2 : 1);
}

static void metadata(void **state)
{
    (void)state;
    for (size_t v = 0; v < N_VARIANTS; v++) {
        const cpl_model_settings c = config_of(&variants[v]);
        model_case *m              = model_filled(&c);
        cpl_gguf *g                = exported(m, CPL_FORMAT_BF16);
        check_string(g, "general.architecture", variants[v].architecture);
        check_string(g, "general.name", "a name");
        check_number(g, "general.", "file_type", 32);
        check_number(g, "general.", "quantization_version", 2);
        check_sizes(g, &c, &variants[v]);
        check_string(g, "tokenizer.ggml.model", "gpt2");
        check_string(g, "tokenizer.ggml.pre", "olmo");
        check_number(g, "tokenizer.ggml.", "eos_token_id", 0);
        check_number(g, "tokenizer.ggml.", "padding_token_id", 1);
        assert_null(json_object_get(g->metadata, "tokenizer.ggml.bos_token_id"));
        assert_true(json_is_false(json_object_get(g->metadata, "tokenizer.ggml.add_bos_token")));
        cpl_gguf_close(g);
        model_gone(m);
    }
}

/* Of the two places the file; none where neither has one. */
static void chat_templates(void **state)
{
    (void)state;
    static const char key[]             = "tokenizer.chat_template";
    static const char *const files[][2] = {
        {"tokenizer_config.json", "{\"eos_token\": \"x\"}"},
        {"tokenizer_config.json", "{\"chat_template\": \"{{ one }}\"}"},
        {"chat_template.jinja", "{{ two }}\n"},
    };
    static const char *const wanted[] = {NULL, "{{ one }}", "{{ two }}\n"};
    const cpl_model_settings c        = config_of(&variants[0]);
    model_case *m                     = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    cpl_gguf_export done;
    for (size_t i = 0; i < 3; i++) {
        cpl_gguf *g;
        write_text(in_folder(folder, files[i][0]), files[i][1]);
        assert_ok(export_to(path, folder, CPL_FORMAT_F32, &done, NULL));
        assert_ok(cpl_gguf_open(&g, path));
        if (wanted[i])
            check_string(g, key, wanted[i]);
        else
            assert_null(json_object_get(g->metadata, key));
        cpl_gguf_close(g);
    }
    assert_int_equal(unlink(in_folder(folder, "chat_template.jinja")), 0);
    write_text(in_folder(folder, "tokenizer_config.json"), "{");
    assert_fails(CPL_ERR_INPUT, "tokenizer_config.json",
                 export_to(path, folder, CPL_FORMAT_F32, &done, NULL));
    model_gone(m);
}

/* ---- the file computed ---- */

static int64_t size_in(const cpl_gguf *g, const char *key)
{
    char name[100];
    snprintf(name, sizeof name, "%s.%s",
             json_string_value(json_object_get(g->metadata, CPL_GGUF_KEY_ARCHITECTURE)), key);
    return (int64_t)json_number_value(json_object_get(g->metadata, name));
}

/* The settings that the metadata give. */
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

/* A model of nothing but the file. */
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
        memcpy(cpl_f32(t), numbers, (size_t)e->n_elements * sizeof *numbers);
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

/* llama.cpp's part of the list: [PROMPT,ROWS] logits, or (NEW) ids as floats. */
static void recorded(float *out, const cpl_safetensors *file, const char *variant, const char *what,
                     int64_t count)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", variant, what);
    const cpl_safetensors_entry *e = cpl_safetensors_find(file, name);
    assert_non_null(e);
    assert_ok(cpl_safetensors_read_f32(file, e, out, 0, count));
}

/* After every token of the prompt; the bound is of what the two add up in another order. */
static void check_logits(cpl_generator *g, const cpl_safetensors *file, const char *variant)
{
    const double slack = 1e-5; /* of the range of the logits */
    float want[PROMPT * ROWS];
    recorded(want, file, variant, "logits", PROMPT * ROWS);
    for (int64_t i = 0; i < PROMPT; i++) {
        const int32_t id   = prompt_at(i);
        const float *row   = want + i * ROWS;
        const double range = range_of(row, ROWS);
        assert_ok(cpl_generator_feed(g, &id, 1));
        assert_true(range > 1);
        for (int v = 0; v < ROWS; v++)
            assert_near((double)cpl_f32(g->logits)[v], (double)row[v], slack * range);
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

static void what_llama_cpp_computes(void **state)
{
    (void)state;
    cpl_safetensors *file;
    assert_ok(cpl_safetensors_open(&file, golden_path("llama/logits.safetensors")));
    for (size_t v = 0; v < N_VARIANTS; v++) {
        const cpl_model_settings c = config_of(&variants[v]);
        model_case *m              = model_filled(&c);
        cpl_gguf *g                = exported(m, CPL_FORMAT_F32);
        model_case *again          = model_in(g);
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

/* ---- other forms of the same model ---- */

/* The experts of layer l as two fused tensors. */
static void fuse_layer(cpl_named_list *list, model_case *m, int64_t l, float *both)
{
    const cpl_model_settings *c = &m->model.config;
    const cpl_layer_params *p   = &m->model.master.layer[l];
    const int64_t n = c->n_experts, each = c->d_expert * c->d_model;
    const int64_t shape[2][3] = {{n, 2 * c->d_expert, c->d_model}, {n, c->d_model, c->d_expert}};
    char name[100];
    for (int64_t e = 0; e < n; e++) {
        memcpy(both + 2 * e * each, cpl_f32(p->w_gate) + e * each, (size_t)each * sizeof *both);
        memcpy(both + (2 * e + 1) * each, cpl_f32(p->w_up) + e * each, (size_t)each * sizeof *both);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", (int)l);
    assert_ok(cpl_named_add(list, name, both, 3, shape[0]));
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", (int)l);
    assert_ok(cpl_named_add(list, name, cpl_f32(p->w_down), 3, shape[1]));
}

static bool no_expert(void *ctx, int64_t index, const cpl_param *param, int64_t expert)
{
    (void)ctx, (void)index, (void)param;
    return expert < 0;
}

static void assert_same_files(const char *a, const char *b)
{
    cpl_text one = {0}, two = {0};
    assert_ok(cpl_file_read(&one, a, 1 << 26));
    assert_ok(cpl_file_read(&two, b, 1 << 26));
    assert_int_equal(one.length, two.length);
    assert_memory_equal(one.bytes, two.bytes, one.length);
    cpl_text_free(&one);
    cpl_text_free(&two);
}

static void fused_experts_give_the_same_file(void **state)
{
    (void)state;
    const cpl_model_settings c = config_of(&variants[0]);
    model_case *m              = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "one.gguf");
    const char *other  = in_folder(folder, "other.gguf");
    const int64_t each = c.d_expert * c.d_model;
    float *both        = malloc((size_t)(c.n_layers * c.n_experts * 2 * each) * sizeof *both);
    cpl_gguf_export done;
    cpl_named_list list = {0};
    assert_ok(export_to(path, folder, CPL_FORMAT_Q8_0, &done, NULL));
    assert_ok(cpl_named_some(&list, &m->model.master, &c, "", no_expert, NULL));
    for (int64_t l = 0; l < c.n_layers; l++)
        fuse_layer(&list, m, l, both + l * c.n_experts * 2 * each);
    assert_ok(cpl_named_write(&list, in_folder(folder, "model.safetensors")));
    assert_ok(export_to(other, folder, CPL_FORMAT_Q8_0, &done, NULL));
    assert_same_files(path, other);
    cpl_named_free(&list);
    free(both);
    model_gone(m);
}

/* ---- what is refused, what is said ---- */

static void refuses(cpl_model_settings c, const char *says)
{
    cpl_gguf_export done;
    model_case *m      = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    assert_fails(CPL_ERR_INPUT, says, export_to(path, folder, CPL_FORMAT_F32, &done, NULL));
    assert_false(cpl_path_exists(path));
    model_gone(m);
}

static void what_llama_cpp_does_not_compute(void **state)
{
    (void)state;
    cpl_model_settings c = config_of(&variants[0]);
    c.clip_qkv           = 2;
    refuses(c, "clip_qkv");
    c          = config_of(&variants[0]);
    c.n_shared = 1;
    refuses(c, "n_shared_experts");
    c        = config_of(&variants[0]);
    c.router = CPL_ROUTER_SIGMOID;
    refuses(c, "norm_topk_prob");
    c        = config_of(&variants[0]);
    c.router = CPL_ROUTER_AOE, c.aoe_rank = 5;
    refuses(c, "Autonomy-of-Experts");
}

/* An old file stays as it was. */
static void numbers_that_a_type_cannot_hold(void **state)
{
    (void)state;
    cpl_gguf_export done;
    const cpl_model_settings c                   = config_of(&variants[0]);
    model_case *m                                = model_filled(&c);
    cpl_f32(m->model.master.layer[1].w_down)[77] = 1e5f;
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    write_text(path, "old");
    assert_fails(CPL_ERR_INPUT, "blk.1.ffn_down_exps.weight has a number that F16 cannot hold",
                 export_to(path, folder, CPL_FORMAT_F16, &done, NULL));
    cpl_text old = {0};
    assert_ok(cpl_file_read(&old, path, 100));
    assert_string_equal(old.bytes, "old");
    cpl_text_free(&old);
    assert_ok(export_to(path, folder, CPL_FORMAT_BF16, &done, NULL));
    model_gone(m);
}

/* With `change` made to the text of tokenizer.json. */
static cpl_status with_tokenizer(const char *from, const char *to, const cpl_log *log)
{
    cpl_gguf_export done;
    cpl_text text              = {0};
    const cpl_model_settings c = config_of(&variants[0]);
    model_case *m              = model_filled(&c);
    const char *folder = saved(m), *file = in_folder(folder, "tokenizer.json");
    assert_ok(cpl_file_read(&text, file, 1 << 20));
    char *at = strstr(text.bytes, from);
    if (!at) fail_msg("tokenizer.json has no %s", from);
    char *changed = malloc(text.length + strlen(to) + 1);
    snprintf(changed, text.length + strlen(to) + 1, "%.*s%s%s", (int)(at - text.bytes), text.bytes,
             to, at + strlen(from));
    write_text(file, changed);
    cpl_status status = export_to(in_folder(folder, "m.gguf"), folder, CPL_FORMAT_F32, &done, log);
    free(changed);
    cpl_text_free(&text);
    model_gone(m);
    return status;
}

static void tokenizers(void **state)
{
    (void)state;
    assert_fails(CPL_ERR_INPUT, "add_prefix_space",
                 with_tokenizer("\"add_prefix_space\": false", "\"add_prefix_space\": true", NULL));
    assert_ok(with_tokenizer("\"NFC\"", "\"NFC\"", &a_log));
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "converts texts to NFC"));
    assert_ok(with_tokenizer("{\"type\": \"NFC\"}", "null", &a_log));
    assert_int_equal(n_warnings, 1);
}

/* Whatever allocation fails: an error, nothing lost, and no file or, where the last one fails, after
 * the file has its name, a whole one. */
static void memory_that_runs_out(void **state)
{
    (void)state;
    cpl_gguf_export done;
    const cpl_model_settings c = config_of(&variants[2]);
    model_case *m              = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    const int64_t before = cpl_alloc_in_use();
    int64_t n            = 1;
    cpl_gguf *g;
    for (;; n++) {
        cpl_alloc_fail_at(n);
        const cpl_status status = export_to(path, folder, CPL_FORMAT_F32, &done, NULL);
        cpl_alloc_fail_at(0);
        assert_int_equal(cpl_alloc_in_use(), before);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
        if (!cpl_path_exists(path)) continue;
        assert_ok(cpl_gguf_open(&g, path));
        assert_int_equal(g->count, done.n_tensors);
        cpl_gguf_close(g);
        assert_int_equal(unlink(path), 0);
    }
    assert_true(n > 20);
    model_gone(m);
}

/* ---- files for llama.cpp ---- */

/* As the tests have them, in folder `to`. */
static void write_files(void **state)
{
    const char *to = *state;
    char path[600];
    for (size_t v = 0; v < N_VARIANTS; v++) {
        cpl_gguf_export done;
        const cpl_model_settings c = config_of(&variants[v]);
        model_case *m              = model_filled(&c);
        snprintf(path, sizeof path, "%.400s/%s.gguf", to, variants[v].name);
        assert_ok(export_to(path, saved(m), CPL_FORMAT_F32, &done, NULL));
        model_gone(m);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_of_every_type),
        cmocka_unit_test(rows_that_no_block_fits),
        cmocka_unit_test(metadata),
        cmocka_unit_test(chat_templates),
        cmocka_unit_test(what_llama_cpp_computes),
        cmocka_unit_test(fused_experts_give_the_same_file),
        cmocka_unit_test(what_llama_cpp_does_not_compute),
        cmocka_unit_test(numbers_that_a_type_cannot_hold),
        cmocka_unit_test(tokenizers),
        cmocka_unit_test(memory_that_runs_out),
    };
    const struct CMUnitTest writing[] = {
        cmocka_unit_test_prestate(write_files, argc > 2 ? argv[2] : NULL)};
    if (argc > 2 && strcmp(argv[1], "write") == 0)
        return cmocka_run_group_tests(writing, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
