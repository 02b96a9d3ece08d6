#include "moe_map.h"

#include <stdlib.h>
#include <string.h>

#include "inspect/families/families.h"

/* ---- what comes in ---- */

static cpl_format format_of(const char *type_name)
{
    for (int format = 0; format < CPL_N_FORMATS; format++)
        if (strcmp(cpl_format_name(format), type_name) == 0) return format;
    return CPL_FORMAT_OTHER;
}

/* `row`: [name, type, [shape]]; false if it is not. */
static bool read_tensor(cpl_stored *out, json_t *row, const char *path)
{
    const json_t *shape = json_array_get(row, 2);
    const size_t rank   = json_array_size(shape);
    out->name           = json_string_value(json_array_get(row, 0));
    out->type_name      = json_string_value(json_array_get(row, 1));
    if (!out->name || !out->type_name || rank > CPL_STORED_MAX_RANK) return false;
    out->format     = format_of(out->type_name);
    out->path       = path;
    out->rank       = (int)rank;
    out->n_slices   = 1;
    out->n_elements = 1;
    for (size_t k = 0; k < CPL_STORED_MAX_RANK; k++) {
        out->shape[k] = k < rank ? json_integer_value(json_array_get(shape, k)) : 1;
        out->n_elements *= out->shape[k];
    }
    return true;
}

/* ---- what goes out ---- */

static json_t *text_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

static json_t *names_of(const cpl_moe_layer *layer)
{
    json_t *names = json_array();
    for (int64_t i = 0; i < layer->n_matrices; i++)
        json_array_append_new(names, json_string(layer->matrices[i].weight->name));
    return names;
}

static json_t *layer_as_json(const cpl_moe_layer *l)
{
    static const char *const layouts[] = {"per_expert", "rows", "columns"};
    const char *router                 = l->router.weight ? l->router.weight->name : NULL;
    return json_pack("{ss ss sI so so so sb sI sI sI sI sI so sb ss sI sb so}", "part", l->part,
                     "prefix", l->prefix, "layer", (json_int_t)l->layer, "skip",
                     text_or_null(l->skip), "fault", text_or_null(l->fault), "note",
                     text_or_null(l->note), "comparable", l->comparable, "n", (json_int_t)l->n, "d",
                     (json_int_t)l->d, "D", (json_int_t)l->D, "K", (json_int_t)l->K, "extra_rows",
                     (json_int_t)l->extra_rows, "router", text_or_null(router), "router_transposed",
                     l->router_transposed, "layout", layouts[l->layout], "width",
                     (json_int_t)l->width, "interleaved", l->interleaved, "matrices", names_of(l));
}

static char *map_as_text(const cpl_moe_map *map)
{
    json_t *layers = json_array();
    for (int64_t i = 0; i < map->n_layers; i++)
        json_array_append_new(layers, layer_as_json(&map->layers[i]));
    json_t *whole = json_pack("{ss ss so so}", "family", map->family, "title", map->title, "guess",
                              text_or_null(map->guessed ? map->guess : NULL), "layers", layers);
    char *text    = whole ? json_dumps(whole, JSON_COMPACT) : NULL;
    json_decref(whole);
    return text;
}

/* ---- the whole ---- */

static cpl_status make_map(cpl_moe_map *map, json_t *request, cpl_stored *tensors)
{
    json_t *rows           = json_object_get(request, "tensors");
    const char *path       = json_string_value(json_object_get(request, "path"));
    cpl_stored_files files = {.path    = (char *)(uintptr_t)path,
                              .config  = json_object_get(request, "config"),
                              .tensors = tensors,
                              .count   = (int64_t)json_array_size(rows)};
    if (!path) return CPL_FAIL(CPL_ERR_INPUT, "couplet_moe_map: no path");
    for (int64_t i = 0; i < files.count; i++)
        if (!read_tensor(&tensors[i], json_array_get(rows, (size_t)i), path))
            return CPL_FAIL(CPL_ERR_INPUT, "couplet_moe_map: tensor %lld is not as documented",
                            (long long)i);
    return cpl_moe_map_make(map, &files);
}

cpl_status couplet_moe_map(const char *text, char **answer)
{
    cpl_status status = CPL_OK;
    cpl_moe_map map   = {0};
    json_error_t error;
    json_t *request     = json_loads(text, 0, &error);
    const size_t count  = json_array_size(json_object_get(request, "tensors")) + 1;
    cpl_stored *tensors = calloc(count, sizeof *tensors);
    *answer             = NULL;
    if (!request) {
        status = CPL_FAIL(CPL_ERR_INPUT, "couplet_moe_map: %s", error.text);
        goto done;
    }
    if (tensors) CPL_TRY_DONE(make_map(&map, request, tensors));
    *answer = tensors ? map_as_text(&map) : NULL;
    if (!*answer) status = CPL_FAIL(CPL_ERR_MEMORY, "no memory for the map of the layers");
done:
    cpl_moe_map_free(&map);
    free(tensors);
    json_decref(request);
    return status;
}

void couplet_moe_map_free(char *answer)
{
    free(answer);
}
