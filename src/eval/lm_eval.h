/* lm_eval.h - an evaluation in the form of lm-evaluation-harness 0.4: its results file, and the lines
 * of its samples files.
 *
 * Room:  eval. lm_eval_tasks.c names its tasks and metrics; lm_eval.c makes the results file;
 *        lm_eval_samples.c makes the lines.
 * Names: a task is what has questions: one without subjects, or one subject. A task with subjects is
 *        a group of them. The best of several forms is left out: there is nothing of the kind.
 * File:  docs/formats.md, "Results in the form of lm-evaluation-harness". */
#ifndef CPL_EVAL_LM_EVAL_H
#define CPL_EVAL_LM_EVAL_H

#include "eval/evaluation.h"

/* A metric as it is called there. */
typedef struct cpl_lm_eval_metric {
    cpl_metric_key key;        /* of a sample */
    const char *value, *error; /* its members of our totals */
    const char *name, *filter; /* "acc", "none" */
} cpl_lm_eval_metric;

typedef struct cpl_lm_eval_task {
    const cpl_task_evaluation *of;
    const char *name;
    const char *subject;  /* NULL: there are no subjects */
    const json_t *totals; /* its members of our results, borrowed */
    int64_t n, original;  /* questions; those without --limit and --offset */
    const cpl_request_spec *form;
    int64_t max_gen_toks;       /* 0: nothing is generated */
    cpl_lm_eval_metric *metric; /* (n_metrics) that have a value */
    int64_t n_metrics;
    json_t *lines; /* an array, a line each; NULL: results are without samples */
} cpl_lm_eval_task;

typedef struct cpl_lm_eval {
    const cpl_evaluation *e;
    cpl_pool pool;
    cpl_lm_eval_task *task; /* (n_tasks) in the order of the evaluation */
    int64_t n_tasks;
} cpl_lm_eval;

/* What an evaluation does not know. */
typedef struct cpl_lm_eval_run {
    const char *model; /* as the command names it */
    json_t *settings;  /* of our own results; borrowed */
    int64_t date;      /* seconds since 1970 */
    double start, end; /* seconds of base/clock.h */
    int64_t eot;       /* the id of the end-of-text token; -1: none */
} cpl_lm_eval_run;

/* CPL_ERR_USAGE if two entries of the selection have the same name there. Before any work. */
CPL_NODISCARD cpl_status cpl_lm_eval_check(const cpl_selection *selection);

/* The tasks of an evaluation that has been run, which outlives it. CPL_ERR_INPUT: two have the same
 * name. */
CPL_NODISCARD cpl_status cpl_lm_eval_open(cpl_lm_eval *l, const cpl_evaluation *e);
void cpl_lm_eval_close(cpl_lm_eval *l); /* all zero: nothing to do */

/* The results file; NULL: no memory. */
json_t *cpl_lm_eval_json(cpl_lm_eval *l, const cpl_lm_eval_run *run);

/* ---- shared by the files ---- */

/* The name of a task, or of a group of its subjects (NULL: of all). Those of profile harness are
 * theirs; others end with the profile. In the pool. */
const char *cpl_lm_eval_name(cpl_pool *pool, const cpl_selected *what, const cpl_task_group *group);

/* {"until": ..., "max_gen_toks": ...}; NULL: no memory. */
json_t *cpl_lm_eval_generation(const cpl_lm_eval_task *task);

/* The lines of a task's samples, filter after filter; NULL: no memory. */
json_t *cpl_lm_eval_lines(const cpl_lm_eval_task *task, const json_t *samples);

/* SHA-256 of all hashes in the lines, one after the other; NULL: no memory. */
json_t *cpl_lm_eval_hash(const json_t *lines);

#endif /* CPL_EVAL_LM_EVAL_H */
