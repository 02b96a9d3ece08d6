/* bar.h - progress of all verbs: a line that is redrawn on a terminal, plain lines elsewhere.
 *
 * Room:  cli/terminal.
 *
 * The line begins with a bar that shows the share done, if the terminal has 60 columns or more.
 * Then come fields, the most important first. Fields that do not fit are left out, the last ones
 * first, and the last column stays free. The terminal's width is read at each drawing. Rank 0 draws
 * the line if the output of mpirun is a terminal. */
#ifndef CPL_CLI_TERMINAL_BAR_H
#define CPL_CLI_TERMINAL_BAR_H

#include <stdbool.h>
#include <stdint.h>

#include "eval/evaluation.h"
#include "inspect/report.h"
#include "train/loop.h"

/* Shows on standard error, only if it is a terminal, how many of the `of` files `tokenize` has
 * read. `ctx` is not used. */
void cpl_bar_files(void *ctx, int64_t files, int64_t of);

/* ---- train, on standard output ---- */

typedef struct cpl_progress {
    int64_t first_step, last_step, log_every;
    double began; /* start, in seconds of the monotonic clock */
    double pace;  /* seconds per token, over about the last log.every steps; 0: no step yet */
    int64_t seen; /* number of steps so far */
} cpl_progress;

void cpl_progress_begin(cpl_progress *p, const cpl_train_facts *facts);

/* Shows a step: step, loss, tokens/s over the last steps, time left, auxiliary losses, gradient
 * norm, share of the machine's matrix peak. A terminal shows the last step, with at most ten
 * drawings a second. An evaluation adds a line with the held-out loss. */
void cpl_progress_step(cpl_progress *p, const cpl_metrics *m);

/* Prints that a checkpoint was saved, unless the line is redrawn. */
void cpl_progress_saved(int64_t step);

/* Counts a step of this speed and returns the mean speed in tokens per second: over all steps at
 * first, and from log.every steps on with weights that fall with age. */
double cpl_progress_speed(cpl_progress *p, double tokens_per_s);

/* ---- eval, on standard error: one line per task if it is not a terminal ---- */

typedef struct cpl_eval_bar {
    int64_t total;    /* questions of all tasks */
    int64_t recorded; /* questions answered before this run */
    double finished;  /* questions answered in this run, in finished tasks */
    double now;       /* questions answered in this run, in the current task */
    const char *task;
    double began; /* start, in seconds of the monotonic clock */
} cpl_eval_bar;

/* Returns callbacks that show the progress of an evaluation of `total` questions in `bar`, which
 * must outlive the callbacks. */
cpl_evaluation_callbacks cpl_eval_bar_callbacks(cpl_eval_bar *bar, int64_t total);

/* ---- inspect, on standard error: one line every ten seconds if it is not a terminal ---- */

/* Shows the progress of an inspection, as options.progress. `ctx` is not used. */
void cpl_inspect_bar_progress(void *ctx, const cpl_inspect_progress *progress);

#endif /* CPL_CLI_TERMINAL_BAR_H */
