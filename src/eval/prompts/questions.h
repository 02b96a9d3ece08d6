/* questions.h - the questions of a task, made of published rows.
 *
 * Room:   eval/prompts. Uses io/rows for the files, and task.h for the making of questions.
 * Bad:    a row that does not parse, lacks a field, or whose right answer is none of its options is
 *         reported ("FILE: line N: ..."); it is an error, or, if bad rows are skipped, counted. */
#ifndef CPL_EVAL_PROMPTS_QUESTIONS_H
#define CPL_EVAL_PROMPTS_QUESTIONS_H

#include <sha256.h>

#include "base/log.h"
#include "base/text.h"
#include "eval/tasks/task.h"

typedef struct cpl_option {
    const char *context;      /* "" is allowed: the end-of-text token is fed in its place */
    const char *continuation; /* the scored text, with its delimiter */
    size_t choice;            /* byte of `continuation` at which the choice begins */
} cpl_option;

typedef struct cpl_references {
    const char *const *at;
    int64_t count;
} cpl_references;

typedef struct cpl_question {
    const char *id;      /* "12", "subject/12", "subject/12#3" */
    const char *subject; /* NULL: the task has none */
    int64_t read;        /* its place among the questions as their rows are read */
    int64_t row;         /* the place of the first question of its row, in the same order */
    const char *path;    /* file of its row; NULL: not known */
    int64_t line;        /* line of the row in the file */
    const cpl_request_spec *form;
    /* multiple_choice */
    cpl_option *options; /* (n_options), two at least; one if only losses are reported */
    int64_t n_options;
    const char *unconditional; /* the bare context of acc_uncond; NULL: not needed */
    int64_t *gold;             /* (n_gold) places among the options, ascending, at least one */
    int64_t n_gold;
    bool several; /* gold is written as a list, even of one */
    /* generate_until */
    const char *prompt;
    cpl_references *references; /* (form->n_answers) */
    bool listed; /* the first answer's references are written as a list, even of one */
} cpl_question;

/* SHA-256, in hexadecimal, of the request and of everything by which the answer is graded: texts,
 * right answers, references, and the form with its scores, filters and stop strings. */
void cpl_question_sum(char hex[SHA256_DIGEST_STRING_LENGTH], const cpl_question *q);

/* The `add_to_sum` of request kinds: of options, or of a prompt with references. */
void cpl_question_sum_options(SHA256_CTX *sum, const cpl_question *q);
void cpl_question_sum_text(SHA256_CTX *sum, const cpl_question *q);

typedef struct cpl_questions_options {
    const char *data; /* the folder of all rows: --data */
    const char *own; /* folder of the few-shot examples and prompts that `data` lacks; NULL: none */
    int64_t offset;  /* rows left out at the beginning, of each subject */
    int64_t limit;   /* rows at most, of each subject; CPL_UNSET: all */
    int64_t shots;   /* few-shot examples in place of the profile's; CPL_UNSET */
    int64_t max_tokens; /* generated in place of the profile's; CPL_UNSET */
    bool skip_bad;
    bool of_run;        /* advice names settings of a training run, not flags of couplet eval */
    const cpl_log *log; /* names bad rows that are skipped */
} cpl_questions_options;

typedef struct cpl_questions {
    const cpl_task *task;
    const cpl_profile *profile;
    cpl_question *question; /* (count) subject after subject, each in the order of its rows */
    int64_t count;
    int64_t
        shots; /* few-shot examples: of the profile or --num-fewshot; the last of several numbers */
    bool fewer;            /* --num-fewshot applies: the few-shot examples are rows */
    const char *all_shots; /* several numbers in words, "0-5"; NULL: it is one */
    int64_t max_tokens;    /* most tokens generated for a question; 0: none */
    int64_t skipped;       /* bad rows */
    cpl_string_list files; /* names of the files that were read */
    struct cpl_questions_store *store;
} cpl_questions;

/* Sets the questions of a profile (which has no forms of its own). The task outlives them.
 * CPL_ERR_INPUT: no data (the sentence lists the files and where to put them); a bad row; more
 * shots than there are few-shot examples, or shots for a profile without few-shot examples. */
CPL_NODISCARD cpl_status cpl_questions_read(cpl_questions *q, const cpl_task *task,
                                            const cpl_profile *profile,
                                            const cpl_questions_options *options);
void cpl_questions_free(cpl_questions *q); /* all zero: nothing to do */

/* Takes out all questions of a row that has a bad one, and counts the row as skipped. `bad` has a
 * member for each question. */
void cpl_questions_leave_out(cpl_questions *q, const bool *bad);

/* Whether `data` is the program's own folder. Users should not have to add files to it. */
bool cpl_questions_of_samples(const cpl_questions_options *options);

/* The word that names the folder of all rows: a flag, or a setting. */
const char *cpl_questions_data_word(const cpl_questions_options *options);

/* Returns the advice on bad rows, besides mending them, or NULL. */
const char *cpl_questions_skip_advice(const cpl_questions_options *options);

/* Sets whether all splits that cpl_questions_read needs have rows. If not, cpl_last_error names the
 * files, and where they are published. */
CPL_NODISCARD cpl_status cpl_questions_there(bool *there, const cpl_task *task,
                                             const cpl_profile *profile,
                                             const cpl_questions_options *options);

/* Sets how many rows of the profile's split are in the files of `data`, -1 if there is no file, and
 * how many of them are bad; for --list. Only CPL_ERR_MEMORY and CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_questions_count(int64_t *rows, int64_t *bad, const cpl_task *task,
                                             const cpl_profile *profile, const char *data);

/* The `build` of request kinds: options with their contexts and the right ones; or a prompt with
 * the references of its answers. */
typedef struct cpl_prompt_builder cpl_prompt_builder;
CPL_NODISCARD cpl_status cpl_prompt_builder_options(cpl_question *q, cpl_prompt_builder *m);
CPL_NODISCARD cpl_status cpl_prompt_builder_text(cpl_question *q, cpl_prompt_builder *m);

#endif /* CPL_EVAL_PROMPTS_QUESTIONS_H */
