/* json_build.h - building JSON trees: a failed allocation is remembered, so that the caller checks
 * once at the end.
 *
 * Room:  io. */
#ifndef CPL_IO_JSON_BUILD_H
#define CPL_IO_JSON_BUILD_H

#include <jansson.h>
#include <stdbool.h>

/* Adds a member, whose value it takes over; NULL counts as failed. */
static inline void cpl_json_put(bool *failed, json_t *object, const char *key, json_t *value)
{
    *failed = json_object_set_new(object, key, value) != 0 || *failed;
}

/* The same for an element. */
static inline void cpl_json_add(bool *failed, json_t *array, json_t *value)
{
    *failed = json_array_append_new(array, value) != 0 || *failed;
}

#endif /* CPL_IO_JSON_BUILD_H */
