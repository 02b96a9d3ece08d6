/* ranks.h - the processes that mpirun or srun has started, as one group for a verb, and their
 * output.
 *
 * Room:   cli/terminal.
 * Output: only rank 0 writes to the terminal. It receives the error of another rank as "rank 2:
 *         ...". Rank 0 reports the loss of another rank, and rank 1 the loss of rank 0: at once,
 *         since most launchers end the other processes within a second. */
#ifndef CPL_CLI_TERMINAL_RANKS_H
#define CPL_CLI_TERMINAL_RANKS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"
#include "parallel/group.h"

/* Starts MPI if a launcher has started several processes. Sets the group of all ranks, which
 * cpl_ranks_end closes, or NULL without a launcher. */
CPL_NODISCARD cpl_status cpl_ranks_begin(cpl_group **world);

/* Fails with CPL_ERR_USAGE if a launcher has started several processes of `what` ("eval --list"),
 * whose work cannot be shared: each would overwrite the output of the others. */
CPL_NODISCARD cpl_status cpl_ranks_refuse(const char *what);

/* Starts the heartbeats (collective). A rank counts as lost after `timeout_s` seconds without a
 * heartbeat. Without a launcher the call has no effect. */
CPL_NODISCARD cpl_status cpl_ranks_watch(double timeout_s);

/* Ends heartbeats, group and MPI. `status` is the verb's, with its error recorded. Does not return
 * if a rank was lost or failed alone: MPI cannot be ended in order then. */
void cpl_ranks_end(cpl_status status);

/* Ends the other processes too, after this one has failed before the ranks were a group (an unknown
 * flag, no MPI module). Rank 0 reports a failure of all ranks. Another rank reports its own failure
 * some seconds later, unless the launcher has ended the process by then. The call has no effect
 * without a launcher, or once there has been a group. */
void cpl_ranks_abandon(int exit_code);

/* Returns true if this process prints nothing, because it is not rank 0 or the failure has been
 * reported. */
bool cpl_ranks_is_silent(void);

/* Returns cpl_output_log on rank 0, and on other ranks a log that drops all messages. */
cpl_log cpl_ranks_log(FILE *info);

/* Returns the number of threads of a rank for compute.threads 0: the processors of this process,
 * divided among the ranks of the machine unless the launcher has divided them (binding). Returns 0
 * without a launcher, or if OMP_NUM_THREADS is set. */
int cpl_ranks_threads(void);

#endif /* CPL_CLI_TERMINAL_RANKS_H */
