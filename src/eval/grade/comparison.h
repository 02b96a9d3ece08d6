/* comparison.h - how an answer is held against a reference, both in their normal form.
 *
 * Room:   eval/grade. The list is comparisons.def.
 * Source: docs/tasks.md, "Normal forms". */
#ifndef CPL_EVAL_GRADE_COMPARISON_H
#define CPL_EVAL_GRADE_COMPARISON_H

#include "base/span.h"

/* From 0 to 1; all but shared_words say 0 or 1. `spare` is memory to work in. */
typedef double cpl_comparison_function(cpl_span answer, cpl_span reference, cpl_text *spare);

typedef struct cpl_comparison {
    const char *name;
    cpl_comparison_function *score;
    double score_if_both_empty; /* the score where neither text nor reference holds an answer */
    const char *what;
} cpl_comparison;

extern const cpl_comparison cpl_comparisons[];
extern const size_t cpl_n_comparisons;

/* CPL_ERR_INPUT with the nearest name if there is none of that name. */
CPL_NODISCARD cpl_status cpl_comparison_find(const cpl_comparison **comparison, const char *name);

#define CPL_COMPARISON(name, score_if_both_empty, what) cpl_comparison_function cpl_compare_##name;
#include "eval/grade/comparisons.def"
#undef CPL_COMPARISON

#endif /* CPL_EVAL_GRADE_COMPARISON_H */
