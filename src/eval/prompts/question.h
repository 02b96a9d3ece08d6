/* question.h - questions as a model is asked them: the contract between the tasks' rows
 * (questions.h) and the answering (runner.h).
 *
 * Room:  eval/prompts. Texts are UTF-8 and belong to the questions' owner. */
#ifndef CPL_EVAL_PROMPTS_QUESTION_H
#define CPL_EVAL_PROMPTS_QUESTION_H

#include <sha256.h>

#include "eval/tasks/request_spec.h"

typedef struct cpl_option {
    const char *context;      /* "" is allowed: the end-of-text token stands in its place */
    const char *continuation; /* what is scored, with its delimiter */
    size_t choice;            /* byte of `continuation` at which the choice begins */
} cpl_option;

typedef struct cpl_references {
    const char *const *at;
    int64_t count;
} cpl_references;

typedef struct cpl_question {
    const char *id;      /* "12", "subject/12", "subject/12#3" */
    const char *subject; /* NULL: the task has none */
    const cpl_request_spec *form;
    /* rank */
    cpl_option *options; /* (n_options), two at least; one if only losses are told */
    int64_t n_options;
    const char *unconditional; /* the bare context of acc_uncond; NULL: not wanted */
    int64_t *gold;             /* (n_gold) places among the options, ascending, at least one */
    int64_t n_gold;
    bool several; /* gold is told as a list, even of one */
    /* generate */
    const char *prompt;
    cpl_references *references; /* (form->n_answers) */
    bool listed;                /* the first answer's references are told as a list, even of one */
} cpl_question;

/* SHA-256, in hexadecimal, of all that is asked and of all by which the answer is marked: texts,
 * right answers, references, and the form with its scores, filters and stop strings. */
void cpl_question_sum(char hex[SHA256_DIGEST_STRING_LENGTH], const cpl_question *q);

#endif /* CPL_EVAL_PROMPTS_QUESTION_H */
