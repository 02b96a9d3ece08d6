/* runner_internal.h - what the files of runner.h share.
 *
 * Room:  eval/run. runner.c cuts questions into blocks; runner_rank.c and
 *        runner_generate.c ask one block; runner_encode.c makes texts ids, for them and for
 *        what is checked before a model is loaded. */
#ifndef CPL_EVAL_RUN_RUNNER_INTERNAL_H
#define CPL_EVAL_RUN_RUNNER_INTERNAL_H

#include "eval/run/encode.h"
#include "eval/run/runner.h"

typedef struct cpl_eval_runner_work {
    const cpl_eval_runner *a;
    const cpl_eval_runner_callbacks *callbacks;
    const cpl_question *question; /* (n) all of them */
    int64_t n;
    cpl_encoding encoding;
    cpl_ids ids; /* of the block */
    int64_t done, of;
} cpl_eval_runner_work;

/* Asks the block of questions of one kind that begins at `first`, hands its samples out and sets `last` to where
 * the next one begins. */
CPL_NODISCARD cpl_status cpl_eval_runner_rank(cpl_eval_runner_work *w, int64_t first,
                                              int64_t *last);
CPL_NODISCARD cpl_status cpl_eval_runner_generate(cpl_eval_runner_work *w, int64_t first,
                                                  int64_t *last);

/* Sets `last` to the end of the block that begins at `first`, and asks nothing. */
CPL_NODISCARD cpl_status cpl_eval_runner_rank_end(cpl_eval_runner_work *w, int64_t first,
                                                  int64_t *last);
int64_t cpl_eval_runner_generate_end(const cpl_eval_runner_work *w, int64_t first);

/* Tells the listener that one more is done; a cpl_lm_batch_done of the work. */
CPL_NODISCARD cpl_status cpl_eval_runner_count(void *work, int64_t index);

/* The sequences that a ranked question asks for: its options, and where its scores want them the
 * same continuations behind the bare context. */
int64_t cpl_eval_runner_requests(const cpl_question *q);

/* The tokens that a question of this form may have with a model of this window. */
int64_t cpl_eval_runner_window_of(const cpl_request_spec *form, int64_t window);

/* Adds to a failure which question it is about. */
CPL_NODISCARD cpl_status cpl_eval_runner_about(cpl_status status, const cpl_question *q);

/* Appends the ids of an option, or of a prompt; `window` is the question's. CPL_ERR_INPUT as
 * encode.h has it, where tokens are cut off and the form does not allow it, and where a prompt has no
 * room beside what is generated. */
CPL_NODISCARD cpl_status cpl_eval_runner_encode_option(cpl_encoding *e, cpl_ids *ids,
                                                       cpl_encoded *out,
                                                       const cpl_request_spec *form, int64_t window,
                                                       const cpl_option *option);
CPL_NODISCARD cpl_status cpl_eval_runner_encode_prompt(cpl_encoding *e, cpl_ids *ids,
                                                       cpl_encoded *out,
                                                       const cpl_request_spec *form, int64_t window,
                                                       const char *prompt);

#endif /* CPL_EVAL_RUN_RUNNER_INTERNAL_H */
