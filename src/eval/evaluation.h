/* evaluation.h - evaluates tasks under profiles on a model, one after the other.
 *
 * Room:   eval. Uses a model only through a runner (runner.h), so that `couplet eval` and a
 *         training run evaluate by the same code.
 * Memory: the questions of one task at a time; its answers until its totals are computed, or, if
 *         samples are kept, until the end.
 * File:   docs/formats.md, "Results of an evaluation". */
#ifndef CPL_EVAL_EVALUATION_H
#define CPL_EVAL_EVALUATION_H

#include "base/status.h"
#include "eval/journal.h"
#include "eval/prompts/questions.h"
#include "eval/prompts/selection.h"
#include "eval/run/runner.h"
#include "report/grid.h"

/* A task under a profile. */
typedef struct cpl_task_evaluation {
    const cpl_selected *what;
    bool missing;   /* it has no rows, and is left out */
    int64_t n;      /* questions */
    json_t *result; /* a result as in docs/formats.md; NULL: not evaluated yet */
} cpl_task_evaluation;

typedef struct cpl_evaluation {
    const cpl_selection *selection; /* outlives it */
    cpl_questions_options options;  /* its texts outlive it */
    cpl_task_evaluation *at;        /* (count) those of the selection, in its order */
    int64_t count;
    const cpl_tokenizer *tokenizer; /* the model's; outlives it */
    int64_t model_window;           /* the model's */
    int64_t n_questions;            /* questions of all tasks */
    int64_t window; /* tokens that the longest of them may have, with the model's window */
} cpl_evaluation;

/* Reads all questions once, so that whatever is wrong with them is said before a model is loaded;
 * window and tokenizer are the model's, the latter outlives it. Tasks without rows are logged and
 * left out; if all are, and in a training run, they are an error. Otherwise as cpl_questions_read
 * and cpl_eval_runner_check. */
CPL_NODISCARD cpl_status cpl_evaluation_open(cpl_evaluation *e, const cpl_selection *selection,
                                             const cpl_questions_options *options, int64_t window,
                                             const cpl_tokenizer *tokenizer);
void cpl_evaluation_close(cpl_evaluation *e); /* all zero: nothing to do */

/* CPL_ERR_INPUT with their names if tasks without rows are left out. */
CPL_NODISCARD cpl_status cpl_evaluation_missing(const cpl_evaluation *e);

/* Who watches; every function may be NULL. */
typedef struct cpl_evaluation_callbacks {
    void *ctx;
    void (*began)(void *ctx, const cpl_task_evaluation *one, int64_t recorded);
    void (*advanced)(void *ctx,
                     double questions); /* `questions`: done of the current task in this run */
    void (*finished)(void *ctx, const cpl_task_evaluation *one);
} cpl_evaluation_callbacks;

/* Runs everything that `journal` (NULL: none) does not have. `samples`: results hold every
 * question. Failures as cpl_eval_runner_run. With a group of the runner it is collective: rank 0
 * alone has a journal, all set the results. CPL_ERR_INPUT if ranks have other questions. */
CPL_NODISCARD cpl_status cpl_evaluation_run(cpl_evaluation *e, const cpl_eval_runner *runner,
                                            cpl_eval_journal *journal, bool samples,
                                            const cpl_evaluation_callbacks *callbacks);

/* Runs the questions of one task that `journal` has no answer to, and sets the result. */
CPL_NODISCARD cpl_status cpl_evaluation_run_task(cpl_task_evaluation *one, const cpl_questions *q,
                                                 const cpl_eval_runner *runner,
                                                 cpl_eval_journal *journal, bool samples,
                                                 const cpl_evaluation_callbacks *callbacks);

/* Adds to a failure which task it is about. */
CPL_NODISCARD cpl_status cpl_evaluation_about(cpl_status status, const cpl_selected *what);

/* {"program": ..., "settings": settings, "eot_token_id": eos, "results": {KEY: ...}, ...},
 * docs/formats.md; borrows `settings`; eos -1: none; NULL if there is no memory. */
json_t *cpl_evaluation_json(const cpl_evaluation *e, json_t *settings, int64_t eos);

/* ---- reading results ---- */

/* Whether a metric is a loss by itself or one of its aggregates: "bpb_macro". */
bool cpl_evaluation_is_loss(const char *metric);

/* The headline's name, value and standard error (NaN: none) of a result. */
const char *cpl_evaluation_headline(const json_t *result, double *value, double *error);

/* The mean headline of a set of the paper, "3b" or "15b"; NaN if not all its tasks were
 * evaluated under the profile that they have there. */
double cpl_evaluation_average(const cpl_evaluation *e, const char *set);

/* "54.21" percent of a share, "2.685" of a loss, "-" of what is not a number, from the pool. */
const char *cpl_evaluation_value(cpl_pool *pool, const char *metric, double value);

/* Sets `grid`, whose texts are taken from the pool: a row for every metric of every task, the
 * headline first, then the paper's averages; without rows if there is nothing. */
CPL_NODISCARD cpl_status cpl_evaluation_table(cpl_grid *grid, cpl_pool *pool,
                                              const cpl_evaluation *e);

/* Appends the table, and what was left out or cut, as text for a terminal. */
CPL_NODISCARD cpl_status cpl_evaluation_text(cpl_text *out, const cpl_evaluation *e);

/* Appends a sentence if not all rows were asked, and one for every result of which questions were
 * cut or rows left out. */
void cpl_evaluation_remarks(cpl_text *out, const cpl_evaluation *e);

/* Appends a sentence: which headlines are above chance. */
void cpl_evaluation_conclusion(cpl_text *out, const cpl_evaluation *e);

/* Appends the page; `model` is the name of what was evaluated, `data` its JSON, `made` of
 * app/provenance.h or NULL. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e,
                                             const char *model, const json_t *data, json_t *made);

/* The folder of the rows that are shipped with the program, from cpl_alloc: share/couplet/eval next
 * to its bin, or the project's data/eval; "data/eval" if neither exists. NULL: no memory. */
char *cpl_eval_data_dir(void);

/* CPL_ERR_INPUT if that folder is not there; `word` is the flag or setting that names another. */
CPL_NODISCARD cpl_status cpl_eval_data_dir_check(const char *data, const char *word);

#endif /* CPL_EVAL_EVALUATION_H */
