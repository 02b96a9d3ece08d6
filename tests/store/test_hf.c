/* test_hf.c - every form of a Hugging Face OLMoE directory gives the same weights. Models that
 * cannot be computed are refused. A saved model loads bit for bit. Damaged files never crash. */
#include "store/hf.h"

#include "io/paths.h"
#include "store/model_case.h"
#include "support/scarce.h"
#include "support/warnings.h"

static const cpl_hf_tokens no_tokens = {.pad = 1, .bos = -1};

/* Returns a model loaded from `folder`. */
static model_case *load(const char *folder)
{
    cpl_hf *hf = NULL;
    assert_ok(cpl_hf_open(&hf, folder, NULL));
    model_case *m = model_empty(cpl_hf_config(hf), 16);
    assert_ok(cpl_hf_load(hf, &m->model));
    cpl_hf_close(hf);
    return m;
}

static void assert_loads(const char *folder, model_case *want, cpl_safetensors_dtype dtype)
{
    model_case *got = load(folder);
    assert_same_weights(got, want, dtype);
    model_gone(got);
}

/* Returns a fresh folder with the config.json of `m`. */
static const char *folder_with_config(model_case *m)
{
    const char *folder = scratch_folder();
    assert_ok(cpl_hf_config_write(folder, &m->model.config, &no_tokens));
    return folder;
}

/* ---- forms ---- */

TEST(single_file_of_every_type)
{
    const cpl_safetensors_dtype types[] = {CPL_SAFETENSORS_F32, CPL_SAFETENSORS_BF16,
                                           CPL_SAFETENSORS_F16};
    model_case *m                       = small_model(3);
    cpl_named_list list                 = names_of(m);
    for (int i = 0; i < 3; i++) {
        const char *folder = folder_with_config(m);
        write_part(&list, in_folder(folder, "model.safetensors"), types[i], 1, 0, NULL);
        assert_loads(folder, m, types[i]);
    }
    cpl_named_free(&list);
    model_gone(m);
}

/* Writes the tensors of one layer to different files. */
static void write_sharded(const cpl_named_list *list, const char *folder, const char *missing)
{
    char name[64];
    json_t *index = json_object(), *map = json_object();
    for (int part = 0; part < 3; part++) {
        snprintf(name, sizeof name, "model-%05d-of-00003.safetensors", part + 1);
        write_part(list, in_folder(folder, name), CPL_SAFETENSORS_F32, 3, part, missing);
        for (int64_t i = part; i < list->count; i += 3)
            json_object_set_new(map, list->at[i].name, json_string(name));
    }
    json_object_set_new(index, "metadata", json_pack("{s:i}", "total_size", 1));
    json_object_set_new(index, "weight_map", map);
    assert_ok(cpl_json_write_atomic(in_folder(folder, "model.safetensors.index.json"), index, 0));
    json_decref(index);
}

TEST(sharded)
{
    model_case *m       = small_model(4);
    cpl_named_list list = names_of(m);
    const char *folder  = folder_with_config(m);
    write_sharded(&list, folder, NULL);
    assert_loads(folder, m, CPL_SAFETENSORS_F32);
    assert_int_equal(unlink(in_folder(folder, "model-00002-of-00003.safetensors")), 0);
    cpl_hf *hf = NULL;
    assert_fails(CPL_ERR_IO, "model-00002-of-00003", cpl_hf_open(&hf, folder, NULL));
    cpl_named_free(&list);
    model_gone(m);
}

