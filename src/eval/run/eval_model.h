/* eval_model.h - a model with its tokenizer, ready for requests.
 *
 * Room:   eval/run.
 * Use:    opens everything that store/hf.h opens: OLMoE directories, checkpoints, runs, variants.
 * Memory: a cpl_eval_model points to itself, and must not be moved. */
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

/* Reads configuration and tokenizer (`tokenizer` NULL: the model's own tokenizer.json), without the
 * weights. CPL_ERR_INPUT for a missing tokenizer, a tokenizer with ids beyond the model's
 * vocabulary, and a tokenizer that lacks the model's end-of-text or beginning-of-text id. */
CPL_NODISCARD cpl_status cpl_eval_model_open(cpl_eval_model *e, const char *model_dir,
                                             const char *tokenizer, const cpl_log *log);
void cpl_eval_model_close(cpl_eval_model *e); /* all zero is allowed */

/* Returns the length of the model's context, in tokens. */
int64_t cpl_eval_model_window(const cpl_eval_model *e);

/* Loads the weights on a device (cpl_backend_open), with a cache for questions of up to `window`
 * tokens, which may be more than the model's context. CPL_ERR_MEMORY also if the weights and the
 * cache are predicted not to fit. */
CPL_NODISCARD cpl_status cpl_eval_model_load(cpl_eval_model *e, const char *device,
                                             cpl_dtype compute, int n_threads, int64_t window);

/* Adds the model's identity to `settings`. "weights" and "config" (see cpl_hf_identify) and
 * "tokenizer" identify by content. "model", its folder, and the tokenizer's path identify by place.
 * CPL_ERR_MEMORY, CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_eval_model_describe(const cpl_eval_model *e, json_t *settings);

#endif /* CPL_EVAL_RUN_EVAL_MODEL_H */
