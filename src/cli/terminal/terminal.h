/* terminal.h - output to a terminal: control bytes from files are escaped; lines that are redrawn.
 *
 * Room:  cli/terminal.
 * Rule:  control characters but line end and tab, DEL, and bytes that are not UTF-8 become \xNN;
 *        the controls U+0080 ... U+009F and those of the direction of text (U+061C, U+200E, U+200F,
 *        U+202A ... U+202E, U+2066 ... U+2069) become \u{N}.
 * Where: standard output if it is a terminal, else no byte is changed; standard error always.
 *        Lines that are redrawn begin with cpl_terminal_erase_line. */
#ifndef CPL_CLI_TERMINAL_TERMINAL_H
#define CPL_CLI_TERMINAL_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* Puts the filter into stdout and stderr. A stream for which there is no memory stays as it is. */
void cpl_terminal_install(void);

/* Erases the current line of a terminal, stdout or stderr. */
void cpl_terminal_erase_line(FILE *out);

/* Erases the line and draws a progress bar, "[=====>     ] ". */
void cpl_terminal_bar(FILE *out, double done, double total);

/* Whether a line that is redrawn can be shown: standard error is a terminal; and erasing it. */
bool cpl_terminal_line_wanted(void);
void cpl_terminal_line_clear(void);

/* Whether this is stdout or stderr, and a terminal. (A stream with a filter has no descriptor.) */
bool cpl_terminal_on_terminal(FILE *out);

/* Prints bold text on a terminal, stdout or stderr. */
void cpl_terminal_bold(FILE *out, const char *text);

/* Flushes both streams; the beginning of a character that never ended is shown. */
void cpl_terminal_flush(void);

#endif /* CPL_CLI_TERMINAL_TERMINAL_H */
