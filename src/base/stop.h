/* stop.h - a request to stop this process. A signal sets it and long operations check it.
 *
 * Room:  base. Only the program (cli) sets the request. In a process that uses the library it stays
 *        0.
 * Use:   CPL_TRY(cpl_stop_check()) between two steps of work, and at least ten times a second while
 *        waiting for a file, a lock or a pipe. Clean up as after any failure. */
#ifndef CPL_BASE_STOP_H
#define CPL_BASE_STOP_H

#include "base/status.h"

/* Records the request. Safe in a signal handler and from any thread. 0 resets the request (for
 * tests). */
void cpl_stop_request(int signal_number);

/* Returns the number of the signal that requested the stop, or 0. */
int cpl_stop_signal(void);

/* Returns CPL_ERR_STOPPED if a stop was requested, else CPL_OK. */
CPL_NODISCARD cpl_status cpl_stop_check(void);

#endif /* CPL_BASE_STOP_H */
