/* hf_config.c - see hf_config.h */
#include "store/hf_config.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"
#include "model/params.h"

/* The model_type of a model that is not an OLMoE. */
static const char own_type[] = "couplet";

/* The treatments of a key, described in hf_keys.def. */
typedef enum use { SETTING, OWN, READ, FIXED, BARRED, TOLD, PASSED } use;

typedef struct key {
    const char *name;
    use use;
    const char *text, *hint;
} key;

#define CPL_HF_SETTING(name, text)      {#name, SETTING, text, ""},
#define CPL_HF_OWN(name)                {#name, OWN, "", ""},
#define CPL_HF_READ(name)               {#name, READ, "", ""},
#define CPL_HF_FIXED(name, text)        {#name, FIXED, text, ""},
#define CPL_HF_BARRED(name, text, hint) {#name, BARRED, text, hint},
#define CPL_HF_TOLD(name, text)         {#name, TOLD, text, ""},
#define CPL_HF_PASSED(name)             {#name, PASSED, "", ""},
static const key keys[] = {
#include "store/hf_keys.def"
};

enum { N_KEYS = sizeof keys / sizeof *keys };

static const key *find_key(const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

static cpl_status refuse_model_type(const json_t *j, bool *own, const char *where)
{
    const char *type = NULL;
    CPL_TRY(cpl_json_string_or(j, "model_type", &type, "", where));
    *own = strcmp(type, own_type) == 0;
    if (*own || strcmp(type, "olmoe") == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: model_type is \"%s\"; only \"olmoe\" and \"%s\" can be loaded", where,
                    type, own_type);
}

static cpl_status refuse_another_value(const key *k, const json_t *value, const char *where)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory", where);
    const bool is_silu = strcmp(text, "\"swish\"") == 0; /* Transformers' other name of silu */
    cpl_status status  = strcmp(is_silu ? "\"silu\"" : text, k->text) == 0
                             ? CPL_OK
                             : CPL_FAIL(CPL_ERR_INPUT, "%s: %s is %.80s; only %s is computed%s",
                                        where, k->name, text, k->text, k->hint);
    cpl_json_text_free(text);
    return status;
}

/* Refuses values that are not supported and warns of keys that are not in the list. `own` accepts
 * keys of a model that is not an OLMoE. Keys that begin with _ are ignored. */
static cpl_status check_keys(json_t *j, bool own, const char *where, const cpl_log *log)
{
    enum { SHOWN = 8 };
    const char *name;
    json_t *value;
    int64_t unknown   = 0;
    cpl_text list     = {0};
    cpl_status status = CPL_OK;
    json_object_foreach(j, name, value)
    {
        const key *k = find_key(name);
        if (json_is_null(value) || *name == '_') continue;
        if (!k || (k->use == OWN && !own)) {
            if (++unknown <= SHOWN)
                cpl_text_printf(&list, "%s%.60s", unknown > 1 ? ", " : "", name);
        } else if (k->use == FIXED || k->use == BARRED)
            CPL_TRY_DONE(refuse_another_value(k, value, where));
    }
    CPL_TRY_DONE(cpl_text_status(&list));
    if (unknown)
        cpl_log_warn(log, "%s: keys that change nothing in an OLMoE are passed over: %s%s", where,
                     list.bytes, unknown > SHOWN ? ", ..." : "");
done:
    cpl_text_free(&list);
    return status;
}

/* Sets a setting to its key's value. Without the key it stays unchanged. */
static cpl_status read_setting(const cpl_setting *s, void *field, const json_t *j,
                               const char *where)
{
    const char *word = NULL;
    bool flag;
    switch (s->kind) {
    case CPL_KIND_INT:
        return cpl_json_int_or(j, s->name, field, (int64_t)s->low, (int64_t)s->high,
                               *(int64_t *)field, where);
    case CPL_KIND_FLOAT:
        return cpl_json_float_or(j, s->name, field, s->low, s->high, *(double *)field, where);
    case CPL_KIND_BOOL:
        CPL_TRY(cpl_json_bool_or(j, s->name, &flag, *(int *)field != 0, where));
        *(int *)field = flag;
        return CPL_OK;
    default: /* a word */
        CPL_TRY(cpl_json_string_or(j, s->name, &word, s->default_value, where));
        if (cpl_setting_parse(s, field, word) == CPL_OK) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s", where, cpl_last_error());
    }
}

static cpl_status read_settings(cpl_model_settings *c, const json_t *j, bool own, const char *where)
{
    for (size_t i = 0; i < cpl_section_model.count; i++) {
        const cpl_setting *s = &cpl_section_model.list[i];
        const key *k         = find_key(s->name);
        void *field          = (char *)c + s->offset;
        CPL_ASSERT(k && (k->use == SETTING || k->use == OWN));
        CPL_TRY(cpl_setting_parse(s, field, k->use == OWN ? s->default_value : k->text));
        if (k->use == SETTING || own) CPL_TRY(read_setting(s, field, j, where));
    }
    return cpl_json_int_or(j, "num_local_experts", &c->n_experts, 1, 65535, c->n_experts, where);
}

/* Reads rope_parameters (newer files) or rope_scaling (older files, preferred if both exist).
 * Accepts only values that change no angle. */
