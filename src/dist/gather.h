/* gather.h - bytes of any length from every rank to all; values that must be equal on all ranks.
 *
 * Room:    dist. For work that is dealt out in rounds: rank r takes unit r of a round, then all get
 *          the results of all, in the order of the units. So sums in that order have the bits of
 *          one process.
 * Failure: every function is collective and begins with an agreement (cpl_group_agree). A rank that
 *          has failed calls the function which the others call next, with its status; all return
 *          that failure.
 * Group:   NULL is one process. */
#ifndef CPL_DIST_GATHER_H
#define CPL_DIST_GATHER_H

#include <jansson.h>

#include "base/text.h"
#include "dist/group.h"

/* Whether there is no other rank. */
static inline bool cpl_gather_is_alone(const cpl_group *group)
{
    return !group || group->size == 1;
}

/* Whether this process prints and writes files. */
static inline bool cpl_gather_is_first(const cpl_group *group)
{
    return !group || group->rank == 0;
}

/* cpl_group_agree. */
CPL_NODISCARD cpl_status cpl_gather_status(cpl_group *group, cpl_status status);

/* What every rank gave. */
typedef struct cpl_gathered {
    char *bytes;     /* of all, in the order of ranks */
    int64_t *length; /* [size] */
} cpl_gathered;

/* Sets `all` to the texts of all ranks; empty after a failure. `status`: what this rank has come to.
 * With one process `all` has a copy of its text. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_gather_texts(cpl_gathered *all, cpl_group *group, cpl_status status,
                                          const cpl_text *own);

/* The same on rank 0 alone; `all` is empty on the others. Lengths are multiples of 4. */
CPL_NODISCARD cpl_status cpl_gather_to_first(cpl_gathered *all, cpl_group *group, cpl_status status,
                                             const cpl_text *own);
void cpl_gathered_free(cpl_gathered *all);

/* CPL_ERR_INPUT, with the name and both values, if a rank has other values than rank 0 in this
 * object, which it takes over. NULL: CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_gather_equal(cpl_group *group, cpl_status status, json_t *own);

#endif /* CPL_DIST_GATHER_H */
