/* grading.h - from a generated text to a marked answer.
 *
 * Room:  eval/grade. A text, to which the stop strings have been applied (stops.h), goes through a
 *        filter (filters.h); what is found and every reference are brought into a normal form
 *        (normal.h) and held against each other (comparison.h). */
#ifndef CPL_EVAL_GRADE_GRADING_H
#define CPL_EVAL_GRADE_GRADING_H

#include "eval/grade/comparison.h"
#include "eval/grade/filters.h"
#include "eval/grade/normal.h"

/* One metric of a task. */
typedef struct cpl_grading {
    const cpl_filter *filter;
    const cpl_filter *reference; /* what takes the answer out of a reference; NULL: it is one */
    const cpl_normal *normal;
    const cpl_comparison *comparison;
} cpl_grading;

/* Memory for one text after the other; all zero is valid. */
typedef struct cpl_grading_scratch {
    cpl_text answer, reference, spare;
} cpl_grading_scratch;

void cpl_grading_scratch_free(cpl_grading_scratch *room);

typedef struct cpl_grade {
    bool found;      /* an answer; what is reported otherwise is "[invalid]" */
    cpl_span answer; /* a piece of the text */
    cpl_span normal; /* its normal form, in the room until the next mark; `answer` if it has none */
    double score;    /* the best over all references, 0 to 1; 0 without references */
    bool correct;    /* score is 1 */
} cpl_grade;

/* Sets `mark`. An answer or a reference without a normal form is compared as it is found, byte by
 * byte. Only CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_grading_grade(cpl_grade *mark, const cpl_grading *marking,
                                           cpl_span text, const cpl_span *references,
                                           int64_t n_references, cpl_grading_scratch *room);

#endif /* CPL_EVAL_GRADE_GRADING_H */
