/* fields.h - what a task reads of a row, and the names that its templates can use.
 *
 * Room:   eval/tasks. Compiled from the tree of a task file; docs/tasks.md, "Fields".
 * Values: jansson strings, or arrays of strings. */
#ifndef CPL_EVAL_TASKS_FIELDS_H
#define CPL_EVAL_TASKS_FIELDS_H

#include "eval/tasks/template.h"
#include "settings/yaml_tree.h"

typedef struct cpl_field cpl_field;

typedef struct cpl_fields {
    const cpl_field *at;
    int64_t count;
} cpl_fields;

/* A name without a field: what the engine itself knows of a question. */
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

/* Sets the fields from an object of them, and checks that what they are made of is there: other
 * fields and the known names. The pool holds them; `from` must outlive them. CPL_ERR_INPUT with the
 * place in the file. */
CPL_NODISCARD cpl_status cpl_fields_parse(cpl_fields *fields, cpl_pool *pool,
                                          const cpl_yaml_tree *tree, const json_t *from,
                                          const cpl_builtin_name *known, int64_t n_known);

/* Sets whether what `name` stands for is a list. CPL_ERR_INPUT, with the nearest name, if it stands
 * for nothing; the sentence names no file. */
CPL_NODISCARD cpl_status cpl_scope_names_find(bool *list, const cpl_scope_names *there,
                                              const char *name);

/* Checks that every name of a template stands for a text there. The same. */
CPL_NODISCARD cpl_status cpl_scope_names_check(const cpl_scope_names *there, const cpl_template *t);

/* A row, and the values of the names that were looked up or set. */
typedef struct cpl_scope {
    const cpl_fields *fields;
    const json_t *row;
    json_t *values; /* owned */
} cpl_scope;

CPL_NODISCARD cpl_status cpl_scope_start(cpl_scope *scope, const cpl_fields *fields,
                                         const json_t *row);
void cpl_scope_end(cpl_scope *scope); /* all zero: nothing to do */

/* Sets the value of a name for all that is made from now on; takes the reference, NULL is out of
 * memory. */
CPL_NODISCARD cpl_status cpl_scope_set(cpl_scope *scope, const char *name, json_t *value);

/* Sets what a name stands for, borrowed. CPL_ERR_INPUT: the row is a bad one. */
CPL_NODISCARD cpl_status cpl_scope_value(json_t **value, cpl_scope *scope, const char *name);

#endif /* CPL_EVAL_TASKS_FIELDS_H */
