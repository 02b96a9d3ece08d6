/* pace.h - detects that the step times of a run vary because other processes use the processors.
 *
 * Room:  train. cpl_pace_judge is a function of its arguments alone.
 * Rule:  over at least CPL_PACE_STEPS steps and CPL_PACE_SECONDS seconds, all of these:
 *        - the median step took more than 1.5 times as long as the best tenth;
 *        - this process got less than 0.8 of the processor time that its threads requested;
 *        - other processes took at least 0.25 of a processor, and with this process nearly all.
 *        On an idle machine the third condition never holds, for any step times. */
#ifndef CPL_TRAIN_PACE_H
#define CPL_TRAIN_PACE_H

#include <stdbool.h>

#include "base/log.h"

enum { CPL_PACE_STEPS = 20, CPL_PACE_SECONDS = 2 };

/* The measurements of a window of steps. */
typedef struct cpl_pace_window {
    double wall[CPL_PACE_STEPS]; /* seconds of the last steps, without evaluation and saving */
    double cpu[CPL_PACE_STEPS];  /* processor seconds of this process in each step */
    double own, all; /* processors used over the window by this process, and by all processes */
    int n_threads, n_processors;
} cpl_pace_window;

bool cpl_pace_judge(const cpl_pace_window *window);

/* The pace of the steps of a run. Initially all zero except n_threads and n_processors. */
typedef struct cpl_pace {
    cpl_pace_window window;
    int steps;                /* steps since the window began */
    double began, own0, all0; /* clock and processor times, in seconds, at the window's beginning */
    double step_began, step_cpu;
    bool warned;
} cpl_pace;

void cpl_pace_begin(cpl_pace *pace); /* called before a step */

/* Warns once, with the reason, if step times vary. Call it after a step. */
void cpl_pace_end(cpl_pace *pace, const cpl_log *log);

#endif /* CPL_TRAIN_PACE_H */
