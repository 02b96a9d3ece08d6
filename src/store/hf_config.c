/* hf_config.c - see hf_config.h */
#include "store/hf_config.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "model/params.h"

/* model_type of a model that is no OLMoE. */
static const char own_type[] = "couplet";

/* rope_parameters of newer files, rope_scaling of older ones: only what changes no angle. */
static cpl_status refuse_rope_scaling(const json_t *j, const char *key, const char *where)
{
    const char *type   = NULL;
    const json_t *rope = json_object_get(j, key);
    if (!rope || json_is_null(rope)) return CPL_OK;
    if (!json_is_object(rope))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s is neither null nor an object", where, key);
    CPL_TRY(cpl_json_string_or(rope, json_object_get(rope, "rope_type") ? "rope_type" : "type",
                               &type, "default", where));
    if (strcmp(type, "default") == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: rope scaling of type \"%s\" (%s) is not computed, only \"default\"", where,
                    type, key);
}

static cpl_status refuse_what_differs(const json_t *j, const char *where)
{
    const char *type = NULL, *act = NULL;
    bool bias = false;
    CPL_TRY(cpl_json_string_or(j, "model_type", &type, "", where));
    if (strcmp(type, "olmoe") != 0 && strcmp(type, own_type) != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: model_type is \"%s\"; only \"olmoe\" and \"%s\" can be loaded", where,
                        type, own_type);
    CPL_TRY(cpl_json_string_or(j, "hidden_act", &act, "silu", where));
    if (strcmp(act, "silu") != 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: hidden_act is \"%s\"; only \"silu\" is computed", where,
                        act);
    CPL_TRY(cpl_json_bool_or(j, "attention_bias", &bias, false, where));
    if (bias)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: attention_bias is true; biases are not computed",
                        where);
    CPL_TRY(refuse_rope_scaling(j, "rope_parameters", where));
    return refuse_rope_scaling(j, "rope_scaling", where);
}

/* OLMoE's class default of each size, and the bounds of the setting of the same name. */
static cpl_status read_sizes(cpl_model_settings *c, const json_t *j, const char *where)
{
    const struct {
        const char *key;
        int64_t *value, absent, most;
    } sizes[] = {
        {"vocab_size", &c->vocab_size, 50304, 16777216},
        {"hidden_size", &c->d_model, 2048, 1048576},
        {"intermediate_size", &c->d_expert, 2048, 1048576},
        {"num_hidden_layers", &c->n_layers, 16, 65535},
        {"num_attention_heads", &c->n_heads, 16, 65535},
        {"num_key_value_heads", &c->n_kv_heads, CPL_UNSET, 65535},
        {"max_position_embeddings", &c->max_positions, 4096, 16777216},
        {"num_experts_per_tok", &c->top_k, 8, 65535},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CPL_TRY(cpl_json_int_or(j, sizes[i].key, sizes[i].value, 1, sizes[i].most, sizes[i].absent,
                                where));
    const char *experts = json_object_get(j, "num_experts") ? "num_experts" : "num_local_experts";
    return cpl_json_int_or(j, experts, &c->n_experts, 1, 65535, 64, where);
}

static cpl_status read_numbers(cpl_model_settings *c, const json_t *j, const char *where)
{
    bool tied = false, norm_topk = false;
    const json_t *rope = json_object_get(j, "rope_parameters");
    CPL_TRY(cpl_json_float_or(j, "rms_norm_eps", &c->norm_eps, 0, 1, 1e-5, where));
    CPL_TRY(cpl_json_float_or(j, "rope_theta", &c->rope_theta, 1, 1e12, 1e4, where));
    if (json_is_object(rope))
        CPL_TRY(
            cpl_json_float_or(rope, "rope_theta", &c->rope_theta, 1, 1e12, c->rope_theta, where));
    CPL_TRY(cpl_json_float_or(j, "clip_qkv", &c->clip_qkv, 0, INFINITY, NAN, where));
    CPL_TRY(cpl_json_float_or(j, "initializer_range", &c->init_std, 0, 10, 0.02, where));
    CPL_TRY(cpl_json_bool_or(j, "norm_topk_prob", &norm_topk, false, where));
    CPL_TRY(cpl_json_bool_or(j, "tie_word_embeddings", &tied, false, where));
    c->norm_topk = norm_topk;
    c->tied      = tied;
    return CPL_OK;
}

/* Reads our own keys, which an OLMoE does not have. */
static cpl_status read_router(cpl_model_settings *c, const json_t *j, const char *where)
{
    const char *word = NULL;
    bool bias        = false;
    char names[160];
    CPL_TRY(cpl_json_string_or(j, "router", &word, "softmax", where));
    c->router = cpl_router_find(word);
    if (c->router < 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: router is \"%s\"; only %s are computed", where, word,
                        cpl_router_names(names));
    CPL_TRY(cpl_json_bool_or(j, "router_bias", &bias, false, where));
    c->router_bias = bias;
    CPL_TRY(cpl_json_int_or(j, "n_shared_experts", &c->n_shared, 0, 65535, 0, where));
    CPL_TRY(cpl_json_float_or(j, "aoe_initializer_range", &c->aoe_init_std, 0, 10, 0, where));
    return cpl_json_int_or(j, "aoe_rank", &c->aoe_rank, 1, 1048576, CPL_UNSET, where);
}

/* Adds an id that ends generated text; the first is the end-of-text id. */
static cpl_status add_end(cpl_hf_tokens *tokens, int64_t id, const char *where)
{
    bool known = id < 0 || id == tokens->eos;
    for (int64_t i = 0; i < tokens->n_extra_eos; i++) known = known || tokens->extra_eos[i] == id;
    if (known) return CPL_OK;
    if (tokens->eos < 0) {
        tokens->eos = id;
        return CPL_OK;
    }
    if (tokens->n_extra_eos == CPL_HF_MOST_ENDS)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: eos_token_id names more than %d ids", where,
                        CPL_HF_MOST_ENDS);
    tokens->extra_eos[tokens->n_extra_eos++] = id;
    return CPL_OK;
}

