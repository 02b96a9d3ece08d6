#include "inspect/families/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_BLOCK = 128, MAX_KEY = 128, MAX_NOTES = 4 };
static const int64_t MOST = (int64_t)1 << 40; /* no number of a config is that large */

/* ---- keys and their places ---- */

/* Returns the value under "a.b" or the key "a.b" itself (GGUF), or NULL. */
static json_t *value_at(const json_t *object, const char *path, size_t length)
{
    char key[MAX_KEY];
    if (length >= sizeof key) return NULL;
    memcpy(key, path, length);
    key[length]  = 0;
    json_t *here = json_object_get(object, key);
    if (here) return here;
    char *dot = strchr(key, '.');
    if (!dot) return NULL;
    *dot = 0;
    return value_at(json_object_get(object, key), dot + 1, strlen(dot + 1));
}

static json_t *value_of(const json_t *object, const char *path)
{
    return value_at(object, path, strlen(path));
}

static const char *string_at(const json_t *object, const char *path)
{
    const char *text = json_string_value(value_of(object, path));
    return text && *text ? text : NULL;
}

static void add_level(cpl_moe_config *out, const json_t *level)
{
    if (json_is_object(level) && out->n_levels < CPL_CONFIG_MAX_LEVELS)
        out->levels[out->n_levels++] = level;
}

/* Adds the objects in which keys are looked up: the top level, then the objects at `paths`. */
static void find_levels(cpl_moe_config *out, const json_t *config)
{
    static const char *const paths[] = {"text_config", "language_config", "llm_config",
                                        "thinker_config.text_config"};
    add_level(out, config);
    if (out->is_gguf) return;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        add_level(out, value_of(config, paths[i]));
}

/* ---- numbers ---- */

static int64_t number_in(const json_t *value, int64_t index)
{
    if (json_is_array(value)) value = json_array_get(value, (size_t)index);
    int64_t number = json_integer_value(value);
    return number > 0 && number <= MOST ? number : 0;
}

static int64_t number_under(const json_t *level, const char *keys, int64_t index, const char **name)
{
    size_t length;
    for (const char *key; cpl_name_next_word(&keys, &key, &length);) {
        int64_t number = number_in(value_at(level, key, length), index);
        if (number && name) *name = key;
        if (number) return number;
    }
    return 0;
}

/* Keys of config.json, separated by spaces, and of GGUF after "{architecture}.". Python has
 * them from tools/make_families_json.py. */
static const struct {
    const char *keys, *gguf;
} known_keys[CPL_N_CONFIG_KEYS] = {
    [CPL_CONFIG_N] = {"num_experts num_local_experts n_routed_experts moe_num_experts "
                      "ffn_config.moe_num_experts moe.num_experts",
                      CPL_GGUF_KEY_EXPERTS},
    [CPL_CONFIG_K] = {"num_experts_per_tok num_experts_per_token experts_per_token moe_topk moe_k "
                      "top_k_experts ffn_config.moe_top_k moe.num_experts_per_tok moe_top_k "
                      "n_activated_experts moe_num_active_primary_experts",
                      CPL_GGUF_KEY_TOP_K},
    [CPL_CONFIG_D_EXPERT] =
        {"moe_intermediate_size expert_ffn_hidden_size ffn_config.ffn_hidden_size",
         CPL_GGUF_KEY_EXPERT_WIDTH},
    [CPL_CONFIG_D_ANY]  = {"intermediate_size", ""},
    [CPL_CONFIG_MODEL]  = {"hidden_size d_model n_embd dim", CPL_GGUF_KEY_WIDTH},
    [CPL_CONFIG_LAYERS] = {"num_hidden_layers n_layers n_layer num_layers", CPL_GGUF_KEY_LAYERS},
    [CPL_CONFIG_MTP]    = {"", "nextn_predict_layers"},
    [CPL_CONFIG_LATENT] = {"routed_expert_hidden_size moe_hidden_size moe_latent_size",
                           "moe_latent_size"},
    [CPL_CONFIG_EPS]    = {"rms_norm_eps", ""},
};

