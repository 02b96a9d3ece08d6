/* train_progress.h - a run as it is watched: a bar on a terminal, plain lines elsewhere.
 *
 * Room:  cli/terminal. */
#ifndef CPL_CLI_TERMINAL_TRAIN_PROGRESS_H
#define CPL_CLI_TERMINAL_TRAIN_PROGRESS_H

#include <stdbool.h>

#include "train/loop.h"

typedef struct cpl_progress {
    bool terminal; /* standard output is one, of one process: redraw a line */
    bool drawn;    /* a bar is on the current line */
    int64_t first_step, last_step, log_every;
    double began; /* seconds, monotonic */
    double pace;  /* seconds a token, over about the last log.every steps; 0: none yet */
    int64_t seen; /* steps */
} cpl_progress;

void cpl_progress_begin(cpl_progress *p, const cpl_train_facts *facts);

/* Shows a step: step, loss, ERC, balance, gradient norm, tokens/s and share of the machine's matrix
 * peak over the last steps, time left. After an evaluation: a separate line with the held-out
 * loss. */
void cpl_progress_step(cpl_progress *p, const cpl_metrics *m);

/* Counts a step that made so many tokens a second and returns the speed over the last steps: the
 * mean of all of them, and from log.every steps on one in which older steps count less and less. */
double cpl_progress_speed(cpl_progress *p, double tokens_per_s);

/* Ends the bar's line, so that something else can be written. */
void cpl_progress_clear(cpl_progress *p);

#endif /* CPL_CLI_TERMINAL_TRAIN_PROGRESS_H */
