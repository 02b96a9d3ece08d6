/* train_eval.h - a training run's own evaluations: the tasks of eval.tasks, and samples.
 *
 * Room:  app. Gives a training run, which may not see eval, its evaluation. */
#ifndef CPL_APP_TRAIN_EVAL_H
#define CPL_APP_TRAIN_EVAL_H

#include <jansson.h>

#include "eval/evaluation.h"
#include "infer/lm_batch.h"
#include "tokenizer/tokenizer.h"
#include "train/config/settings.h"

/* The texts of eval.prompts, continued. All zero: no prompts. */
typedef struct cpl_train_samples {
    const cpl_strings *texts; /* of the settings; borrowed */
    int64_t max_tokens;       /* after each */
    cpl_ids *ids;             /* [count] of the prompts, then of what follows */
    cpl_sequence *prompts;    /* [count] */
    int64_t window;           /* tokens of the longest, continued */
} cpl_train_samples;

/* All zero: neither tasks nor prompts. Must not be moved. */
typedef struct cpl_train_eval {
    cpl_selection selection;
    cpl_tokenizer *tokenizer;
    char *data, *own; /* folders of rows; owned */
    cpl_evaluation evaluation;
    cpl_train_samples samples;
    cpl_lm_batch batch; /* of an evaluation */
} cpl_train_eval;

/* Reads the tasks, all their questions and the prompts, so that faults in them are reported before
 * the first step. Does nothing without eval.tasks and eval.prompts. CPL_ERR_INPUT: no data.tokenizer,
 * the errors of selection.h and questions.h; a prompt is empty and the tokenizer has no end-of-text
 * token; a prompt has no room in model.max_position_embeddings. */
CPL_NODISCARD cpl_status cpl_train_eval_open(cpl_train_eval *t, const cpl_settings *settings,
                                             const cpl_log *log);
void cpl_train_eval_close(cpl_train_eval *t);

/* Tokens that questions and samples may have: what the model must be able to read; 0: there are
 * none. */
int64_t cpl_train_eval_window(const cpl_train_eval *t);

/* Evaluates the tasks, {TASK: {METRIC: value}}, and continues the prompts (loop.h). The first call
 * takes the memory. The ranks of `world` share the questions, also if `exchange` holds the experts
 * apart; rank 0 has the samples. NULL: one process, a whole model. Collective. */
CPL_NODISCARD cpl_status cpl_train_eval_run(cpl_train_eval *t, cpl_model *model,
                                            cpl_exchange *exchange, cpl_group *world,
                                            json_t **figures, json_t **samples);

/* Appends "arc_challenge len_norm 25.08, ..." of what cpl_train_eval_run set. */
void cpl_train_eval_words(cpl_text *out, const cpl_train_eval *t);

#endif /* CPL_APP_TRAIN_EVAL_H */
