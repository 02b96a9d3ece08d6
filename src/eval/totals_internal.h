/* totals_internal.h - what the files of totals.h share.
 *
 * Room:  eval. totals_read.c sums up the samples, subject by subject; totals.c makes means and
 *        objects of the sums. */
#ifndef CPL_EVAL_TOTALS_INTERNAL_H
#define CPL_EVAL_TOTALS_INTERNAL_H

#include "base/arena.h"
#include "eval/tasks/request_spec.h"
#include "eval/totals.h"

/* Samples that are alike: those of one subject, or all where there are none. A question that was
 * asked several times has several samples, and one mean. */
typedef struct cpl_totals_tally {
    int64_t n; /* samples */
    double sum;
    int64_t questions;
    double means, squares; /* sums over the questions: of their means, and of those squared */
} cpl_totals_tally;

typedef struct cpl_totals_subject {
    const char *name;     /* NULL: there are no subjects */
    int64_t n;            /* samples */
    cpl_totals_tally *of; /* (n_metrics) */
} cpl_totals_subject;

typedef struct cpl_totals {
    const cpl_task *task;
    const cpl_profile *profile;
    const json_t *samples;
    cpl_pool pool;
    cpl_metric_key *metric; /* (n_metrics) the profile's, then what groups have besides */
    int64_t n_metrics, n_own;
    cpl_totals_subject *subject; /* (n_subjects) by name */
    int64_t n_subjects;
    int64_t *of_sample;   /* the subject of each */
    int64_t *question_of; /* the question of each, from 0 to the number of samples */
} cpl_totals;

/* Lists metrics and subjects and adds every sample to its subject; `task`, `profile` and `samples`
 * are set. CPL_ERR_INPUT: see totals.h. */
CPL_NODISCARD cpl_status cpl_totals_read(cpl_totals *t);

#endif /* CPL_EVAL_TOTALS_INTERNAL_H */
