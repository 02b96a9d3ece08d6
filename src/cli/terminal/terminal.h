/* terminal.h - what may reach a terminal: text as it is, and no byte that would steer it.
 *
 * Room:  cli/terminal.
 * Rule:  control characters but line end and tab, DEL, and bytes that are not UTF-8 become \xNN; the
 *        controls U+0080 ... U+009F and those of the direction of text (U+061C, U+200E, U+200F,
 *        U+202A ... U+202E, U+2066 ... U+2069) become \u{N}.
 * Where: standard output where it is a terminal, and elsewhere no byte is changed; standard error
 *        always. Lines that are drawn over each other are begun with cpl_terminal_erase_line. */
#ifndef CPL_CLI_TERMINAL_TERMINAL_H
#define CPL_CLI_TERMINAL_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* Puts a filter into stdout and stderr. Where there is no memory for one the stream stays as it is. */
void cpl_terminal_install(void);

/* Begins the current line of a terminal, stdout or stderr, anew. */
void cpl_terminal_erase_line(FILE *out);

/* Whether this is stdout or stderr, and a terminal; a stream with a filter has no descriptor to ask. */
bool cpl_terminal_on_terminal(FILE *out);

/* Prints bold text on a terminal, stdout or stderr. */
void cpl_terminal_bold(FILE *out, const char *text);

/* Flushes both streams; the beginning of a character that never ended is shown. */
void cpl_terminal_flush(void);

#endif /* CPL_CLI_TERMINAL_TERMINAL_H */
