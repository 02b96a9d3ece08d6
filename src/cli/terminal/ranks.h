/* ranks.h - the processes that mpirun or srun has started, as one group for a verb; what they say.
 *
 * Room:   cli/terminal.
 * Output: rank 0 alone writes to the terminal. What fails on another rank reaches it as "rank 2:
 *         ...". A rank that is lost is named by rank 0, or by rank 1 if it was rank 0: at once,
 *         since most launchers end all others within a second. */
#ifndef CPL_CLI_TERMINAL_RANKS_H
#define CPL_CLI_TERMINAL_RANKS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"
#include "parallel/group.h"

/* Starts MPI if a launcher has started several processes; sets the group of all, NULL without a
 * launcher. */
CPL_NODISCARD cpl_status cpl_ranks_begin(cpl_group **world);

/* CPL_ERR_USAGE if a launcher has started several processes of `what` ("eval --list"), which has no
 * work to share: they would write over each other. */
CPL_NODISCARD cpl_status cpl_ranks_refuse(const char *what);

/* Starts the heartbeats: a rank counts as lost after timeout_s without one. Nothing without a
 * launcher. Collective. */
CPL_NODISCARD cpl_status cpl_ranks_watch(double timeout_s);

/* Ends what was begun. `status`: what the verb came to, with its sentence. Does not return if ranks
 * were lost or failed alone: then MPI cannot be ended in order. */
void cpl_ranks_end(cpl_status status);

/* For a process that ends with this code, after it has failed before the ranks were a group (an
 * unknown flag, no MPI module): the others would wait for it. A failure of all is reported by rank
 * 0 alone; that of another rank some seconds later, if the launcher has not ended this process by
 * then. Nothing without a launcher, or once there was a group. */
void cpl_ranks_abandon(int exit_code);

/* Whether this process says nothing: it is not rank 0. */
bool cpl_ranks_is_silent(void);

/* cpl_output_log of rank 0; of any other one that drops all messages. */
cpl_log cpl_ranks_log(FILE *info);

/* Threads for each rank when the user names no number: the processors of this process, divided
 * among the ranks of the machine unless the launcher has divided them (binding). 0: no launcher, or
 * OMP_NUM_THREADS says it. */
int cpl_ranks_threads(void);

#endif /* CPL_CLI_TERMINAL_RANKS_H */