/* Layer 0 is fused. Layer 1 is fused or has a tensor for each expert. */
TEST(fused_experts)
{
    model_case *m = small_model(5);
    for (int all = 0; all < 2; all++) {
        float *kept[2]     = {NULL, NULL};
        cpl_named_list old = names_of(m), list = {.be = &m->be};
        for (int64_t i = 0; i < old.count; i++) {
            const cpl_named *n = &old.at[i];
            bool expert        = strstr(n->name, ".experts.") != NULL;
            if (!expert || (!all && strstr(n->name, "layers.1")))
                assert_ok(cpl_named_add(&list, n->name, n->tensor));
        }
        for (int64_t l = 0; l <= all; l++) kept[l] = add_fused(&list, m, l);
        const char *folder = folder_with_config(m);
        write_part(&list, in_folder(folder, "model.safetensors"), CPL_SAFETENSORS_F32, 1, 0, NULL);
        assert_loads(folder, m, CPL_SAFETENSORS_F32);
        n_warnings = 0;
        cpl_hf *hf = NULL;
        assert_ok(cpl_hf_open(&hf, folder, &a_log));
        assert_int_equal(n_warnings, 0);
        cpl_hf_close(hf);
        for (int64_t i = 0; i < old.count; i++) /* layer 0 in both forms: 3 matrices of 5 experts */
            if (strstr(old.at[i].name, "layers.0.mlp.experts."))
                assert_ok(cpl_named_add(&list, old.at[i].name, old.at[i].tensor));
        write_part(&list, in_folder(folder, "model.safetensors"), CPL_SAFETENSORS_F32, 1, 0, NULL);
        assert_ok(cpl_hf_open(&hf, folder, &a_log));
        assert_non_null(strstr(warned, "no use for 15 of the tensors"));
        cpl_hf_close(hf);
        cpl_named_free(&old);
        cpl_named_free(&list);
        free(kept[0]);
        free(kept[1]);
    }
    model_gone(m);
}

TEST(published_families)
{
    model_gone(load(golden_path("families/olmoe")));
    model_gone(load(golden_path("families/sharded_olmoe")));
}

/* ---- tensors that the config does not expect ---- */

/* Writes the tensors of `m` and an additional tensor like `like`, and opens the folder. */
static cpl_hf *open_with(model_case *m, const char *folder, const char *more, const char *like)
{
    cpl_named_list list = names_of(m);
    cpl_hf *hf          = NULL;
    for (int64_t i = 0, n = list.count; more && i < n; i++)
        if (strcmp(list.at[i].name, like) == 0)
            assert_ok(cpl_named_add(&list, more, list.at[i].tensor));
    write_part(&list, in_folder(folder, "model.safetensors"), CPL_SAFETENSORS_F32, 1, 0, NULL);
    n_warnings = 0;
    assert_ok(cpl_hf_open(&hf, folder, &a_log));
    cpl_named_free(&list);
    return hf;
}

TEST(surplus_tensors_are_named)
{
    static const char gate[]            = "model.layers.1.mlp.experts.4.gate_proj.weight";
    static const char *const cases[][2] = {
        /* columns: name, and whether it is passed over without a warning */
        {"model.layers.1.self_attn.q_proj.bias"},
        {"model.layers.1.self_attn.sinks"},
        {"model.layers.0.mlp.experts.down_proj"},
        {"model.layers.0.mlp.experts.3.gate_proj.bias"},
        {"model.layers.00.mlp.gate.weight"},
        {"model.layers.0.mlp.shared_experts.up_proj.weight"},
        {"model.layers.0.mlp.gate.e_score_correction_bias"},
        {"base_model.model.layers.0.mlp.gate.weight"},
        {"mtp.0.norm.weight"},
        {"lm_head.bias"},
        {"model.rotary_emb.inv_freq", "silent"},
        {"model.layers.1.self_attn.rotary_emb.inv_freq", "silent"},
    };
    model_case *m      = small_model(11);
    const char *folder = folder_with_config(m);
    cpl_hf_close(open_with(m, folder, NULL, NULL));
    assert_int_equal(n_warnings, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cpl_hf_close(open_with(m, folder, cases[i][0], gate));
        assert_int_equal(n_warnings, !cases[i][1]);
        if (!cases[i][1]) assert_non_null(strstr(warned, cases[i][0]));
        if (!cases[i][1]) assert_non_null(strstr(warned, "no use for 1 of the tensors"));
    }
    model_gone(m);
}

/* A tied model may have both tables: Transformers ties them if they are equal. If only the head is
 * present, it is the embedding. */
