/* group.h - collectives over a group of ranks, blocking, or started and finished later.
 *
 * Room:     parallel.
 * Names:    a group, as an MPI communicator, has `size` ranks, 0 ... size - 1; this process is
 *           `rank`.
 * Sums:     MPI only moves floats. Parts are exchanged and added here in the order of the ranks,
 *           f32 in f32. So the result depends on the numbers and the size alone: MPI libraries and
 *           threads give the same bits, and so do two runs.
 * Order:    all ranks call the collectives of one group in the same order, with counts that agree.
 *           Started ones may be finished in any order. Until then the caller leaves both buffers
 *           alone; arrays of counts are read at the start only.
 * Failure:  collectives return nothing. The first failure of a process (a rank was lost, MPI
 *           failed) is kept for all of its groups. From then on a collective sets its results to
 *           zero and does nothing else. cpl_group_status returns the failure.
 * One rank: a group of size 1 copies at most, counts nothing and needs no transport.
 * Bytes:    counted are those that this rank sends to other ranks. With g ranks and `bytes` in all:
 *               all_gather        (g - 1) own bytes
 *               sum_parts         bytes - own part
 *               sum_*             count < 8 g: (g - 1) bytes; else 2 (g - 1) parts of
 *                                 ceil(count / g) numbers, but no more than there are
 *               all_to_all        all but the piece for itself
 *               broadcast         (g - 1) bytes at the root, none elsewhere, whatever tree the
 *                                 library sends them along */
#ifndef CPL_PARALLEL_GROUP_H
#define CPL_PARALLEL_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "parallel/alive.h"
#include "parallel/transport.h"

typedef enum cpl_collective {
    CPL_ALL_GATHER,
    CPL_SUM_PARTS, /* reduce-scatter */
    CPL_SUM,       /* all-reduce */
    CPL_ALL_TO_ALL,
    CPL_BROADCAST,
    CPL_N_COLLECTIVES
} cpl_collective;

/* What the collectives of one kind have cost this rank so far. */
typedef struct cpl_traffic {
    int64_t calls, bytes;
    double wait_s; /* seconds in which this rank only waited */
} cpl_traffic;

/* Shared by all groups of a process. */
typedef struct cpl_ranks {
    cpl_status status; /* the first failure of this process */
    char sentence[1024];
    bool agreed; /* cpl_group_agree has returned a failure, to all ranks: they all end */
    cpl_traffic traffic[CPL_N_COLLECTIVES];
    /* Polled while waiting: true if a rank was lost, with the sentence (parallel/alive.h). NULL: nobody
     * watches. */
    bool (*lost)(void *ctx, char sentence[1024]);
    /* Of cpl_group_expect: called at every collective that this rank begins; where all ranks begin to
     * count anew; which ranks have begun fewer, by name (parallel/alive.h). NULL: nobody knows. */
    void (*began)(void *ctx);
    void (*begins_anew)(void *ctx);
    void (*late)(void *ctx, char names[CPL_ALIVE_NAMES]);
    void *ctx;
    double limit,
        patience;      /* seconds that a wait may take, and does here; 0: as long as it takes */
    const char *where; /* "in a step": for the sentence */
    void *scratch;     /* of the sums; grows to the largest, freed by cpl_ranks_free */
    size_t scratch_bytes;
} cpl_ranks;

typedef struct cpl_group {
    int rank, size;
    cpl_transport transport; /* owned; not used if size is 1 */
    cpl_ranks *ranks;        /* not owned; NULL in a group made by cpl_group_self */
    int64_t *counts;         /* [4, size] for the pieces of a call; owned */
} cpl_group;

/* A collective that was started. Lies in the caller's memory and stays there until it is
 * finished. */
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

/* Sets `group` to all ranks of `transport`, which it takes over. `ranks` must outlive it.
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_group_of(cpl_group *group, cpl_transport transport, cpl_ranks *ranks);

/* Sets `part` to the ranks of `group` with the same `color`, in the same order, as MPI_Comm_split
 * does. Collective. CPL_ERR_DEVICE if MPI fails, CPL_ERR_MEMORY, as cpl_group_status. */
