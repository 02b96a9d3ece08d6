/* scope.h - the fields that a task reads of a row, and the names that its templates use.
 *
 * Room:   eval/tasks. Fields are compiled from the tree of a task file (docs/tasks.md, "Fields").
 *         Values are jansson strings, or arrays of strings. */
#ifndef CPL_EVAL_TASKS_SCOPE_H
#define CPL_EVAL_TASKS_SCOPE_H

#include <jansson.h>

#include "base/arena.h"
#include "base/text.h"
#include "settings/yaml_tree.h"

/* ---- transformations ---- */

typedef struct cpl_transform_kind cpl_transform_kind;

typedef struct cpl_transform {
    const cpl_transform_kind *kind;
    const char *first, *second; /* its arguments: TEXT, or TEXT=WITH; NULL: no argument */
} cpl_transform;

/* Transformations, in the order in which they are applied. */
typedef struct cpl_chain {
    const cpl_transform *at;
    int64_t count;
} cpl_chain;

/* Sets the chain from the text after the first `|`, such as "strip|before:_". The pool holds it.
 * Fails with CPL_ERR_INPUT; the caller adds the file name to the message. */
CPL_NODISCARD cpl_status cpl_chain_parse(cpl_chain *chain, cpl_pool *pool, cpl_span text);

/* Returns whether the chain makes a list of a text. */
bool cpl_chain_makes_list(const cpl_chain *chain);

/* Sets `*out`, a new reference, to the chain's result for `value`. CPL_ERR_INPUT: a bad row. */
CPL_NODISCARD cpl_status cpl_chain_apply(json_t **out, const cpl_chain *chain, json_t *value);

/* ---- paths: a place in a row ---- */

typedef struct cpl_path_step {
    const char *member;
    enum { CPL_STEP_VALUE, CPL_STEP_ITEM, CPL_STEP_LIST } then; /* "a", "a[3]", "a[]" */
    int64_t item;
} cpl_path_step;

typedef struct cpl_path {
    const char *written;        /* the text that the path was parsed from */
    const cpl_path_step *steps; /* (n_steps) */
    int64_t n_steps;
    bool list;     /* true if a step is a list: "a[]" */
    bool may_lack; /* `?`: a missing value is empty */
    cpl_chain chain;
} cpl_path;

/* Sets the path from a text such as "a.b[]?|strip". The pool holds it. Fails with CPL_ERR_INPUT;
 * the caller adds the file name to the message. */
CPL_NODISCARD cpl_status cpl_path_parse(cpl_path *path, cpl_pool *pool, const char *text);

/* Returns whether the value of the path is a list. */
bool cpl_path_makes_list(const cpl_path *path);

/* Sets `*value`, a new reference, to the transformed value at the path, or to NULL if the row has
 * no value there, or null or an object. CPL_ERR_INPUT: the value cannot be transformed. */
CPL_NODISCARD cpl_status cpl_path_value(json_t **value, const cpl_path *path, const json_t *row);

/* ---- templates: "Question: {stem|strip}\nAnswer:" ---- */

struct cpl_scope;

/* A piece of text, or a name with the transformations of its value. */
typedef struct cpl_template_part {
    const char *text; /* (length) */
    size_t length;
    const char *name; /* NULL: the piece is a text */
    cpl_chain chain;
} cpl_template_part;

typedef struct cpl_template {
    const cpl_template_part *pieces;
    int64_t count;
} cpl_template;

/* Sets the template. The pool holds it. Fails with CPL_ERR_INPUT for a single brace, an empty name
 * or an unknown transformation; the caller adds the file name to the message. */
CPL_NODISCARD cpl_status cpl_template_parse(cpl_template *t, cpl_pool *pool, const char *text);

/* Returns whether the template contains a name. */
bool cpl_template_names(const cpl_template *t, const char *name);

/* Returns whether the template is a single name, whose value may be a list. */
bool cpl_template_is_name(const cpl_template *t);

/* Appends the output of the template for a row. CPL_ERR_INPUT: the row is bad. */
CPL_NODISCARD cpl_status cpl_template_make(cpl_text *out, const cpl_template *t,
                                           struct cpl_scope *scope);

/* Sets `*value` to the output of the template, a new string. CPL_ERR_INPUT: the row is bad. */
CPL_NODISCARD cpl_status cpl_template_string(json_t **value, const cpl_template *t,
                                             struct cpl_scope *scope);

/* ---- fields ---- */

typedef struct cpl_field cpl_field;

typedef struct cpl_fields {
    const cpl_field *at;
    int64_t count;
} cpl_fields;

/* A name whose value the engine sets itself for each question. */
typedef struct cpl_builtin_name {
    const char *name;
    bool list;
} cpl_builtin_name;

/* The names that a template may use. */
typedef struct cpl_scope_names {
    const cpl_fields *fields;
    const cpl_builtin_name *known; /* (n_known) */
    int64_t n_known;
} cpl_scope_names;

enum { CPL_FIELDS_MOST = 64 };

/* Sets the fields from an object, and checks that every name in them is another field or a known
 * name. The pool holds the fields. `from` must outlive them. CPL_ERR_INPUT, with the place in the
 * file. */
CPL_NODISCARD cpl_status cpl_fields_parse(cpl_fields *fields, cpl_pool *pool,
                                          const cpl_yaml_tree *tree, const json_t *from,
                                          const cpl_builtin_name *known, int64_t n_known);

/* Sets `list` to whether the value of `name` is a list. Fails with CPL_ERR_INPUT if the name does
 * not exist; the message suggests the nearest name, and the caller adds the file name. */
CPL_NODISCARD cpl_status cpl_scope_names_find(bool *list, const cpl_scope_names *there,
                                              const char *name);

/* Checks that every name of a template exists and is a text. Fails as cpl_scope_names_find does. */
CPL_NODISCARD cpl_status cpl_scope_names_check(const cpl_scope_names *there, const cpl_template *t);

/* A row, and the values of the names that were looked up or set. */
typedef struct cpl_scope {
    const cpl_fields *fields;
    const json_t *row;
    json_t *values; /* owned */
} cpl_scope;

CPL_NODISCARD cpl_status cpl_scope_start(cpl_scope *scope, const cpl_fields *fields,
                                         const json_t *row);
void cpl_scope_end(cpl_scope *scope); /* all zero is allowed */

/* Sets the value of a name for all later output. Takes the reference. NULL is CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_scope_set(cpl_scope *scope, const char *name, json_t *value);

/* Sets `*value`, borrowed, to the value of a name. CPL_ERR_INPUT: the row is bad. */
CPL_NODISCARD cpl_status cpl_scope_value(json_t **value, cpl_scope *scope, const char *name);

#endif /* CPL_EVAL_TASKS_SCOPE_H */
