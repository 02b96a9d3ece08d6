/* evaluation_internal.h - what the files of evaluation.h share.
 *
 * Room:  eval. evaluation.c runs all tasks, evaluation_run.c one of them, and evaluation_check.c
 *        checks one before. */
#ifndef CPL_EVAL_EVALUATION_INTERNAL_H
#define CPL_EVAL_EVALUATION_INTERNAL_H

#include "eval/evaluation.h"

/* Reports up front every error that would otherwise surface only at the end: a metric of which no question says
 * anything, a subject of none of the groups that the headline is made of, questions that do not fit.
 * `alone`: no other task is evaluated with it. Names of subjects in the task file that no row has are
 * logged as a warning. CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_evaluation_check(const cpl_selected *what, const cpl_questions *q,
                                              const cpl_questions_options *options, int64_t window,
                                              const cpl_tokenizer *tokenizer, bool alone);

/* Runs the questions that `journal` (NULL: none) has no answer to, and sets the result. The others as
 * of cpl_evaluation_run. */
CPL_NODISCARD cpl_status cpl_evaluation_ask(cpl_task_evaluation *one, const cpl_questions *q,
                                            const cpl_eval_runner *runner,
                                            cpl_eval_journal *journal, bool samples,
                                            const cpl_evaluation_watch *watch);

/* Adds to a failure which task it is about. */
CPL_NODISCARD cpl_status cpl_evaluation_about(cpl_status status, const cpl_selected *what);

#endif /* CPL_EVAL_EVALUATION_INTERNAL_H */
