/* json_pull.h - a strict JSON reader that returns one value at a time and builds no tree.
 *
 * Room:    io. It is for texts in which the form of a value matters (an integer is only digits),
 *          and for so many texts that a tree would cost too much. cpl_json_pick below uses the
 *          cursor to read a few named values of one object.
 * Method:  a cursor over memory that the reader may change: strings are decoded in place, so that
 *          their pointers last as long as the text, without an allocation. The text must be
 *          well-formed UTF-8 (cpl_utf8_is). After the first problem each call returns false, and
 *          the caller checks `problem` once at the end. Objects and arrays nest at most
 *          CPL_JSON_PULL_DEPTH deep. Strings hold no NUL.
 *
 *     for (bool first = true; cpl_json_pull_member(&c, &first, &key);)
 *         if (strcmp(key, "size") == 0) cpl_json_pull_u64(&c, &size); else cpl_json_pull_skip(&c);
 */
#ifndef CPL_IO_JSON_PULL_H
#define CPL_IO_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum { CPL_JSON_PULL_DEPTH = 127 };

typedef struct cpl_json_pull {
    char *begin, *at, *end; /* the text, the next byte, one past the last */
    const char *problem;    /* the error at `at`, a constant text, or NULL */
    int depth, deepest;     /* number of open objects and arrays, and the most allowed */
    bool unchanged;         /* the text must not be changed: strings can only be skipped */
} cpl_json_pull;

cpl_json_pull cpl_json_pull_start(char *text, size_t length);

/* Records the first problem. Returns false. */
bool cpl_json_pull_fail(cpl_json_pull *c, const char *problem);

/* Enters an object. cpl_json_pull_member then sets the next key, with the cursor at its value, and
 * returns false after the last. `first` is the caller's, true before the first call. */
bool cpl_json_pull_object(cpl_json_pull *c);
bool cpl_json_pull_member(cpl_json_pull *c, bool *first, char **key);

/* Enters an array. cpl_json_pull_item moves to the next item and returns false after the last. */
bool cpl_json_pull_array(cpl_json_pull *c);
bool cpl_json_pull_item(cpl_json_pull *c, bool *first);

bool cpl_json_pull_string(cpl_json_pull *c, char **out); /* decoded, NUL-terminated */
bool cpl_json_pull_u64(cpl_json_pull *c, uint64_t *out); /* digits only, below 2^64 */
bool cpl_json_pull_null(cpl_json_pull *c); /* passes a null, or returns false without a problem */
bool cpl_json_pull_skip(cpl_json_pull *c); /* passes one value of any kind */
bool cpl_json_pull_end(cpl_json_pull *c);  /* only white space follows */

/* Picking ---------------------------------------------------------------------------------------
 *
 * One pass over the bytes checks the grammar (RFC 8259, strictly) and decodes only the strings that
 * are picked. All other values, of any type and size, are skipped. */

enum {
    CPL_JSON_DEPTH  = 256, /* deepest nesting of values */
    CPL_JSON_FIELDS = 4    /* most values picked at once */
};

typedef enum cpl_json_kind {
    CPL_JSON_ABSENT,
    CPL_JSON_STRING, /* `value` is its content, well-formed UTF-8, and may hold NULs */
    CPL_JSON_NUMBER, /* `value` is the number as written */
    CPL_JSON_OTHER,  /* true, false, null, an object or an array; `value` is empty */
} cpl_json_kind;

/* A value to pick. `path` is a name or, for objects in objects, names joined by dots. A name that
 * holds the dots itself matches too. Every cpl_json_pick sets the other members. `value` keeps its
 * memory from call to call until cpl_text_free. */
typedef struct cpl_json_field {
    const char *path;
    cpl_json_kind kind;
    cpl_text value;
    int64_t lone_surrogates; /* number of escapes without a UTF-8 form, replaced by U+FFFD */
    int64_t repaired;        /* number of ill-formed sequences, replaced by U+FFFD */
} cpl_json_field;

/* Sets `fields` from the object in `bytes`. There are 1 to CPL_JSON_FIELDS fields, with different
 * paths, and no path lies inside the value of another. If a name occurs twice the last value
 * counts. Returns NULL, or the problem, with its offset in `*where`. A failed allocation is
 * recorded in the `failed` of the field's text. */
const char *cpl_json_pick(const char *bytes, size_t length, cpl_json_field *fields, int n_fields,
                          size_t *where);

/* Returns whether the bytes are one object by the grammar. Ill-formed UTF-8 and halves of surrogate
 * pairs in strings are accepted. */
bool cpl_json_is_object(const char *bytes, size_t length);

#endif /* CPL_IO_JSON_PULL_H */
