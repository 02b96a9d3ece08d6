/* path.h - "question.choices[].text": where in a row a value is.
 *
 * Room:   eval/tasks; for fields.c. */
#ifndef CPL_EVAL_TASKS_PATH_H
#define CPL_EVAL_TASKS_PATH_H

#include "eval/tasks/transform.h"

typedef struct cpl_path_step {
    const char *member;
    enum { CPL_STEP_VALUE, CPL_STEP_ITEM, CPL_STEP_LIST } then; /* "a", "a[3]", "a[]" */
    int64_t item;
} cpl_path_step;

typedef struct cpl_path {
    const char *written;
    const cpl_path_step *steps; /* (n_steps) */
    int64_t n_steps;
    bool may_lack; /* `?`: empty where it is not there */
    cpl_chain chain;
} cpl_path;

/* Sets the path from "a.b[]?|strip", in the pool. CPL_ERR_INPUT; the sentence names no file. */
CPL_NODISCARD cpl_status cpl_path_parse(cpl_path *path, cpl_pool *pool, const char *text);

bool cpl_path_makes_list(const cpl_path *path);

/* Sets `*value`, a new reference, to what is there, transformed; NULL if there is nothing of that
 * kind: nothing at all, null, an object. CPL_ERR_INPUT: it cannot be transformed. */
CPL_NODISCARD cpl_status cpl_path_value(json_t **value, const cpl_path *path, const json_t *row);

#endif /* CPL_EVAL_TASKS_PATH_H */
