/* terminal.h - output to a terminal: control bytes from files are escaped; lines that are redrawn.
 *
 * Room:  cli/terminal.
 * Rule:  control characters but line end and tab, DEL, and bytes that are not UTF-8 become \xNN;
 *        the controls U+0080 ... U+009F and those of the direction of text (U+061C, U+200E, U+200F,
 *        U+202A ... U+202E, U+2066 ... U+2069) become \u{N}.
 * Where: standard output if it is a terminal, else no byte is changed; standard error always. */
#ifndef CPL_CLI_TERMINAL_TERMINAL_H
#define CPL_CLI_TERMINAL_TERMINAL_H

#include <stdio.h>

/* Puts the filter into stdout and stderr. A stream for which there is no memory stays as it is. */
void cpl_terminal_install(void);

/* Begins a line of a terminal, stdout or stderr, that is redrawn: erases it. */
void cpl_terminal_begin_line(FILE *out);

/* Erases such a line, if there is one, so that something else can be written. Sentences and logs
 * (output.h) do this themselves. */
void cpl_terminal_clear_line(void);

/* The columns of the terminal that shows stdout or stderr, now; 0: it is no terminal, or one that
 * cannot erase (TERM=dumb). Under mpirun that of mpirun, whose window size must be known. Asked for
 * each drawing: a handler of SIGWINCH would interrupt computing threads (signals.c). */
int cpl_terminal_columns(FILE *out);

/* Prints bold text on a terminal, stdout or stderr. */
void cpl_terminal_bold(FILE *out, const char *text);

/* Flushes both streams; the beginning of a character that never ended is shown. */
void cpl_terminal_flush(void);

#endif /* CPL_CLI_TERMINAL_TERMINAL_H */
