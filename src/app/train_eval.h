/* train_eval.h - a training run's own evaluations: the tasks of eval.tasks.
 *
 * Room:  app. Gives a training run, which may not see eval, its evaluation. */
#ifndef CPL_APP_TRAIN_EVAL_H
#define CPL_APP_TRAIN_EVAL_H

#include "eval/evaluation.h"
#include "train/config/settings.h"

/* All zero: no tasks. Must not be moved. */
typedef struct cpl_train_eval {
    cpl_selection selection;
    cpl_tokenizer *tokenizer;
    char *data, *own; /* folders of rows; owned */
    cpl_evaluation evaluation;
    cpl_lm_batch batch;
    bool open; /* the batch is */
} cpl_train_eval;

/* Reads the tasks and all their questions, so that faults in them are reported before the first
 * step. Does nothing without eval.tasks. CPL_ERR_INPUT: no data.tokenizer, and the errors of
 * selection.h and questions.h. */
CPL_NODISCARD cpl_status cpl_train_eval_open(cpl_train_eval *t, const cpl_settings *settings,
                                             const cpl_log *log);
void cpl_train_eval_close(cpl_train_eval *t);

/* Tokens that questions may have: what the model must be able to read; 0: no tasks. */
int64_t cpl_train_eval_window(const cpl_train_eval *t);

/* Evaluates; {TASK: {METRIC: value}} (loop.h). The first call takes the memory. The ranks of
 * `world` share the questions, also if `exchange` holds the experts apart; NULL: one process, a
 * whole model. Collective. */
CPL_NODISCARD cpl_status cpl_train_eval_run(cpl_train_eval *t, cpl_model *model,
                                            cpl_exchange *exchange, cpl_group *world,
                                            json_t **figures);

/* Appends "arc_challenge len_norm 25.08, ..." of what cpl_train_eval_run set. */
void cpl_train_eval_words(cpl_text *out, const cpl_train_eval *t);

#endif /* CPL_APP_TRAIN_EVAL_H */