TEST(a_tied_head_that_is_there)
{
    cpl_model_settings c = small_config(), tied = small_config();
    model_case *m          = model_drawn(&c, 12), *got;
    const size_t bytes     = (size_t)(c.vocab_size * c.d_model) * sizeof(float);
    const cpl_params *ours = &m->model.master;
    const char *folder     = scratch_folder();
    tied.tied              = true;
    assert_ok(cpl_hf_config_write(folder, &tied, &no_tokens));
    for (int equal = 0; equal < 2; equal++) {
        if (equal) m->be.ops->copy(&m->be, ours->head, ours->embed);
        cpl_hf *hf = open_with(m, folder, NULL, NULL);
        assert_int_equal(cpl_hf_config(hf)->tied, equal);
        assert_int_equal(n_warnings, !equal);
        if (!equal)
            assert_non_null(strstr(warned, "lm_head.weight and model.embed_tokens.weight differ"));
        cpl_hf_close(hf);
        got = load(folder);
        assert_memory_equal(seen(&got->be, got->model.master.head).storage,
                            seen(&m->be, ours->head).storage, bytes);
        assert_memory_equal(seen(&got->be, got->model.master.embed).storage,
                            seen(&m->be, ours->embed).storage, bytes);
        model_gone(got);
    }
    cpl_named_list list = names_of(m);
    write_part(&list, in_folder(folder, "model.safetensors"), CPL_SAFETENSORS_F32, 1, 0,
               "model.embed_tokens.weight");
    got = load(folder);
    assert_memory_equal(seen(&got->be, got->model.master.embed).storage,
                        seen(&m->be, ours->embed).storage, bytes);
    assert_true(cpl_tensor_is_same(got->model.master.head, got->model.master.embed));
    cpl_named_free(&list);
    model_gone(got);
    model_gone(m);
}

TEST(an_adapter_is_not_applied)
{
    model_case *m      = small_model(13);
    const char *folder = folder_with_config(m);
    write_string(in_folder(folder, "adapter_config.json"), "{}");
    cpl_hf_close(open_with(m, folder, NULL, NULL));
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "adapter_config.json: the adapter is not applied"));
    model_gone(m);
}

/* ---- saving ---- */

TEST(save_and_load_is_the_same)
{
    for (int variant = 0; variant < 4; variant++) {
        cpl_model_settings c = small_config();
        c.tied               = variant == 1;
        c.norm_topk          = variant == 2;
        c.clip_qkv           = variant == 3 ? 0.1 : NAN;
        c.rope_theta         = 500000.0 / 3;
        c.norm_eps           = 1e-6;
        c.init_std           = 0.1;
        model_case *m        = model_drawn(&c, 6);
        const char *folder   = scratch_folder();
        cpl_hf *hf           = NULL;
        assert_ok(cpl_hf_save(folder, &m->model, &no_tokens, NULL));
        assert_loads(folder, m, CPL_SAFETENSORS_F32);
        assert_ok(cpl_hf_open(&hf, folder, NULL));
        assert_ok(cpl_hf_config_agrees(&c, cpl_hf_config(hf), NULL, folder));
        assert_int_equal(cpl_hf_tokens_of(hf)->pad, 1);
        assert_int_equal(cpl_hf_tokens_of(hf)->bos, -1);
        assert_int_equal(cpl_hf_tokens_of(hf)->eos, 0);
        char *none = NULL;
        assert_ok(cpl_hf_tokenizer_path(&none, hf));
        assert_null(none);
        cpl_hf_close(hf);
        model_gone(m);
    }
}

TEST(tokenizer_goes_with_it)
{
    model_case *m      = small_model(7);
    const char *folder = scratch_folder(), *eos = NULL, *pad = NULL;
    json_t *config = NULL;
    cpl_text a = {0}, b = {0};
    const char *tokenizer = golden_path("tokenizers/small.json");
    assert_ok(cpl_hf_save(folder, &m->model, &no_tokens, tokenizer));
    assert_ok(cpl_file_read(&a, tokenizer, SIZE_MAX));
    assert_ok(cpl_file_read(&b, in_folder(folder, "tokenizer.json"), SIZE_MAX));
    assert_int_equal(a.length, b.length);
    assert_memory_equal(a.bytes, b.bytes, a.length);
    assert_ok(cpl_json_load(&config, in_folder(folder, "tokenizer_config.json")));
    assert_ok(cpl_json_string(config, "eos_token", &eos, "tokenizer_config.json"));
    assert_ok(cpl_json_string_or(config, "pad_token", &pad, "", "tokenizer_config.json"));
    assert_string_equal(eos, "<|endoftext|>");
    assert_string_equal(pad, "<|padding|>");
    assert_fails(CPL_ERR_IO, "absent.json",
                 cpl_hf_save(folder, &m->model, &no_tokens, "absent.json"));
    json_decref(config);
    cpl_text_free(&a);
    cpl_text_free(&b);
    model_gone(m);
}

