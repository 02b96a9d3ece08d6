/* train_eval.h - a training run's own evaluations: the tasks of eval.tasks, asked while it goes.
 *
 * Room:  app. Gives a training run, which may not see eval, its evaluation. */
#ifndef CPL_APP_TRAIN_EVAL_H
#define CPL_APP_TRAIN_EVAL_H

#include "eval/evaluation.h"
#include "train/settings/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All zero: no tasks. Stays where it is. */
typedef struct cpl_tasked {
    cpl_selection selection;
    cpl_tokenizer *tokenizer;
    char *data, *own; /* folders of rows; owned */
    cpl_evaluation evaluation;
    cpl_asker asker;
    bool open; /* the asker is */
} cpl_tasked;

/* Reads the tasks and all their questions, so that what is wrong with them is said before the first
 * step; nothing where there are no eval.tasks. CPL_ERR_INPUT: no data.tokenizer, and what
 * selection.h and questions.h say. */
CPL_NODISCARD cpl_status cpl_tasked_open(cpl_tasked *t, const cpl_settings *settings,
                                         const cpl_log *log);
void cpl_tasked_close(cpl_tasked *t);

/* Tokens that questions may have: what the model must be able to read; 0: no tasks. */
int64_t cpl_tasked_window(const cpl_tasked *t);

/* Evaluates; {TASK: {METRIC: value}} (loop.h). The first call takes the memory. */
CPL_NODISCARD cpl_status cpl_tasked_examine(cpl_tasked *t, cpl_model *model, json_t **figures);

/* Appends "arc_challenge len_norm 25.08, ..." of what cpl_tasked_examine set. */
void cpl_tasked_words(cpl_text *out, const cpl_tasked *t);

#ifdef __cplusplus
}
#endif
#endif /* CPL_APP_TRAIN_EVAL_H */
