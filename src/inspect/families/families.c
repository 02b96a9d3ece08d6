/* families.c - the map of a checkpoint's MoE layers.
 *
 * Tensors are sorted by name. The names of one layer's tensors begin alike, so that one pass finds
 * the layers. The whole takes n log n. */
#include "inspect/families/families.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/families/internal.h"

/* Describes the tensors [first, first + count) of the sorted list, which belong to one layer. Their
 * names begin with the same `prefix` bytes. The first `base` of these bytes precede the layer's
 * number. */
typedef struct group {
    int64_t first, count, layer;
    size_t prefix, base;
} group;

typedef struct map_builder {
    const cpl_stored *given; /* (count) */
    const cpl_moe_document *document;
    int64_t count;
    cpl_moe_map *map;
    cpl_pool *pool;
    cpl_moe_config config;
    cpl_name_patterns patterns;
    const cpl_stored **tensors; /* (count) sorted by name */
    group *groups;              /* (n_groups) */
    int64_t n_groups;
    cpl_name_match *matches; /* the matches of one layer; room for all tensors */
    bool two_parts;          /* the model has encoder and decoder */
    int patterns_used[2];    /* patterns of router and gates of the first layer with figures */
    int64_t n_mtp_named;     /* multi-token-prediction layers by their name */
} map_builder;

/* ---- tensors into layers ---- */

static int by_name(const void *a, const void *b)
{
    const cpl_stored *const *x = a, *const *y = b;
    int order = strcmp((*x)->name, (*y)->name);
    return order ? order : ((*x)->slice > (*y)->slice) - ((*x)->slice < (*y)->slice);
}

static void sort_tensors(map_builder *m)
{
    for (int64_t i = 0; i < m->count; i++) m->tensors[i] = &m->given[i];
    qsort(m->tensors, (size_t)m->count, sizeof *m->tensors, by_name);
}

static const char *name_at(const map_builder *m, int64_t i)
{
    return m->tensors[i]->name;
}

/* Returns the number of bytes of "mtp.layers.0." in a name of multi-token prediction, or 0 if the
 * name has no number. */
static size_t mtp_prefix(const char *name)
{
    size_t at = 0;
    while (name[at] && !(at > 0 && name[at - 1] == '.' && name[at] >= '0' && name[at] <= '9')) at++;
    return name[at] ? at + strcspn(name + at, ".") : 0;
}

static void count_mtp(map_builder *m, const char *name, const char **before)
{
    size_t length = mtp_prefix(name);
    bool again    = *before && mtp_prefix(*before) == length && strncmp(*before, name, length) == 0;
    m->n_mtp_named += length > 0 && !again;
    *before = name;
}

static void add_to_groups(map_builder *m, int64_t i)
{
    size_t prefix;
    int64_t layer;
    const char *name = name_at(m, i);
    if (!cpl_name_layer(name, &prefix, &layer)) return;
    group *last = m->n_groups ? &m->groups[m->n_groups - 1] : NULL;
    if (last && last->prefix == prefix && strncmp(name_at(m, last->first), name, prefix) == 0) {
        last->count = i - last->first + 1;
        return;
    }
    size_t base = prefix - 1;
    while (base > 0 && name[base - 1] != '.') base--;
    m->groups[m->n_groups++] = (group){i, 1, layer, prefix, base};
}

static void find_groups(map_builder *m)
{
    const char *mtp_before = NULL;
    for (int64_t i = 0; i < m->count; i++) {
        const char *name = name_at(m, i);
        if (!cpl_name_is_text(name)) continue;
        if (cpl_name_is_mtp(name))
            count_mtp(m, name, &mtp_before);
        else
            add_to_groups(m, i);
    }
    if (mtp_before && m->n_mtp_named == 0) m->n_mtp_named = 1;
}

/* ---- encoder and decoder ---- */

static bool has_part(const char *prefix, const char *part)
{
    for (const char *at = strstr(prefix, part); at; at = strstr(at + 1, part))
        if ((at == prefix || at[-1] == '.') && at[strlen(part)] == '.') return true;
    return false;
}

static void find_parts(map_builder *m)
{
    bool encoder = false, decoder = false;
    for (int64_t g = 0; g < m->n_groups; g++) {
        encoder |= has_part(name_at(m, m->groups[g].first), "encoder");
        decoder |= has_part(name_at(m, m->groups[g].first), "decoder");
    }
    m->two_parts = encoder && decoder;
}

