/* test_params.c - the list of parameters: names, shapes, order in memory, counts, ties. */
#include "model/params.h"

#include "store/model_case.h"

/* Compares the counts of the recipes with the reference. */
TEST(counts_of_the_reference)
{
    json_t *cases = NULL, *one;
    size_t i;
    assert_ok(cpl_json_load(&cases, golden_path("planner.json")));
    assert_true(json_array_size(cases) >= 2);
    json_array_foreach(cases, i, one)
    {
        cpl_model_settings c = small_config();
        const struct {
            const char *key;
            int64_t *to;
        } sizes[] = {{"L", &c.n_layers},     {"d", &c.d_model},   {"D", &c.d_expert},
                     {"H", &c.n_heads},      {"n", &c.n_experts}, {"K", &c.top_k},
                     {"Hkv", &c.n_kv_heads}, {"V", &c.vocab_size}};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            assert_ok(cpl_json_int(one, sizes[k].key, sizes[k].to, 1, 1 << 30, "planner.json"));
        c.tied = json_is_true(json_object_get(one, "tied"));
        assert_ok(cpl_model_resolve(&c));
        assert_int_equal(cpl_params_numbers(&c),
                         json_integer_value(json_object_get(one, "total_parameters")));
    }
    json_decref(cases);
}

TEST(names_and_shapes)
{
    cpl_model_settings c = small_config();
    model_case *m        = model_drawn(&c, 1);
    cpl_named_list list  = names_of(m);
    const struct {
        int64_t at;
        const char *name;
        int rank;
        int64_t rows, cols;
    } want[] = {
        {0, "model.embed_tokens.weight", 2, 37, 24},
        {1, "model.layers.0.input_layernorm.weight", 1, 24, 1},
        {2, "model.layers.0.self_attn.q_proj.weight", 2, 24, 24},
        {3, "model.layers.0.self_attn.k_proj.weight", 2, 12, 24},
        {7, "model.layers.0.self_attn.k_norm.weight", 1, 12, 1},
        {9, "model.layers.0.mlp.gate.weight", 2, 5, 24},
        {10, "model.layers.0.mlp.experts.0.gate_proj.weight", 2, 10, 24},
        {14, "model.layers.0.mlp.experts.4.gate_proj.weight", 2, 10, 24},
        {19, "model.layers.0.mlp.experts.4.up_proj.weight", 2, 10, 24},
        {20, "model.layers.0.mlp.experts.0.down_proj.weight", 2, 24, 10},
        {25, "model.layers.1.input_layernorm.weight", 1, 24, 1},
        {49, "model.norm.weight", 1, 24, 1},
        {50, "lm_head.weight", 2, 37, 24},
    };
    assert_int_equal(list.count, 51);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const cpl_tensor t = list.at[want[i].at].tensor;
        assert_string_equal(list.at[want[i].at].name, want[i].name);
        assert_int_equal(t.rank, want[i].rank);
        assert_int_equal(t.shape[0], want[i].rows);
        assert_int_equal(t.shape[1], want[i].cols);
    }
    for (int64_t i = 1; i < list.count; i++)
        assert_true(cpl_f32(list.at[i - 1].tensor) < cpl_f32(list.at[i].tensor));
    cpl_named_free(&list);
    model_gone(m);
}

