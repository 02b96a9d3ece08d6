/* task.h - a task file that is read and checked, with the requests of questions and their scores.
 *
 * Room:   eval/tasks. docs/tasks.md describes the file. task*.c check all of it when it is read, so
 *         that errors are reported before a model is loaded.
 * Errors: "FILE:LINE:COLUMN: sentence", with the nearest name if a name is unknown. */
#ifndef CPL_EVAL_TASKS_TASK_H
#define CPL_EVAL_TASKS_TASK_H

#include <jansson.h>
#include <sha256.h>

#include "base/arena.h"
#include "eval/grade/grading.h"
#include "eval/grade/score.h"

typedef struct cpl_string_list {
    const char *const *at;
    int64_t count;
} cpl_string_list;

typedef enum cpl_headline_of {
    CPL_OF_QUESTIONS, /* the mean over all questions */
    CPL_OF_GROUPS,    /* the mean over groups; "_micro" is the mean over all questions */
    CPL_OF_SUBJECTS,  /* the mean over subjects; "_micro" is the mean over all questions */
} cpl_headline_of;

typedef struct cpl_task_group {
    const char *name;
    cpl_string_list subjects; /* empty: all subjects */
    cpl_string_list metrics;  /* empty: the profile's metrics */
} cpl_task_group;

/* A profile such as "inloop", or a variant of a profile such as "harness/authors". */
typedef struct cpl_profile {
    const char *name;
    const char *split;
    /* Reported metrics, the headline first: names of scores.def, "soft", or names of answers.
     * "exact_match" alone if the answers are filters of one metric. A profile with forms has the
     * metrics and the split of its first form. */
    cpl_string_list metrics;
    cpl_headline_of headline; /* the items whose mean the plain metric is */
    cpl_string_list forms;    /* the variants that are evaluated in place of the profile, if any */
    const char *shots;        /* numbers of few-shot examples: "5", "0-5", "0,1,5" */
    cpl_task_group *groups;   /* (n_groups) the task's and the profile's own groups */
    int64_t n_groups;
} cpl_profile;

typedef struct cpl_task_parts cpl_task_parts; /* fields, splits, templates: task_parts.h */

typedef struct cpl_task {
    const char *id, *title;
    const char *source, *licence; /* NULL: not given */
    cpl_string_list sets;         /* sets of tasks of the paper: "3b", "15b" */
    double chance;                /* score by chance, in percent; NaN: not given */
    cpl_profile *profiles;        /* (n_profiles) */
    int64_t n_profiles;
    cpl_task_parts *parts;
} cpl_task;

typedef struct cpl_request_kind cpl_request_kind;

/* Reads a task file, or `length` bytes of a file that error messages call `name`. `kinds` are the
 * request kinds that the file may name, the default first. NULL ends them (cpl_request_kinds of
 * eval/run/runner.h). The caller gives the task to cpl_task_free. */
CPL_NODISCARD cpl_status cpl_task_read(cpl_task **task, const char *path,
                                       const cpl_request_kind *const *kinds);
CPL_NODISCARD cpl_status cpl_task_parse(cpl_task **task, const char *name, const void *bytes,
                                        size_t length, const cpl_request_kind *const *kinds);
void cpl_task_free(cpl_task *task); /* NULL is allowed */

/* Sets the profile of that name and variant. `variant` may be NULL. `name` NULL: the default
 * profile of `set` ("3b", "15b"), or of the task if `set` is NULL. CPL_ERR_INPUT, with the names
 * that exist. */
CPL_NODISCARD cpl_status cpl_task_profile(const cpl_profile **profile, const cpl_task *task,
                                          const char *set, const char *name, const char *variant);

/* ---- requests: docs/tasks.md, "Profiles" ---- */

/* The encoding of a context and its continuation (docs/tasks.md, "Tokens and windows"). */
typedef enum cpl_joining {
    CPL_JOIN_JOINT,    /* one text; white space at the context's end belongs to the continuation */
    CPL_JOIN_SEPARATE, /* two texts */
} cpl_joining;

/* An answer that is found in a generated text: one metric, or one filter of a metric. */
typedef struct cpl_answer {
    const char *name;
    cpl_grading grading;
    const char *invalid;     /* the report if no answer is found; NULL: JSON's null */
    bool show_normal;        /* true if the normal form is reported as the answer */
    const char *filter_name; /* name of the filter in results in lm-evaluation-harness's form */
} cpl_answer;

