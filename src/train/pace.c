/* pace.c - see pace.h */
#include "train/pace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the rule ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sorted(double out[CPL_PACE_STEPS], const cpl_pace_window *w)
{
    memcpy(out, w->wall, sizeof w->wall);
    qsort(out, CPL_PACE_STEPS, sizeof *out, by_size);
}

static double sum(const double values[CPL_PACE_STEPS])
{
    double total = 0;
    for (int i = 0; i < CPL_PACE_STEPS; i++) total += values[i];
    return total;
}

bool cpl_pace_judge(const cpl_pace_window *w)
{
    const double wander = 1.5, got = 0.8, others = 0.25, nearly = 0.9;
    double wall[CPL_PACE_STEPS];
    sorted(wall, w);
    double decile = wall[CPL_PACE_STEPS / 10 - 1], median = wall[CPL_PACE_STEPS / 2];
    return median > wander * decile && sum(w->cpu) < got * sum(wall) * w->n_threads &&
           w->all - w->own >= others && w->all >= nearly * w->n_processors;
}

/* ---- measurement ---- */

static double seconds(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

/* Returns the processor seconds that all processes, and other virtual machines on this hardware,
 * have used since the system started. Returns NaN if the system does not report them. */
static double used_by_all(void)
{
    double user, nice, system, idle, wait, irq = 0, soft = 0, steal = 0;
    FILE *file = fopen("/proc/stat", "re");
    int found  = file ? fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system,
                               &idle, &wait, &irq, &soft, &steal)
                      : 0;
    if (file) fclose(file);
    return found < 5 ? (double)NAN
                     : (user + nice + system + irq + soft + steal) / (double)sysconf(_SC_CLK_TCK);
}

static double load(void)
{
    double one = 0;
    return getloadavg(&one, 1) == 1 ? one : 0;
}

static void start_window(cpl_pace *p)
{
    p->steps = 0;
    p->began = seconds(CLOCK_MONOTONIC);
    p->own0  = seconds(CLOCK_PROCESS_CPUTIME_ID);
    p->all0  = used_by_all();
}

void cpl_pace_begin(cpl_pace *p)
{
    if (p->warned) return;
    if (p->began == 0) start_window(p);
    p->step_began = seconds(CLOCK_MONOTONIC);
    p->step_cpu   = seconds(CLOCK_PROCESS_CPUTIME_ID);
}

/* ---- the warning ---- */

static void warn_of_load(const cpl_pace_window *w, const cpl_log *log)
{
    double wall[CPL_PACE_STEPS];
    sorted(wall, w);
    cpl_log_warn(log,
                 "steps took between %.3g and %.3g s: other processes took %.1f of the %d "
                 "processors meanwhile (load %.1f), and this one has %d; fewer threads "
                 "(compute.threads) suffer less (docs/troubleshooting.md)",
                 wall[0], wall[CPL_PACE_STEPS - 1], w->all - w->own, w->n_processors, load(),
                 w->n_threads);
}

void cpl_pace_end(cpl_pace *p, const cpl_log *log)
{
    if (p->warned) return;
    cpl_pace_window *w = &p->window;
    double now = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    int at      = p->steps++ % CPL_PACE_STEPS;
    w->wall[at] = now - p->step_began;
    w->cpu[at]  = cpu - p->step_cpu;
    if (p->steps < CPL_PACE_STEPS || now - p->began < CPL_PACE_SECONDS) return;
    w->own    = (cpu - p->own0) / (now - p->began);
    w->all    = (used_by_all() - p->all0) / (now - p->began);
    p->warned = cpl_pace_judge(w);
    if (p->warned)
        warn_of_load(w, log);
    else
        start_window(p);
}
