/* transform_internal.h - the functions of transforms.def.
 *
 * Room:   eval/tasks, for transform*.c. */
#ifndef CPL_EVAL_TASKS_TRANSFORM_INTERNAL_H
#define CPL_EVAL_TASKS_TRANSFORM_INTERNAL_H

#include "eval/tasks/transform.h"

/* Appends what becomes of `text`. CPL_ERR_INPUT: it cannot be done. */
typedef cpl_status cpl_text_transform(cpl_text *out, cpl_span text, const cpl_transform *how);

/* Appends the parts of `text` to an array. The same. */
typedef cpl_status cpl_parse_transform(json_t *out, cpl_span text);

/* How many members of a list it keeps, from the first. */
typedef size_t cpl_parse_sieve(const json_t *list, const cpl_transform *how);

#define CPL_TRANSFORM(name, wants, what) cpl_text_transform cpl_transform_##name;
#define CPL_SPLITTER(name, what)         cpl_parse_transform cpl_transform_##name;
#define CPL_SIEVE(name, what)            cpl_parse_sieve cpl_transform_##name;
#include "eval/tasks/transforms.def"
#undef CPL_TRANSFORM
#undef CPL_SPLITTER
#undef CPL_SIEVE

#endif /* CPL_EVAL_TASKS_TRANSFORM_INTERNAL_H */
