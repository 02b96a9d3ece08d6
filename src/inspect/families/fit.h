/* fit.h - how the tensors of one MoE layer fit together: n, d, D, and which way round they
 * lie.
 *
 * Room:    inspect/families, inside layer.c only.
 * Source:  docs/formats.md, "Orientation of fused tensors". */
#ifndef CPL_INSPECT_FAMILIES_FIT_H
#define CPL_INSPECT_FAMILIES_FIT_H

#include "inspect/families/layer.h"
#include "inspect/families/matrix.h"

/* The work on one layer. `fault` and `refusal` are the first of their kind. */
typedef struct cpl_layer_builder {
    const cpl_layer_reading *r;
    const cpl_layer_names *names;
    cpl_moe_layer *layer;
    int router, gate;             /* stems */
    cpl_stored_matrix *all;       /* (n_all) of the gates, by expert; without {e} one */
    int64_t n_all;                /* experts that have a gate, or 1 */
    int64_t *experts;             /* (n_all) their numbers */
    const cpl_name_match **first; /* (n_all + 1) where the hits of each begin, and the end */
    cpl_matrix_shape rows;        /* of the router as stored */
    cpl_matrix_shape gates;       /* of the first gate, or of the stack */
    const char *fault, *refusal;
} cpl_layer_builder;

#define CPL_SAY(f, ...)   cpl_pool_printf((f)->r->pool, __VA_ARGS__)
#define CPL_FAULT(f, ...) ((f)->fault = (f)->fault ? (f)->fault : CPL_SAY(f, __VA_ARGS__))

static inline const cpl_name_pattern *cpl_gate_stem(const cpl_layer_builder *f)
{
    return &f->r->stems->all[f->gate];
}

/* Whether there is one tensor for each expert. */
static inline bool cpl_gate_each(const cpl_layer_builder *f)
{
    return cpl_gate_stem(f)->hole < cpl_gate_stem(f)->length;
}

/* The matrix itself, not its scales or biases. */
static inline bool cpl_name_match_holds_numbers(const cpl_name_match *hit)
{
    return hit->ending == CPL_ENDING_WEIGHT || hit->ending == CPL_ENDING_BLOCKS ||
           hit->ending == CPL_ENDING_PACKED || hit->ending == CPL_ENDING_METHOD;
}

/* A flag of the family that tells how its safetensors lie; GGUF files lie all alike. */
static inline bool cpl_fit_flag(const cpl_layer_builder *f, const char *word)
{
    return !f->r->config->is_gguf && cpl_moe_config_flag(f->r->config, word);
}

/* With router and first gate read: sets n, d and whether the router is [d,n]. */
void cpl_fit_router(cpl_layer_builder *f);
bool cpl_fit_is_latent(const cpl_layer_builder *f);

/* Sets layout, width, D; false with a fault where the tensors do not fit. */
bool cpl_fit_gates(cpl_layer_builder *f);

#endif /* CPL_INSPECT_FAMILIES_FIT_H */
