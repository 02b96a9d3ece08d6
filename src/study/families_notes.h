/* families_notes.h - what is to be said of a map of MoE layers as a whole.
 *
 * Room:  study, inside the families room. */
#ifndef CPL_STUDY_FAMILIES_NOTES_H
#define CPL_STUDY_FAMILIES_NOTES_H

#include "study/families_config.h"
#include "study/families_names.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the map's notes: where config and shapes disagree, and how. */
void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config);

/* What was taken for what where no row of the table says; stems of router and gates, or -1. */
const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config, const cpl_stems *stems,
                          const int used[2]);

/* A name that looks as if there were experts; NULL: none does. */
const char *cpl_moe_likely(const cpl_stored *const *tensors, int64_t count);

#ifdef __cplusplus
}
#endif
#endif /* CPL_STUDY_FAMILIES_NOTES_H */
