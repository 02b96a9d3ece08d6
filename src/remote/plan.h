/* plan.h - chooses the ranges of files to request for the pieces that will be read.
 *
 * Room: remote. Arithmetic alone: no connection, no thread.
 * Merging: pieces of one file become one range if at most `gap` bytes lie between them and the
 *   range has at most `most` bytes. A longer piece becomes several ranges of about equal length. Up
 *   to CPL_REMOTE_LANES ranges stay open, so that pieces that are adjacent in the file but not in
 *   the list are merged: for example the scales of all gates. */
#ifndef CPL_REMOTE_PLAN_H
#define CPL_REMOTE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "io/source.h"

enum { CPL_REMOTE_LANES = 8 };

typedef enum cpl_remote_state {
    CPL_REMOTE_IDLE,      /* not wanted in advance */
    CPL_REMOTE_WAITING,   /* not requested yet */
    CPL_REMOTE_REQUESTED, /* being fetched, or being read from the cache */
    CPL_REMOTE_READY,     /* `out` is set */
    CPL_REMOTE_FAILED,    /* `status` and `sentence` hold the error */
    CPL_REMOTE_SPENT      /* read, and `out` is freed */
} cpl_remote_state;

/* Describes one range. The plan sets the first four members and the state, ranges.c the rest. */
typedef struct cpl_remote_range {
    const cpl_source *source;
    uint64_t begin, end; /* bytes [begin, end) of the file */
    uint64_t wanted;     /* bytes of its pieces, each as often as it will be read */

    cpl_remote_state state;
    bool kept;          /* the cache of an earlier run has it */
    uint64_t taken;     /* bytes read so far */
    int readers;        /* threads that wait for it or copy from it */
    unsigned char *out; /* [end - begin], or NULL; owned */
    size_t got;         /* bytes of `out` that the file has */
    int result;         /* cpl_fetch_result */
    cpl_status status;
    char *sentence; /* error of the failure, or NULL without memory; owned */
} cpl_remote_range;

/* Holds the ranges of a plan. An empty one is all zero. */
typedef struct cpl_remote_plan {
    cpl_remote_range *ranges; /* (count) in the order of first use */
    int64_t count, room;
    int64_t first; /* all ranges before this one are spent */
    double bytes;  /* bytes of all ranges */
} cpl_remote_plan;

/* Replaces the plan. CPL_ERR_MEMORY leaves it empty. */
CPL_NODISCARD cpl_status cpl_remote_plan_make(cpl_remote_plan *plan,
                                              const cpl_source_pieces *pieces, uint64_t gap,
                                              uint64_t most);
void cpl_remote_plan_free(cpl_remote_plan *plan);

/* Returns the first range of the plan that holds the byte `offset` of the source and is not spent,
 * or NULL. Sets `until` to the end of the bytes from `offset` on for which this result holds, at
 * most `end`. */
cpl_remote_range *cpl_remote_plan_find(cpl_remote_plan *plan, uint64_t *until,
                                       const cpl_source *source, uint64_t offset, uint64_t end);

#endif /* CPL_REMOTE_PLAN_H */
