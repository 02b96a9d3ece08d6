/* runner.h - runs the requests of questions on a model, and makes a sample of each answered
 * question: its object in a results file.
 *
 * Room:   eval/run. Joins questions, a tokenizer and a batch of the model (lm_batch.h).
 * Memory: the tokens of one block of questions. The end of a block depends only on its questions.
 * Ranks:  each round gives one block to each rank. After a round every rank takes the answers of
 *         all ranks. The results have the same bits as in one process.
 * Source: docs/formats.md, "Results of an evaluation", lists the keys of a sample. */
#ifndef CPL_EVAL_RUN_RUNNER_H
#define CPL_EVAL_RUN_RUNNER_H

#include <jansson.h>

#include "eval/prompts/questions.h"
#include "infer/lm_batch.h"
#include "parallel/gather.h"
#include "tokenizer/tokenizer.h"

typedef struct cpl_eval_runner {
    cpl_lm_batch *batch;
    const cpl_tokenizer *tokenizer;
    int64_t window; /* window of the model */
    int64_t eos;    /* id that stands for an empty context and ends a generation; -1: no id */
    bool texts;     /* true if samples also hold contexts, continuations and prompts */
    cpl_stop_ids extra_stop_ids; /* other ids that end a generation */
    cpl_group *group;            /* ranks that share the questions; NULL: one process */
} cpl_eval_runner;

typedef struct cpl_eval_runner_callbacks {
    /* Takes the sample of one question, and owns it. A failure ends the run. */
    cpl_status (*take)(void *ctx, int64_t index, json_t *sample);
    /* Reports progress after every finished option or text. May be NULL. */
    void (*progress)(void *ctx, int64_t done, int64_t of);
    void *ctx;
} cpl_eval_runner_callbacks;

/* Runs `n` questions of any kind, and calls `take` for each question. Ranked questions are taken in
 * their order, after each block. A generated text is taken as soon as it is finished. With a group
 * the call is collective: all ranks give the same questions, and each rank takes all questions of a
 * round at its end. The batch must have been made for cpl_eval_runner_window tokens. CPL_ERR_INPUT,
 * with the name of the question, for a continuation longer than the window, a question longer than
 * the window if its form forbids that, and a generation that leaves no room for the prompt. */
CPL_NODISCARD cpl_status cpl_eval_runner_run(const cpl_eval_runner *a,
                                             const cpl_question *questions, int64_t n,
                                             const cpl_eval_runner_callbacks *callbacks);

/* Takes over `answers`, an array of [index, sample] of this rank, and calls `take` on every rank
 * for the answers of all ranks. Collective. `status` is this rank's status so far
 * (parallel/gather.h). CPL_ERR_MEMORY, failures of `take`. */
CPL_NODISCARD cpl_status cpl_eval_runner_share(cpl_group *group, cpl_status status, json_t *answers,
                                               const cpl_eval_runner_callbacks *callbacks);

/* Clears `answered[i]` of every question whose block has an unanswered question. Only the same
 * blocks give the same bits, so an interrupted evaluation resumes with whole blocks. Failures as
 * cpl_eval_runner_run. */
CPL_NODISCARD cpl_status cpl_eval_runner_keep_blocks(const cpl_eval_runner *a,
                                                     const cpl_question *questions, int64_t n,
                                                     bool *answered);

/* Returns the longest window that the forms of the questions need, at least `window`. */
int64_t cpl_eval_runner_window(const cpl_question *questions, int64_t n, int64_t window);

/* Sentences that are appended to failures of questions that cannot be asked. Each may be NULL. */
typedef struct cpl_eval_runner_advice {
    const char *room;   /* for generated tokens that leave no room for the prompt */
    const char *beyond; /* for a question that is too long, and that its form forbids to cut */
    const char *row;    /* for a bad row: an option without a token, or longer than the window */
    bool *bad;          /* (n) set to true for questions of bad rows; NULL: bad rows are failures */
    const cpl_log *log; /* receives the names of bad rows */
} cpl_eval_runner_advice;

/* Checks questions before a model is loaded. `window` is the model's window. `advice` may be NULL.
 * CPL_ERR_INPUT as cpl_eval_runner_run, except for failures that only a run can have. */
CPL_NODISCARD cpl_status cpl_eval_runner_check(const cpl_question *questions, int64_t n,
                                               int64_t window, const cpl_tokenizer *tokenizer,
                                               const cpl_eval_runner_advice *advice);

/* ---- the list of request kinds ---- */

/* A kind is a row here and a structure cpl_request_kind_<name> in a file of this room. The order is
 * the order of the results, and part of the hash of a question: add a new kind at the end. */
#define CPL_REQUEST_KINDS(ROW)                                                                     \
    ROW(multiple_choice)                                                                           \
    ROW(generate_until)

#define CPL_DECLARE(name) extern const cpl_request_kind cpl_request_kind_##name;
CPL_REQUEST_KINDS(CPL_DECLARE)
#undef CPL_DECLARE

extern const cpl_request_kind *const cpl_request_kinds[]; /* NULL ends them */

#endif /* CPL_EVAL_RUN_RUNNER_H */
