/* eval_model.h - a model with its tokenizer, ready for requests.
 *
 * Room:  eval/run. Anything that store/hf.h opens: OLMoE directories, checkpoints, runs, variants.
 * Note:  refers to itself: it must not be moved. */
#ifndef CPL_EVAL_RUN_EVAL_MODEL_H
#define CPL_EVAL_RUN_EVAL_MODEL_H

#include <jansson.h>

#include "eval/run/runner.h"
#include "store/hf.h"

typedef struct cpl_eval_model {
    cpl_hf *hf;
    cpl_tokenizer *tokenizer;
    char *tokenizer_path; /* owned */
    cpl_backend be;
    cpl_model model;
    cpl_lm_batch batch;
    cpl_eval_runner runner;
} cpl_eval_model;

/* Configuration and tokenizer (`tokenizer` NULL: the model's own tokenizer.json), no weights yet.
 * CPL_ERR_INPUT: no tokenizer, one with ids beyond the model's vocabulary, or an end-of-text
 * or beginning-of-text id of the model that it has not. */
CPL_NODISCARD cpl_status cpl_eval_model_open(cpl_eval_model *e, const char *model_dir,
                                             const char *tokenizer, const cpl_log *log);
void cpl_eval_model_close(cpl_eval_model *e); /* all zero: nothing to do */

/* The model's context. */
int64_t cpl_eval_model_window(const cpl_eval_model *e);

/* The weights, and a cache for questions of up to `window` tokens, which may be more than the
 * model's context, on this device (cpl_backend_open). CPL_ERR_MEMORY also if it is predicted not to fit. */
CPL_NODISCARD cpl_status cpl_eval_model_load(cpl_eval_model *e, const char *device,
                                             cpl_dtype compute, int n_threads, int64_t window);

/* Adds to `settings` the model's identity by content: "weights" and "config" (see cpl_hf_identify)
 * and "tokenizer"; and the places: "model", its folder, and the tokenizer's path. CPL_ERR_MEMORY,
 * CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_eval_model_describe(const cpl_eval_model *e, json_t *settings);

#endif /* CPL_EVAL_RUN_EVAL_MODEL_H */
