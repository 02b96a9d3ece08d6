/* layer.h - one MoE layer out of the tensors that its names have found.
 *
 * Room:    inspect/families, inside the families room.
 * Source:  docs/formats.md, "Published MoE checkpoints". */
#ifndef CPL_INSPECT_FAMILIES_LAYER_H
#define CPL_INSPECT_FAMILIES_LAYER_H

#include "inspect/families/config.h"
#include "inspect/families/names.h"

/* What is the same for all layers. */
typedef struct cpl_layer_reading {
    cpl_pool *pool;
    const cpl_moe_config *config;
    const cpl_name_patterns *stems;
    const char *path; /* of the checkpoint, for sentences */
} cpl_layer_reading;

/* What the names of one layer's tensors have told. */
typedef struct cpl_layer_names {
    const cpl_name_match *hits; /* (n_hits) by stem, then expert, then ending */
    int64_t n_hits;
    const char *unmeasured;       /* NULL, or why it has no figures */
    const cpl_stored *projection; /* NULL, or what stands before its experts */
} cpl_layer_names;

/* Fills `layer`, of which prefix and number are set, but for `part`. Sets `is_moe`: false, and
 * nothing filled, where the layer has no experts. `stems_used` [2] are router's and gates', or -1.
 * CPL_ERR_INPUT where nothing says which of two readings is meant, or for a
 * quantisation that is not read; anything else that is wrong is the layer's fault. */
CPL_NODISCARD cpl_status cpl_moe_layer_fill(cpl_moe_layer *layer, bool *is_moe, int stems_used[2],
                                            const cpl_layer_reading *reading,
                                            const cpl_layer_names *names);

#endif /* CPL_INSPECT_FAMILIES_LAYER_H */
