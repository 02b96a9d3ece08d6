/* span.h - bytes of a text that belong to somebody else, and where something stands in them.
 *
 * Room:  base. Answers are pieces of the generated text, so nothing is copied to find them.
 *        Places are counted in bytes; no bytes are special, NULs included. */
#ifndef CPL_BASE_SPAN_H
#define CPL_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* All zero is a valid empty span. */
typedef struct cpl_span {
    const char *bytes; /* (length), not NUL-terminated; NULL only if length is 0 */
    size_t length;
} cpl_span;

#define CPL_NOWHERE SIZE_MAX /* where nothing was found */

cpl_span cpl_span_of(const char *string);
cpl_span cpl_span_text(const cpl_text *text); /* valid until the text changes */

/* The bytes [from, end), `from` <= `end` <= length (assert). */
cpl_span cpl_span_part(cpl_span text, size_t from, size_t end);

bool cpl_span_equal(cpl_span a, cpl_span b);
bool cpl_span_is_at(cpl_span text, size_t at, const char *what); /* whether `what` begins there */

/* Where `what`, not empty (assert), or the byte `c` first begins at or behind `from`, which may be
 * anything, or last begins: CPL_NOWHERE if it does not. */
size_t cpl_span_find(cpl_span text, size_t from, const char *what);
size_t cpl_span_find_last(cpl_span text, const char *what);
size_t cpl_span_find_byte(cpl_span text, size_t from, char c);
size_t cpl_span_find_last_byte(cpl_span text, char c);

/* Where the line of `at` ends: at its '\n', or at the end of the text. */
size_t cpl_span_line_end(cpl_span text, size_t at);

#endif /* CPL_BASE_SPAN_H */
