/* stop.h - whether this process was requested to stop: set by a signal, checked by long work.
 *
 * Room:  base. Only the program sets it (cli); as a library in another process it stays 0.
 * Use:   between two steps of work, and at least ten times a second while waiting for a file, a
 *        lock or a pipe: CPL_TRY(cpl_stop_check()). What was begun is cleaned up as after any
 *        failure. */
#ifndef CPL_BASE_STOP_H
#define CPL_BASE_STOP_H

#include "base/status.h"

/* Records the request. Safe in a signal handler and from any thread; 0 takes it back (for
 * tests). */
void cpl_stop_request(int signal_number);

/* The number of the signal that requested the stop, or 0. */
int cpl_stop_signal(void);

/* CPL_ERR_STOPPED with a sentence if a stop was requested, CPL_OK otherwise. */
CPL_NODISCARD cpl_status cpl_stop_check(void);

#endif /* CPL_BASE_STOP_H */