/* ---- config.json ---- */

static cpl_status read_config(cpl_model_settings *c, cpl_hf_tokens *tokens, const char *text)
{
    const char *folder = scratch_folder();
    write_string(in_folder(folder, "config.json"), text);
    return cpl_hf_config_read(c, tokens, folder, &a_log);
}

TEST(class_defaults)
{
    cpl_model_settings c;
    cpl_hf_tokens t;
    assert_ok(read_config(&c, &t, "{\"model_type\": \"olmoe\"}"));
    const int64_t got[]  = {c.vocab_size, c.d_model,   c.d_expert, c.n_layers,     c.n_heads,
                            c.n_kv_heads, c.n_experts, c.top_k,    c.max_positions};
    const int64_t want[] = {50304, 2048, 2048, 16, 16, 16, 64, 8, 4096};
    assert_memory_equal(got, want, sizeof got);
    assert_true(c.rope_theta == 1e4 && c.norm_eps == 1e-5 && isnan(c.clip_qkv));
    assert_true(!c.tied && !c.norm_topk && c.init_std == 0.02);
    assert_int_equal(t.eos, 50279);
    assert_int_equal(t.pad, 1);
    assert_int_equal(t.bos, -1);
}

TEST(older_and_newer_keys)
{
    cpl_model_settings c;
    cpl_hf_tokens t;
    assert_ok(read_config(&c, &t,
                          "{\"model_type\": \"olmoe\", \"rope_theta\": 5, \"rope_parameters\": "
                          "{\"rope_theta\": 7.5, \"rope_type\": \"default\"}, "
                          "\"num_local_experts\": 12, \"eos_token_id\": [9, 10], "
                          "\"num_key_value_heads\": null, \"clip_qkv\": 8, \"rope_scaling\": null, "
                          "\"pad_token_id\": null, \"tie_word_embeddings\": true}"));
    assert_true(c.rope_theta == 7.5 && c.clip_qkv == 8 && c.tied);
    assert_int_equal(c.n_experts, 12);
    assert_int_equal(c.n_kv_heads, 16);
    assert_int_equal(t.eos, 9);
    assert_int_equal(t.n_extra_eos, 1);
    assert_int_equal(t.extra_eos[0], 10);
    assert_int_equal(t.pad, -1);
    assert_ok(read_config(&c, &t, "{\"model_type\": \"olmoe\", \"rope_theta\": 5e5}"));
    assert_true(c.rope_theta == 5e5);
    assert_ok(read_config(&c, &t,
                          "{\"model_type\": \"olmoe\", \"num_experts\": 16, "
                          "\"rope_scaling\": {\"type\": \"default\"}, \"eos_token_id\": null}"));
    assert_int_equal(c.n_experts, 16);
    assert_int_equal(t.eos, -1);
    assert_ok(read_config(&c, &t, "{\"model_type\": \"olmoe\", \"vocab_size\": 50279}"));
    assert_int_equal(t.eos, -1); /* the file has no class default */
}

