/* sample.h - an answered question as the object in a results file (docs/formats.md, "Results of an
 * evaluation"): what the kinds of requests share.
 *
 * Room:   eval/run.
 * Errors: only CPL_ERR_MEMORY. */
#ifndef CPL_EVAL_RUN_SAMPLE_H
#define CPL_EVAL_RUN_SAMPLE_H

#include <jansson.h>

#include "eval/grade/score.h"
#include "eval/prompts/questions.h"
#include "eval/run/encode.h"

typedef struct cpl_generated {
    cpl_span text; /* well-formed, cut by the stop strings */
    cpl_encoded prompt;
    int64_t tokens; /* generated, an end-of-text counted */
} cpl_generated;

/* The object of a generated text, with its answers graded. CPL_ERR_INPUT: a pattern takes too many steps;
 * the sentence names the question. */
CPL_NODISCARD cpl_status cpl_sample_generated(json_t **sample, const cpl_question *q,
                                              const cpl_generated *generated,
                                              cpl_grading_scratch *room, bool texts);

/* ---- parts ---- */

/* Each takes the value and is false without memory, as where there is none (NULL). */
bool cpl_sample_put(json_t *object, const char *key, json_t *value);
bool cpl_sample_put_int(json_t *object, const char *key, int64_t value);
bool cpl_sample_push(json_t *array, json_t *value);

/* A string; a NUL or bytes that are no UTF-8, which no reader of ours takes, become U+FFFD. */
json_t *cpl_sample_words(cpl_span span);

/* SHA-256 of the texts with a NUL between them, in hexadecimal; `second` may be NULL. */
json_t *cpl_sample_digest(const char *first, const char *second);

/* The number of a row alone as a number, anything else as a string. */
json_t *cpl_sample_id(const cpl_question *q);

/* Hands `made` over if it is whole, else gives it back: CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_sample_finish(json_t **sample, json_t *made, bool whole);

/* What a further answer is called in a sample: its name, of exact_match_NAME only NAME. */
const char *cpl_sample_key(const char *answer);

#endif /* CPL_EVAL_RUN_SAMPLE_H */
