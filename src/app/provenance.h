/* provenance.h - the origin of a report: program, command, date, and the weights it is about.
 *
 * Room:  app. */
#ifndef CPL_APP_PROVENANCE_H
#define CPL_APP_PROVENANCE_H

#include <jansson.h>

#include "base/status.h"

/* Sets `made` to the member "made" of docs/formats.md, "Pages". `words` [n_words] of the
 * command line after the program's name; --overwrite is left out, as it changes no report. `paths`
 * [n_paths] of checkpoints or runs, as given. The hash of weights is the one that was recorded when
 * they were saved, else of files of together at most 1 GiB the hash of their bytes, in the order of
 * their names; larger ones have none. The date is SOURCE_DATE_EPOCH if the environment has it.
 * CPL_ERR_IO: weights that cannot be read. */
CPL_NODISCARD cpl_status cpl_provenance(json_t **made, char *const *words, int n_words,
                                        const char *const *paths, int n_paths);

#endif /* CPL_APP_PROVENANCE_H */
