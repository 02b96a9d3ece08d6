/* json_pick.h - a few named values out of one JSON object, without building a tree.
 *
 * Room:   io.
 * Method: one pass over the bytes checks the grammar (RFC 8259, strictly) and decodes only the
 *         strings that were asked for; the rest is skipped, whatever its type and size.
 * Limits: values may nest CPL_JSON_DEPTH deep; at most CPL_JSON_FIELDS values are asked for. */
#ifndef CPL_IO_JSON_PICK_H
#define CPL_IO_JSON_PICK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { CPL_JSON_DEPTH = 256, CPL_JSON_FIELDS = 4 };

typedef enum cpl_json_kind {
    CPL_JSON_ABSENT,
    CPL_JSON_STRING, /* `value` is its content, well-formed UTF-8, and may hold NULs */
    CPL_JSON_NUMBER, /* `value` is the number as it stands */
    CPL_JSON_OTHER,  /* true, false, null, an object or an array; `value` is empty */
} cpl_json_kind;

/* A value to pick. `path` is a name or, for objects in objects, names joined by dots; a name that
 * holds the dots itself matches too. The other members are set by every cpl_json_pick; `value`
 * keeps its memory from call to call until cpl_text_free. */
typedef struct cpl_json_field {
    const char *path;
    cpl_json_kind kind;
    cpl_text value;
    int64_t lone_surrogates; /* escapes without a UTF-8 form, each now U+FFFD */
    int64_t repaired;        /* ill-formed sequences, each now U+FFFD */
} cpl_json_field;

/* Sets `fields` (1 to CPL_JSON_FIELDS; paths that differ, none inside the value of another) from
 * the object in `bytes`. If a name occurs twice the last one counts. Returns
 * NULL, or what is wrong with the bytes, with `*where` the offset of it. A failed allocation is
 * left in the `failed` of the field's text. */
const char *cpl_json_pick(const char *bytes, size_t length, cpl_json_field *fields, int n_fields,
                          size_t *where);

/* Whether the bytes are one object by the grammar. Ill-formed UTF-8 and halves of surrogate pairs
 * in strings pass. */
bool cpl_json_is_object(const char *bytes, size_t length);

#endif /* CPL_IO_JSON_PICK_H */
