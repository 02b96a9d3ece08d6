/* totals.h - totals of a task: metrics over its answered questions.
 *
 * Room:   eval. Works on the objects of answered questions alone, so that an interrupted
 *         evaluation, and another program's results, are added up by the same code.
 * Source: docs/tasks.md, "Subjects"; docs/formats.md, "Results of an evaluation". */
#ifndef CPL_EVAL_TOTALS_H
#define CPL_EVAL_TOTALS_H

#include <jansson.h>

#include "eval/tasks/task.h"

/* Adds to `result` "metrics" ({name: value, name_stderr: ...}; with subjects name_macro too, with a
 * headline of groups or subjects name_micro), "subjects" and "groups" ({name: {"n": ..., metric:
 * value}}, standard errors too), from `samples` (an array in any order). If the answers are filters
 * of a metric: "metric,filter" in place of its name, and "metric_stderr,filter".
 *
 * Means are over samples. The standard error of n questions' mean is s / sqrt(n), s their
 * deviation: sqrt(p (1-p) / (n-1)) if all values are 0 or 1. Samples whose ids are the same up to a
 * "#" are one question, and its value is their mean. Over several subjects s is the deviation
 * within them, pooled, as lm-eval has it; of a mean of groups it is computed from theirs. It is
 * missing if no subject has two questions.
 *
 * A subject is the part of an id before the last "/". A group without samples is left out. Metrics
 * of answers leave out the samples of ranked questions. Metrics of scores leave out those of
 * generated ones, except the headline. CPL_ERR_INPUT: no samples; a sample that lacks any other
 * value of a metric; a metric of no sample. On failure `result` may hold a part. */
CPL_NODISCARD cpl_status cpl_totals_add(json_t *result, const cpl_task *task,
                                        const cpl_profile *profile, const json_t *samples);

#endif /* CPL_EVAL_TOTALS_H */
