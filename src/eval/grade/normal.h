/* normal.h - answers brought into a form in which equal ones are the same bytes.
 *
 * Room:   eval/grade. The list is normals.def.
 * Source: docs/tasks.md, "Normal forms": as lm-eval 0.4.13, whose normal form of MATH's answers
 *         knows whole words and names of LaTeX commands. */
#ifndef CPL_EVAL_GRADE_NORMAL_H
#define CPL_EVAL_GRADE_NORMAL_H

#include "base/span.h"

/* Sets `out`, which `answer` is no piece of; false if the answer has no normal form: it is then
 * compared as it is. `spare` is memory to work in. Out of memory is remembered in one of the two. */
typedef bool cpl_normal_function(cpl_text *out, cpl_span answer, cpl_text *spare);

typedef struct cpl_normal {
    const char *name;
    cpl_normal_function *make;
    const char *what; /* it makes of an answer */
} cpl_normal;

extern const cpl_normal cpl_normals[];
extern const size_t cpl_n_normals;

/* CPL_ERR_INPUT with the nearest name if there is none of that name. */
CPL_NODISCARD cpl_status cpl_normal_find(const cpl_normal **normal, const char *name);

#define CPL_NORMAL(name, what) cpl_normal_function cpl_normal_##name;
#include "eval/grade/normals.def"
#undef CPL_NORMAL

#endif /* CPL_EVAL_GRADE_NORMAL_H */
