/* yaml_tree.h - a YAML file as a tree of JSON values, with the place in the file of each.
 *
 * Room:   settings; for files whose form is not a list of settings (those are yaml.h's).
 * Form:   one document of mappings, lists and scalars. A scalar is a string, plain or quoted alike:
 *         whoever reads the tree knows where a number or a truth is wanted. Anchors, aliases, tags,
 *         several documents, a key that stands twice and CPL_YAML_TREE_DEPTH levels are refused.
 * Errors: "FILE:LINE:COLUMN: what is wrong", counted from 1. */
#ifndef CPL_SETTINGS_YAML_TREE_H
#define CPL_SETTINGS_YAML_TREE_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

enum { CPL_YAML_TREE_DEPTH = 16 };

/* Where a value begins; that of a mapping's member is its key. */
typedef struct cpl_yaml_place {
    const json_t *value;
    size_t line, column;
} cpl_yaml_place;

/* All zero is an empty one, whose freeing does nothing. */
typedef struct cpl_yaml_tree {
    char *name;             /* of the file; owned */
    json_t *root;           /* owned; an empty file is an empty string */
    cpl_yaml_place *places; /* (n_places) by address; owned */
    size_t n_places, room;
} cpl_yaml_tree;

/* Reads a file that the user named, of at most CPL_YAML_MOST_BYTES, or `length` bytes that the sentences call `name`. */
CPL_NODISCARD cpl_status cpl_yaml_tree_read(cpl_yaml_tree *tree, const char *path);
CPL_NODISCARD cpl_status cpl_yaml_tree_parse(cpl_yaml_tree *tree, const char *name,
                                             const void *bytes, size_t length);
void cpl_yaml_tree_free(cpl_yaml_tree *tree);

/* Gives `made`, which is none of the tree and lives as long, the place of `value`, if it has one. */
CPL_NODISCARD cpl_status cpl_yaml_tree_same_place(cpl_yaml_tree *tree, const json_t *made,
                                                  const json_t *value);

/* CPL_ERR_INPUT "FILE:LINE:COLUMN: " and the sentence. The place is that of the whole where `value`,
 * which may be NULL, has none: something is lacking there. */
CPL_NODISCARD cpl_status cpl_yaml_tree_fail(const cpl_yaml_tree *tree, const json_t *value,
                                            const char *format, ...) CPL_PRINTF(3, 4);

/* Hands a status up; where it is CPL_ERR_INPUT, with the place before the last sentence. */
CPL_NODISCARD cpl_status cpl_yaml_tree_place(const cpl_yaml_tree *tree, const json_t *value,
                                             cpl_status status);

#endif /* CPL_SETTINGS_YAML_TREE_H */
