/* yaml_tree.h - a YAML file as a tree of JSON values, with the place in the file of each value.
 *
 * Room:   settings. Only yaml_tree.c parses with libyaml. Configurations (yaml.h) and task files
 *         are read from this tree.
 * Form:   mappings, lists and scalars in one document. Scalars are strings: the caller that reads
 *         the tree decides where a number or a truth value is expected. An empty file is an empty
 *         string. Anchors, aliases, tags, keys that are not scalars, a key that occurs twice and
 *         more than CPL_YAML_DEPTH levels are refused.
 * Errors: "FILE:LINE:COLUMN: what is wrong", counted from 1. */
#ifndef CPL_SETTINGS_YAML_TREE_H
#define CPL_SETTINGS_YAML_TREE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"

enum {
    CPL_YAML_MOST_BYTES = 16 << 20, /* bytes of a file that is read */
    CPL_YAML_DEPTH      = 16        /* values inside each other */
};

/* The places, from 1, where a value and its key begin. Without a key both places are equal. */
typedef struct cpl_yaml_place {
    const json_t *value;
    size_t line, column, key_line, key_column;
    bool plain; /* a scalar without quotes */
} cpl_yaml_place;

/* A tree of all zeros is empty, and may be freed. */
typedef struct cpl_yaml_tree {
    char *name;             /* name of the file in errors; owned */
    json_t *root;           /* owned */
    cpl_yaml_place *places; /* (n_places) by address; owned */
    size_t n_places, room;
} cpl_yaml_tree;

/* Reads a file that the user named, of at most CPL_YAML_MOST_BYTES, or parses `length` bytes, whose
 * errors begin with `name`. */
CPL_NODISCARD cpl_status cpl_yaml_tree_read(cpl_yaml_tree *tree, const char *path);
CPL_NODISCARD cpl_status cpl_yaml_tree_parse(cpl_yaml_tree *tree, const char *name,
                                             const void *bytes, size_t length);
void cpl_yaml_tree_free(cpl_yaml_tree *tree);

/* Returns the place of a value, or NULL if the value is not part of the tree. */
const cpl_yaml_place *cpl_yaml_tree_find(const cpl_yaml_tree *tree, const json_t *value);

/* Returns the text of `name` in the mapping `section` of the file, or NULL. */
const char *cpl_yaml_tree_text(const cpl_yaml_tree *tree, const char *section, const char *name);

/* Gives `made` the place of `value`, if `value` has a place. `made` is not part of the tree and
 * must live as long as the tree. */
CPL_NODISCARD cpl_status cpl_yaml_tree_same_place(cpl_yaml_tree *tree, const json_t *made,
                                                  const json_t *value);

/* Fails with CPL_ERR_INPUT, "FILE:LINE:COLUMN: " and the sentence, at the key of `value`. If
 * `value` is NULL or has no place, for example because a member is missing, the place of the tree
 * is used. */
CPL_NODISCARD cpl_status cpl_yaml_tree_fail(const cpl_yaml_tree *tree, const json_t *value,
                                            const char *format, ...) CPL_PRINTF(3, 4);

/* Fails at the beginning of `value`, which must be part of the tree. */
CPL_NODISCARD cpl_status cpl_yaml_tree_fail_value(const cpl_yaml_tree *tree, const json_t *value,
                                                  const char *format, ...) CPL_PRINTF(3, 4);

/* Returns `status`. If it is CPL_ERR_INPUT, puts the place before the last error message. */
CPL_NODISCARD cpl_status cpl_yaml_tree_place(const cpl_yaml_tree *tree, const json_t *value,
                                             cpl_status status);

#endif /* CPL_SETTINGS_YAML_TREE_H */
