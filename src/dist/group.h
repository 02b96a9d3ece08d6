/* group.h - several ranks as one: collectives, blocking or started and finished later.
 *
 * Room:     dist.
 * Names:    a group has `size` ranks, 0 ... size - 1; this process is `rank`.
 * Sums:     floating-point sums are ours: parts are exchanged and added in the order of the ranks,
 *           f32 in f32. So the result depends on the numbers and the size alone: MPI libraries and
 *           threads give the same bits, and so do two runs.
 * Order:    all ranks call the collectives of one group in the same order, with counts that agree.
 *           Started ones may be finished in any order.
 * Failure:  collectives return nothing. The first failure of a process (a rank was lost, MPI failed)
 *           is kept for all of its groups; from then on collectives do nothing but set what they
 *           should have set to zero. cpl_group_status returns the failure.
 * One rank: a group of size 1 copies at most, counts nothing and needs no transport.
 * Bytes:    what this rank sends to other ranks. With g ranks and `bytes` in all:
 *               all_gather        (g - 1) own bytes
 *               sum_parts         bytes - own part
 *               sum_*             count < 8 g: (g - 1) bytes; else 2 (g - 1) parts of ceil(count / g)
 *                                 numbers, but no more than there are
 *               all_to_all        all but the piece for itself
 *               broadcast         (g - 1) bytes counted at the root, none elsewhere, whatever tree the
 *                                 library sends them along */
#ifndef CPL_DIST_GROUP_H
#define CPL_DIST_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "dist/transport.h"

typedef enum cpl_collective {
    CPL_ALL_GATHER,
    CPL_SUM_PARTS, /* reduce-scatter */
    CPL_SUM,       /* all-reduce */
    CPL_ALL_TO_ALL,
    CPL_BROADCAST,
    CPL_N_COLLECTIVES
} cpl_collective;

/* What the collectives of one kind have cost this rank. */
typedef struct cpl_traffic {
    int64_t calls, bytes;
    double wait_s; /* in which this rank did nothing but wait */
} cpl_traffic;

/* Shared by all groups of a process. */
typedef struct cpl_ranks {
    cpl_status status; /* the first failure of this process */
    char sentence[1024];
    bool agreed; /* cpl_group_agree has given all ranks a failure: they end alike */
    cpl_traffic traffic[CPL_N_COLLECTIVES];
    /* Polled while waiting: true if a rank was lost, with the sentence (dist/alive.h). NULL: nobody
     * watches. */
    bool (*lost)(void *ctx, char sentence[1024]);
    void *ctx;
    void *scratch; /* of the sums; grows to the largest, given back by cpl_ranks_free */
    size_t scratch_bytes;
} cpl_ranks;

typedef struct cpl_group {
    int rank, size;
    cpl_transport transport; /* owned; not used if size is 1 */
    cpl_ranks *ranks;        /* not owned; NULL in a group made by cpl_group_self */
    int64_t *counts;         /* [4, size] for the pieces of a call; owned */
} cpl_group;

/* A collective that was started; memory of the caller until it is finished. */
typedef struct cpl_pending {
    cpl_group *group;
    void *request; /* NULL: nothing to wait for */
    cpl_collective kind;
    float *out; /* of sum_parts: what finishing adds up */
    const float *own, *parts;
    int64_t count;
    void *received; /* set to zero after a failure */
    size_t received_bytes;
} cpl_pending;

/* The group of one rank. */
cpl_group cpl_group_self(void);

/* The group of all ranks of a transport, which it takes over. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_group_of(cpl_group *group, cpl_transport transport, cpl_ranks *ranks);

/* The ranks with the same `color` as a group of their own, in this order. Collective.
 * CPL_ERR_DEVICE, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_group_split(cpl_group *part, cpl_group *group, int color);

void cpl_group_close(cpl_group *group);
void cpl_ranks_free(cpl_ranks *ranks); /* after all of their groups */

/* The first failure of this process, with its sentence as the last error. */
CPL_NODISCARD cpl_status cpl_group_status(const cpl_group *group);

/* Makes a failure of this process alone, with its sentence, the last error, the first failure: no memory
 * where the next collective would begin. The others wait for it until it ends (dist/alive.h). */
void cpl_group_fail(cpl_group *group, cpl_status status);

/* ---- moving bytes ---- */

/* recv: the `bytes` of every rank, in their order; counts may differ: bytes [size], of each rank. */
void cpl_group_start_all_gather(cpl_pending *p, cpl_group *g, void *recv, const void *send,
                                const int64_t *bytes);
/* Pieces in units of `unit` bytes, one after another in the order of ranks: [size] counts. */
void cpl_group_start_all_to_all(cpl_pending *p, cpl_group *g, void *recv, const int64_t *received,
                                const void *send, const int64_t *sent, int64_t unit);

void cpl_group_all_gather(cpl_group *g, void *recv, const void *send, const int64_t *bytes);
void cpl_group_all_to_all(cpl_group *g, void *recv, const int64_t *received, const void *send,
                          const int64_t *sent, int64_t unit);
void cpl_group_broadcast(cpl_group *g, void *data, int64_t bytes, int root);
/* Returns when all ranks have called it. */
void cpl_group_barrier(cpl_group *g);

/* ---- sums ---- */

/* `in` has a part for every rank, of count[r] numbers; out [count[rank]] = the sum over ranks of this
 * rank's part. out may be this rank's part of `in`. parts: scratch of (size - 1) count[rank]
 * numbers, untouched until finished. */
void cpl_group_start_sum_parts(cpl_pending *p, cpl_group *g, float *out, const float *in,
                               const int64_t *count, float *parts);
/* x [count] becomes the sum over ranks, everywhere the same bits. */
void cpl_group_sum_f64(cpl_group *g, double *x, int64_t count);
void cpl_group_sum_f32(cpl_group *g, float *x, int64_t count);
void cpl_group_sum_i32(cpl_group *g, int32_t *x, int64_t count);
void cpl_group_sum_i64(cpl_group *g, int64_t *x, int64_t count);

/* Bytes that such a sum of `count` numbers of `unit` bytes sends from rank `rank` of `size`. */
int64_t cpl_group_sum_bytes(int size, int rank, int64_t count, int64_t unit);

/* ---- agreement ---- */

/* Every rank gives its status; all get CPL_OK, or that of the lowest rank that failed, with the
 * sentence "rank 2: ..." (that rank itself without "rank 2: "). Collective. */
CPL_NODISCARD cpl_status cpl_group_agree(cpl_group *group, cpl_status status);

/* ---- waiting ---- */

/* Whether cpl_group_finish would return without waiting. */
bool cpl_group_is_complete(cpl_pending *p);
/* Waits, and completes what the collective does. Nothing if it was finished before. */
void cpl_group_finish(cpl_pending *p);

#endif /* CPL_DIST_GROUP_H */