/* All ids that end a text, in both files, are read once each. */
TEST(ends_of_both_files)
{
    const char *folder = scratch_folder();
    cpl_model_settings c;
    cpl_hf_tokens t;
    const char *generation = in_folder(folder, "generation_config.json");
    write_string(in_folder(folder, "config.json"),
                 "{\"model_type\": \"olmoe\", \"eos_token_id\": [9, 10, 9]}");
    write_string(generation, "{\"eos_token_id\": [10, 9, 12]}");
    assert_ok(cpl_hf_config_read(&c, &t, folder, NULL));
    assert_int_equal(t.eos, 9);
    assert_int_equal(t.n_extra_eos, 2);
    assert_int_equal(t.extra_eos[0], 10);
    assert_int_equal(t.extra_eos[1], 12);
    write_string(generation, "{\"eos_token_id\": [10, null]}");
    assert_fails(CPL_ERR_INPUT, "generation_config.json: eos_token_id is a list in which place 1",
                 cpl_hf_config_read(&c, &t, folder, NULL));
    write_string(generation,
                 "{\"eos_token_id\": [1,2,3,4,5,6,7,8,11,12,13,14,15,16,17,18,19,20,21,22]}");
    assert_fails(CPL_ERR_INPUT, "eos_token_id names more than 16 ids",
                 cpl_hf_config_read(&c, &t, folder, NULL));
}

/* A key that Transformers reads and that we do not compute is refused. A key that no OLMoE has is
 * named once. A key whose value has no effect passes. */
TEST(keys_of_the_list_and_others)
{
    static const struct {
        const char *members, *told; /* told: the end of the warning, or NULL without a warning */
    } passed[] = {
        {"\"attention_dropout\": 0.5, \"dtype\": \"bfloat16\", \"use_cache\": false, \"top_p\": "
         "0.9",
         NULL},
        {"\"_name_or_path\": \"x\", \"first_k_dense_replace\": null, \"pruned_heads\": {}", NULL},
        {"\"head_dim\": 128, \"sliding_window\": 4096, \"layer_types\": [\"full_attention\"]",
         NULL},
        {"\"is_causal\": true, \"quantization_config\": null, \"is_encoder_decoder\": false", NULL},
        {"\"partial_rotary_factor\": 0.5, \"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
         NULL},
        {"\"hidden_act\": \"swish\"", NULL},
        {"\"num_nextn_predict_layers\": 1", "passed over: num_nextn_predict_layers"},
        {"\"router\": \"sigmoid\", \"n_shared_experts\": 2",
         "passed over: router, n_shared_experts"},
        {"\"k1\": 1, \"k2\": 1, \"k3\": 1, \"k4\": 1, \"k5\": 1, \"k6\": 1, \"k7\": 1, \"k8\": 1, "
         "\"k9\": 1",
         "k7, k8, ..."},
    };
    cpl_model_settings c;
    cpl_hf_tokens t;
    char text[400];
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"olmoe\", %s}", passed[i].members);
        n_warnings = 0;
        assert_ok(read_config(&c, &t, text));
        assert_int_equal(n_warnings, passed[i].told != NULL);
        if (passed[i].told) assert_true(cpl_path_ends_in(warned, passed[i].told));
        assert_int_equal(c.router, 0);
        assert_int_equal(c.n_shared, 0);
    }
    n_warnings = 0;
    assert_ok(read_config(&c, &t,
                          "{\"model_type\": \"couplet\", \"router\": \"sigmoid\", "
                          "\"n_shared_experts\": 2, \"router_bias\": true}"));
    assert_int_equal(n_warnings, 0);
    assert_true(c.router != 0 && c.n_shared == 2 && c.router_bias);
    /* If a setting has two keys, this one counts. */
    assert_ok(read_config(&c, &t,
                          "{\"model_type\": \"olmoe\", \"num_experts\": 16, "
                          "\"num_local_experts\": 12, \"rope_theta\": 3, "
                          "\"rope_parameters\": {\"rope_theta\": 5}, "
                          "\"rope_scaling\": {\"type\": \"default\"}}"));
    assert_int_equal(c.n_experts, 12);
    assert_true(c.rope_theta == 3);
}

