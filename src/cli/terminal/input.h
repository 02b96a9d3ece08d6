/* input.h - reading the standard input.
 *
 * Room:  cli/terminal. */
#ifndef CPL_CLI_TERMINAL_INPUT_H
#define CPL_CLI_TERMINAL_INPUT_H

#include "base/text.h"

/* Appends all bytes of the standard input. CPL_ERR_INPUT beyond `most_bytes`. */
CPL_NODISCARD cpl_status cpl_input_read(cpl_text *out, size_t most_bytes);

#endif /* CPL_CLI_TERMINAL_INPUT_H */
