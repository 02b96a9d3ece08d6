/* kinds.h - shared by the kinds of requests: texts as the ids that a model is fed, blocks of
 * questions, and answered questions as objects of a results file.
 *
 * Room:   eval/run. runner.c cuts questions into blocks; a kind of requests is a file that runs one
 *         block; encode.c turns texts into token ids, and checks lengths before a model is loaded.
 * Empty:  a context without a token is the end-of-text id.
 * Source: docs/tasks.md, "Tokens and windows": what lm-eval 0.4.13 (api/model.py,
 *         models/huggingface.py) does, and the in-loop code where the two texts are encoded each by
 *         itself; docs/formats.md, "Results of an evaluation". */
#ifndef CPL_EVAL_RUN_KINDS_H
#define CPL_EVAL_RUN_KINDS_H

#include "eval/run/runner.h"

/* ---- encode.c ---- */

/* The ids of one text. */
typedef struct cpl_encoded {
    int64_t first, length; /* the ids that are not cut off, among the ids of all texts */
    int64_t context;       /* tokens of the context, those that are cut off included */
    int64_t scored;        /* tokens of the continuation, the last ones; 0 of a prompt */
    int64_t cut;           /* tokens left out at the beginning */
} cpl_encoded;

/* The ids of texts, concatenated. */
typedef struct cpl_encoding {
    cpl_encoder *encoder;
    int64_t eos;    /* -1: none */
    int64_t window; /* the model's */
    cpl_ids ids;
    cpl_text joined;               /* memory to work in */
    cpl_eval_runner_advice advice; /* advice on questions that do not fit */
    bool bad_row;                  /* the failure is due to the row */
} cpl_encoding;

CPL_NODISCARD cpl_status cpl_encode_open(cpl_encoding *e, const cpl_tokenizer *tokenizer,
                                         int64_t eos, int64_t window);
void cpl_encode_close(cpl_encoding *e);

/* Appends context and continuation, the last `window` + 1 tokens of them: the last token is
 * predicted and not fed. Joint: white space at the context's end (Python's) belongs to the
 * continuation, and both are encoded as one text. The context alone has c tokens; the tokens of
 * that text after its first c are scored, after the context's own c tokens. CPL_ERR_INPUT: no token
 * is left to be scored (an empty continuation, or one that the tokenizer has drawn into the
 * context's last token), more than the window holds, an empty context without an end-of-text id. */
CPL_NODISCARD cpl_status cpl_encode_pair(cpl_encoding *e, cpl_encoded *out, const char *context,
                                         const char *continuation, cpl_joining joining,
                                         int64_t window);

/* Appends the last `room` >= 1 tokens of a prompt. CPL_ERR_INPUT: as above of an empty one. */
CPL_NODISCARD cpl_status cpl_encode_prompt(cpl_encoding *e, cpl_encoded *out, const char *prompt,
                                           int64_t room);

/* The tokens that a question of this form may have with a model of this window. */
int64_t cpl_eval_runner_window_of(const cpl_request_spec *form, int64_t window);

/* Adds to a failure which question it is about. */
CPL_NODISCARD cpl_status cpl_eval_runner_about(cpl_status status, const cpl_question *q);

/* Appends the ids of an option, or of a question's prompt. CPL_ERR_INPUT: as above; tokens are cut
 * off and the form does not allow it; or the generated tokens leave no room for a prompt. */
CPL_NODISCARD cpl_status cpl_encode_option(cpl_encoding *e, cpl_encoded *out,
                                           const cpl_request_spec *form, const cpl_option *option);
CPL_NODISCARD cpl_status cpl_encode_question(cpl_encoding *e, cpl_encoded *out,
                                             const cpl_question *q);

/* The `check` of request kinds: of options, or of a prompt. */
CPL_NODISCARD cpl_status cpl_encode_check_options(cpl_encoding *e, const cpl_question *q);
CPL_NODISCARD cpl_status cpl_encode_check_prompt(cpl_encoding *e, const cpl_question *q);

/* ---- runner.c ---- */

typedef struct cpl_eval_runner_work {
    const cpl_eval_runner *a;
    const cpl_eval_runner_callbacks *callbacks;
    const cpl_question *question; /* (n) all of them */
    int64_t n;
    cpl_encoding encoding; /* the tokens of the block */
    int64_t done, of;
} cpl_eval_runner_work;

/* Reports that one more request is done; a cpl_lm_batch_done of the work. */
CPL_NODISCARD cpl_status cpl_eval_runner_count(void *work, int64_t index);

/* ---- sample.c: parts of an answered question ---- */

/* A string; a NUL or bytes that are no UTF-8, which the project's readers refuse, become U+FFFD. */
json_t *cpl_sample_words(cpl_span span);

/* SHA-256 of the texts with a NUL between them, in hexadecimal; `second` may be NULL. */
json_t *cpl_sample_digest(const char *first, const char *second);

/* The number of a row alone as a number, anything else as a string. */
json_t *cpl_sample_id(const cpl_question *q);

/* Moves `made` to `sample` unless building it failed; then frees it: CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_sample_finish(json_t **sample, json_t *made, bool failed);

/* The key of a further answer in a sample: its name, of exact_match_NAME only NAME. */
const char *cpl_sample_key(const char *answer);

/* ---- generate_until.c ---- */

typedef struct cpl_generated {
    cpl_span text; /* well-formed, cut by the stop strings */
    cpl_encoded prompt;
    int64_t tokens; /* generated, an end-of-text counted */
} cpl_generated;

/* The object of a generated text, with its answers graded. CPL_ERR_INPUT: a pattern takes too many
 * steps; the sentence names the question. */
CPL_NODISCARD cpl_status cpl_sample_generated(json_t **sample, const cpl_question *q,
                                              const cpl_generated *generated,
                                              cpl_grading_scratch *room, bool texts);

#endif /* CPL_EVAL_RUN_KINDS_H */