/* Keys are read as they were written, and describe the run. */
TEST(keys_that_are_written)
{
    static const char *const always[] = {
#define CPL_HF_SETTING(key, ...) #key,
#define CPL_HF_OWN(key)          NULL,
#define CPL_HF_READ(key)         NULL,
#define CPL_HF_FIXED(key, ...)   #key,
#define CPL_HF_BARRED(key, ...)  NULL,
#define CPL_HF_TOLD(key, ...)    #key,
#define CPL_HF_PASSED(key)       NULL,
#include "store/hf_keys.def"
    };
    cpl_hf_tokens tokens = {.pad = 3, .bos = -1, .eos = 5, .balance_weight = 0.05}, t;
    for (int own = 0; own < 2; own++) {
        cpl_model_settings c = small_config(), got;
        const char *folder   = scratch_folder();
        json_t *j            = NULL;
        c.n_shared           = own;
        assert_ok(cpl_hf_config_write(folder, &c, &tokens));
        assert_ok(cpl_json_load(&j, in_folder(folder, "config.json")));
        for (size_t i = 0; i < sizeof always / sizeof *always; i++)
            if (always[i]) assert_non_null(json_object_get(j, always[i]));
        assert_true(json_real_value(json_object_get(j, "router_aux_loss_coef")) == 0.05);
        assert_int_equal(json_object_get(j, "n_shared_experts") != NULL, own);
        json_decref(j);
        n_warnings = 0;
        assert_ok(cpl_hf_config_read(&got, &t, folder, &a_log));
        assert_ok(cpl_hf_config_agrees(&c, &got, NULL, folder));
        assert_int_equal(n_warnings, 0);
        assert_true(t.pad == 3 && t.bos == -1 && t.eos == 5);
    }
}

TEST(refusals_of_the_config)
{
    static const char *const cases[][2] = {
        {"\"attention_bias\": true", "attention_bias"},
        {"\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\"; only \"silu\" is computed"},
        {"\"head_dim\": 64", "head_dim is 64; only hidden_size / num_attention_heads, 128"},
        {"\"sliding_window\": 1024", "sliding_window is 1024, below max_position_embeddings"},
        {"\"attention_chunk_size\": 8", "attention_chunk_size"},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         "layer_types has another type at 1"},
        {"\"is_causal\": false", "is_causal is false; only true is computed"},
        {"\"is_encoder_decoder\": true", "is_encoder_decoder"},
        {"\"pruned_heads\": {\"0\": [1]}", "pruned_heads is {\"0\":[1]}"},
        {"\"per_layer_config\": {\"0\": {\"num_experts\": 3}}", "per_layer_config"},
        {"\"quantization_config\": {\"quant_method\": \"fp8\"}", "save the model dequantised"},
        {"\"transformers_weights\": \"x.safetensors\"", "name the file model.safetensors"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", "linear"},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\"}", "yarn"},
        {"\"rope_scaling\": 3", "rope_scaling"},
        {"\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1e4}", "llama3"},
        {"\"rope_parameters\": {\"rope_type\": \"default\"}, "
         "\"rope_scaling\": {\"type\": \"linear\"}",
         "linear"},
        {"\"num_experts\": 4, \"num_experts_per_tok\": 5", "only 4 experts"},
        {"\"hidden_size\": 100, \"num_attention_heads\": 3", "3 heads"},
        {"\"num_key_value_heads\": 3", "num_key_value_heads"},
        {"\"hidden_size\": -1", "hidden_size"},
        {"\"hidden_size\": 2.5", "hidden_size"},
        {"\"hidden_size\": \"2048\"", "hidden_size"},
        {"\"num_hidden_layers\": 1e300", "num_hidden_layers"},
        {"\"rms_norm_eps\": -1", "rms_norm_eps"},
        {"\"rope_theta\": 0", "rope_theta"},
        {"\"eos_token_id\": \"x\"", "eos_token_id"},
        {"\"hidden_size\": 1048576, \"intermediate_size\": 1048576, \"num_experts\": 65535, "
         "\"num_hidden_layers\": 65535",
         "more than the limit of 2^50"},
    };
    cpl_model_settings c;
    cpl_hf_tokens t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        snprintf(text, sizeof text, "{\"model_type\": \"olmoe\", %s}", cases[i][0]);
        assert_fails(CPL_ERR_INPUT, cases[i][1], read_config(&c, &t, text));
        assert_non_null(strstr(cpl_last_error(), "config.json"));
    }
    assert_fails(CPL_ERR_INPUT, "mixtral", read_config(&c, &t, "{\"model_type\": \"mixtral\"}"));
    assert_fails(CPL_ERR_INPUT, "model_type", read_config(&c, &t, "{}"));
    assert_fails(CPL_ERR_INPUT, "not a JSON object", read_config(&c, &t, "[1]"));
    assert_fails(CPL_ERR_INPUT, "config.json", read_config(&c, &t, "{\"model_type\""));
}

