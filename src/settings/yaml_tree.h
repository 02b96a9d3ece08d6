/* yaml_tree.h - a YAML file as a tree, with the place in the file of each value.
 *
 * Room:   settings; the only code that calls libyaml. yaml.h reads configurations from the tree of
 *         nodes, task files are read from the same tree as JSON values.
 * Form:   mappings, lists and scalars. Aliases, keys that are no scalars and CPL_YAML_DEPTH levels
 *         are refused; so are anchors and tags, unless the reader is lenient.
 * Errors: "FILE:LINE:COLUMN: what is wrong", counted from 1. */
#ifndef CPL_SETTINGS_YAML_TREE_H
#define CPL_SETTINGS_YAML_TREE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"

enum {
    CPL_YAML_MOST_BYTES = 16 << 20, /* of a file */
    CPL_YAML_DEPTH      = 64,       /* levels of a file */
    CPL_YAML_TREE_DEPTH = 16        /* levels of a file that is read as JSON values */
};

/* ---- nodes ---- */

typedef enum cpl_yaml_kind { CPL_YAML_SCALAR, CPL_YAML_LIST, CPL_YAML_MAPPING } cpl_yaml_kind;

typedef struct cpl_yaml_node cpl_yaml_node;
struct cpl_yaml_node {
    cpl_yaml_kind kind;
    bool plain;                 /* a scalar without quotes */
    size_t line, column;        /* where it begins, from 1 */
    const char *text;           /* of a scalar, else NULL */
    const cpl_yaml_node *key;   /* of a mapping's member, else NULL */
    const cpl_yaml_node *first; /* of a list or mapping */
    const cpl_yaml_node *next;  /* of its siblings */
};

/* All zero is an empty one. */
typedef struct cpl_yaml_doc {
    const char *name;              /* of the file; borrowed */
    const cpl_yaml_node *root;     /* NULL: the file holds nothing */
    size_t more_line, more_column; /* where a second document begins; 0: there is none */
    cpl_pool pool;                 /* of all nodes */
} cpl_yaml_doc;

/* Reads the first document of `length` bytes, which the sentences call `name`. */
CPL_NODISCARD cpl_status cpl_yaml_doc_parse(cpl_yaml_doc *doc, const char *name, const void *bytes,
                                            size_t length, bool lenient);
void cpl_yaml_doc_free(cpl_yaml_doc *doc);

/* CPL_ERR_INPUT "NAME:LINE:COLUMN: " and the sentence. */
cpl_status cpl_yaml_doc_fail(const cpl_yaml_doc *doc, const cpl_yaml_node *node, const char *format,
                             ...) CPL_PRINTF(3, 4);

/* ---- JSON values ---- */

/* Where a value begins; that of a mapping's member is its key. */
typedef struct cpl_yaml_place {
    const json_t *value;
    size_t line, column;
} cpl_yaml_place;

/* A tree of JSON values. Scalars are strings, plain or quoted alike: the caller that reads the tree
 * decides where a number or a truth value is expected. Several documents and a key that occurs
 * twice are refused. All zero is an empty one, whose freeing does nothing. */
typedef struct cpl_yaml_tree {
    char *name;             /* of the file; owned */
    json_t *root;           /* owned; an empty file is an empty string */
    cpl_yaml_place *places; /* (n_places) by address; owned */
    size_t n_places, room;
} cpl_yaml_tree;

/* Reads a file that the user named, of at most CPL_YAML_MOST_BYTES, or `length` bytes that the
 * sentences call `name`. */
CPL_NODISCARD cpl_status cpl_yaml_tree_read(cpl_yaml_tree *tree, const char *path);
CPL_NODISCARD cpl_status cpl_yaml_tree_parse(cpl_yaml_tree *tree, const char *name,
                                             const void *bytes, size_t length);
void cpl_yaml_tree_free(cpl_yaml_tree *tree);

/* Gives `made`, which is not part of the tree and must live as long as it, the place of `value`, if
 * that has one. */
CPL_NODISCARD cpl_status cpl_yaml_tree_same_place(cpl_yaml_tree *tree, const json_t *made,
                                                  const json_t *value);

/* CPL_ERR_INPUT "FILE:LINE:COLUMN: " and the sentence. If `value`, which may be NULL, has no place,
 * the place is that of the whole tree: a member is missing. */
CPL_NODISCARD cpl_status cpl_yaml_tree_fail(const cpl_yaml_tree *tree, const json_t *value,
                                            const char *format, ...) CPL_PRINTF(3, 4);

/* Returns `status`; if it is CPL_ERR_INPUT, puts the place before the last sentence. */
CPL_NODISCARD cpl_status cpl_yaml_tree_place(const cpl_yaml_tree *tree, const json_t *value,
                                             cpl_status status);

#endif /* CPL_SETTINGS_YAML_TREE_H */
