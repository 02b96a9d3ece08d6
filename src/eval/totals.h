/* totals.h - totals of a task: metrics over its answered questions.
 *
 * Room:   eval. Works on samples alone, so that an interrupted evaluation, and another program's
 *         results, are added up by the same code.
 * Source: docs/tasks.md, "Subjects"; docs/formats.md, "Results of an evaluation". */
#ifndef CPL_EVAL_TOTALS_H
#define CPL_EVAL_TOTALS_H

#include <jansson.h>

#include "eval/tasks/task.h"

/* Adds the totals of `samples` (an array in any order) to `result`: "metrics" ({name: value,
 * name_stderr: ...}; with subjects also name_macro, with a headline of groups or subjects also
 * name_micro), "subjects" and "groups" ({name: {"n": ..., metric: value}}, with standard errors).
 * If the answers are filters of a metric, the names are "metric,filter" and "metric_stderr,filter".
 *
 * Means are over samples. The standard error of the mean of n questions is s / sqrt(n), with their
 * deviation s, which is sqrt(p (1-p) / (n-1)) if all values are 0 or 1. Samples whose ids are equal
 * up to a "#" are one question, and its value is their mean. Over several subjects s is the pooled
 * deviation within them, as in lm-eval. The standard error of a mean of groups follows from the
 * errors of the groups. There is no standard error if no subject has two questions.
 *
 * A subject is the part of an id before the last "/". A group without samples is left out. Metrics
 * of answers leave out the samples of ranked questions. Metrics of scores leave out the samples of
 * generated texts, except the headline. CPL_ERR_INPUT for no samples, a sample that lacks any other
 * value of a metric, and a metric that no sample has. On failure `result` may hold a part. */
CPL_NODISCARD cpl_status cpl_totals_add(json_t *result, const cpl_task *task,
                                        const cpl_profile *profile, const json_t *samples);

#endif /* CPL_EVAL_TOTALS_H */
