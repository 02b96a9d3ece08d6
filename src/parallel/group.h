/* group.h - blocking and non-blocking collectives over a group of ranks.
 *
 * Room:     parallel.
 * Names:    a group, as an MPI communicator, has `size` ranks, 0 ... size - 1; this process is
 *           `rank`.
 * Sums:     MPI only moves floats. Parts are exchanged and added here in the order of the ranks,
 *           f32 in f32. The result depends on the numbers and the size only, not on the MPI library
 *           or on threads.
 * Order:    all ranks call the collectives of one group in the same order, with counts that agree.
 *           Non-blocking collectives may be finished in any order. Until then the caller must not
 *           change or read the buffers. Arrays of counts are read at the start only.
 * Failure:  collectives return nothing. The first failure of a process (a rank is lost, MPI failed)
 *           is recorded for all of its groups. Later collectives only set their results to zero.
 *           cpl_group_status returns the failure.
 * One rank: a group of size 1 only copies, counts nothing and needs no transport.
 * Bytes:    the bytes that this rank sends to other ranks. With g ranks and `bytes` in all:
 *               all_gather        (g - 1) own bytes
 *               sum_parts         bytes - own part
 *               sum_*             count < 8 g: (g - 1) bytes; else 2 (g - 1) parts of
 *                                 ceil(count / g) numbers, at most `count` numbers
 *               all_to_all        all pieces except that for this rank
 *               broadcast         (g - 1) bytes at the root, 0 elsewhere, independent of the
 *                                 library's tree */
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

/* Calls, bytes and waiting time of one kind of collective, on this rank. */
typedef struct cpl_traffic {
    int64_t calls, bytes;
    double wait_s; /* seconds that this rank spent waiting */
} cpl_traffic;

/* State shared by all groups of a process. */
typedef struct cpl_ranks {
    cpl_status status; /* the first failure of this process */
    char sentence[1024];
    bool agreed; /* cpl_group_agree has returned a failure on all ranks; every rank then ends */
    cpl_traffic traffic[CPL_N_COLLECTIVES];
    /* Polled while waiting. Returns true, with a message, if a rank is lost (parallel/alive.h). If
     * NULL, losses are not detected. */
    bool (*lost)(void *ctx, char sentence[1024]);
    /* Callbacks for cpl_group_expect (parallel/alive.h), which may be NULL. `began` is called at
     * every collective that this rank begins, `begins_anew` where all ranks restart the count.
     * `late` sets the names of ranks that have begun fewer collectives. */
    void (*began)(void *ctx);
    void (*begins_anew)(void *ctx);
    void (*late)(void *ctx, char names[CPL_ALIVE_NAMES]);
    void *ctx;
    double limit;      /* limit of a wait in seconds, as set; 0: no limit */
    double patience;   /* `limit` with the addition for the current operation; 0: no limit */
    const char *where; /* "in a step", for the error message */
    void *scratch;     /* memory of the sums; grows to the largest, freed by cpl_ranks_free */
    size_t scratch_bytes;
} cpl_ranks;

typedef struct cpl_group {
    int rank, size;
    cpl_transport transport; /* owned; not used if size is 1 */
    cpl_ranks *ranks;        /* not owned; NULL in a group made by cpl_group_self */
    int64_t *counts;         /* [4, size] counts and offsets of the pieces of a call; owned */
} cpl_group;

/* A collective that has been started. It must stay at its address until it is finished. */
typedef struct cpl_pending {
    cpl_group *group;
    void *request; /* NULL if no wait is needed */
    cpl_collective kind;
    float *out; /* for sum_parts: finishing sets it to the sum of own and parts */
    const float *own, *parts;
    int64_t count;
    void *received; /* set to zero after a failure */
    size_t received_bytes;
} cpl_pending;

/* Returns the group of one rank. */
cpl_group cpl_group_self(void);

/* Sets `group` to all ranks of `transport` and takes ownership of `transport`. `ranks` must outlive
 * the group. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_group_of(cpl_group *group, cpl_transport transport, cpl_ranks *ranks);

/* Sets `part` to the ranks of `group` with the same `color`, in the same order, as MPI_Comm_split
 * does. Collective. Returns CPL_ERR_DEVICE if MPI fails, CPL_ERR_MEMORY, or an error of
 * cpl_group_status. */
