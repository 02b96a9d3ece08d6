/* provenance.h - the origin of a report: program, command, date, and the weights it is about.
 *
 * Room:  app. */
#ifndef CPL_APP_PROVENANCE_H
#define CPL_APP_PROVENANCE_H

#include <jansson.h>

#include "base/status.h"

/* Sets `made` to the member "made" of docs/formats.md, "Pages". `words` [n_words] are the command
 * line after the program's name, of which --overwrite is omitted. `paths` [n_paths] are checkpoints
 * or runs. The hash of weights is the hash recorded when they were saved, else the hash of the
 * files' bytes in the order of their names, if they have at most 1 GiB in total, else null. The
 * date is SOURCE_DATE_EPOCH if set. CPL_ERR_IO if weights cannot be read. */
CPL_NODISCARD cpl_status cpl_provenance(json_t **made, char *const *words, int n_words,
                                        const char *const *paths, int n_paths);

#endif /* CPL_APP_PROVENANCE_H */
