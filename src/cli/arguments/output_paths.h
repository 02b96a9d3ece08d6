/* output_paths.h - the files a verb may write its results to: never inside a path that is read,
 * and existing results only with --overwrite.
 *
 * Room:  cli/arguments. A result is the file of --json, --html, --rows, --out or --gguf, if the
 *        verb has the flag. The standard output (- of --json, /dev/stdout), devices and pipes
 *        cannot be replaced. */
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

/* Checks the paths of all results before any work is done. --overwrite may replace an empty file, a
 * page, rows, for --gguf any GGUF file, and files with one of `members`, which are names with a
 * blank between them: a JSON object with such a member, or a safetensors file with such a tensor.
 * Fails with CPL_ERR_INPUT if a result exists, with CPL_ERR_IO if it could not be written, and with
 * CPL_ERR_USAGE if two results are one file. */
CPL_NODISCARD cpl_status cpl_output_paths_check(const cpl_arguments *args, const char *members);

/* Fails with CPL_ERR_INPUT if a result would lie inside a path that one of the words names. */
CPL_NODISCARD cpl_status cpl_output_paths_outside(const cpl_arguments *args);

/* Fails with CPL_ERR_INPUT if a result would replace `file`, which is read. `file` may be NULL. */
CPL_NODISCARD cpl_status cpl_output_paths_keep(const cpl_arguments *args, const char *file);

/* Returns true if the flag is given and its result is a file, existing or not, rather than a
 * stream. */
bool cpl_output_paths_is_file(const cpl_arguments *args, const char *flag);

/* Prints the paths of the written results, one line each, on standard output, or on standard error
 * if --json - uses standard output. */
void cpl_output_paths_describe(const cpl_arguments *args);

#endif /* CPL_CLI_ARGUMENTS_OUTPUT_PATHS_H */