/* ---- weights that do not fit ---- */

TEST(refusals_of_the_weights)
{
    static const char gone[] = "model.layers.1.mlp.experts.3.up_proj.weight";
    cpl_model_settings c     = small_config();
    model_case *m            = model_drawn(&c, 8), *to;
    cpl_named_list list      = names_of(m);
    cpl_hf *hf               = NULL;
    const char *folder       = folder_with_config(m);
    assert_fails(CPL_ERR_INPUT, "", cpl_hf_open(&hf, folder, NULL));
    write_string(in_folder(folder, "pytorch_model.bin"), "x");
    assert_fails(CPL_ERR_INPUT, ".bin", cpl_hf_open(&hf, folder, NULL));
    write_part(&list, in_folder(folder, "model.safetensors"), CPL_SAFETENSORS_F32, 1, 0, gone);
    assert_ok(cpl_hf_open(&hf, folder, NULL));
    to = model_empty(&c, 16);
    assert_fails(CPL_ERR_INPUT, gone, cpl_hf_load(hf, &to->model));
    cpl_hf_close(hf);
    model_gone(to);

    cpl_model_settings other = c;
    other.d_expert           = 11;
    assert_ok(cpl_hf_config_write(folder, &other, &no_tokens));
    write_part(&list, in_folder(folder, "model.safetensors"), CPL_SAFETENSORS_F32, 1, 0, NULL);
    assert_ok(cpl_hf_open(&hf, folder, NULL));
    to = model_empty(&other, 16);
    assert_fails(CPL_ERR_INPUT, "[10,24]", cpl_hf_load(hf, &to->model));
    assert_non_null(strstr(cpl_last_error(), "[11,24]"));
    cpl_hf_close(hf);
    model_gone(to);
    assert_fails(CPL_ERR_INPUT, "no such folder", cpl_hf_open(&hf, "/absent/model", NULL));
    cpl_named_free(&list);
    model_gone(m);
}

/* ---- damage ---- */

/* Each byte of config.json is changed in turn, to a byte that depends on its place. */
TEST(damaged_config)
{
    cpl_model_settings c = small_config(), got;
    cpl_hf_tokens tokens;
    cpl_text text      = {0};
    const char *folder = scratch_folder();
    const char *path   = in_folder(folder, "config.json");
    assert_ok(cpl_hf_config_write(folder, &c, &no_tokens));
    assert_ok(cpl_file_read(&text, path, SIZE_MAX));
    for (size_t i = 0; i < text.length; i++) {
        char kept     = text.bytes[i];
        text.bytes[i] = "0-\"}{]:,9e\0x"[i % 12];
        write_bytes(path, text.bytes, i % 3 ? text.length : i);
        if (cpl_hf_config_read(&got, &tokens, folder, NULL) != CPL_OK)
            assert_true(strlen(cpl_last_error()) > 0);
        text.bytes[i] = kept;
    }
    cpl_text_free(&text);
}

/* Each allocation fails in turn. */
TEST(no_memory)
{
    model_case *m      = small_model(9);
    const char *folder = scratch_folder();
    assert_ok(cpl_hf_save(folder, &m->model, &no_tokens, golden_path("tokenizers/small.json")));
    for (scarce s = {0}; scarce_begin(&s);) {
        cpl_hf *hf        = NULL;
        cpl_status status = cpl_hf_open(&hf, folder, NULL);
        if (status == CPL_OK) status = cpl_hf_load(hf, &m->model);
        scarce_end(&s, status);
        cpl_hf_close(hf);
    }
    for (scarce s = {0}; scarce_begin(&s);)
        scarce_end(
            &s, cpl_hf_save(folder, &m->model, &no_tokens, golden_path("tokenizers/small.json")));
    assert_loads(folder, m, CPL_SAFETENSORS_F32);
    model_gone(m);
}