/* Texts belong to the task. */
typedef struct cpl_request_spec {
    const cpl_request_kind *kind;
    int64_t kind_index; /* index in the list of kinds; part of the hash of a question */
    cpl_joining joining;
    int64_t window;   /* limit of the tokens that are fed; 0: the model's window */
    bool fixed;       /* true if `window` holds even if the model's window is shorter */
    bool stop_beyond; /* true if a longer question is an error; else its last tokens are kept */
    /* multiple_choice */
    const cpl_score *const *scores; /* (n_scores) the scores that compare options */
    int64_t n_scores;
    /* generate_until */
    const char *const *until; /* (n_until) stop strings, in the order in which they cut */
    int64_t n_until;
    int64_t max_gen_toks;
    const cpl_answer *answers; /* (n_answers), at least one */
    int64_t n_answers;
    bool filters; /* true if the answers are filters of one metric, exact_match */
} cpl_request_spec;

/* ---- kinds of requests ---- */

/* The keys under which a sample holds a metric. */
typedef struct cpl_metric_key {
    const char *name;   /* the metric's name in a profile or group */
    const char *filter; /* NULL: no filter */
    const char *own;    /* the key of the grade of a further answer */
} cpl_metric_key;

struct cpl_prompt_spec;
struct cpl_prompt_builder;
struct cpl_question;
struct cpl_encoding;
struct cpl_eval_runner_work;

/* A request kind. Each of its functions is called by the room named above it. */
struct cpl_request_kind {
    const char *name;        /* NAME of `ask: NAME` in a task file */
    const char *output_type; /* lm-evaluation-harness's name, which `ask` takes too */
    const char *questions;   /* the predicate of a sentence: "all questions that are there ..." */
    const char *sample_key; /* a key of its samples alone; NULL for the kind of all other samples */
    bool has_options;       /* true if a row gives options and the right option */
    bool generates;         /* true if max_gen_toks applies */

    /* ---- eval/tasks ---- */
    /* Reads the keys of the kind from `from`, the joined settings of the prompt spec. */
    cpl_status (*read)(struct cpl_prompt_spec *spec, cpl_task *task, const char *profile,
                       const json_t *from, const json_t *place);
    /* Returns metric i of the metrics reported if a profile lists no metrics, or NULL after the
     * last. */
    const char *(*metric)(const cpl_request_spec *form, int64_t i);
    /* Return whether questions of the kind can report a metric, and whether they must report it. */
    bool (*has_metric)(const cpl_request_spec *form, const char *metric);
    bool (*reports)(const cpl_profile *profile, const char *metric);
    /* Checks that a required metric can be reported. `of` is "the profile", or names its case. */
    cpl_status (*check_metric)(const cpl_task *task, const cpl_request_spec *form,
                               const cpl_profile *profile, const char *metric, const char *of,
                               const json_t *node);

    /* ---- eval/prompts ---- */
    /* Makes the request of a row. */
    cpl_status (*build)(struct cpl_question *q, struct cpl_prompt_builder *m);
    /* Adds the request to the hash of the question. */
    void (*add_to_sum)(SHA256_CTX *sum, const struct cpl_question *q);

    /* ---- eval/run ---- */
    /* Checks, before a model is loaded, that a question fits into the window. */
    cpl_status (*check)(struct cpl_encoding *e, const struct cpl_question *q);
    int64_t (*count)(const struct cpl_question *q); /* counts the requests of a question */
    /* Sets `last` to the end of the block that begins at `first`. */
    cpl_status (*block_end)(struct cpl_eval_runner_work *w, int64_t first, int64_t *last);
    /* Runs the block that begins at `first`, passes its samples to the callbacks and sets `last`
     * to its end. */
    cpl_status (*run)(struct cpl_eval_runner_work *w, int64_t first, int64_t *last);

    /* ---- eval ---- */
    /* Returns the value of a metric in a sample, or NULL. */
    const json_t *(*value)(const json_t *sample, const cpl_metric_key *m, const char *headline);
};

/* ---- built-in tasks ---- */

/* A file of a built-in task. The files are embedded in the library, in the order of the paper. */
typedef struct cpl_task_text {
    const char *id;
    const char *bytes;
    size_t length;
} cpl_task_text;

extern const cpl_task_text cpl_task_texts[];
extern const size_t cpl_n_task_texts;

/* Returns whether a metric is a score of options or "soft". */
bool cpl_metric_is_score(const char *name);

/* Returns whether a metric is a loss of the right option. */
bool cpl_metric_is_loss(const char *name);

#endif /* CPL_EVAL_TASKS_TASK_H */