int64_t cpl_moe_config_number(const cpl_moe_config *config, cpl_config_key what, int64_t index,
                              const char **name)
{
    if (config->is_gguf) {
        char key[MAX_KEY];
        if (!config->model_type || !*known_keys[what].gguf) return 0;
        snprintf(key, sizeof key, "%s.%s", config->model_type, known_keys[what].gguf);
        if (name) *name = known_keys[what].gguf;
        return number_in(json_object_get(config->levels[0], key), index);
    }
    for (int i = 0; i < config->n_levels; i++) {
        int64_t number = number_under(config->levels[i], known_keys[what].keys, index, name);
        if (number) return number;
    }
    return 0;
}

double cpl_moe_config_real(const cpl_moe_config *config, cpl_config_key what)
{
    for (int i = 0; !config->is_gguf && i < config->n_levels; i++) {
        const json_t *value = value_of(config->levels[i], known_keys[what].keys);
        if (json_is_number(value) && json_number_value(value) >= 0) return json_number_value(value);
    }
    return -1;
}

static int64_t layers_of(const cpl_moe_config *config)
{
    int64_t layers = cpl_moe_config_number(config, CPL_CONFIG_LAYERS, 0, NULL);
    return layers ? layers - cpl_moe_config_number(config, CPL_CONFIG_MTP, 0, NULL) : -1;
}

/* ---- the family ---- */

static const cpl_family *family_of(const char *word, bool is_gguf)
{
    for (int64_t i = 0; i < cpl_n_families; i++)
        if (cpl_name_in_words(is_gguf ? cpl_families[i].gguf : cpl_families[i].model_types, word))
            return &cpl_families[i];
    return NULL;
}

static const cpl_family *family_flagged(cpl_family_flag flag)
{
    for (int64_t i = 0; i < cpl_n_families; i++)
        if (cpl_families[i].flags & flag) return &cpl_families[i];
    return NULL;
}

static void find_gguf_family(cpl_moe_config *out, const json_t *config)
{
    out->model_type  = json_string_value(json_object_get(config, CPL_GGUF_KEY_ARCHITECTURE));
    out->family      = out->model_type ? family_of(out->model_type, true) : NULL;
    out->family_name = out->family ? out->family->model_types : out->model_type;
}

/* Sets the model type of the top level, or the first nested model type that is in a row if the top
 * level's is in no row. */
static void find_family(cpl_moe_config *out, const json_t *config)
{
    if (out->is_gguf) {
        find_gguf_family(out, config);
        return;
    }
    for (int i = 0; i < out->n_levels && !out->family; i++) {
        const char *type = string_at(out->levels[i], "model_type");
        if (!type) continue;
        if (!out->model_type) out->model_type = type;
        out->family = family_of(type, false);
        if (out->family) out->model_type = type;
    }
    if (!out->model_type && json_is_object(value_of(config, "moe")))
        out->family = family_flagged(CPL_FLAG_NO_CONFIG);
    out->family_name = out->model_type;
    if (!out->model_type && out->family) out->family_name = out->family->model_types;
}

bool cpl_moe_config_flag(const cpl_moe_config *config, cpl_family_flag flag)
{
    return config->family && (config->family->flags & flag);
}

/* ---- quantisation ---- */

static const json_t *quant_of(const cpl_moe_config *config)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (int i = 0; i < config->n_levels; i++)
        for (int k = 0; k < 2; k++) {
            const json_t *quant = value_of(config->levels[i], keys[k]);
            if (json_is_object(quant)) return quant;
        }
    return NULL;
}

static const char *method_of(const json_t *quant)
{
    const char *method = string_at(quant, "quant_method");
    if (method) return method;
    if (json_object_get(quant, "quant_algo")) return "modelopt";
    if (json_object_get(quant, "load_in_4bit") || json_object_get(quant, "load_in_8bit"))
        return "bitsandbytes";
    return json_object_get(quant, "config_groups") ? "compressed-tensors" : NULL;
}

