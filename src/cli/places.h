/* places.h - where a verb that reads folders and writes --json, --html and --svg may write.
 *
 * Room:  cli. */
#ifndef CPL_CLI_PLACES_H
#define CPL_CLI_PLACES_H

#include "cli/flags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Looks at the three flags before any work is done: CPL_ERR_INPUT where a result would lie in what
 * one of the words names; CPL_ERR_IO where it could not be written; CPL_ERR_USAGE where two are one
 * file. `-` of --json is the standard output. */
CPL_NODISCARD cpl_status cpl_places_check(const cpl_arguments *args);

#ifdef __cplusplus
}
#endif
#endif /* CPL_CLI_PLACES_H */
