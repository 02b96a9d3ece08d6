/* output_paths.h - the files a verb may write its results to: never inside a path that is read,
 * and existing results only with --overwrite.
 *
 * Room:  cli/arguments. A result is --json, --html, --rows, --out or --gguf, those of them that the
 *        verb has. The standard output (- of --json, /dev/stdout), devices and pipes cannot be
 *        replaced. */
#ifndef CPL_CLI_ARGUMENTS_OUTPUT_PATHS_H
#define CPL_CLI_ARGUMENTS_OUTPUT_PATHS_H

#include "cli/arguments/flags.h"

/* The row of --overwrite, for every verb that writes results. */
#define CPL_FLAG_ROW_OVERWRITE                                                                     \
    CPL_SWITCH("--overwrite",                                                                      \
               "Replace existing results; without it they are refused before any work.")

/* Rows for a verb's table. `json` and `html` are the help texts of --json and --html. */
#define CPL_FLAG_ROWS_PLACES(json, html)                                                           \
    CPL_FLAG("--json", FILE, "FILE", json), CPL_FLAG("--html", FILE, "FILE", html),                \
        CPL_FLAG_ROW_OVERWRITE

/* Checks the paths of all results before any work is done. `members`: what --overwrite may replace,
 * in addition to an empty file, a page, rows and, of --gguf, any GGUF file: a JSON object with one
 * of these members, or a safetensors file with one of these tensors; names with a blank between
 * them. CPL_ERR_INPUT if a result exists; CPL_ERR_IO if it could not be written; CPL_ERR_USAGE if
 * two are one file. */
CPL_NODISCARD cpl_status cpl_output_paths_check(const cpl_arguments *args, const char *members);

/* CPL_ERR_INPUT if a result would lie inside a path that one of the words names. */
CPL_NODISCARD cpl_status cpl_output_paths_outside(const cpl_arguments *args);

/* CPL_ERR_INPUT if a result would replace `file`, which is read. NULL: no file. */
CPL_NODISCARD cpl_status cpl_output_paths_keep(const cpl_arguments *args, const char *file);

/* Returns true if the flag is given and its result is a file, existing or not, rather than a
 * stream. */
bool cpl_output_paths_is_file(const cpl_arguments *args, const char *flag);

/* Prints the paths of the written results, one line each, on standard output, or on standard error
 * if --json - uses standard output. */
void cpl_output_paths_describe(const cpl_arguments *args);

#endif /* CPL_CLI_ARGUMENTS_OUTPUT_PATHS_H */
