/* moe_case.h - checkpoints for the tests of the families: lists of tensors as text, without files,
 * and a map as text.
 *
 * A list:  "name TYPE 8,32; name TYPE 8" where {a-b} in a name stands for the numbers a to b, and
 *          each combination of them is one tensor. A line's end separates as a semicolon does.
 * A map:   a line for the whole and a line for each layer; see moe_map_text. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_MOE_CASE_H
#define CPL_TESTS_INSPECT_FAMILIES_MOE_CASE_H

#include <inttypes.h>

#include "base/text.h"
#include "check.h"
#include "inspect/families/families.h"

enum { MOE_MAX_TENSORS = 4096, MOE_MAX_NAME = 160 };

typedef struct moe_list {
    cpl_stored all[MOE_MAX_TENSORS];
    char names[MOE_MAX_TENSORS][MOE_MAX_NAME];
    char types[MOE_MAX_TENSORS][16];
    int64_t count;
} moe_list;

static inline cpl_format moe_format(const char *type)
{
    for (int f = 0; f < CPL_N_FORMATS; f++)
        if (strcmp(cpl_format_name((cpl_format)f), type) == 0) return (cpl_format)f;
    return CPL_FORMAT_OTHER;
}

static inline void moe_add(moe_list *list, const char *name, const char *type, const char *shape)
{
    for (const char *open = strchr(name, '{'); open;) {
        int from, to, length;
        if (sscanf(open, "{%d-%d}%n", &from, &to, &length) != 2) fail_msg("a range in %s", name);
        for (int i = from; i <= to; i++) {
            char one[MOE_MAX_NAME];
            snprintf(one, sizeof one, "%.*s%d%s", (int)(open - name), name, i, open + length);
            moe_add(list, one, type, shape);
        }
        return;
    }
    if (list->count == MOE_MAX_TENSORS) fail_msg("too many tensors in a case");
    int64_t i       = list->count++;
    cpl_stored *one = &list->all[i];
    snprintf(list->names[i], MOE_MAX_NAME, "%s", name);
    snprintf(list->types[i], sizeof list->types[i], "%s", type);
    *one = (cpl_stored){.name       = list->names[i],
                        .type_name  = list->types[i],
                        .format     = moe_format(type),
                        .n_elements = 1,
                        .path       = "case",
                        .n_slices   = 1};
    for (const char *at = shape; *at && one->rank < CPL_STORED_MAX_RANK;) {
        char *end;
        one->shape[one->rank++] = strtoll(at, &end, 10);
        one->n_elements *= one->shape[one->rank - 1];
        at = *end == ',' ? end + 1 : end;
    }
}

static inline void moe_list_read(moe_list *list, const char *text)
{
    list->count = 0;
    for (text += strspn(text, "; \n"); *text; text += strspn(text, "; \n")) {
        char name[MOE_MAX_NAME], type[16], shape[64] = "";
        int length = 0;
        sscanf(text, "%159[^ ] %15[^ ;] %63[0-9,]%n", name, type, shape, &length);
        if (!length) fail_msg("a case's list at: %.60s", text);
        moe_add(list, name, type, shape);
        text += length;
    }
}

/* Makes the map of these tensors and of the text of a configuration, which may be NULL. The map is
 * freed with cpl_moe_map_free, also after a failure. */
static inline cpl_status moe_map_of(cpl_moe_map *map, const moe_list *list, const char *config,
                                    bool is_gguf)
{
    json_error_t error;
    json_t *object = config ? json_loads(config, 0, &error) : NULL;
    if (config && !object) fail_msg("a case's config: %s: %s", error.text, config);
    const cpl_moe_document document = {object, is_gguf, "case"};
    cpl_status status               = cpl_moe_map_make(map, list->all, list->count, &document);
    json_decref(object);
    return status;
}

static inline cpl_status moe_map_read(cpl_moe_map *map, moe_list *list, const char *config,
                                      const char *tensors, bool is_gguf)
{
    moe_list_read(list, tensors);
    return moe_map_of(map, list, config, is_gguf);
}

/* Writes "family n_dense n_mtp", with "guess" if the family was guessed, and a line for each layer:
 * "prefix n d D K layout" and its unusual properties. */
static inline void moe_map_text(cpl_text *out, const cpl_moe_map *map)
{
    static const char *const layouts[] = {"each", "rows", "columns"};
    cpl_text_clear(out);
    cpl_text_printf(out, "%s %" PRId64 " %" PRId64 "%s\n", map->family, map->n_dense, map->n_mtp,
                    map->guessed ? " guess" : "");
    for (int64_t i = 0; i < map->n_layers; i++) {
        const cpl_moe_layer *l = &map->layers[i];
        cpl_text_printf(out, "%s%s%s", l->part, *l->part ? " " : "", l->prefix);
        if (l->skip || l->fault) {
            cpl_text_printf(out, " %s %s\n", l->skip ? "skip" : "fault",
                            l->skip ? l->skip : l->fault);
            continue;
        }
        cpl_text_printf(out, " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %s", l->n, l->d,
                        l->D, l->K, layouts[l->layout]);
        if (l->width != l->D) cpl_text_printf(out, " of %" PRId64, l->width);
        if (l->interleaved) cpl_text_printf(out, " interleaved");
        if (l->second) cpl_text_printf(out, " second");
        if (l->n_matrices != (l->layout == CPL_GATE_PER_EXPERT ? l->n : 1))
            cpl_text_printf(out, " in %" PRId64, l->n_matrices);
        if (l->router_transposed) cpl_text_printf(out, " turned");
        if (l->extra_rows) cpl_text_printf(out, " extra %" PRId64, l->extra_rows);
        if (l->projection.weight)
            cpl_text_printf(out, " latent %" PRId64 "%s %s", l->l,
                            l->projection_by_shape ? " by shape" : "",
                            l->projection.weight->name + strlen(l->prefix));
        if (l->latent_norm.weight)
            cpl_text_printf(out, " then %s %g", l->latent_norm.weight->name + strlen(l->prefix),
                            l->latent_eps);
        if (!l->comparable) cpl_text_printf(out, " incomparable");
        if (l->biased) cpl_text_printf(out, " biased");
        const cpl_stored_matrix *g = &l->matrices[0];
        if (g->format != g->weight->format || g->scale)
            cpl_text_printf(out, " %s", cpl_format_name(g->format));
        if (g->scale)
            cpl_text_printf(out, " by %s %" PRId64 ",%" PRId64, cpl_format_name(g->scale_format),
                            g->block_rows, g->block_cols);
        cpl_text_char(out, '\n');
    }
}

#endif /* CPL_TESTS_INSPECT_FAMILIES_MOE_CASE_H */
