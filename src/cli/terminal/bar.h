/* bar.h - how far a verb has come, for all verbs: a line of a terminal that is redrawn, or plain
 * lines elsewhere.
 *
 * Room:  cli/terminal.
 * Line:  the share that is done as a picture, if the terminal has 60 columns or more; then fields,
 *        the most wanted first. Fields that do not fit are left out, the last ones first, and the
 *        last column stays free. The terminal is asked for its width each time.
 * Ranks: rank 0 draws the line if the output of mpirun is a terminal. */
#ifndef CPL_CLI_TERMINAL_BAR_H
#define CPL_CLI_TERMINAL_BAR_H

#include <stdbool.h>
#include <stdint.h>

#include "eval/evaluation.h"
#include "inspect/report.h"
#include "train/loop.h"

/* The files of `tokenize`, on standard error: on a terminal alone. `ctx` is not used. */
void cpl_bar_files(void *ctx, int64_t files, int64_t of);

/* ---- train, on standard output ---- */

typedef struct cpl_progress {
    int64_t first_step, last_step, log_every;
    double began; /* seconds, monotonic */
    double pace;  /* seconds per token, over about the last log.every steps; 0: none yet */
    int64_t seen; /* steps */
} cpl_progress;

void cpl_progress_begin(cpl_progress *p, const cpl_train_facts *facts);

/* Shows a step, on a terminal the last one and at most ten a second: step, loss, tokens/s over the
 * last steps, time left, auxiliary losses, gradient norm, share of the machine's matrix peak. After
 * an evaluation: a separate line with the held-out loss. */
void cpl_progress_step(cpl_progress *p, const cpl_metrics *m);

/* Says that a checkpoint was saved, unless the line is redrawn. */
void cpl_progress_saved(int64_t step);

/* Counts a step that made so many tokens per second and returns the speed over the last steps: the
 * mean of all of them, and from log.every steps on one in which older steps count less and less. */
double cpl_progress_speed(cpl_progress *p, double tokens_per_s);

/* ---- eval, on standard error: elsewhere than on a terminal a line per task ---- */

typedef struct cpl_eval_bar {
    int64_t total;    /* questions of all tasks */
    int64_t recorded; /* answered before this run */
    double finished;  /* answered in this run, in finished tasks */
    double now;       /* answered in this run, in the current task */
    const char *task;
    double began; /* seconds, monotonic */
} cpl_eval_bar;

/* Watches an evaluation of `total` questions. */
cpl_evaluation_callbacks cpl_eval_bar_callbacks(cpl_eval_bar *bar, int64_t total);

/* ---- inspect, on standard error: elsewhere a line every ten seconds ---- */

/* For options.progress; `ctx` is not used. */
void cpl_inspect_bar_progress(void *ctx, const cpl_inspect_progress *progress);

#endif /* CPL_CLI_TERMINAL_BAR_H */
