/* eval_progress.h - the progress of an evaluation: a bar on a terminal, a line a task elsewhere.
 *
 * Room:  cli/terminal. */
#ifndef CPL_CLI_TERMINAL_EVAL_PROGRESS_H
#define CPL_CLI_TERMINAL_EVAL_PROGRESS_H

#include "eval/evaluation.h"

typedef struct cpl_eval_bar {
    bool terminal; /* standard error is one: redraw a line */
    bool drawn;
    int64_t total;    /* questions of all tasks */
    int64_t recorded; /* answered before this run */
    double finished;  /* answered in this run, in finished tasks */
    double now;       /* answered in this run, in the current task */
    const char *task;
    double began, shown; /* seconds, monotonic */
} cpl_eval_bar;

/* Watches an evaluation of `total` questions. */
cpl_evaluation_callbacks cpl_eval_bar_callbacks(cpl_eval_bar *bar, int64_t total);

/* Ends the bar's line, so that something else can be written. */
void cpl_eval_bar_clear(cpl_eval_bar *bar);

#endif /* CPL_CLI_TERMINAL_EVAL_PROGRESS_H */