CPL_NODISCARD cpl_status cpl_group_split(cpl_group *part, cpl_group *group, int color);

/* Closes the transport. All collectives of the group are finished. All ranks do this, or none. */
void cpl_group_close(cpl_group *group);
void cpl_ranks_free(cpl_ranks *ranks); /* after all of their groups */

/* The last error, of `status`, becomes the failure of this process, if it has none: for a rank that
 * cannot take part in the collectives that the others are going to call. They wait for it until it
 * ends (parallel/alive.h). */
void cpl_group_fail(cpl_group *group, cpl_status status);

/* The first failure of this process, with its sentence as the last error: CPL_ERR_IO if a rank was
 * lost, CPL_ERR_DEVICE if MPI failed, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_group_status(const cpl_group *group);

/* ---- moving bytes ---- */

/* Starts to gather: recv = what all ranks send, one after another in the order of the ranks. Rank r
 * sends bytes[r] bytes; bytes [size] is the same on all ranks (MPI_Iallgatherv). */
void cpl_group_start_all_gather(cpl_pending *p, cpl_group *g, void *recv, const void *send,
                                const int64_t *bytes);
/* The same, and finished. */
void cpl_group_all_gather(cpl_group *g, void *recv, const void *send, const int64_t *bytes);

/* Piece r of `send` goes to rank r, piece r of `recv` comes from rank r. Pieces lie one after another
 * in the order of the ranks; sent [size] and received [size] are their lengths in units of `unit`
 * bytes (MPI_Ialltoallv). */
void cpl_group_all_to_all(cpl_group *g, void *recv, const int64_t *received, const void *send,
                          const int64_t *sent, int64_t unit);
/* The `bytes` of rank `root` replace those of the others. */
void cpl_group_broadcast(cpl_group *g, void *data, int64_t bytes, int root);
/* Returns when all ranks have called it. */
void cpl_group_barrier(cpl_group *g);

/* ---- sums ---- */

/* Starts a reduce-scatter: `in` has a part for every rank, of count[r] numbers; out [count[rank]] =
 * the sum of this rank's parts over the ranks. out may be this rank's part of `in`. parts: scratch
 * of the caller, (size - 1) count[rank] numbers, left alone until finished. */
void cpl_group_start_sum_parts(cpl_pending *p, cpl_group *g, float *out, const float *in,
                               const int64_t *count, float *parts);
/* All-reduce: x [count] becomes the sum over the ranks, with the same bits on all. */
void cpl_group_sum_f64(cpl_group *g, double *x, int64_t count);
void cpl_group_sum_f32(cpl_group *g, float *x, int64_t count);
void cpl_group_sum_i32(cpl_group *g, int32_t *x, int64_t count);
void cpl_group_sum_i64(cpl_group *g, int64_t *x, int64_t count);

/* Bytes that rank `rank` of `size` sends in such a sum of `count` numbers of `unit` bytes. */
int64_t cpl_group_sum_bytes(int size, int rank, int64_t count, int64_t unit);

/* ---- agreement ---- */

/* Every rank gives its status. All return CPL_OK, or the failure of the lowest rank that failed,
 * with the sentence "rank 2: ..." (on rank 2 itself without "rank 2: "); or as cpl_group_status.
 * Collective. */
CPL_NODISCARD cpl_status cpl_group_agree(cpl_group *group, cpl_status status);

/* From here on all ranks call the same collectives, and none waits longer than `seconds` (and 2 or 3
 * more) in one of them; 0: no limit. If one does, the process has failed with CPL_ERR_DEVICE and the
 * names of the ranks that hang (cpl_alive_late). Time in which this process does not run does not
 * count. `where`: "in a step"; not copied. */
void cpl_group_expect(cpl_group *group, double seconds, const char *where);

/* cpl_group_agree with that limit, and no limit afterwards. */
CPL_NODISCARD cpl_status cpl_group_agree_within(cpl_group *group, cpl_status status, double seconds,
                                                const char *where);

/* ---- waiting ---- */

/* Waits until the collective is complete; then its results are set. Nothing if it was finished
 * before. */
void cpl_group_finish(cpl_pending *p);

#endif /* CPL_PARALLEL_GROUP_H */