static void set_parts(map_builder *m)
{
    bool encoder = false, decoder = false;
    for (int64_t i = 0; i < m->map->n_layers; i++) {
        encoder |= has_part(m->map->layers[i].prefix, "encoder");
        decoder |= has_part(m->map->layers[i].prefix, "decoder");
    }
    for (int64_t i = 0; i < m->map->n_layers; i++) {
        cpl_moe_layer *layer = &m->map->layers[i];
        layer->part          = "";
        if (encoder && decoder)
            layer->part = has_part(layer->prefix, "encoder")   ? "encoder"
                          : has_part(layer->prefix, "decoder") ? "decoder"
                                                               : "";
    }
}

static int part_rank(const cpl_moe_layer *layer)
{
    return strcmp(layer->part, "encoder") == 0 ? 0 : 1;
}

static int by_number(const void *a, const void *b)
{
    const cpl_moe_layer *x = a, *y = b;
    if (part_rank(x) != part_rank(y)) return part_rank(x) - part_rank(y);
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return strcmp(x->prefix, y->prefix);
}

/* ---- one layer ---- */

static int by_pattern(const void *a, const void *b)
{
    const cpl_name_match *x = a, *y = b;
    if (x->pattern != y->pattern) return x->pattern - y->pattern;
    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    if (x->ending != y->ending) return x->ending < y->ending ? -1 : 1;
    return by_name(&x->tensor, &y->tensor);
}

static cpl_layer_names read_names(map_builder *m, const group *here)
{
    cpl_layer_names names = {
        .matches = m->matches, .tensors = m->tensors + here->first, .n_tensors = here->count};
    for (int64_t i = here->first; i < here->first + here->count; i++) {
        const char *name = name_at(m, i), *suffix = name + here->prefix;
        if (!cpl_name_is_text(name) || cpl_name_is_mtp(name)) continue;
        if (!names.unmeasured) names.unmeasured = cpl_name_unmeasured(suffix);
        cpl_name_match *match = &m->matches[names.n_matches];
        if (!cpl_name_patterns_find(match, &m->patterns, suffix)) continue;
        match->tensor = m->tensors[i];
        names.n_matches++;
    }
    qsort(m->matches, (size_t)names.n_matches, sizeof *m->matches, by_pattern);
    return names;
}

/* Adds the layer. Returns false if it has no experts. */
static bool make_layer(map_builder *m, const group *here)
{
    cpl_layer_names names     = read_names(m, here);
    cpl_layer_reading reading = {m->pool, &m->config, &m->patterns, m->document->path};
    cpl_moe_layer *layer      = &m->map->layers[m->map->n_layers];
    int used[2];
    *layer        = (cpl_moe_layer){.part = "", .layer = here->layer};
    layer->prefix = cpl_pool_printf(m->pool, "%.*s", (int)here->prefix, name_at(m, here->first));
    if (!cpl_moe_layer_fill(layer, used, &reading, &names)) return false;
    if (!layer->fault && !layer->skip && m->patterns_used[0] < 0)
        memcpy(m->patterns_used, used, sizeof used);
    m->map->n_layers++;
    return true;
}

static bool same_base(const map_builder *m, const group *a, const group *b)
{
    return a->base == b->base && strncmp(name_at(m, a->first), name_at(m, b->first), a->base) == 0;
}

/* Returns whether the layer's number makes it a layer of multi-token prediction. */
static bool is_beyond(const map_builder *m, const group *here)
{
    return !m->two_parts && m->config.n_layers > 0 && here->layer >= m->config.n_layers;
}

/* Makes the layers whose names are equal up to their number. Dense layers and layers of multi-token
 * prediction are counted only if the stack has MoE layers. */
static void make_stack(map_builder *m, int64_t first, int64_t end)
{
    int64_t before = m->map->n_layers, dense = 0, mtp = 0;
    for (int64_t g = first; g < end; g++) {
        bool is_mtp = is_beyond(m, &m->groups[g]);
        mtp += is_mtp;
        if (!is_mtp) dense += !make_layer(m, &m->groups[g]);
    }
    if (m->map->n_layers == before) return;
    m->map->n_dense += dense;
    m->map->n_mtp += mtp;
}