/* With l 7 in place of d 24 the experts are smaller, and each layer has two projections. */
TEST(latent_experts)
{
    cpl_model_settings c = small_config(), latent = c;
    latent.d_latent = 7;
    assert_ok(cpl_model_resolve(&latent));
    model_case *m         = model_drawn(&latent, 1);
    cpl_named_list list   = names_of(m);
    const int64_t experts = 3 * 5 * 10, projections = 2 * 7 * 24; /* matrices, n, D; l, d */
    assert_int_equal(cpl_params_numbers(&c) - cpl_params_numbers(&latent),
                     c.n_layers * (experts * (24 - 7) - projections));
    assert_string_equal(list.at[10].name, "model.layers.0.mlp.fc1_latent_proj.weight");
    assert_int_equal(list.at[10].tensor.shape[0], 7);
    assert_int_equal(list.at[10].tensor.shape[1], 24);
    assert_string_equal(list.at[11].name, "model.layers.0.mlp.fc2_latent_proj.weight");
    assert_int_equal(list.at[11].tensor.shape[0], 24);
    assert_string_equal(list.at[12].name, "model.layers.0.mlp.experts.0.gate_proj.weight");
    assert_int_equal(list.at[12].tensor.shape[1], 7);
    assert_string_equal(list.at[22].name, "model.layers.0.mlp.experts.0.down_proj.weight");
    assert_int_equal(list.at[22].tensor.shape[0], 7);
    assert_false(cpl_model_is_olmoe(&latent));
    cpl_named_free(&list);
    model_gone(m);
    latent.d_latent = 25;
    assert_fails(CPL_ERR_INPUT, "model.latent_dim is 25, but model.hidden_size is 24",
                 cpl_model_resolve(&latent));
    latent.d_latent = 7;
    latent.router   = CPL_ROUTER_AOE;
    assert_fails(CPL_ERR_INPUT, "model.latent_dim is 7, but model.router is aoe",
                 cpl_model_resolve(&latent));
}

TEST(tied_head_is_the_embedding)
{
    cpl_model_settings c = small_config(), tied = c;
    tied.tied     = true;
    model_case *m = model_drawn(&tied, 1);
    assert_int_equal(cpl_params_count(&tied), cpl_params_count(&c) - 1);
    assert_int_equal(cpl_params_numbers(&tied), cpl_params_numbers(&c) - 37 * 24);
    assert_ptr_equal(m->model.master.head.storage, m->model.master.embed.storage);
    cpl_named_list list = names_of(m);
    for (int64_t i = 0; i < list.count; i++)
        assert_string_not_equal(list.at[i].name, "lm_head.weight");
    cpl_named_free(&list);
    model_gone(m);
}

/* Matrices that products read are copied to BF16. Norms and router are the masters. */
TEST(copies_by_dtype)
{
    cpl_model_settings c = small_config();
    cpl_backend be;
    cpl_model model;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_BF16, 1));
    assert_ok(cpl_model_init(&model, &be, &c, 16));
    for (int64_t i = 0; i < cpl_params_count(&c); i++) {
        cpl_param p  = cpl_params_at(&c, i);
        cpl_tensor w = *cpl_params_tensor(&model.master, &p);
        cpl_tensor x = *cpl_params_tensor(&model.compute, &p);
        bool shared  = p.rank == 1 || strcmp(p.field, "router") == 0;
        assert_int_equal(w.dtype, CPL_F32);
        assert_int_equal(x.dtype, shared ? CPL_F32 : CPL_BF16);
        assert_int_equal(x.storage == w.storage, shared);
    }
    cpl_model_free(&model);
    cpl_backend_free(&be);
}

TEST(what_does_not_fit)
{
    cpl_model_settings c = small_config();
    c.n_kv_heads         = CPL_UNSET;
    assert_ok(cpl_model_resolve(&c));
    assert_int_equal(c.n_kv_heads, 4);
    c.top_k = 6;
    assert_fails(CPL_ERR_INPUT, "num_experts_per_tok is 6", cpl_model_resolve(&c));
    c         = small_config();
    c.n_heads = 5;
    assert_fails(CPL_ERR_INPUT, "5 heads", cpl_model_resolve(&c));
    c.n_heads = 8; /* rotary positions need heads of even width, and 3 is odd */
    assert_fails(CPL_ERR_INPUT, "even width", cpl_model_resolve(&c));
    c            = small_config();
    c.n_kv_heads = 3;
    assert_fails(CPL_ERR_INPUT, "num_key_value_heads 3", cpl_model_resolve(&c));
    c            = small_config();
    c.vocab_size = CPL_UNSET;
    assert_fails(CPL_ERR_INPUT, "vocab_size", cpl_model_resolve(&c));
    c            = small_config();
    c.vocab_size = 16777216, c.d_model = 1048576, c.n_layers = 65535, c.n_experts = 65535;
    assert_fails(CPL_ERR_INPUT, "more than the limit of 2^50", cpl_model_resolve(&c));
}
