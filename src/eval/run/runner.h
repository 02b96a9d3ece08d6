/* runner.h - the requests of questions, run by a model; every answered question becomes the object
 * that a results file holds of it.
 *
 * Room:   eval/run. Joins questions, a tokenizer and a batch of the model (lm_batch.h).
 * Memory: questions are taken in blocks, so only the tokens of one block are held. The end of a
 *         block depends only on the questions in it.
 * Ranks:  blocks are dealt out in rounds, one for each rank; after a round every rank takes the
 *         answers of all. So every block is computed as by one process, to the same bits.
 * Form:   the keys of a question are those of docs/formats.md, "Results of an evaluation". */
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
    int64_t window; /* the model's */
    int64_t eos;    /* fed for an empty context, and ends a generation; -1: none */
    bool texts;     /* `samples` hold contexts, continuations and prompts themselves too */
    cpl_stop_ids extra_stop_ids; /* other ids that end a generation */
    cpl_group *group;            /* ranks that share the questions; NULL: one process */
} cpl_eval_runner;

/* Takes one answered question; `sample` is its own from then on. A failure ends the run. */
typedef struct cpl_eval_runner_callbacks {
    cpl_status (*take)(void *ctx, int64_t index, json_t *sample);
    /* Progress: every finished option or text. May be NULL. */
    void (*progress)(void *ctx, int64_t done, int64_t of);
    void *ctx;
} cpl_eval_runner_callbacks;

/* Runs `n` questions of any kind, and calls `take` for each: those with options block by block in
 * their order, a generated one as soon as it is finished. With a group it is collective: all ranks
 * give the same questions, and `take` is called for all of them on each, after their round. The
 * batch has been made for cpl_eval_runner_window tokens. CPL_ERR_INPUT, and the sentence names the
 * question: a continuation longer than the window; a question longer than the window if its form
 * forbids that; a generation that leaves no room for the prompt. */
CPL_NODISCARD cpl_status cpl_eval_runner_run(const cpl_eval_runner *a,
                                             const cpl_question *questions, int64_t n,
                                             const cpl_eval_runner_callbacks *callbacks);

/* Takes over `answers`, an array of [index, sample] of this rank, and calls `take` for those of all
 * ranks, on every rank. Collective; `status` is what this rank has come to (parallel/gather.h).
 * CPL_ERR_MEMORY, failures of `take`. */
CPL_NODISCARD cpl_status cpl_eval_runner_share(cpl_group *group, cpl_status status, json_t *answers,
                                               const cpl_eval_runner_callbacks *callbacks);

/* Clears `answered[i]` of every question in whose block one has no answer: only the same blocks
 * give the same bits, so an interrupted evaluation resumes with whole blocks. Failures
 * as cpl_eval_runner_run. */
CPL_NODISCARD cpl_status cpl_eval_runner_keep_blocks(const cpl_eval_runner *a,
                                                     const cpl_question *questions, int64_t n,
                                                     bool *answered);

/* The longest window that the forms of the questions need, at least `window`. */
int64_t cpl_eval_runner_window(const cpl_question *questions, int64_t n, int64_t window);

/* Advice on questions that cannot be asked, appended to the failure; NULL: nothing. */
typedef struct cpl_eval_runner_advice {
    const char *room;   /* if the generated tokens leave the prompt no room */
    const char *beyond; /* if a question is too long, and its form does not let it be cut */
    const char *row;    /* if its row is bad: an option has no token, or more than the window */
    bool *bad; /* (n) set of questions of bad rows, instead of a failure; NULL: they fail */
    const cpl_log *log; /* names the bad rows */
} cpl_eval_runner_advice;

/* Checks before a model is loaded; `window` is the model's, `advice` may be NULL. CPL_ERR_INPUT
 * as cpl_eval_runner_run, except what only a run finds. */
CPL_NODISCARD cpl_status cpl_eval_runner_check(const cpl_question *questions, int64_t n,
                                               int64_t window, const cpl_tokenizer *tokenizer,
                                               const cpl_eval_runner_advice *advice);

/* ---- the kinds of requests, once ---- */

/* A kind is a row here and a structure cpl_request_kind_<name> in a file of this room. The order is
 * that of the results, and part of the hash of a question: add a new kind at the end. */
#define CPL_REQUEST_KINDS(ROW)                                                                     \
    ROW(multiple_choice)                                                                           \
    ROW(generate_until)

#define CPL_DECLARE(name) extern const cpl_request_kind cpl_request_kind_##name;
CPL_REQUEST_KINDS(CPL_DECLARE)
#undef CPL_DECLARE

extern const cpl_request_kind *const cpl_request_kinds[]; /* NULL ends them */

#endif /* CPL_EVAL_RUN_RUNNER_H */
