/* json_pull.h - a strict JSON reader that hands out one value at a time and builds nothing.
 *
 * Room:    io. For texts where it matters how a value is written (an integer is digits and nothing
 *          else) and where there are so many that a tree would cost more than the answer.
 * Method:  a cursor over memory that the reader may change: strings are decoded in place, so that
 *          their pointers last as long as the text and nothing is allocated. The text must be
 *          well-formed UTF-8 (cpl_json_pull_is_utf8). The first problem stops everything: from then
 * on each call returns false, and the caller looks at `problem` once at the end. Limits:
 * CPL_JSON_PULL_DEPTH objects and arrays inside each other; no NUL in strings.
 *
 *     for (bool first = true; cpl_json_pull_member(&c, &first, &key);)
 *         if (strcmp(key, "size") == 0) cpl_json_pull_u64(&c, &size); else cpl_json_pull_skip(&c);
 */
#ifndef CPL_IO_JSON_PULL_H
#define CPL_IO_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CPL_JSON_PULL_DEPTH = 127 };

typedef struct cpl_json_pull {
    char *begin, *at, *end; /* the text, the next byte, one past the last */
    const char *problem;    /* NULL, or what is wrong at `at`; a constant */
    int depth;              /* open objects and arrays */
} cpl_json_pull;

bool cpl_json_pull_is_utf8(const char *bytes, size_t length);

cpl_json_pull cpl_json_pull_start(char *text, size_t length);

/* Records the first problem; returns false. */
bool cpl_json_pull_fail(cpl_json_pull *c, const char *problem);

/* Enters an object. Then member sets the next key, with the cursor at its value, until there is
 * none. `first` is the caller's, true before the first call. */
bool cpl_json_pull_object(cpl_json_pull *c);
bool cpl_json_pull_member(cpl_json_pull *c, bool *first, char **key);

/* The same of arrays. */
bool cpl_json_pull_array(cpl_json_pull *c);
bool cpl_json_pull_item(cpl_json_pull *c, bool *first);

bool cpl_json_pull_string(cpl_json_pull *c, char **out); /* decoded, NUL-terminated */
bool cpl_json_pull_u64(cpl_json_pull *c, uint64_t *out); /* digits only, below 2^64 */
bool cpl_json_pull_null(cpl_json_pull *c); /* passes a null; false without a problem if none */
bool cpl_json_pull_skip(cpl_json_pull *c); /* passes one value of any kind */
bool cpl_json_pull_end(cpl_json_pull *c);  /* only white space follows */

#endif /* CPL_IO_JSON_PULL_H */
