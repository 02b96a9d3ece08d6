/* gather.h - texts of any length from every rank to all; values that must be equal on all ranks.
 *
 * Room:    parallel.
 * Use:     work that is dealt out in rounds: rank r takes unit r of a round, then all get the
 *          results of all, in the order of the units. A sum in that order has the bits of one
 *          process.
 * Failure: every function is collective, takes the status of this rank so far, and begins with an
 *          agreement (cpl_group_agree). A rank that has failed calls the function which the others
 *          call next, with its failure as `status`; all return that failure.
 * Group:   NULL is one process. */
#ifndef CPL_PARALLEL_GATHER_H
#define CPL_PARALLEL_GATHER_H

#include <jansson.h>

#include "base/text.h"
#include "parallel/group.h"

/* Whether this process is the only rank. */
static inline bool cpl_gather_is_alone(const cpl_group *group)
{
    return !group || group->size == 1;
}

/* Whether this process is rank 0, which prints and writes files. */
static inline bool cpl_gather_is_first(const cpl_group *group)
{
    return !group || group->rank == 0;
}

/* cpl_group_agree; with one process `status` itself. */
CPL_NODISCARD cpl_status cpl_gather_status(cpl_group *group, cpl_status status);

/* The text of every rank. */
typedef struct cpl_gathered {
    char *bytes;     /* of all, one after another in the order of the ranks; owned */
    int64_t *length; /* [size] bytes of each; owned */
} cpl_gathered;

/* Sets `all`, which the caller frees, to the texts of all ranks; empty after a failure. With one
 * process it is a copy of `own`. CPL_ERR_MEMORY; that of `own`; as cpl_group_status. */
CPL_NODISCARD cpl_status cpl_gather_texts(cpl_gathered *all, cpl_group *group, cpl_status status,
                                          const cpl_text *own);

/* The same for rank 0 alone; `all` is empty on the others. Lengths are multiples of 4 bytes. */
CPL_NODISCARD cpl_status cpl_gather_to_first(cpl_gathered *all, cpl_group *group, cpl_status status,
                                             const cpl_text *own);
void cpl_gathered_free(cpl_gathered *all);

/* CPL_ERR_INPUT, with the name and both values, if a rank has other values in its object `own` than
 * rank 0 has. Takes `own` over; NULL is CPL_ERR_MEMORY. With one process `status` itself. */
CPL_NODISCARD cpl_status cpl_gather_equal(cpl_group *group, cpl_status status, json_t *own);

#endif /* CPL_PARALLEL_GATHER_H */
