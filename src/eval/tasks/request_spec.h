/* request_spec.h - the request of a question, and how its answer is scored: what a profile of a task says,
 * for some of its subjects.
 *
 * Room:   eval/tasks. Read by task.h from a task file (docs/tasks.md); knows no rows and no model.
 * Source: docs/tasks.md, "Profiles". */
#ifndef CPL_EVAL_TASKS_REQUEST_SPEC_H
#define CPL_EVAL_TASKS_REQUEST_SPEC_H

#include <jansson.h>
#include <sha256.h>

#include "base/arena.h"
#include "eval/grade/grading.h"

typedef struct cpl_request_kind cpl_request_kind;

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
    const cpl_request_kind *kind;
    cpl_joining joining;
    int64_t window; /* tokens that are fed at most, and no more than the model's window; 0: that */
    bool fixed;     /* `window` holds where the model's is shorter too */
    bool stop_beyond; /* a longer question is an error; otherwise its last tokens are kept */
    /* multiple_choice */
    const struct cpl_score *const *scores; /* (n_scores) by which options are compared: score.h */
    int64_t n_scores;
    /* generate_until */
    const char *const *until; /* (n_until) stop strings, in the order in which they cut */
    int64_t n_until;
    int64_t max_gen_toks;
    const cpl_answer *answers; /* (n_answers), at least one */
    int64_t n_answers;
    bool filters; /* the answers are filters of one metric, exact_match */
} cpl_request_spec;

/* ---- kinds of requests ---- */

/* A metric as it is found in a sample. */
typedef struct cpl_metric_key {
    const char *name;   /* as profile or group has it */
    const char *filter; /* NULL: none */
    const char *own;    /* the key of its grade where it is a further answer */
} cpl_metric_key;

struct cpl_task;
struct cpl_profile;
struct cpl_prompt_spec;
struct cpl_prompt_builder;
struct cpl_question;
struct cpl_length_check;
struct cpl_eval_runner_work;

/* All that the engine knows of a kind. Its functions are called by the room named above them. */
struct cpl_request_kind {
    const char *name;        /* `ask: NAME` of a task file */
    const char *output_type; /* lm-evaluation-harness's word, which `ask` takes too */
    const char *questions;   /* of a sentence: "all questions that are there ..." */
    const char *sample_key;  /* a key that its samples alone have; NULL: the kind of all others */
    bool has_options;        /* a row gives options, and which is right */
    bool generates;          /* max_gen_toks applies */

    /* ---- eval/tasks ---- */
    /* Reads its keys. `from` is all that holds for the prompt spec. */
    cpl_status (*read)(struct cpl_prompt_spec *spec, struct cpl_task *task, const char *profile,
                       const json_t *from, const json_t *place);
    /* The metrics reported where a profile lists none; NULL behind the last. */
    const char *(*metric)(const cpl_request_spec *form, int64_t i);
    /* Whether its questions can report a metric, and whether they have to. */
    bool (*has_metric)(const cpl_request_spec *form, const char *metric);
    bool (*reports)(const struct cpl_profile *profile, const char *metric);
    /* Checks that a metric that has to be reported can be; `who` is "the profile", or its case. */
    cpl_status (*check_metric)(const struct cpl_task *task, const cpl_request_spec *form,
                               const struct cpl_profile *profile, const char *metric,
                               const char *who, const json_t *node);

    /* ---- eval/prompts ---- */
    /* Makes the request of a row; `before` stands before its context. */
    cpl_status (*build)(struct cpl_question *q, cpl_pool *pool, struct cpl_prompt_builder *m,
                        const char *before, bool described);
    /* Adds it to the hash of the question. */
    void (*add_to_sum)(SHA256_CTX *sum, const struct cpl_question *q);

    /* ---- eval/run ---- */
    /* Checks that it fits into a window, before a model is loaded. */
    cpl_status (*check)(struct cpl_length_check *c, const struct cpl_question *q, int64_t window);
    int64_t (*count)(const struct cpl_question *q); /* for progress */
    /* Sets `last` to the end of the block that begins at `first`. */
    cpl_status (*block_end)(struct cpl_eval_runner_work *w, int64_t first, int64_t *last);
    /* The same, runs it and hands out its samples. */
    cpl_status (*run)(struct cpl_eval_runner_work *w, int64_t first, int64_t *last);

    /* ---- eval ---- */
    /* The value of a metric in a sample; NULL: it has none. */
    const json_t *(*value)(const json_t *sample, const cpl_metric_key *m, const char *headline);
};

extern const cpl_request_kind *const cpl_request_kinds[];
extern const size_t cpl_n_request_kinds;

#define CPL_REQUEST_KIND(name) extern const cpl_request_kind cpl_request_##name;
#include "eval/tasks/request_kinds.def"
#undef CPL_REQUEST_KIND

#endif /* CPL_EVAL_TASKS_REQUEST_SPEC_H */