static void make_layers(map_builder *m)
{
    find_groups(m);
    find_parts(m);
    m->map->layers = cpl_pool_take(m->pool, (size_t)m->n_groups * sizeof *m->map->layers);
    if (!m->map->layers) return;
    for (int64_t g = 0, end; g < m->n_groups; g = end) {
        for (end = g + 1; end < m->n_groups;)
            if (same_base(m, &m->groups[g], &m->groups[end]))
                end++;
            else
                break;
        make_stack(m, g, end);
    }
    set_parts(m);
    qsort(m->map->layers, (size_t)m->map->n_layers, sizeof *m->map->layers, by_number);
}

/* ---- faults of the checkpoint ---- */

#define SAY(m, format, ...)                                                                        \
    cpl_pool_printf((m)->pool, "%s: " format, (m)->document->path, __VA_ARGS__)

/* Returns the fault of a file with the moments of an optimizer, or NULL. The state.safetensors of
 * our checkpoints has m.NAME and v.NAME for every tensor of the model. */
static const char *find_moments(const map_builder *m)
{
    const int64_t half = m->count / 2;
    if (half == 0 || m->count % 2) return NULL;
    for (int64_t i = 0; i < half; i++) {
        const char *first = name_at(m, i), *second = name_at(m, half + i);
        if (strncmp(first, "m.", 2) || strncmp(second, "v.", 2) || strcmp(first + 2, second + 2))
            return NULL;
    }
    return SAY(m,
               "holds the optimizer's moments (%s) of a checkpoint of couplet train, and no "
               "weights: name model.safetensors in the same folder, or the folder",
               "m.* and v.*");
}

/* Returns a tensor name that suggests experts, or NULL. */
static const char *likely_name(const map_builder *m)
{
    for (int64_t i = 0; i < m->count; i++)
        if (cpl_name_is_text(name_at(m, i)) && strstr(name_at(m, i), "expert"))
            return name_at(m, i);
    return NULL;
}

static bool are_adapters(const map_builder *m)
{
    for (int64_t i = 0; i < m->count; i++)
        if (!strstr(name_at(m, i), "lora_")) return false;
    return true;
}

/* Returns the fault of a checkpoint without MoE layers. */
static const char *say_none(const map_builder *m)
{
    const char *type = m->config.model_type, *likely = likely_name(m);
    if (m->count == 0) return SAY(m, "no MoE layers: there are no %s", "tensors");
    for (int64_t g = 0; g < m->n_groups; g++)
        if (is_beyond(m, &m->groups[g]))
            return SAY(m,
                       "no MoE layers: none below the %" PRId64 " layers of the config has experts "
                       "under a known name",
                       m->config.n_layers);
    if (are_adapters(m))
        return SAY(m,
                   "holds a LoRA adapter (%s) and no model: merge the adapter into its model "
                   "(merge_and_unload of PEFT), save that, and name it",
                   name_at(m, 0));
    if (likely)
        return SAY(m,
                   "no MoE layers: no router and experts under a known name (%s looks like one; "
                   "model_type %s)",
                   likely, type ? type : "not given");
    return SAY(m, "no MoE layers: no tensor is a router's or an %s", "expert's");
}

static void add_fault(map_builder *m, const char *fault)
{
    if (fault) m->map->faults[m->map->n_faults++] = fault;
}

/* Returns the fault of a part of the model that has a layer twice, or NULL. Two layers of one
 * number are two models, or a model and something of its shape. */
static const char *find_twice(const map_builder *m, const cpl_moe_layer *a, const cpl_moe_layer *b)
{
    if (a->layer != b->layer || part_rank(a) != part_rank(b)) return NULL;
    return SAY(m,
               "layer %" PRId64 " is there twice, as %.200s* and as %.200s*: the file holds two "
               "models, or more than a model: name one that holds one",
               a->layer, a->prefix, b->prefix);
}

/* Sets the map's faults: `first` alone, or the faults of the layers. Returns whether the whole
 * checkpoint has a fault. */
