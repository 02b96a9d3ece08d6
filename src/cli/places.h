/* places.h - where a verb that reads folders and writes --json, --html and --svg may write.
 *
 * Room:  cli. */
#ifndef CPL_CLI_PLACES_H
#define CPL_CLI_PLACES_H

#include "cli/flags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows for a verb's table, with the sentences of --json and --html. */
#define CPL_FLAG_ROWS_PLACES(json, html)                                                           \
    {.name = "--json", .kind = CPL_FLAG_FILE, .value_name = "FILE", .sentence = json},             \
        {.name = "--html", .kind = CPL_FLAG_FILE, .value_name = "FILE", .sentence = html},         \
    {                                                                                              \
        .name = "--svg", .kind = CPL_FLAG_FOLDER, .value_name = "FOLDER",                          \
        .sentence = "Write every chart as a vector file into this folder."                         \
    }

/* Looks at the three flags before any work is done: CPL_ERR_INPUT where a result would lie in what
 * one of the words names; CPL_ERR_IO where it could not be written; CPL_ERR_USAGE where two are one
 * file. `-` of --json is the standard output. */
CPL_NODISCARD cpl_status cpl_places_check(const cpl_arguments *args);

/* The same of --json and --html alone, which may lie anywhere. */
CPL_NODISCARD cpl_status cpl_places_check_files(const cpl_arguments *args);

/* CPL_ERR_INPUT where --json or --html names this file, which is read. NULL is allowed. */
CPL_NODISCARD cpl_status cpl_places_keep(const cpl_arguments *args, const char *file);

/* The same as the first, of --json alone. */
CPL_NODISCARD cpl_status cpl_places_check_json(const cpl_arguments *args);

#ifdef __cplusplus
}
#endif
#endif /* CPL_CLI_PLACES_H */
