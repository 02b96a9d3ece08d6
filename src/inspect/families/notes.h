/* notes.h - what is to be said of a map of MoE layers as a whole.
 *
 * Room:  inspect/families, inside the families room. */
#ifndef CPL_INSPECT_FAMILIES_NOTES_H
#define CPL_INSPECT_FAMILIES_NOTES_H

#include "inspect/families/config.h"
#include "inspect/families/names.h"

/* Sets the map's notes: where config and shapes disagree, and how. */
void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config);

/* What was taken for what where no row of the table says; stems of router and gates, or -1. */
const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config,
                          const cpl_name_patterns *stems, const int used[2]);

/* A name that looks as if there were experts; NULL: none does. */
const char *cpl_moe_likely(const cpl_stored *const *tensors, int64_t count);

#endif /* CPL_INSPECT_FAMILIES_NOTES_H */