static cpl_status read_rope(cpl_model_settings *c, const json_t *j, const char *where)
{
    const char *type = NULL, *name = "rope_scaling";
    const json_t *rope = json_object_get(j, name);
    if (!rope || json_is_null(rope) || (json_is_object(rope) && !json_object_size(rope)))
        rope = json_object_get(j, name = "rope_parameters");
    if (!rope || json_is_null(rope)) return CPL_OK;
    if (!json_is_object(rope))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: %s is neither null nor an object", where, name);
    CPL_TRY(cpl_json_float_or(rope, "rope_theta", &c->rope_theta, 1, 1e12, c->rope_theta, where));
    CPL_TRY(cpl_json_string_or(rope, json_object_get(rope, "rope_type") ? "rope_type" : "type",
                               &type, "default", where));
    if (strcmp(type, "default") == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: rope scaling of type \"%s\" (%s) is not computed, only \"default\"", where,
                    type, name);
}

/* Refuses attention other than to all earlier tokens in heads of hidden_size / num_attention_heads.
 * `c` must be resolved. */
static cpl_status refuse_other_attention(const cpl_model_settings *c, const json_t *j,
                                         const char *where)
{
    static const char *const windows[] = {"sliding_window", "attention_chunk_size"};
    const json_t *types                = json_object_get(j, "layer_types");
    int64_t width, window;
    CPL_TRY(cpl_json_int_or(j, "head_dim", &width, 1, INT32_MAX, c->d_model / c->n_heads, where));
    if (width != c->d_model / c->n_heads)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: head_dim is %lld; only hidden_size / num_attention_heads, %lld, is "
                        "computed",
                        where, (long long)width, (long long)(c->d_model / c->n_heads));
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        CPL_TRY(cpl_json_int_or(j, windows[i], &window, 0, INT32_MAX, INT32_MAX, where));
        if (window < c->max_positions)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: %s is %lld, below max_position_embeddings; only attention to all "
                            "earlier tokens is computed",
                            where, windows[i], (long long)window);
    }
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "attention") != 0))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: layer_types has another type at %zu than full_attention, which "
                            "alone is computed",
                            where, i);
    }
    return CPL_OK;
}

/* Adds an id that ends generated text. The first id is the end-of-text id. */
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

/* Reads eos_token_id: one id, null, or a list of ids. */
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

cpl_status cpl_hf_config_read(cpl_model_settings *config, cpl_hf_tokens *tokens, const char *folder,
                              const cpl_log *log)
{
    bool own          = false;
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
    CPL_TRY_DONE(refuse_model_type(j, &own, path));
    CPL_TRY_DONE(check_keys(j, own, path, log));
    CPL_TRY_DONE(read_settings(config, j, own, path));
    CPL_TRY_DONE(read_rope(config, j, path));
    CPL_TRY_DONE(read_tokens(tokens, config->vocab_size, j, path));
    CPL_TRY_DONE(read_generation(tokens, folder));
    status = cpl_model_resolve(config);
    if (status != CPL_OK) CPL_TRY_DONE(CPL_FAIL(status, "%s: %s", path, cpl_last_error()));
    status = refuse_other_attention(config, j, path);
done:
    json_decref(j);
    cpl_free(path);
    return status;
}

static json_t *id_or_null(int64_t id)
{
    return id < 0 ? json_null() : json_integer(id);
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

/* Returns the value of the model's setting with this name. */
static json_t *setting_value(const cpl_model_settings *c, const char *name)
{
    size_t i = 0;
    while (i < cpl_section_model.count && strcmp(cpl_section_model.list[i].name, name) != 0) i++;
    CPL_ASSERT(i < cpl_section_model.count);
    const cpl_setting *s = &cpl_section_model.list[i];
    const void *field    = (const char *)c + s->offset;
    if (s->kind == CPL_KIND_CHOICE) return json_string(cpl_router_of(c)->name);
    if (s->kind == CPL_KIND_BOOL) return json_boolean(*(const int *)field);
    if (s->kind == CPL_KIND_FLOAT) return cpl_json_number(*(const double *)field);
    const int64_t whole = *(const int64_t *)field;
    return whole == CPL_UNSET ? json_null() : json_integer(whole);
}

cpl_status cpl_hf_config_write(const char *folder, const cpl_model_settings *c,
                               const cpl_hf_tokens *tokens)
{
    /* a different model_type, so that no program reads the model as an OLMoE */
    const bool own = !cpl_model_is_olmoe(c);
    json_t *j =
        json_pack("{s:[s], s:s}", "architectures", own ? "CoupletForCausalLM" : "OlmoeForCausalLM",
                  "model_type", own ? own_type : "olmoe");
    bool failed = !j;
    for (const key *k = keys; k < keys + N_KEYS; k++)
        if (k->use == SETTING || (k->use == OWN && own))
            cpl_json_put(&failed, j, k->name, setting_value(c, k->name));
        else if (k->use == FIXED || k->use == TOLD)
            cpl_json_put(&failed, j, k->name, json_loads(k->text, JSON_DECODE_ANY, NULL));
    cpl_json_put(&failed, j, "rope_scaling", json_null());
    cpl_json_put(&failed, j, "router_aux_loss_coef", json_real(tokens->balance_weight));
    cpl_json_put(&failed, j, "pad_token_id", id_or_null(tokens->pad));
    cpl_json_put(&failed, j, "bos_token_id", id_or_null(tokens->bos));
    cpl_json_put(&failed, j, "eos_token_id", id_or_null(tokens->eos));
    if (failed) json_decref(j);
    return cpl_hf_write_json(folder, "config.json", failed ? NULL : j);
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

/* Returns whether a setting that may be unset is unset. */
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
