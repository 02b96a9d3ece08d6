/* runner_internal.h - what the files of runner.h share.
 *
 * Room:  eval/run. runner.c cuts questions into blocks; a kind of requests (request_spec.h) is a file
 *        that runs one block; encode.c turns texts into token ids, and checks lengths before a model
 *        is loaded. */
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

/* Reports that one more request is done; a cpl_lm_batch_done of the work. */
CPL_NODISCARD cpl_status cpl_eval_runner_count(void *work, int64_t index);

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

/* What lengths are checked with, before a model is loaded. */
typedef struct cpl_length_check {
    cpl_encoding encoding;
    cpl_ids ids;
    cpl_eval_runner_advice advice;
} cpl_length_check;

/* The `check` of request kinds: of options, or of a prompt. */
CPL_NODISCARD cpl_status cpl_length_check_options(cpl_length_check *c, const cpl_question *q,
                                                  int64_t window);
CPL_NODISCARD cpl_status cpl_length_check_prompt(cpl_length_check *c, const cpl_question *q,
                                                 int64_t window);

#endif /* CPL_EVAL_RUN_RUNNER_INTERNAL_H */
