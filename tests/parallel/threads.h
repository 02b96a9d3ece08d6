/* threads.h - ranks as threads of one process: sanitizers see all of them, and there may be many more of
 * them than processors. */
#ifndef CPL_TESTS_PARALLEL_THREADS_H
#define CPL_TESTS_PARALLEL_THREADS_H

#include "base/status.h"
#include "parallel/transport.h"

typedef struct cpl_thread_ranks cpl_thread_ranks;

/* `size` ranks. Each is one thread of the caller, with the transport of cpl_thread_ranks_at. `out`
 * is owned by the caller, who frees it after all transports were closed. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_thread_ranks_init(cpl_thread_ranks **out, int size);
void cpl_thread_ranks_free(cpl_thread_ranks *ranks);

/* The transport of rank `rank`, owned by the caller. */
cpl_transport cpl_thread_ranks_at(cpl_thread_ranks *ranks, int rank);

/* As if a rank had died: collectives of all ranks fail from now on. */
void cpl_thread_ranks_fail(cpl_thread_ranks *ranks);

#endif /* CPL_TESTS_PARALLEL_THREADS_H */
