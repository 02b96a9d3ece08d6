/* signals.h - SIGINT and SIGTERM as a request to stop, and the end of the program by a signal.
 *
 * Room:  cli/terminal. A verb that listens checks base/stop.h and frees its resources. Any other
 *        verb ends at once, which is the system's default. */
#ifndef CPL_CLI_TERMINAL_SIGNALS_H
#define CPL_CLI_TERMINAL_SIGNALS_H

#include "base/status.h"

/* From now on the first SIGINT or SIGTERM calls cpl_stop_request, and a second one ends the program
 * at once. Call it before any other thread begins. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_signals_listen(void);

/* From now on the first signal prints this sentence and ends the program at once, for work whose
 * results are saved at any time. The text must live until the program ends or another sentence is
 * set. */
void cpl_signals_farewell(const char *sentence);

/* Ends the program by this signal, so that a shell sees 128 + `number` and a loop in it ends. */
CPL_NORETURN void cpl_signals_end(int number);

#endif /* CPL_CLI_TERMINAL_SIGNALS_H */
