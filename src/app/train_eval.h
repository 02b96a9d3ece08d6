/* train_eval.h - evaluation during training: the tasks of eval.tasks, and samples.
 *
 * Room:  app. It is in this room because train must not include eval. */
#ifndef CPL_APP_TRAIN_EVAL_H
#define CPL_APP_TRAIN_EVAL_H

#include <jansson.h>

#include "eval/evaluation.h"
#include "infer/lm_batch.h"
#include "tokenizer/tokenizer.h"
#include "train/config/settings.h"

/* The texts of eval.prompts and their continuations. All zero: no prompts. */
typedef struct cpl_train_samples {
    const cpl_strings *texts; /* eval.prompts; borrowed */
    int64_t max_tokens;       /* limit of new tokens per prompt */
    cpl_ids *ids;             /* [count] ids of the prompts, then of their continuations */
    cpl_sequence *prompts;    /* [count] */
    int64_t window;           /* tokens of the longest prompt with its continuation */
} cpl_train_samples;

/* All zero: neither tasks nor prompts. Must not be moved. */
typedef struct cpl_train_eval {
    cpl_selection selection;
    cpl_tokenizer *tokenizer;
    char *data, *own; /* folders of rows; owned */
    cpl_evaluation evaluation;
    cpl_train_samples samples;
    cpl_lm_batch batch; /* memory of an evaluation */
} cpl_train_eval;

/* Reads the tasks, all their questions and the prompts, so that their errors are reported before
 * the first step. Does nothing without eval.tasks and eval.prompts. CPL_ERR_INPUT if data.tokenizer
 * is missing, for errors of selection.h and questions.h, for an empty prompt if the tokenizer has
 * no end-of-text token, and for a prompt that exceeds model.max_position_embeddings. */
CPL_NODISCARD cpl_status cpl_train_eval_open(cpl_train_eval *t, const cpl_settings *settings,
                                             const cpl_log *log);
void cpl_train_eval_close(cpl_train_eval *t);

/* Returns the most tokens of a question or sample, which the model must support, or 0. */
int64_t cpl_train_eval_window(const cpl_train_eval *t);

/* Evaluates the tasks, {TASK: {METRIC: value}}, and continues the prompts (loop.h). The first call
 * allocates the memory. The ranks of `world` divide the questions. Rank 0 gets the samples.
 * `exchange` reaches the other experts. NULL: one process, all experts. Collective. */
CPL_NODISCARD cpl_status cpl_train_eval_run(cpl_train_eval *t, cpl_model *model,
                                            cpl_exchange *exchange, cpl_group *world,
                                            json_t **figures, json_t **samples);

/* Appends the results of cpl_train_eval_run as "arc_challenge len_norm 25.08, ...". */
void cpl_train_eval_words(cpl_text *out, const cpl_train_eval *t);

#endif /* CPL_APP_TRAIN_EVAL_H */
