/* transform.h - what a task file makes of a value: `name|strip|before:_`.
 *
 * Room:   eval/tasks. The list is transforms.def.
 * Values: jansson strings, or arrays of strings; a list is transformed text by text.
 * Source: docs/tasks.md, "Templates", "Strings". */
#ifndef CPL_EVAL_TASKS_TRANSFORM_H
#define CPL_EVAL_TASKS_TRANSFORM_H

#include <jansson.h>

#include "base/pool.h"
#include "base/span.h"

typedef struct cpl_transform_kind cpl_transform_kind;

typedef struct cpl_transform {
    const cpl_transform_kind *kind;
    const char *first, *second; /* what stands behind its name: TEXT, or TEXT=WITH; NULL: nothing */
} cpl_transform;

/* Applied one after the other. */
typedef struct cpl_chain {
    const cpl_transform *at;
    int64_t count;
} cpl_chain;

/* Sets the chain from the text behind the first `|`: "strip|before:_"; in the pool. CPL_ERR_INPUT
 * with a sentence that names no file. */
CPL_NODISCARD cpl_status cpl_chain_parse(cpl_chain *chain, cpl_pool *pool, cpl_span text);

/* Whether the chain makes a list of a text, or can be applied to a list. */
bool cpl_chain_makes_list(const cpl_chain *chain);

/* Sets `*out`, a new reference, to what the chain makes of `value`. CPL_ERR_INPUT: the row is a bad
 * one. */
CPL_NODISCARD cpl_status cpl_chain_apply(json_t **out, const cpl_chain *chain, json_t *value);

#endif /* CPL_EVAL_TASKS_TRANSFORM_H */
