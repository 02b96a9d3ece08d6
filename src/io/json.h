/* json.h - JSON files on top of jansson: loading, typed and bounded members, atomic writing. Errors
 * name file, line and column.
 *
 * Room:   io. It reads configurations, indices and tokenizers. The headers of safetensors files
 *         have a separate, stricter reader (json_pull.h).
 * Names:  `where` is the beginning of an error, usually the path of the file the object is from.
 * Note:   jansson bounds nesting at 2048 and, like us, refuses a key that occurs twice. */
#ifndef CPL_IO_JSON_H
#define CPL_IO_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "io/source.h"

enum { CPL_JSON_MAX_BYTES = 1 << 29 }; /* bytes of the largest file */

/* Sets a new object or array, read from a file of a folder or, _given, from a file that the user
 * named. The caller frees it with json_decref. A whole number beyond 64 bits is no error (published
 * tokenizer settings have such numbers): in such a document all numbers are reals. Bytes that are
 * not UTF-8 and \u0000 are errors. */
CPL_NODISCARD cpl_status cpl_json_load(json_t **out, const char *path);
CPL_NODISCARD cpl_status cpl_json_load_given(json_t **out, const char *path);

/* Does what cpl_json_load does, for a file of `origin` (NULL for the local file system). */
CPL_NODISCARD cpl_status cpl_json_load_from(json_t **out, const cpl_origin *origin,
                                            const char *path);

CPL_NODISCARD cpl_status cpl_json_parse(json_t **out, const char *bytes, size_t length,
                                        const char *where);

/* Does what cpl_json_parse does, for bytes that begin at `line` and `column` (from 1) of the
 * file. */
CPL_NODISCARD cpl_status cpl_json_parse_at(json_t **out, const char *bytes, size_t length,
                                           const char *where, int64_t line, int64_t column);

/* Set `value` to a required member. An integer may also be written as a real without a fraction,
 * below 2^53. Integers and floats must lie in [lo, hi]. Strings, objects and arrays are borrowed
 * from `object`. */
CPL_NODISCARD cpl_status cpl_json_int(const json_t *object, const char *key, int64_t *value,
                                      int64_t lo, int64_t hi, const char *where);
CPL_NODISCARD cpl_status cpl_json_float(const json_t *object, const char *key, double *value,
                                        double lo, double hi, const char *where);
CPL_NODISCARD cpl_status cpl_json_bool(const json_t *object, const char *key, bool *value,
                                       const char *where);
CPL_NODISCARD cpl_status cpl_json_string(const json_t *object, const char *key, const char **value,
                                         const char *where);
CPL_NODISCARD cpl_status cpl_json_object(const json_t *object, const char *key, json_t **value,
                                         const char *where);
CPL_NODISCARD cpl_status cpl_json_array(const json_t *object, const char *key, json_t **value,
                                        const char *where);

/* Set `value` to an optional member, or to `absent` if the member is missing or null. `absent` need
 * not lie in the bounds. */
CPL_NODISCARD cpl_status cpl_json_int_or(const json_t *object, const char *key, int64_t *value,
                                         int64_t lo, int64_t hi, int64_t absent, const char *where);
CPL_NODISCARD cpl_status cpl_json_float_or(const json_t *object, const char *key, double *value,
                                           double lo, double hi, double absent, const char *where);
CPL_NODISCARD cpl_status cpl_json_bool_or(const json_t *object, const char *key, bool *value,
                                          bool absent, const char *where);
CPL_NODISCARD cpl_status cpl_json_string_or(const json_t *object, const char *key,
                                            const char **value, const char *absent,
                                            const char *where);

/* The next four return new values for the caller to free (json_decref), or NULL for lack of memory.
 * This one returns a real, or null if the value is not finite, which JSON cannot express. */
json_t *cpl_json_number(double value);

/* Returns an integer if the value is whole and below 2^53, otherwise cpl_json_number(value). */
json_t *cpl_json_count(double value);

/* Returns a string of 16 hexadecimal digits. */
json_t *cpl_json_hash(uint64_t hash);

/* Returns a string. Bytes that are not UTF-8, as in names of files, become U+FFFD. */
json_t *cpl_json_words(const char *bytes);

/* The next three build a tree. `*failed` records a failure, so that the caller checks once at the
 * end. */

/* Adds a member and takes the ownership of its value. A value of NULL counts as failed. */
static inline void cpl_json_put(bool *failed, json_t *object, const char *key, json_t *value)
{
    *failed = json_object_set_new(object, key, value) != 0 || *failed;
}

/* Adds an object or array to be filled later. Returns the borrowed value, or NULL after a
 * failure. */
static inline json_t *cpl_json_open(bool *failed, json_t *object, const char *key, json_t *value)
{
    cpl_json_put(failed, object, key, value);
    return *failed ? NULL : value;
}

/* Appends an element and takes its ownership. An element of NULL counts as failed. */
static inline void cpl_json_add(bool *failed, json_t *array, json_t *value)
{
    *failed = json_array_append_new(array, value) != 0 || *failed;
}

/* Writes the document and a line end. `flags` are jansson's (JSON_INDENT(2), JSON_SORT_KEYS). The
 * old file remains until the new file is complete. */
CPL_NODISCARD cpl_status cpl_json_write_atomic(const char *path, const json_t *json, size_t flags);

/* Frees the text of json_dumps. */
void cpl_json_text_free(char *text);

/* If memory is short jansson leaves out members without an error, and its parser does not survive a
 * failed allocation. After cpl_json_watch_memory an allocation that fails is served from a reserve
 * of CPL_JSON_RESERVE bytes. From the first failure after the reserve is spent, cpl_json_check
 * returns CPL_ERR_MEMORY for the rest of the process. Code that writes JSON calls cpl_json_check.
 * cpl_json_watch_memory replaces the allocator of jansson, so it is for a program, not for a
 * library. */
enum { CPL_JSON_RESERVE = 1 << 22 };
void cpl_json_watch_memory(void);
CPL_NODISCARD cpl_status cpl_json_check(const char *where);

#endif /* CPL_IO_JSON_H */
