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

/* Prepares the standard streams and must be called first: output to terminals is filtered
 * (terminal.h), a write to a closed pipe fails and sends no signal, and a file opened later cannot
 * take the place of a standard stream that was closed. */
void cpl_output_prepare(void);

/* Returns true if cpl_output_check failed because the reader of a pipe has closed it, as `head`
 * does. Such a failure is not reported. */
bool cpl_output_unread(void);

/* Prints words from a file (names, labels) within a line. Line ends in the words become \x0a, tabs
 * \x09. */
void cpl_output_words(FILE *out, const char *words);

/* Prints a name, escaped as by cpl_output_words, and fills it up with blanks to `width` columns. */
void cpl_output_name(FILE *out, const char *name, int width);

/* Prints a sentence as one line, after a bar has been erased. Text quoted in the sentence is
 * escaped as by cpl_output_words. */
void cpl_output_sentence(FILE *out, const char *before, const char *sentence);

/* Prints the text up to `end`, broken between words into lines of at most `most` bytes. The first
 * line begins at `column`. Further lines, and the first if `column` is 0, are indented by `indent`
 * blanks. "\n" begins a paragraph. */
void cpl_output_wrapped(FILE *out, int most, int column, int indent, const char *text,
                        const char *end);

/* Prints the sentences of a report's verdict and frees them. Fails with CPL_ERR_MEMORY if they are
 * incomplete. */
CPL_NODISCARD cpl_status cpl_output_verdict(cpl_text *sentences);

/* Prints the text on standard output if `made`, the status of making it, is CPL_OK, and frees it.
 * Fails with CPL_ERR_MEMORY if the text is incomplete. */
CPL_NODISCARD cpl_status cpl_output_text(cpl_status made, cpl_text *text);

/* Prints a table on standard output if `made`, the status of making it, is CPL_OK, and frees the
 * pool of its texts. */
CPL_NODISCARD cpl_status cpl_output_grid(cpl_status made, const cpl_grid *grid, cpl_pool *pool);

/* Fails with CPL_ERR_IO if a write to standard output has failed (a full disk, a closed pipe). A
 * verb that writes for a long time calls it repeatedly, and main calls it at the end. */
CPL_NODISCARD cpl_status cpl_output_check(void);

/* Returns a log that writes information as lines to `info` (stdout or stderr) and warnings to
 * stderr, as "warning: SENTENCE". */
cpl_log cpl_output_log(FILE *info);

/* Returns true if writing to this path replaces no file: the path is the standard output, a device
 * or a pipe. */
bool cpl_output_is_stream(const char *path);

/* Writes a whole file atomically, or the bytes into a stream. */
CPL_NODISCARD cpl_status cpl_output_file(const char *path, const void *bytes, size_t length);

/* Writes the object to the file, atomically, or to standard output if `path` is -, indented by one
 * blank and with jansson's further `flags`. Frees the object. An object of NULL gives
 * CPL_ERR_MEMORY, with an error that names `what`. */
CPL_NODISCARD cpl_status cpl_output_json(json_t *object, const char *what, const char *path,
                                         size_t flags);

/* Appends all bytes of the standard input. Fails with CPL_ERR_INPUT if there are more than
 * `most_bytes`. */
CPL_NODISCARD cpl_status cpl_output_read_input(cpl_text *out, size_t most_bytes);

#endif /* CPL_CLI_TERMINAL_OUTPUT_H */
