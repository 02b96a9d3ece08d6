/* progress.h - a run as it is watched: a bar on a terminal, plain lines elsewhere.
 *
 * Room:  cli. */
#ifndef CPL_CLI_PROGRESS_H
#define CPL_CLI_PROGRESS_H

#include <stdbool.h>

#include "train/loop.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cpl_progress {
    bool terminal; /* standard output is one: redraw a line */
    bool drawn;    /* a bar stands on the current line */
    int64_t first_step, last_step, log_every;
    double began; /* seconds, monotonic */
} cpl_progress;

void cpl_progress_begin(cpl_progress *p, const cpl_train_facts *facts);

/* Shows a step: step, loss, ERC, balance, gradient norm, tokens/s, share of the machine's matrix
 * peak, time left; behind an evaluation a line of its own with the held-out loss. */
void cpl_progress_step(cpl_progress *p, const cpl_metrics *m);

/* Ends the bar's line, so that something else can be written. */
void cpl_progress_clear(cpl_progress *p);

#ifdef __cplusplus
}
#endif
#endif /* CPL_CLI_PROGRESS_H */
