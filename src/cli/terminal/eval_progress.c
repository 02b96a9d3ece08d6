/* eval_progress.c - see eval_progress.h */
#include "cli/terminal/eval_progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/terminal/terminal.h"

/* "12.5/s, 1:07 left" of the questions that are done in this run; no time if none is left. */
static void print_speed(const cpl_eval_bar *b, double done, double seconds)
{
    const double speed = seconds > 0 ? done / seconds : 0;
    fprintf(stderr, "%.1f/s", speed);
    const double open = (double)(b->total - b->recorded) - done;
    if (speed <= 0 || open <= 0) return;
    const long left = (long)(open / speed + 0.5);
    fprintf(stderr, ", %ld:%02ld left", left / 60, left % 60);
}

static void draw(cpl_eval_bar *b)
{
    const double done = b->finished + b->now;
    cpl_terminal_bar(stderr, done + (double)b->recorded, (double)b->total);
    fprintf(stderr, "%.0f/%lld questions  ", done + (double)b->recorded, (long long)b->total);
    print_speed(b, done, b->shown - b->began);
    fprintf(stderr, "  %s", b->task);
    fflush(stderr);
    b->drawn = true;
}

void cpl_eval_bar_clear(cpl_eval_bar *b)
{
    if (b->drawn) cpl_terminal_erase_line(stderr);
    b->drawn = false;
}

static void began(void *ctx, const cpl_task_evaluation *one, int64_t recorded)
{
    cpl_eval_bar *b = ctx;
    b->recorded += recorded;
    b->task = one->what->key;
    if (recorded && !b->terminal)
        fprintf(stderr, "%s: %lld of %lld answered before\n", one->what->key, (long long)recorded,
                (long long)one->n);
}

static void advanced(void *ctx, double questions)
{
    cpl_eval_bar *b   = ctx;
    const double time = cpl_seconds_now();
    b->now            = questions;
    if (!b->terminal || time - b->shown < 0.1) return;
    b->shown = time;
    draw(b);
}

static void finished(void *ctx, const cpl_task_evaluation *one)
{
    cpl_eval_bar *b      = ctx;
    const double seconds = cpl_seconds_now() - b->began;
    b->finished += b->now;
    b->now = 0;
    if (b->terminal) return;
    fprintf(stderr, "%s: %lld answered (%.0f of %lld in all, ", one->what->key, (long long)one->n,
            b->finished + (double)b->recorded, (long long)b->total);
    print_speed(b, b->finished, seconds);
    fprintf(stderr, ")\n");
}

cpl_evaluation_callbacks cpl_eval_bar_callbacks(cpl_eval_bar *bar, int64_t total)
{
    *bar = (cpl_eval_bar){
        .terminal = isatty(STDERR_FILENO), .total = total, .task = "", .began = cpl_seconds_now()};
    return (cpl_evaluation_callbacks){bar, began, advanced, finished};
}
