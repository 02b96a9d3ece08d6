/* lookup.h - a word of a task file among the names that may stand there.
 *
 * Room:  base. */
#ifndef CPL_BASE_LOOKUP_H
#define CPL_BASE_LOOKUP_H

#include <stddef.h>

#include "base/status.h"

/* Sets `index` to the place of `word` among (count) names. Another word is CPL_ERR_INPUT, with the
 * nearest name in the sentence, or all of them; `kind` says what they are names of: "filter". */
CPL_NODISCARD cpl_status cpl_lookup(size_t *index, const char *kind, const char *word,
                                    const char *const *names, size_t count);

/* The same among (count) rows of a table, `size` bytes each, whose first member is the name. */
CPL_NODISCARD cpl_status cpl_lookup_in(size_t *index, const char *kind, const char *word,
                                       const void *rows, size_t count, size_t size);

#endif /* CPL_BASE_LOOKUP_H */
