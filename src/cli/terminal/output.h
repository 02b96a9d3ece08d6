/* output.h - the standard streams: results on standard output, sentences on standard error, and the
 * contents of the standard input.
 *
 * Room:  cli/terminal. */
#ifndef CPL_CLI_TERMINAL_OUTPUT_H
#define CPL_CLI_TERMINAL_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"
#include "base/text.h"
#include "report/grid.h"

/* First of all: output to terminals is filtered (terminal.h), a closed pipe fails a write and sends
 * no signal, and a file opened later cannot take the place of a standard stream that was closed. */
void cpl_output_prepare(void);

/* Whether cpl_output_check failed because the reader of a pipe has closed it, as `head` does. That
 * is not reported. */
bool cpl_output_unread(void);

/* Prints words from a file (names, labels) within a line: line ends are \x0a in them, tabs \x09. */
void cpl_output_words(FILE *out, const char *words);

/* The same, filled up with blanks to a width. */
void cpl_output_name(FILE *out, const char *name, int width);

/* Prints a sentence as one line, after a bar has been erased; text quoted in it is escaped in the same way. */
void cpl_output_sentence(FILE *out, const char *before, const char *sentence);

/* Prints the text up to `end`, broken between words into lines of at most `most` bytes, from a
 * column on. Further lines are indented by `indent` blanks, and so is the first from column 0. "\n"
 * begins a paragraph. */
void cpl_output_wrapped(FILE *out, int most, int column, int indent, const char *text,
                        const char *end);

/* Prints the sentences and frees them; a report's verdict. CPL_ERR_MEMORY if they are incomplete. */
CPL_NODISCARD cpl_status cpl_output_verdict(cpl_text *sentences);

/* Prints a table that was made with this status to standard output, and frees the pool of its
 * texts. */
CPL_NODISCARD cpl_status cpl_output_grid(cpl_status made, const cpl_grid *grid, cpl_pool *pool);

/* CPL_ERR_IO if something written to standard output did not arrive (a full disk, a closed pipe).
 * A verb that writes for long calls it now and then; main calls it at the end. */
CPL_NODISCARD cpl_status cpl_output_check(void);

/* A log that writes information as lines to `info` (stdout or stderr) and warnings to stderr, as
 * "warning: SENTENCE". */
cpl_log cpl_output_log(FILE *info);

/* Whether writing to this path replaces no file: the standard output, a device, a pipe. */
bool cpl_output_is_stream(const char *path);

/* Writes a whole file, atomically, or into a stream. */
CPL_NODISCARD cpl_status cpl_output_file(const char *path, const void *bytes, size_t length);

/* Writes the object to the file, atomically, or to standard output if `path` is -, indented by one
 * and with jansson's further `flags`. Takes the object over; NULL is CPL_ERR_MEMORY, of `what`. */
CPL_NODISCARD cpl_status cpl_output_json(json_t *object, const char *what, const char *path,
                                         size_t flags);

/* Appends all bytes of the standard input. CPL_ERR_INPUT beyond `most_bytes`. */
CPL_NODISCARD cpl_status cpl_output_read_input(cpl_text *out, size_t most_bytes);

#endif /* CPL_CLI_TERMINAL_OUTPUT_H */
