#include "study/families_notes.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_NOTES = 4 };

/* ---- config against shapes ---- */

typedef enum figure { FIGURE_N, FIGURE_MODEL, FIGURE_D } figure;

static int64_t told(const cpl_moe_config *config, figure what, int64_t layer, const char **key)
{
    int64_t index = cpl_moe_config_flag(config, "vision_half") ? 0 : layer;
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

/* One sentence on the first layer where they disagree, and how many others do. */
static void note_figure(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config, figure what)
{
    const cpl_moe_layer *first = NULL;
    const char *key            = "", *ignored;
    int64_t said = 0, others = 0;
    for (int64_t i = 0; i < map->n_layers; i++) {
        const cpl_moe_layer *layer = &map->layers[i];
        int64_t number             = told(config, what, layer->layer, first ? &ignored : &key);
        if (layer->fault || layer->skip || !number || number == found(layer, what)) continue;
        if (first) {
            others++;
            continue;
        }
        first = layer;
        said  = number;
    }
    if (!first) return;
    const char *file = config->is_gguf ? "the metadata" : "config.json";
    const char *more =
        others ? cpl_pool_printf(pool, " (so in %" PRId64 " more layers)", others) : "";
    add_note(map, cpl_pool_printf(pool,
                                  "%s says %.*s is %" PRId64 ", but the tensors of %s say %" PRId64
                                  "%s: the tensors are believed",
                                  file, (int)strcspn(key, " "), key, said, first->prefix,
                                  found(first, what), more));
}

void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config)
{
    map->notes = cpl_pool_take(pool, MAX_NOTES * sizeof *map->notes);
    note_figure(map, pool, config, FIGURE_N);
    note_figure(map, pool, config, FIGURE_MODEL);
    note_figure(map, pool, config, FIGURE_D);
}

/* ---- guesses ---- */

const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config, const cpl_stems *stems,
                          const int used[2])
{
    const char *type = config->model_type ? config->model_type : "(not told)";
    const char *what = config->is_gguf ? "architecture" : "model_type";
    if (used[0] < 0)
        return cpl_pool_printf(pool, "the %s %s is not known: read by its tensors' names", what,
                               type);
    const cpl_stem *router = &stems->all[used[0]], *gate = &stems->all[used[1]];
    const char *half = gate->mark == '+' ? ", the first half of it," : "";
    return cpl_pool_printf(pool,
                           "the %s %s is not known: by names and shapes %.*s is taken for the "
                           "router and %.*s%s for the experts' gates",
                           what, type, (int)router->length, router->text, (int)gate->length,
                           gate->text, half);
}

const char *cpl_moe_likely(const cpl_stored *const *tensors, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (cpl_name_is_text(tensors[i]->name) && strstr(tensors[i]->name, "expert"))
            return tensors[i]->name;
    return NULL;
}
