/* questions.h - the questions of a task, made of published rows.
 *
 * Room:   eval/prompts. Uses rows.h for the files, and task.h for the form of the questions.
 * Errors: a row is bad if it does not parse, lacks a field, or has a right answer that is none of
 *         its options. A bad row is reported ("FILE: line N: ...") and is an error. If bad rows are
 *         skipped, it is counted. */
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
    const char *subject; /* NULL: the task has no subjects */
    int64_t read;        /* index of the question, in the order in which rows are read */
    int64_t row;         /* index of the first question of the same row, in that order */
    const char *path;    /* file of the row; NULL: unknown */
    int64_t line;        /* line of the row in the file */
    const cpl_request_spec *form;
    /* multiple_choice */
    cpl_option *options; /* (n_options) at least two, or one if only losses are reported */
    int64_t n_options;
    const char *unconditional; /* the bare context of acc_uncond; NULL: not needed */
    int64_t *gold;             /* (n_gold) indices of the right options, ascending, at least one */
    int64_t n_gold;
    bool several; /* true if the right options are a list, even of one option */
    /* generate_until */
    const char *prompt;
    cpl_references *references; /* (form->n_answers) */
    bool listed;                /* true if the first answer has a list, even of one reference */
} cpl_question;

/* Sets the SHA-256, in hexadecimal, of the request and of everything that grades the answer: texts,
 * right answers, references, and the form with its scores, filters and stop strings. */
void cpl_question_sum(char hex[SHA256_DIGEST_STRING_LENGTH], const cpl_question *q);

/* The functions `add_to_sum` of request kinds add options, or a prompt with its references. */
void cpl_question_sum_options(SHA256_CTX *sum, const cpl_question *q);
void cpl_question_sum_text(SHA256_CTX *sum, const cpl_question *q);

typedef struct cpl_questions_options {
    const char *data;   /* the folder of all rows: --data */
    const char *own;    /* folder of few-shot examples and prompts that `data` lacks; may be NULL */
    int64_t offset;     /* rows left out at the beginning of each subject */
    int64_t limit;      /* limit of the rows of each subject; CPL_UNSET: no limit */
    int64_t shots;      /* number of few-shot examples; CPL_UNSET: number of the profile */
    int64_t max_tokens; /* limit of generated tokens; CPL_UNSET: limit of the profile */
    bool skip_bad;
    bool of_run;        /* true if advice names settings of a training run, not flags */
    const cpl_log *log; /* receives the names of skipped rows; may be NULL */
} cpl_questions_options;

typedef struct cpl_questions {
    const cpl_task *task;
    const cpl_profile *profile;
    cpl_question *question; /* (count) by subject, then in the order of their rows */
    int64_t count;
    int64_t shots;         /* few-shot examples of a question; the last of several numbers */
    bool fewer;            /* true if --num-fewshot applies: the few-shot examples are rows */
    const char *all_shots; /* several numbers in words, "0-5"; NULL: one number */
    int64_t max_tokens;    /* limit of generated tokens over all questions; 0: no generation */
    int64_t skipped;       /* number of bad rows */
    cpl_string_list files; /* names of the files that were read */
    struct cpl_questions_store *store;
} cpl_questions;

/* Sets the questions of a profile that has no forms. The task outlives them. CPL_ERR_INPUT for
 * missing rows (the sentence lists the files and their folder), a bad row, more shots than few-shot
 * examples, or shots for a profile without few-shot examples. */
CPL_NODISCARD cpl_status cpl_questions_read(cpl_questions *q, const cpl_task *task,
                                            const cpl_profile *profile,
                                            const cpl_questions_options *options);
void cpl_questions_free(cpl_questions *q); /* all zero is allowed */

/* Removes all questions of each row that has a bad question, and counts the row as skipped. `bad`
 * has an element for each question. */
void cpl_questions_leave_out(cpl_questions *q, const bool *bad);

/* Returns whether `data` is the program's own folder, to which users do not add files. */
bool cpl_questions_of_samples(const cpl_questions_options *options);

/* Returns the word that names the folder of all rows: a flag, or a setting. */
const char *cpl_questions_data_word(const cpl_questions_options *options);

/* Returns the advice on bad rows, other than to mend them, or NULL. */
const char *cpl_questions_skip_advice(const cpl_questions_options *options);

/* Sets `there` to whether all splits that cpl_questions_read needs have rows. If not,
 * cpl_last_error names the files, and the address where they are published. */
CPL_NODISCARD cpl_status cpl_questions_there(bool *there, const cpl_task *task,
                                             const cpl_profile *profile,
                                             const cpl_questions_options *options);

/* Sets the number of rows of the profile's split in `data` (-1 without a file) and the number of
 * bad rows, for --list. CPL_ERR_MEMORY, CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_questions_count(int64_t *rows, int64_t *bad, const cpl_task *task,
                                             const cpl_profile *profile, const char *data);

typedef struct cpl_prompt_builder cpl_prompt_builder;

/* The functions `build` of request kinds set options with their contexts and the right options, or
 * a prompt with the references of its answers. */
CPL_NODISCARD cpl_status cpl_prompt_builder_options(cpl_question *q, cpl_prompt_builder *m);
CPL_NODISCARD cpl_status cpl_prompt_builder_text(cpl_question *q, cpl_prompt_builder *m);

#endif /* CPL_EVAL_PROMPTS_QUESTIONS_H */
