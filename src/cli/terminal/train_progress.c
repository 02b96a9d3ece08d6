/* train_progress.c - see train_progress.h */
#include "cli/terminal/train_progress.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/terminal/terminal.h"
#include "model/aux_losses.h"

void cpl_progress_begin(cpl_progress *p, const cpl_train_facts *facts)
{
    *p = (cpl_progress){
        /* A launcher may give rank 0 a terminal of its own, wherever the output goes. */
        .terminal   = facts->n_ranks == 1 && isatty(STDOUT_FILENO),
        .first_step = facts->first_step,
        .last_step  = facts->settings->train.steps,
        .log_every  = facts->settings->log.every,
        .began      = cpl_seconds_now(),
    };
}

void cpl_progress_clear(cpl_progress *p)
{
    if (p->drawn) cpl_terminal_erase_line(stdout);
    p->drawn = false;
    fflush(stdout);
}

/* "4:07" or "2:04:07". */
static const char *duration(char out[32], double seconds)
{
    long s = seconds > 0 ? lround(seconds) : 0;
    if (s >= 3600)
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
    return out;
}

/* Steps with evaluations and checkpoints between them make the mean longer than one step. */
static double seconds_left(const cpl_progress *p, int64_t step)
{
    double done = (double)(step - p->first_step + 1);
    return (cpl_seconds_now() - p->began) / done * (double)(p->last_step - step);
}

static double step_speed(const cpl_metrics *m)
{
    return (double)m->tokens / (double)m->step / m->step_s;
}

double cpl_progress_speed(cpl_progress *p, double tokens_per_s)
{
    const int64_t over = p->seen < p->log_every ? ++p->seen : p->log_every;
    if (tokens_per_s > 0) p->pace += (1 / tokens_per_s - p->pace) / (double)over;
    return p->pace > 0 ? 1 / p->pace : 0;
}

/* Every auxiliary loss that is part of the step's total, unweighted. */
static void print_aux_losses(const cpl_metrics *m)
{
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        if (m->aux[i].computed && m->aux[i].weight > 0)
            printf("%s %#.3g  ", cpl_aux_losses[i].name, m->aux[i].value);
}

static void print_numbers(const cpl_progress *p, const cpl_metrics *m)
{
    const double speed = p->pace > 0 ? 1 / p->pace : 0;
    const double share = m->step_s > 0 ? m->peak_share * speed / step_speed(m) : 0;
    char left[32];
    printf("%lld/%lld  loss %.4f  ", (long long)m->step, (long long)p->last_step, m->loss);
    print_aux_losses(m);
    printf("grad %.2f  %.0f tok/s  %.0f%% of peak  %s left", m->grad_norm, speed, 100 * share,
           duration(left, seconds_left(p, m->step)));
}

static void draw_bar(cpl_progress *p, const cpl_metrics *m)
{
    cpl_terminal_bar(stdout, (double)m->step, (double)p->last_step);
    print_numbers(p, m);
    p->drawn = true;
}

void cpl_progress_step(cpl_progress *p, const cpl_metrics *m)
{
    bool logged = m->step % p->log_every == 0 || m->step == p->last_step;
    if (m->step_s > 0) cpl_progress_speed(p, step_speed(m));
    if (p->terminal) {
        draw_bar(p, m);
    } else if (logged || m->has_eval) {
        printf("step ");
        print_numbers(p, m);
        putchar('\n');
    }
    if (m->has_eval && m->n_sources) {
        cpl_progress_clear(p);
        printf("step %lld/%lld  held-out loss %.4f\n", (long long)m->step, (long long)p->last_step,
               cpl_metrics_validation(m));
    }
    fflush(stdout);
}