static void blocks_from(cpl_moe_config *out, const json_t *pair)
{
    if (json_array_size(pair) != 2) return;
    int64_t rows = number_in(pair, 0), cols = number_in(pair, 1);
    if (rows && cols) {
        out->block_rows = rows;
        out->block_cols = cols;
    }
}

static void find_blocks(cpl_moe_config *out)
{
    const char *name;
    json_t *group;
    out->block_rows = out->block_cols = DEFAULT_BLOCK;
    json_object_foreach(json_object_get(out->quant, "config_groups"), name, group)
        blocks_from(out, value_of(group, "weights.block_structure"));
    blocks_from(out, json_object_get(out->quant, "weight_block_size"));
}

static bool is_read(const char *format)
{
    static const char read[] =
        "pack-quantized mxfp4-pack-quantized float-quantized naive-quantized mixed-precision dense";
    return !format || cpl_name_in_words(read, format);
}

/* Returns a format of compressed-tensors that is not read, or NULL. */
static const char *find_unread_format(const json_t *quant)
{
    const char *name, *format = string_at(quant, "format");
    json_t *group;
    if (!is_read(format)) return format;
    json_object_foreach(json_object_get(quant, "config_groups"), name, group)
    {
        format = string_at(group, "format");
        if (!is_read(format)) return format;
    }
    return NULL;
}

/* Returns the fault of a quantisation that is not read, or NULL. */
static const char *find_fault(const cpl_moe_config *config, cpl_pool *pool, const char *path)
{
    const char *method = config->quant_method, *format = NULL;
    if (!method) return NULL;
    if (!cpl_name_in_words("fp8 mxfp4 compressed-tensors", method))
        return cpl_pool_printf(pool,
                               "%s: config.json: weights quantised by %s are not read; fp8, mxfp4 "
                               "and compressed-tensors are",
                               path, method);
    if (strcmp(method, "compressed-tensors") == 0) format = find_unread_format(config->quant);
    if (!format) return NULL;
    return cpl_pool_printf(pool,
                           "%s: config.json: compressed-tensors in the format %s is not read; "
                           "pack-quantized (4 bits, symmetric), mxfp4-pack-quantized and "
                           "float-quantized are",
                           path, format);
}

int64_t cpl_moe_config_group(const cpl_moe_config *config, int64_t cols, int64_t scales)
{
    const char *name;
    json_t *group;
    json_object_foreach(json_object_get(config->quant, "config_groups"), name, group)
    {
        const json_t *weights = json_object_get(group, "weights");
        int64_t bits          = number_in(json_object_get(weights, "num_bits"), 0);
        int64_t size          = number_in(json_object_get(weights, "group_size"), 0);
        if (!size) size = cols; /* one scale a row */
        if (bits == 4 && (cols + size - 1) / size == scales) return size;
    }
    return 0;
}

const char *cpl_moe_config_read(cpl_moe_config *out, cpl_pool *pool,
                                const cpl_moe_document *document)
{
    *out = (cpl_moe_config){.is_gguf = document->is_gguf};
    find_levels(out, document->json);
    find_family(out, document->json);
    out->n_layers = layers_of(out);
    if (out->is_gguf) return NULL;
    out->quant        = quant_of(out);
    out->quant_method = out->quant ? method_of(out->quant) : NULL;
    find_blocks(out);
    return find_fault(out, pool, document->path);
}

/* ---- config against shapes ---- */

typedef enum figure { FIGURE_N, FIGURE_MODEL, FIGURE_D } figure;

static int64_t configured(const cpl_moe_config *config, figure what, int64_t layer,
                          const char **key)
{
    int64_t index = cpl_moe_config_flag(config, CPL_FLAG_VISION_HALF) ? 0 : layer;
    if (what == FIGURE_N) return cpl_moe_config_number(config, CPL_CONFIG_N, index, key);
    if (what == FIGURE_MODEL) return cpl_moe_config_number(config, CPL_CONFIG_MODEL, index, key);
    int64_t width = cpl_moe_config_number(config, CPL_CONFIG_D_EXPERT, index, key);
    return width ? width : cpl_moe_config_number(config, CPL_CONFIG_D_ANY, index, key);
}

