/* notes.c - sentences on a map of MoE layers: where config and shapes disagree, and guesses. */
#include "inspect/families/layer.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_NOTES = 4 };

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

/* One sentence on the first layer where they disagree, and how many others do. */
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

/* No token can go to more experts than the router has rows; identity experts are among them. */
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

/* Why no row of the table says how the checkpoint is read. */
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
    const char *half = gate->mark == '+' ? ", the first half of it," : "";
    return cpl_pool_printf(pool,
                           "%s: by names and shapes %.*s is taken for the router and %.*s%s for "
                           "the experts' gates",
                           why, (int)router->length, router->text, (int)gate->length, gate->text,
                           half);
}

const char *cpl_moe_likely(const cpl_stored *const *tensors, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (cpl_name_is_text(tensors[i]->name) && strstr(tensors[i]->name, "expert"))
            return tensors[i]->name;
    return NULL;
}