/* One id, null, or a list of ids. */
static cpl_status read_ends(cpl_hf_tokens *tokens, const json_t *j, const char *where)
{
    const json_t *eos = json_object_get(j, "eos_token_id");
    int64_t id;
    for (size_t i = 0; i < json_array_size(eos); i++) {
        const json_t *one = json_array_get(eos, i);
        if (!json_is_integer(one) || json_integer_value(one) < 0 ||
            json_integer_value(one) > INT32_MAX)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: eos_token_id is a list in which place %zu is no id",
                            where, i);
        CPL_TRY(add_end(tokens, json_integer_value(one), where));
    }
    if (json_is_array(eos)) return CPL_OK;
    CPL_TRY(cpl_json_int_or(j, "eos_token_id", &id, -1, INT32_MAX, -1, where));
    return add_end(tokens, id, where);
}

static cpl_status read_tokens(cpl_hf_tokens *tokens, int64_t vocab_size, const json_t *j,
                              const char *where)
{
    enum { CLASS_DEFAULT = 50279 };
    *tokens = (cpl_hf_tokens){.eos = -1};
    CPL_TRY(cpl_json_int_or(j, "pad_token_id", &tokens->pad, -1, INT32_MAX,
                            json_object_get(j, "pad_token_id") ? -1 : 1, where));
    CPL_TRY(cpl_json_int_or(j, "bos_token_id", &tokens->bos, -1, INT32_MAX, -1, where));
    if (!json_object_get(j, "eos_token_id") && vocab_size > CLASS_DEFAULT)
        tokens->eos = CLASS_DEFAULT;
    return read_ends(tokens, j, where);
}

/* Reads the token ids of generation_config.json, which is optional. */
static cpl_status read_generation(cpl_hf_tokens *tokens, const char *folder)
{
    json_t *j         = NULL;
    char *path        = cpl_path_join(folder, "generation_config.json");
    cpl_status status = path ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK && cpl_path_exists(path)) {
        status = cpl_json_load(&j, path);
        if (status == CPL_OK) status = read_ends(tokens, j, path);
    }
    json_decref(j);
    cpl_free(path);
    return status;
}

cpl_status cpl_hf_config_read(cpl_model_settings *config, cpl_hf_tokens *tokens, const char *folder)
{
    cpl_status status = CPL_OK;
    json_t *j         = NULL;
    char *path        = cpl_path_join(folder, "config.json");
    if (!path) return CPL_ERR_MEMORY;
    memset(config, 0, sizeof *config);
    CPL_TRY_DONE(cpl_json_load(&j, path));
    if (!json_is_object(j)) {
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: not a JSON object", path);
        goto done;
    }
    CPL_TRY_DONE(refuse_what_differs(j, path));
    CPL_TRY_DONE(read_sizes(config, j, path));
    CPL_TRY_DONE(read_numbers(config, j, path));
    CPL_TRY_DONE(read_router(config, j, path));
    CPL_TRY_DONE(read_tokens(tokens, config->vocab_size, j, path));
    CPL_TRY_DONE(read_generation(tokens, folder));
    status = cpl_model_resolve(config);
    if (status != CPL_OK) status = CPL_FAIL(status, "%s: %s", path, cpl_last_error());
done:
    json_decref(j);
    cpl_free(path);
    return status;
}