static int64_t found(const cpl_moe_layer *layer, figure what)
{
    return what == FIGURE_N ? layer->n : what == FIGURE_MODEL ? layer->d : layer->D;
}

static void add_note(cpl_moe_map *map, const char *sentence)
{
    if (map->notes) map->notes[map->n_notes++] = (char *)sentence;
}

static const char *file_of(const cpl_moe_config *config)
{
    return config->is_gguf ? "the metadata" : "config.json";
}

static const char *others_too(cpl_pool *pool, int64_t others)
{
    return others ? cpl_pool_printf(pool, " (so in %" PRId64 " more layers)", others) : "";
}

/* Adds one sentence on the first layer where config and shapes disagree, and the number of
 * others. */
static void note_figure(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config, figure what)
{
    const cpl_moe_layer *first = NULL;
    const char *key            = "", *ignored;
    int64_t said = 0, others = 0;
    for (int64_t i = 0; i < map->n_layers; i++) {
        const cpl_moe_layer *layer = &map->layers[i];
        int64_t number = configured(config, what, layer->layer, first ? &ignored : &key);
        if (layer->fault || layer->skip || !number || number == found(layer, what)) continue;
        if (first) {
            others++;
            continue;
        }
        first = layer;
        said  = number;
    }
    if (!first) return;
    const char *more = others_too(pool, others);
    add_note(map, cpl_pool_printf(pool,
                                  "%s says %.*s is %" PRId64 ", but the tensors of %s say %" PRId64
                                  "%s: the tensors are believed",
                                  file_of(config), (int)strcspn(key, " "), key, said, first->prefix,
                                  found(first, what), more));
}

/* Adds a note if K is larger than the number of the router's rows, identity experts included. */
static void note_K(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config)
{
    const cpl_moe_layer *first = NULL;
    int64_t others             = 0;
    for (int64_t i = 0; i < map->n_layers; i++) {
        const cpl_moe_layer *layer = &map->layers[i];
        if (layer->fault || layer->skip || layer->K <= layer->n + layer->extra_rows) continue;
        others += first != NULL;
        if (!first) first = layer;
    }
    if (!first) return;
    const char *key = "";
    cpl_moe_config_number(config, CPL_CONFIG_K, first->layer, &key);
    add_note(map,
             cpl_pool_printf(pool,
                             "%s says %.*s is %" PRId64 ", but the router of %s has only "
                             "%" PRId64 " rows%s",
                             file_of(config), (int)strcspn(key, " "), key, first->K, first->prefix,
                             first->n + first->extra_rows, others_too(pool, others)));
}

void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config)
{
    map->notes = cpl_pool_take(pool, MAX_NOTES * sizeof *map->notes);
    note_figure(map, pool, config, FIGURE_N);
    note_figure(map, pool, config, FIGURE_MODEL);
    note_figure(map, pool, config, FIGURE_D);
    note_K(map, pool, config);
}

/* ---- guesses ---- */

/* Returns the reason why no row of the table applies to the checkpoint. */
static const char *why_guessed(cpl_pool *pool, const cpl_moe_config *config)
{
    if (config->model_type)
        return cpl_pool_printf(pool, "the %s %s is not known",
                               config->is_gguf ? "architecture" : "model_type", config->model_type);
    if (config->is_gguf) return "no architecture in the metadata";
    return config->n_levels ? "no model_type in config.json" : "no config.json";
}

const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config,
                          const cpl_name_patterns *patterns, const int used[2])
{
    const char *why = why_guessed(pool, config);
    if (used[0] < 0) return cpl_pool_printf(pool, "%s: read by names and shapes", why);
    const cpl_name_pattern *router = &patterns->all[used[0]], *gate = &patterns->all[used[1]];
    const char *half = !gate->pair                     ? ""
                       : gate->half == CPL_HALF_SECOND ? ", the second half of it,"
                                                       : ", the first half of it,";
    return cpl_pool_printf(pool,
                           "%s: by names and shapes %.*s is taken for the router and %.*s%s for "
                           "the experts' gates",
                           why, (int)router->length, router->text, (int)gate->length, gate->text,
                           half);
}
