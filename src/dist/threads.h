/* threads.h - ranks as threads of one process, for tests: sanitizers see all of them, and a mesh needs
 * no more processors than there are.
 *
 * Room:  dist. */
#ifndef CPL_DIST_THREADS_H
#define CPL_DIST_THREADS_H

#include "base/status.h"
#include "dist/transport.h"

typedef struct cpl_thread_ranks cpl_thread_ranks;

/* `size` ranks, whose transports cpl_thread_ranks_at gives to one thread each. They are closed before
 * this is freed. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_thread_ranks_init(cpl_thread_ranks **out, int size);
void cpl_thread_ranks_free(cpl_thread_ranks *ranks);

cpl_transport cpl_thread_ranks_at(cpl_thread_ranks *ranks, int rank);

/* As if a rank had died: collectives of all ranks fail from now on. */
void cpl_thread_ranks_fail(cpl_thread_ranks *ranks);

#endif /* CPL_DIST_THREADS_H */
