/* terminal.h - output to a terminal: control bytes from files are escaped; lines that are redrawn.
 *
 * Room:  cli/terminal.
 *
 * Control characters except line end and tab, DEL, and bytes that are not UTF-8 become \xNN. The
 * controls U+0080 ... U+009F and the controls of the direction of text (U+061C, U+200E, U+200F,
 * U+202A ... U+202E, U+2066 ... U+2069) become \u{N}. Standard output is filtered if it is a
 * terminal, and standard error always. */
#ifndef CPL_CLI_TERMINAL_TERMINAL_H
#define CPL_CLI_TERMINAL_TERMINAL_H

#include <stdio.h>

/* Puts the filter into stdout and stderr. If memory is short the stream stays unfiltered. */
void cpl_terminal_install(void);

/* Erases the current line of a terminal, stdout or stderr, and begins a line that is redrawn. */
void cpl_terminal_begin_line(FILE *out);

/* Erases the line that is redrawn, if any, before other output. Sentences and logs (output.h) call
 * this function themselves. */
void cpl_terminal_clear_line(void);

/* Returns the present number of columns of the terminal that shows stdout or stderr, or 0 without a
 * terminal that can erase (TERM=dumb cannot). Under mpirun it is the terminal of mpirun, whose
 * window size must be known. The function is called for each drawing, since a handler of SIGWINCH
 * would interrupt computing threads (signals.c). */
int cpl_terminal_columns(FILE *out);

/* Prints bold text on stdout or stderr, which must be a terminal. */
void cpl_terminal_bold(FILE *out, const char *text);

/* Flushes both streams and shows the bytes of an incomplete character. */
void cpl_terminal_flush(void);

#endif /* CPL_CLI_TERMINAL_TERMINAL_H */
