/* kinds.h - shared by the kinds of requests: texts as token ids, blocks of questions, and answered
 * questions as objects of a results file.
 *
 * Room:   eval/run. runner.c cuts questions into blocks. A kind of requests is a file that runs one
 *         block. encode.c turns texts into token ids, and checks lengths before a model is loaded.
 *         The end-of-text id stands for a context without a token.
 * Source: docs/tasks.md, "Tokens and windows": the rules of lm-eval 0.4.13 (api/model.py,
 *         models/huggingface.py), and the rules of the in-loop code for two texts that are encoded
 *         separately. docs/formats.md, "Results of an evaluation". */
#ifndef CPL_EVAL_RUN_KINDS_H
#define CPL_EVAL_RUN_KINDS_H

#include "eval/run/runner.h"

/* ---- encode.c ---- */

/* The ids of one text. */
typedef struct cpl_encoded {
    int64_t first, length; /* range of the ids that are kept, among the ids of all texts */
    int64_t context;       /* number of tokens of the context, with tokens that are cut off */
    int64_t scored;        /* number of tokens of the continuation, at the end; 0 for a prompt */
    int64_t cut;           /* number of tokens left out at the beginning */
} cpl_encoded;

/* The ids of texts, concatenated. */
typedef struct cpl_encoding {
    cpl_encoder *encoder;
    int64_t eos;    /* id of the end of text; -1: no such id */
    int64_t window; /* window of the model */
    cpl_ids ids;
    cpl_text joined;               /* memory to work in */
    cpl_eval_runner_advice advice; /* advice on questions that do not fit */
    bool bad_row;                  /* true if the row causes the failure */
} cpl_encoding;

CPL_NODISCARD cpl_status cpl_encode_open(cpl_encoding *e, const cpl_tokenizer *tokenizer,
                                         int64_t eos, int64_t window);
void cpl_encode_close(cpl_encoding *e);

/* Appends the last `window` + 1 tokens of context and continuation. The last token is predicted and
 * not fed. CPL_JOIN_JOINT: white space at the context's end (Python's) belongs to the continuation,
 * and both are encoded as one text. If the context alone has c tokens, the tokens of that text
 * after its first c are scored, after the context's own c tokens. CPL_ERR_INPUT if no token is left
 * to be scored (for an empty continuation, or if the tokenizer joins it to the context's last
 * token), if the window cannot hold the continuation, and for an empty context without an
 * end-of-text id. */
CPL_NODISCARD cpl_status cpl_encode_pair(cpl_encoding *e, cpl_encoded *out, const char *context,
                                         const char *continuation, cpl_joining joining,
                                         int64_t window);

/* Appends the last `room` >= 1 tokens of a prompt. CPL_ERR_INPUT for an empty prompt without an
 * end-of-text id. */
CPL_NODISCARD cpl_status cpl_encode_prompt(cpl_encoding *e, cpl_encoded *out, const char *prompt,
                                           int64_t room);

/* Returns the limit of the tokens of a question of this form, with a model of this window. */
int64_t cpl_eval_runner_window_of(const cpl_request_spec *form, int64_t window);

/* Adds the name of the question to a failure. */
CPL_NODISCARD cpl_status cpl_eval_runner_about(cpl_status status, const cpl_question *q);

/* Append the ids of an option, or of a question's prompt. CPL_ERR_INPUT as cpl_encode_pair, if
 * tokens are cut off and the form forbids that, and if the generated tokens leave no room for a
 * prompt. */
CPL_NODISCARD cpl_status cpl_encode_option(cpl_encoding *e, cpl_encoded *out,
                                           const cpl_request_spec *form, const cpl_option *option);
CPL_NODISCARD cpl_status cpl_encode_question(cpl_encoding *e, cpl_encoded *out,
                                             const cpl_question *q);

/* The functions `check` of request kinds check options, or a prompt. */
CPL_NODISCARD cpl_status cpl_encode_check_options(cpl_encoding *e, const cpl_question *q);
CPL_NODISCARD cpl_status cpl_encode_check_prompt(cpl_encoding *e, const cpl_question *q);

/* ---- runner.c ---- */

typedef struct cpl_eval_runner_work {
    const cpl_eval_runner *a;
    const cpl_eval_runner_callbacks *callbacks;
    const cpl_question *question; /* (n) all questions of the run */
    int64_t n;
    cpl_encoding encoding; /* the tokens of the block */
    int64_t done, of;
} cpl_eval_runner_work;

/* Reports that one more request is done. It is a cpl_lm_batch_done, with the work as its
 * context. */
CPL_NODISCARD cpl_status cpl_eval_runner_count(void *work, int64_t index);

/* ---- sample.c: parts of an answered question ---- */

/* Returns a JSON string. A NUL and bytes that are not UTF-8, which the project's readers refuse,
 * become U+FFFD. */
json_t *cpl_sample_words(cpl_span span);

/* Returns the SHA-256 of the texts with a NUL between them, in hexadecimal. `second` may be
 * NULL. */
json_t *cpl_sample_digest(const char *first, const char *second);

/* Returns the id of a question: a number if it is the number of a row alone, else a string. */
json_t *cpl_sample_id(const cpl_question *q);

/* Moves `made` to `sample`, or, if building it failed, frees `made` and returns CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_sample_finish(json_t **sample, json_t *made, bool failed);

/* Returns the key of a further answer in a sample: its name, or NAME for exact_match_NAME. */
const char *cpl_sample_key(const char *answer);

/* ---- generate_until.c ---- */

typedef struct cpl_generated {
    cpl_span text; /* well-formed, cut at the stop strings */
    cpl_encoded prompt;
    int64_t tokens; /* number of generated tokens, with an end-of-text */
} cpl_generated;

/* Sets the sample of a generated text, with its answers graded. `texts`: the sample also holds the
 * prompt. CPL_ERR_INPUT, with the name of the question: a pattern takes too many steps. */
CPL_NODISCARD cpl_status cpl_sample_generated(json_t **sample, const cpl_question *q,
                                              const cpl_generated *generated,
                                              cpl_grading_scratch *room, bool texts);

#endif /* CPL_EVAL_RUN_KINDS_H */
