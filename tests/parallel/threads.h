/* threads.h - ranks as threads of one process. Sanitizers see all of them, and there may be many
 * more ranks than processors. */
#ifndef CPL_TESTS_PARALLEL_THREADS_H
#define CPL_TESTS_PARALLEL_THREADS_H

#include "base/status.h"
#include "parallel/group.h"
#include "parallel/transport.h"

/* The work of one rank. `job` is its own element of the array given to cpl_thread_ranks_run, and
 * `world` the group of all ranks. The work runs in a thread, so that it must not call assertions of
 * cmocka. */
typedef void cpl_rank_work(void *job, cpl_group *world);

/* Runs `work` as `size` ranks, each in a thread of its own, and returns when all have ended. `jobs`
 * is an array of `size` elements of `job_bytes` bytes. */
void cpl_thread_ranks_run(int size, cpl_rank_work *work, void *jobs, size_t job_bytes);

/* Makes collectives of all ranks fail from now on, as if a rank had died. */
void cpl_thread_ranks_fail(const cpl_group *world);

/* ---- for tests that start the threads themselves ---- */

typedef struct cpl_thread_ranks cpl_thread_ranks;

/* Makes `size` ranks, each a thread of the caller with the transport of cpl_thread_ranks_at, or
 * returns CPL_ERR_MEMORY. The caller owns `out` and frees it after all transports were closed. */
CPL_NODISCARD cpl_status cpl_thread_ranks_init(cpl_thread_ranks **out, int size);
void cpl_thread_ranks_free(cpl_thread_ranks *ranks);

/* Returns the transport of rank `rank`, which the caller owns. */
cpl_transport cpl_thread_ranks_at(cpl_thread_ranks *ranks, int rank);

#endif /* CPL_TESTS_PARALLEL_THREADS_H */
