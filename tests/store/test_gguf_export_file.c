/* test_gguf_export_file.c - the contents of a model's GGUF file: names, shapes, types, metadata,
 * and every number against the model's. */
#include "store/gguf_export_case.h"
#include "support/warnings.h"

/* ---- tensors ---- */

/* Returns the type of a tensor if matrices have `type`; see docs/formats.md. */
static cpl_format expected_format(const cpl_param *p, cpl_format type)
{
    if (p->rank == 1 || strcmp(p->field, "router") == 0) return CPL_FORMAT_F32;
    const bool fits = type != CPL_FORMAT_Q8_0 || p->shape[p->rank - 1] % 32 == 0;
    return fits ? type : CPL_FORMAT_F16;
}

/* Returns how far a number may be from the model's number: half a step of the type. */
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

/* Returns the index of the parameter's number that number `i` of the file repeats. Key/value heads
 * may come several times. */
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
    const float *want     = cpl_f32(seen(&m->be, *cpl_params_tensor(&m->model.master, p)));
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

/* Asserts that every parameter is there under its name, and no other tensor. */
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

TEST(every_tensor_of_every_type)
{
    static const cpl_format types[] = {CPL_FORMAT_F32, CPL_FORMAT_BF16, CPL_FORMAT_F16,
                                       CPL_FORMAT_Q8_0};
    for (size_t v = 0; v < N_VARIANTS; v++) {
        model_case *m = variant_filled(v);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            cpl_gguf *g = exported(m, types[t]);
            check_tensors(g, m, types[t]);
            cpl_gguf_close(g);
        }
        model_gone(m);
    }
}

/* A row of 40 numbers fits no block of 32. A row of 64, as in the down projections, fits. */
TEST(rows_that_no_block_fits)
{
    cpl_model_settings c = small_config();
    cpl_gguf_export done;
    cpl_gguf *g;
    c.vocab_size = ROWS, c.d_model = 40, c.d_expert = 64;
    model_case *m      = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    assert_ok(export_into(&done, path, folder, CPL_FORMAT_Q8_0, NULL));
    assert_ok(cpl_gguf_open(&g, NULL, path, (double)INFINITY));
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

TEST(metadata)
{
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

/* Cases of chat templates. The file has precedence over the other place, and the template named
 * "default" over the rest of a list. Without a template the result is NULL. `heard`: warnings, one
 * of which is of the tokenizer. */
static const struct chat_case {
    const char *file, *content, *wanted;
    int heard;
} chat_cases[] = {
    {"tokenizer_config.json", "{\"eos_token\": \"x\"}", NULL, 1},
    {"tokenizer_config.json", "{\"chat_template\": null}", NULL, 1},
    {"tokenizer_config.json", "{\"chat_template\": 7}", NULL, 2},
    {"tokenizer_config.json", "{\"chat_template\": \"{{ one }}\"}", "{{ one }}", 1},
    {"tokenizer_config.json",
     "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{{ t }}\"},"
     " {\"name\": \"default\", \"template\": \"{{ d }}\"}]}",
     "{{ d }}", 2},
    {"tokenizer_config.json",
     "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{{ t }}\"}]}", NULL, 2},
    {"chat_template.jinja", "{{ two }}\n", "{{ two }}\n", 1},
    {"chat_template.jinja", "", NULL, 1},
    {"chat_template.jinja", "{{ \xff }}\n", NULL, 2},
};

TEST(chat_templates)
{
    static const char key[] = "tokenizer.chat_template";
    model_case *m           = variant_filled(0);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    for (size_t i = 0; i < sizeof chat_cases / sizeof *chat_cases; i++) {
        const struct chat_case *one = &chat_cases[i];
        cpl_gguf *g;
        n_warnings = 0;
        write_string(in_folder(folder, one->file), one->content);
        assert_ok(export_to(path, folder, CPL_FORMAT_F32, &a_log));
        assert_int_equal(n_warnings, one->heard);
        assert_ok(cpl_gguf_open(&g, NULL, path, (double)INFINITY));
        if (one->wanted)
            check_string(g, key, one->wanted);
        else
            assert_null(json_object_get(g->metadata, key));
        cpl_gguf_close(g);
    }
    assert_int_equal(unlink(in_folder(folder, "chat_template.jinja")), 0);
    write_string(in_folder(folder, "tokenizer_config.json"), "{");
    assert_fails(CPL_ERR_INPUT, "tokenizer_config.json",
                 export_to(path, folder, CPL_FORMAT_F32, NULL));
    model_gone(m);
}

/* ---- other forms of the same model ---- */

static bool no_expert(void *ctx, int64_t index, const cpl_param *param, int64_t expert)
{
    (void)ctx, (void)index, (void)param;
    return expert < 0;
}

TEST(fused_experts_give_the_same_file)
{
    const cpl_model_settings c = config_of(&variants[0]);
    model_case *m              = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "one.gguf");
    const char *other = in_folder(folder, "other.gguf");
    float *fused[2];
    cpl_named_list list = {.be = &m->be};
    assert_ok(export_to(path, folder, CPL_FORMAT_Q8_0, NULL));
    assert_ok(cpl_named_some(&list, &m->model.master, &c, "", no_expert, NULL));
    for (int64_t l = 0; l < 2; l++) fused[l] = add_fused(&list, m, l);
    assert_ok(cpl_named_write(&list, in_folder(folder, "model.safetensors")));
    assert_ok(export_to(other, folder, CPL_FORMAT_Q8_0, NULL));
    assert_same_files(path, other);
    cpl_named_free(&list);
    for (int64_t l = 0; l < 2; l++) free(fused[l]);
    model_gone(m);
}