static json_t *id_or_null(int64_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

/* Adds our own keys and another model_type, so that no program reads the model as an OLMoE, which
 * it is not. If a key could not be set for lack of memory, it is missing in `j`, and writing `j`
 * would not report that: *j is set to NULL then. */
static void add_router(json_t **j, const cpl_model_settings *c)
{
    bool good =
        json_object_set_new(*j, "model_type", json_string(own_type)) == 0 &&
        json_object_set_new(*j, "architectures", json_pack("[s]", "CoupletForCausalLM")) == 0 &&
        json_object_set_new(*j, "router", json_string(cpl_router_of(c)->name)) == 0 &&
        json_object_set_new(*j, "router_bias", json_boolean(c->router_bias)) == 0 &&
        json_object_set_new(*j, "n_shared_experts", json_integer(c->n_shared)) == 0;
    if (good && cpl_router_gate_rank(c))
        good = json_object_set_new(*j, "aoe_rank", json_integer(c->aoe_rank)) == 0;
    if (good && c->aoe_init_std > 0)
        good = json_object_set_new(*j, "aoe_initializer_range", json_real(c->aoe_init_std)) == 0;
    if (good) return;
    json_decref(*j);
    *j = NULL;
}

cpl_status cpl_hf_write_json(const char *folder, const char *name, json_t *object)
{
    char *path        = cpl_path_join(folder, name);
    cpl_status status = CPL_ERR_MEMORY;
    if (!object)
        status = CPL_FAIL(CPL_ERR_MEMORY, "out of memory for %s", name);
    else if (path)
        status = cpl_json_write_atomic(path, object, JSON_INDENT(2));
    json_decref(object);
    cpl_free(path);
    return status;
}

cpl_status cpl_hf_config_write(const char *folder, const cpl_model_settings *c,
                               const cpl_hf_tokens *tokens)
{
    json_t *j = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:f, s:f, s:f, s:n, s:b, s:f, s:o,"
        " s:I, s:I, s:b, s:b, s:f, s:b, s:o, s:o, s:o, s:b, s:s}",
        "architectures", "OlmoeForCausalLM", "model_type", "olmoe", "vocab_size",
        (json_int_t)c->vocab_size, "hidden_size", (json_int_t)c->d_model, "intermediate_size",
        (json_int_t)c->d_expert, "num_hidden_layers", (json_int_t)c->n_layers,
        "num_attention_heads", (json_int_t)c->n_heads, "num_key_value_heads",
        (json_int_t)c->n_kv_heads, "hidden_act", "silu", "max_position_embeddings",
        (json_int_t)c->max_positions, "initializer_range", c->init_std, "rms_norm_eps", c->norm_eps,
        "rope_theta", c->rope_theta, "rope_scaling", "attention_bias", 0, "attention_dropout", 0.0,
        "clip_qkv", isnan(c->clip_qkv) ? json_null() : json_real(c->clip_qkv), "num_experts",
        (json_int_t)c->n_experts, "num_experts_per_tok", (json_int_t)c->top_k, "norm_topk_prob",
        (int)c->norm_topk, "output_router_logits", 0, "router_aux_loss_coef", 0.01,
        "tie_word_embeddings", (int)c->tied, "pad_token_id", id_or_null(tokens->pad),
        "bos_token_id", id_or_null(tokens->bos), "eos_token_id", id_or_null(tokens->eos),
        "use_cache", 1, "torch_dtype", "float32");
    if (j && !cpl_model_is_olmoe(c)) add_router(&j, c);
    return cpl_hf_write_json(folder, "config.json", j);
}

static cpl_status differs(const cpl_setting *s, const void *ours, const void *theirs,
                          const char *where)
{
    cpl_text a = {0}, b = {0};
    cpl_setting_print(&a, s, ours);
    cpl_setting_print(&b, s, theirs);
    cpl_status status =
        CPL_FAIL(CPL_ERR_INPUT, "model.%s is %s in the configuration, but %s has %s", s->name,
                 a.bytes ? a.bytes : "?", where, b.bytes ? b.bytes : "?");
    cpl_text_free(&a);
    cpl_text_free(&b);
    return status;
}

/* Whether a setting that may be unset is unset. */
static bool is_unset(const cpl_setting *s, const void *field)
{
    if (s->kind == CPL_KIND_INT) return *(const int64_t *)field == CPL_UNSET;
    return s->kind == CPL_KIND_FLOAT && isnan(*(const double *)field);
}

cpl_status cpl_hf_config_agrees(const cpl_model_settings *ours, const cpl_model_settings *theirs,
                                const bool *given, const char *where)
{
    for (size_t i = 0; i < cpl_section_model.count; i++) {
        const cpl_setting *s = &cpl_section_model.list[i];
        const void *a        = (const char *)ours + s->offset;
        const void *b        = (const char *)theirs + s->offset;
        if (given && (!given[i] || is_unset(s, a))) continue;
        if (!cpl_setting_equal(s, a, b)) return differs(s, a, b, where);
    }
    return CPL_OK;
}
