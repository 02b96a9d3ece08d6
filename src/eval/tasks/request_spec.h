/* request_spec.h - the request of a question, and how its answer is scored: what a profile of a task says,
 * for some of its subjects.
 *
 * Room:   eval/tasks. Read by task.h from a task file (docs/tasks.md); knows no rows and no model.
 * Source: docs/tasks.md, "Profiles". */
#ifndef CPL_EVAL_TASKS_REQUEST_SPEC_H
#define CPL_EVAL_TASKS_REQUEST_SPEC_H

#include "eval/grade/grading.h"

typedef enum cpl_ask { CPL_ASK_RANK, CPL_ASK_GENERATE } cpl_ask;

/* How context and continuation become tokens (docs/tasks.md, "Tokens and windows"). */
typedef enum cpl_joining {
    CPL_JOIN_JOINT,    /* white space at the context's end goes to the continuation; one encoding */
    CPL_JOIN_SEPARATE, /* each by itself */
} cpl_joining;

/* What is taken out of a generated text: one metric, or one filter of a metric. */
typedef struct cpl_answer {
    const char *name;
    cpl_grading grading;
    const char *invalid; /* what is reported where nothing is found; NULL: null */
    bool show_normal;    /* the normal form is reported as the answer */
} cpl_answer;

/* Texts belong to the task. */
typedef struct cpl_request_spec {
    cpl_ask ask;
    cpl_joining joining;
    int64_t window; /* tokens that are fed at most, and no more than the model's window; 0: that */
    bool fixed;     /* `window` holds where the model's is shorter too */
    bool stop_beyond; /* a longer question is an error; otherwise its last tokens are kept */
    /* rank */
    const struct cpl_score *const *scores; /* (n_scores) by which options are compared: score.h */
    int64_t n_scores;
    /* generate */
    const char *const *until; /* (n_until) stop strings, in the order in which they cut */
    int64_t n_until;
    int64_t max_gen_toks;
    const cpl_answer *answers; /* (n_answers), at least one */
    int64_t n_answers;
    bool filters; /* the answers are filters of one metric, exact_match */
} cpl_request_spec;

#endif /* CPL_EVAL_TASKS_REQUEST_SPEC_H */
