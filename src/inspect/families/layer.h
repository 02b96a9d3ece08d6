/* layer.h - one MoE layer out of the tensors that its names have found.
 *
 * Room:    inspect/families, inside the families room.
 * Source:  docs/formats.md, "Published MoE checkpoints". */
#ifndef CPL_INSPECT_FAMILIES_LAYER_H
#define CPL_INSPECT_FAMILIES_LAYER_H

#include "inspect/families/config.h"
#include "inspect/families/matrix.h"
#include "inspect/families/names.h"

/* What is the same for all layers. */
typedef struct cpl_layer_reading {
    cpl_pool *pool;
    const cpl_moe_config *config;
    const cpl_name_patterns *patterns;
    const char *path; /* of the checkpoint, for sentences */
} cpl_layer_reading;

/* What the names of one layer's tensors say. */
typedef struct cpl_layer_names {
    const cpl_name_match *matches; /* (n_matches) by pattern, then expert, then ending */
    int64_t n_matches;
    const char *unmeasured;       /* NULL, or why it has no figures */
    const cpl_stored *projection; /* NULL, or the projection before its experts */
} cpl_layer_names;

/* Fills `layer`, of which prefix and number are set, but for `part`. Sets `is_moe`: false, and
 * nothing filled, where the layer has no experts. `patterns_used` [2] are router's and gates', or -1.
 * CPL_ERR_INPUT where nothing says which of two readings is meant, or for a
 * quantisation that is not read; anything else that is wrong is the layer's fault. */
CPL_NODISCARD cpl_status cpl_moe_layer_fill(cpl_moe_layer *layer, bool *is_moe,
                                            int patterns_used[2], const cpl_layer_reading *reading,
                                            const cpl_layer_names *names);

/* ---- inside layer.c and fit.c: n, d, D, and whether rows or columns are the gates' rows
 * (docs/formats.md, "Orientation of fused tensors") ---- */

/* The work on one layer. `fault` and `refusal` are the first of their kind. */
typedef struct cpl_layer_builder {
    const cpl_layer_reading *r;
    const cpl_layer_names *names;
    cpl_moe_layer *layer;
    int router, gate;             /* numbers of their patterns */
    cpl_stored_matrix *all;       /* (n_all) of the gates, by expert; without {e} one */
    int64_t n_all;                /* experts that have a gate, or 1 */
    int64_t *experts;             /* (n_all) their numbers */
    const cpl_name_match **first; /* (n_all + 1) where the matches of each begin, and the end */
    cpl_matrix_shape rows;        /* of the router as stored */
    cpl_matrix_shape gates;       /* of the first gate, or of the stack */
    const char *fault, *refusal;
} cpl_layer_builder;

#define CPL_SAY(f, ...)   cpl_pool_printf((f)->r->pool, __VA_ARGS__)
#define CPL_FAULT(f, ...) ((f)->fault = (f)->fault ? (f)->fault : CPL_SAY(f, __VA_ARGS__))

/* Whether the table has the family of the checkpoint. */
static inline bool cpl_family_is_listed(const cpl_layer_builder *f)
{
    return f->r->config->family != NULL;
}

static inline const cpl_name_pattern *cpl_gate_pattern(const cpl_layer_builder *f)
{
    return &f->r->patterns->all[f->gate];
}

/* Whether there is one tensor for each expert. */
static inline bool cpl_gate_each(const cpl_layer_builder *f)
{
    return cpl_gate_pattern(f)->hole < cpl_gate_pattern(f)->length;
}

/* The matrix itself, not its scales or biases. */
static inline bool cpl_name_match_holds_numbers(const cpl_name_match *match)
{
    return match->ending == CPL_ENDING_WEIGHT || match->ending == CPL_ENDING_BLOCKS ||
           match->ending == CPL_ENDING_PACKED || match->ending == CPL_ENDING_METHOD;
}

/* A flag of the family on the layout of its safetensors; GGUF files have one layout. */
static inline bool cpl_fit_flag(const cpl_layer_builder *f, cpl_family_flag flag)
{
    return !f->r->config->is_gguf && cpl_moe_config_flag(f->r->config, flag);
}

/* With router and first gate read: sets n, d and whether the router is [d,n]. */
void cpl_fit_router(cpl_layer_builder *f);
bool cpl_fit_is_latent(const cpl_layer_builder *f);

/* Sets layout, width, D; false with a fault where the tensors do not fit. */
bool cpl_fit_gates(cpl_layer_builder *f);

#endif /* CPL_INSPECT_FAMILIES_LAYER_H */
