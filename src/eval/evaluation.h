/* evaluation.h - evaluates tasks under profiles on a model, one after the other.
 *
 * Room:   eval. Uses a model only through a runner (runner.h), so that `couplet eval` and a
 *         training run evaluate by the same code.
 * Memory: the questions of one task at a time. Its answers are kept until its totals are computed,
 *         or, if samples are kept, until the end.
 * Source: docs/formats.md, "Results of an evaluation". */
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
    bool missing;   /* true if the task has no rows, and is left out */
    int64_t n;      /* number of questions */
    json_t *result; /* a result as in docs/formats.md; NULL: not evaluated yet */
} cpl_task_evaluation;

typedef struct cpl_evaluation {
    const cpl_selection *selection; /* outlives the evaluation */
    cpl_questions_options options;  /* its texts outlive the evaluation */
    cpl_task_evaluation *at;        /* (count) in the order of the entries of the selection */
    int64_t count;
    const cpl_tokenizer *tokenizer; /* tokenizer of the model; outlives the evaluation */
    int64_t model_window;           /* window of the model, in tokens */
    int64_t n_questions;            /* number of questions of all tasks */
    int64_t window;                 /* the longest window that a question needs, in tokens */
} cpl_evaluation;

/* Reads all questions once, so that errors in them come before a model is loaded. `window` and
 * `tokenizer` belong to the model. The tokenizer outlives the evaluation. Tasks without rows are
 * logged and left out. They are an error if no task has rows, and in a training run. Other errors
 * as cpl_questions_read and cpl_eval_runner_check. */
CPL_NODISCARD cpl_status cpl_evaluation_open(cpl_evaluation *e, const cpl_selection *selection,
                                             const cpl_questions_options *options, int64_t window,
                                             const cpl_tokenizer *tokenizer);
void cpl_evaluation_close(cpl_evaluation *e); /* all zero is allowed */

/* Fails with CPL_ERR_INPUT and the names of the tasks that are left out, if there are any. */
CPL_NODISCARD cpl_status cpl_evaluation_missing(const cpl_evaluation *e);

/* Functions that are called during a run. Each may be NULL. */
typedef struct cpl_evaluation_callbacks {
    void *ctx;
    /* `recorded` questions of the task have an answer in the journal. */
    void (*began)(void *ctx, const cpl_task_evaluation *one, int64_t recorded);
    /* This run has answered `questions` questions of the current task. */
    void (*advanced)(void *ctx, double questions);
    void (*finished)(void *ctx, const cpl_task_evaluation *one);
} cpl_evaluation_callbacks;

/* Runs all questions without an answer in `journal`, which may be NULL. `samples`: results hold
 * every question. Failures as cpl_eval_runner_run. With a group of the runner the call is
 * collective: rank 0 alone has a journal, all ranks set the results. CPL_ERR_INPUT if the questions
 * of ranks differ. */
CPL_NODISCARD cpl_status cpl_evaluation_run(cpl_evaluation *e, const cpl_eval_runner *runner,
                                            cpl_eval_journal *journal, bool samples,
                                            const cpl_evaluation_callbacks *callbacks);

/* Runs the questions of one task without an answer in `journal`, and sets the result. */
CPL_NODISCARD cpl_status cpl_evaluation_run_task(cpl_task_evaluation *one, const cpl_questions *q,
                                                 const cpl_eval_runner *runner,
                                                 cpl_eval_journal *journal, bool samples,
                                                 const cpl_evaluation_callbacks *callbacks);

/* Adds the name of the task to a failure. */
CPL_NODISCARD cpl_status cpl_evaluation_about(cpl_status status, const cpl_selected *what);

/* Returns {"program": ..., "settings": settings, "eot_token_id": eos, "results": {KEY: ...}, ...}
 * of docs/formats.md, or NULL without memory. Borrows `settings`. eos -1: no end-of-text id. */
json_t *cpl_evaluation_json(const cpl_evaluation *e, json_t *settings, int64_t eos);

/* ---- reading results ---- */

/* Returns whether a metric is a loss or an aggregate of a loss, such as "bpb_macro". */
bool cpl_evaluation_is_loss(const char *metric);

/* Returns the name of a result's headline. Sets its value and standard error, NaN if missing. */
const char *cpl_evaluation_headline(const json_t *result, double *value, double *error);

/* Returns the mean headline of a set of the paper, "3b" or "15b", or NaN if a task of the set was
 * not evaluated under its profile in the set. */
double cpl_evaluation_average(const cpl_evaluation *e, const char *set);

/* Returns a value as text, from the pool: a share in percent ("54.21"), a loss ("2.6850"), or "-"
 * for a value that is not finite. */
const char *cpl_evaluation_value(cpl_pool *pool, const char *metric, double value);

/* Sets `grid`, with texts from the pool: a row for every metric of every task, the headline first,
 * then the paper's averages. The grid has no rows without a result. */
CPL_NODISCARD cpl_status cpl_evaluation_table(cpl_grid *grid, cpl_pool *pool,
                                              const cpl_evaluation *e);

/* Appends the table and the remarks as text for a terminal. */
CPL_NODISCARD cpl_status cpl_evaluation_text(cpl_text *out, const cpl_evaluation *e);

/* Appends a sentence if a part of the rows was asked, and a sentence for every result with cut
 * questions or with rows left out. */
void cpl_evaluation_remarks(cpl_text *out, const cpl_evaluation *e);

/* Appends the page. `model` is the model's name, `data` the evaluation's JSON, `made` the
 * provenance (app/provenance.h) or NULL. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_evaluation_page(cpl_text *out, const cpl_evaluation *e,
                                             const char *model, const json_t *data, json_t *made);

/* Returns the folder of the rows that are shipped with the program, from cpl_alloc:
 * share/couplet/eval next to its bin, or the project's data/eval, or "data/eval" if neither exists.
 * NULL: out of memory. */
char *cpl_eval_data_dir(void);

/* Fails with CPL_ERR_INPUT if the folder `data` is missing. `word` is the flag or setting that
 * names another folder. */
CPL_NODISCARD cpl_status cpl_eval_data_dir_check(const char *data, const char *word);

#endif /* CPL_EVAL_EVALUATION_H */
