/* moe_map.h - the reader of checkpoints (inspect/families/families.h) for the Python package: names and shapes
 * of a model in memory go in as JSON, its layers come out as JSON.
 *
 * Room:  above study. Built into the package's library only; no part of couplet.h.
 * Why:   one table of families and one set of rules, with one sentence for each refusal. */
#ifndef COUPLET_PYTHON_MOE_MAP_H
#define COUPLET_PYTHON_MOE_MAP_H

#include "couplet/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* request: {"path": what sentences call the model, "config": object of config.json,
 *           "tensors": [[name, "F32" | "BF16" | ..., [shape]], ...]}
 * Sets *answer to {"family", "title", "guess" or null, "layers": [...]}; each layer has
 *     "part", "prefix", "layer", "skip", "fault", "note" (null: none), "comparable", "n", "d", "D",
 *     "K", "extra_rows", "router" (name), "router_transposed", "layout" ("per_expert", "rows",
 *     "columns"), "width", "interleaved", "matrices" (names).
 * Errors: CPL_ERR_INPUT with the sentence of `couplet inspect`; CPL_ERR_MEMORY. The answer is the
 * caller's, to be given back with couplet_moe_map_free. */
CPL_API CPL_NODISCARD cpl_status couplet_moe_map(const char *request, char **answer);
CPL_API void couplet_moe_map_free(char *answer); /* NULL: nothing to do */

#ifdef __cplusplus
}
#endif
#endif /* COUPLET_PYTHON_MOE_MAP_H */
