/* totals.h - what the answers of a task come to.
 *
 * Room:   study/eval. Works on the objects of answered questions alone, so that an interrupted
 *         evaluation, and another program's results, are added up by the same code.
 * Source: eval-tasks.md 1.3, 1.6, 1.7. */
#ifndef CPL_STUDY_EVAL_TOTALS_H
#define CPL_STUDY_EVAL_TOTALS_H

#include <jansson.h>

#include "study/eval/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds to `result` "metrics" ({name: value, name_stderr: ...}; with subjects name_macro too, with
 * groups_first name_micro), "subjects" and "groups" ({name: {"n": ..., metric: value}}), from
 * `samples` (an array in any order). Means over questions; standard errors are those of a mean:
 * sqrt(p (1-p) / (n-1)) where all values are 0 or 1. CPL_ERR_INPUT: no samples, or one that lacks
 * what a metric is made of. */
CPL_NODISCARD cpl_status cpl_totals_add(json_t *result, const cpl_task *task,
                                        const cpl_profile *profile, const json_t *samples);

#ifdef __cplusplus
}
#endif
#endif /* CPL_STUDY_EVAL_TOTALS_H */