static bool find_faults(map_builder *m, const char *first)
{
    cpl_moe_map *map = m->map;
    const int64_t n  = first ? 0 : map->n_layers;
    map->faults      = cpl_pool_take(m->pool, (2 * (size_t)n + 1) * sizeof *map->faults);
    if (!map->faults) return false;
    add_fault(m, first);
    for (int64_t i = 1; i < n; i++)
        add_fault(m, find_twice(m, &map->layers[i - 1], &map->layers[i]));
    for (int64_t i = 0; i < n; i++)
        if (map->layers[i].refused) add_fault(m, map->layers[i].fault);
    const bool whole = map->n_faults > 0;
    for (int64_t i = 0; i < n; i++)
        if (!map->layers[i].refused) add_fault(m, map->layers[i].fault);
    return whole;
}

cpl_status cpl_moe_faults_fail(const char *const faults[], int64_t n_faults)
{
    enum { SHOWN = 3, ROOM = 900 }; /* bytes, fewer than a recorded sentence may have */
    cpl_status status = CPL_FAIL(CPL_ERR_INPUT, "%s", faults[0]);
    int64_t i         = 1;
    for (; i < n_faults && i < SHOWN; i++) {
        if (strlen(cpl_last_error()) + strlen(faults[i]) > ROOM) break;
        status = CPL_FAIL(CPL_ERR_INPUT, "%s; %s", cpl_last_error(), faults[i]);
    }
    if (i == n_faults) return status;
    return CPL_FAIL(CPL_ERR_INPUT, "%s; faults that are not shown: %" PRId64, cpl_last_error(),
                    n_faults - i);
}

/* ---- the map ---- */

static const char *first_word(map_builder *m, const char *words)
{
    return cpl_pool_printf(m->pool, "%.*s", (int)strcspn(words, " "), words);
}

static void set_family(map_builder *m)
{
    const cpl_moe_config *config = &m->config;
    cpl_moe_map *map             = m->map;
    map->n_mtp += m->n_mtp_named;
    map->family  = config->family_name ? first_word(m, config->family_name) : "";
    map->title   = config->family ? config->family->title : map->family;
    map->guessed = !config->family;
    if (!map->guessed) return;
    if (!*map->title) map->title = "family not given";
    map->guess = cpl_moe_guess(m->pool, config, &m->patterns, m->patterns_used);
}

static cpl_status make_map(map_builder *m)
{
    cpl_moe_map *map  = m->map;
    const char *fault = cpl_moe_config_read(&m->config, m->pool, m->document);
    m->patterns       = cpl_name_patterns_make(m->pool, m->config.family);
    sort_tensors(m);
    if (!fault) fault = find_moments(m);
    if (!fault) make_layers(m);
    if (!fault && map->n_layers == 0) fault = say_none(m);
    bool failed = find_faults(m, fault);
    set_family(m);
    cpl_moe_notes(map, m->pool, &m->config);
    if (m->pool->failed) return CPL_FAIL(CPL_ERR_MEMORY, "no memory for the map of the layers");
    if (!failed) return CPL_OK;
    *map = (cpl_moe_map){.faults = map->faults, .n_faults = map->n_faults, .memory = m->pool};
    return cpl_moe_faults_fail(map->faults, map->n_faults);
}

void cpl_moe_map_free(cpl_moe_map *map)
{
    if (map->memory) cpl_pool_free(map->memory);
    cpl_free(map->memory);
    *map = (cpl_moe_map){0};
}

cpl_status cpl_moe_map_make(cpl_moe_map *map, const cpl_stored tensors[], int64_t count,
                            const cpl_moe_document *document)
{
    map_builder m = {.given         = tensors,
                     .count         = count,
                     .document      = document,
                     .map           = map,
                     .patterns_used = {-1, -1}};
    size_t room   = (size_t)count + 1;
    *map          = (cpl_moe_map){0};
    m.pool        = cpl_alloc(sizeof *m.pool);
    m.tensors     = cpl_alloc(room * sizeof *m.tensors);
    m.groups      = cpl_alloc(room * sizeof *m.groups);
    m.matches     = cpl_alloc(room * sizeof *m.matches);
    map->memory   = m.pool;
    if (m.pool) *m.pool = (cpl_pool){0};
    cpl_status status = CPL_ERR_MEMORY;
    if (m.pool && m.tensors && m.groups && m.matches) status = make_map(&m);
    cpl_free(m.tensors);
    cpl_free(m.groups);
    cpl_free(m.matches);
    if (status == CPL_ERR_MEMORY) cpl_moe_map_free(map);
    return status;
}