CPL_NODISCARD cpl_status cpl_group_split(cpl_group *part, cpl_group *group, int color);

/* Closes the transport. All collectives of the group must be finished. All ranks must call it, or
 * no rank. */
void cpl_group_close(cpl_group *group);
void cpl_ranks_free(cpl_ranks *ranks); /* called after all groups of `ranks` are closed */

/* Records the last error, of `status`, as the failure of this process, unless a failure is recorded
 * already. A rank calls it that cannot take part in the collectives of other ranks. The other ranks
 * wait until that rank ends (parallel/alive.h). */
void cpl_group_fail(cpl_group *group, cpl_status status);

/* Returns the first failure of this process, with its message as the last error: CPL_ERR_IO if a
 * rank is lost, CPL_ERR_DEVICE if MPI failed, or CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_group_status(const cpl_group *group);

/* ---- moving bytes ---- */

/* Starts an all-gather: sets recv to the bytes of all ranks, in the order of the ranks. Rank r
 * sends bytes[r] bytes. bytes [size] must be equal on all ranks (MPI_Iallgatherv). */
void cpl_group_start_all_gather(cpl_pending *p, cpl_group *g, void *recv, const void *send,
                                const int64_t *bytes);
/* Runs a blocking all-gather. */
void cpl_group_all_gather(cpl_group *g, void *recv, const void *send, const int64_t *bytes);

/* Sends piece r of `send` to rank r and receives piece r of `recv` from rank r. Pieces are
 * consecutive, in the order of the ranks. sent [size] and received [size] are their lengths in
 * units of `unit` bytes (MPI_Ialltoallv). */
void cpl_group_all_to_all(cpl_group *g, void *recv, const int64_t *received, const void *send,
                          const int64_t *sent, int64_t unit);
/* Copies `bytes` bytes from rank `root` to all ranks. */
void cpl_group_broadcast(cpl_group *g, void *data, int64_t bytes, int root);
/* Waits until all ranks have called it. */
void cpl_group_barrier(cpl_group *g);

/* ---- sums ---- */

/* Starts a reduce-scatter. `in` has a part of count[r] numbers for every rank r. Sets out
 * [count[rank]] to the sum over the ranks of the parts for this rank. out may be this rank's part
 * of `in`. `parts` is scratch of the caller, (size - 1) count[rank] numbers, in use until the
 * collective is finished. */
void cpl_group_start_sum_parts(cpl_pending *p, cpl_group *g, float *out, const float *in,
                               const int64_t *count, float *parts);
/* Runs an all-reduce: x [count] becomes the sum over the ranks, with the same bits on all ranks. */
void cpl_group_sum_f64(cpl_group *g, double *x, int64_t count);
void cpl_group_sum_f32(cpl_group *g, float *x, int64_t count);
void cpl_group_sum_i32(cpl_group *g, int32_t *x, int64_t count);
void cpl_group_sum_i64(cpl_group *g, int64_t *x, int64_t count);

/* Returns the bytes that rank `rank` of `size` sends to sum `count` numbers of `unit` bytes. */
int64_t cpl_group_sum_bytes(int size, int rank, int64_t count, int64_t unit);

/* ---- agreement ---- */

/* Combines the status of all ranks. All ranks return CPL_OK, or the failure of the lowest rank that
 * failed, with the message "rank 2: ..." (without "rank 2: " on rank 2 itself), or the error of
 * cpl_group_status. Collective. */
CPL_NODISCARD cpl_status cpl_group_agree(cpl_group *group, cpl_status status);

/* Limits the wait in every later collective to `seconds` (plus 2 or 3). 0 means no limit. From here
 * on all ranks must call the same collectives. A wait that takes longer fails with CPL_ERR_DEVICE
 * and the names of the ranks that hang (cpl_alive_late). Time in which this process does not run is
 * not counted. `where`, such as "in a step", is not copied. */
void cpl_group_expect(cpl_group *group, double seconds, const char *where);

/* Runs cpl_group_agree with the limit of cpl_group_expect, and without a limit afterwards. */
CPL_NODISCARD cpl_status cpl_group_agree_within(cpl_group *group, cpl_status status, double seconds,
                                                const char *where);

/* ---- waiting ---- */

/* Waits until the collective is complete and its results are set. Does nothing if it is finished
 * already. */
void cpl_group_finish(cpl_pending *p);

#endif /* CPL_PARALLEL_GROUP_H */
