/* plan.h - which ranges of files are asked for, so that the pieces that will be read are there.
 *
 * Room:   remote. Arithmetic alone: no connection, no thread.
 * Rule:   pieces of one file become one range if no more than `gap` bytes lie between them and the
 *         range stays within `most` bytes; a longer piece becomes several ranges of about equal
 *         length. Pieces need not be neighbours in the list: up to CPL_REMOTE_LANES ranges are kept
 *         open for more. So the factors of all gates, which lie together in the file, are one range
 *         although each is read with its gate. */
#ifndef CPL_REMOTE_PLAN_H
#define CPL_REMOTE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "io/source.h"

enum { CPL_REMOTE_LANES = 8 };

typedef enum cpl_remote_state {
    CPL_REMOTE_WAITING, /* not asked for yet */
    CPL_REMOTE_KEPT,    /* in the cache of an earlier run */
    CPL_REMOTE_ASKED,   /* on its way, or being read from the cache */
    CPL_REMOTE_READY,   /* its bytes are there */
    CPL_REMOTE_FAILED,
    CPL_REMOTE_SPENT /* read, and its bytes are gone */
} cpl_remote_state;

/* One range. The plan sets the first three; the rest is the state while it is carried out. */
typedef struct cpl_remote_range {
    const cpl_source *source;
    uint64_t begin, end; /* bytes [begin, end) of the file */
    uint64_t wanted;     /* bytes of its pieces, each as often as it will be read */

    cpl_remote_state state;
    uint64_t taken;     /* bytes read so far */
    int readers;        /* threads that wait for it or copy from it */
    void *fetch;        /* its transfer; NULL: none */
    unsigned char *out; /* [end - begin]; NULL: not there */
} cpl_remote_range;

/* All zero is an empty one. */
typedef struct cpl_remote_plan {
    cpl_remote_range *ranges; /* (count) in the order in which they are needed first */
    int64_t *by_place;        /* (count) their indices, by source, then by begin, then by index */
    int64_t count, room;
    uint64_t longest; /* bytes of the longest */
    double bytes;     /* of all */
} cpl_remote_plan;

/* Replaces the plan. CPL_ERR_MEMORY leaves it empty. */
CPL_NODISCARD cpl_status cpl_remote_plan_make(cpl_remote_plan *plan,
                                              const cpl_source_pieces *pieces, uint64_t gap,
                                              uint64_t most);
void cpl_remote_plan_free(cpl_remote_plan *plan);

/* The first range in the order of the plan that holds the byte `offset` of the source and is not
 * spent; NULL: none. Sets `until` to the end of the bytes from `offset` on for which that answer
 * holds, at most `end`. */
cpl_remote_range *cpl_remote_plan_find(const cpl_remote_plan *plan, uint64_t *until,
                                       const cpl_source *source, uint64_t offset, uint64_t end);

#endif /* CPL_REMOTE_PLAN_H */
