/* gather.h - gathers texts of any length on all ranks, and checks values that must be equal on all
 * ranks.
 *
 * Room:    parallel.
 * Use:     work divided in rounds: rank r computes unit r of a round, then every rank gets all
 *          results in the order of the units. A sum in that order has the bits of one process.
 * Failure: every function is collective, takes the status of this rank so far, and begins with an
 *          agreement (cpl_group_agree). A rank that has failed calls the function that the other
 *          ranks call next, with its failure as `status`. All ranks return this failure.
 * Group:   NULL is one process. */
#ifndef CPL_PARALLEL_GATHER_H
#define CPL_PARALLEL_GATHER_H

#include <jansson.h>

#include "base/text.h"
#include "parallel/group.h"

/* Returns whether this process is the only rank. */
static inline bool cpl_gather_is_alone(const cpl_group *group)
{
    return !group || group->size == 1;
}

/* Returns whether this process is rank 0, which prints and writes files. */
static inline bool cpl_gather_is_first(const cpl_group *group)
{
    return !group || group->rank == 0;
}

/* Calls cpl_group_agree. Returns `status` with one process. */
CPL_NODISCARD cpl_status cpl_gather_status(cpl_group *group, cpl_status status);

/* The text of every rank. */
typedef struct cpl_gathered {
    char *bytes;     /* all texts, one after another in the order of the ranks; owned */
    int64_t *length; /* [size] bytes of each text; owned */
} cpl_gathered;

/* Sets `all`, which the caller frees, to the texts of all ranks, or to an empty object after a
 * failure. With one process `all` is a copy of `own`. Returns CPL_ERR_MEMORY, `status`, or an error
 * of cpl_group_status. */
CPL_NODISCARD cpl_status cpl_gather_texts(cpl_gathered *all, cpl_group *group, cpl_status status,
                                          const cpl_text *own);

/* Runs cpl_gather_texts for rank 0 only: `all` is empty on other ranks. Lengths must be multiples
 * of 4 bytes. */
CPL_NODISCARD cpl_status cpl_gather_to_first(cpl_gathered *all, cpl_group *group, cpl_status status,
                                             const cpl_text *own);
void cpl_gathered_free(cpl_gathered *all);

/* Returns CPL_ERR_INPUT, with the name and both values, if a value of a rank's object `own` differs
 * from the value of rank 0. Takes ownership of `own`. NULL is CPL_ERR_MEMORY. Returns `status` with
 * one process. */
CPL_NODISCARD cpl_status cpl_gather_equal(cpl_group *group, cpl_status status, json_t *own);

#endif /* CPL_PARALLEL_GATHER_H */
