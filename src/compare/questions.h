/* questions.h - two runs question by question: how often one is right where the other is
 * not, and McNemar's exact test, in which a question asked several times counts once.
 *
 * Room:  compare.
 * File:  RUN/questions.json, plain or compressed: {"results": {TASK: {"metrics": {...}, "samples":
 *        [{"id": ..., "correct": 0 or 1, or an object of them by metric}]}}}. Of several metrics the
 *        first in the order of "metrics" counts. */
#ifndef CPL_COMPARE_QUESTIONS_H
#define CPL_COMPARE_QUESTIONS_H

#include "base/arena.h"
#include "compare/run_record.h"

/* A task of a pair of runs. */
typedef struct cpl_question_table {
    int64_t pair; /* place among the pairs */
    const char *task;
    const char *metric; /* "" where `correct` is a plain number */
    int64_t both, only_base, only_other, neither;
    int64_t left_out; /* questions that one side alone has */
    double p;         /* two-sided, exact; over questions, whatever the number of samples of each */
} cpl_question_table;

typedef struct cpl_question_counts {
    cpl_question_table *tables; /* (n) */
    int64_t n, capacity;
    const char *reason; /* why a file could not be used; NULL: none */
    cpl_pool pool;
} cpl_question_counts;

/* As cpl_document_difference_of. */
CPL_NODISCARD cpl_status cpl_question_counts_of(cpl_question_counts *out,
                                                const cpl_run_record *const *base,
                                                const cpl_run_record *const *other, int64_t n);
void cpl_question_counts_free(cpl_question_counts *counts);

#endif /* CPL_COMPARE_QUESTIONS_H */
