/* bar.c - see bar.h */
#include "cli/terminal/bar.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/terminal/ranks.h"
#include "cli/terminal/terminal.h"
#include "model/aux_losses.h"

/* ---- the line ---- */

/* Text of the fields, separated by two blanks. */
typedef struct fields {
    char text[512];
    size_t length;
} fields;

CPL_PRINTF(2, 3) static void add(fields *f, const char *format, ...)
{
    va_list values;
    const size_t room = sizeof f->text - f->length;
    va_start(values, format);
    const int n = vsnprintf(f->text + f->length, room, format, values);
    va_end(values);
    f->length += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* Adds "  4:07 left" or "  2:04:07 left", unless the time is unknown. */
static void add_left(fields *f, double seconds)
{
    if (!(seconds < 1e9)) return;
    const long s = seconds > 0 ? lround(seconds) : 0;
    if (s >= 3600)
        add(f, "  %ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
    else
        add(f, "  %ld:%02ld left", s / 60, s % 60);
}

static int columns_for_bar(FILE *out)
{
    return cpl_ranks_is_silent() ? 0 : cpl_terminal_columns(out);
}

/* Returns the number of bytes that fit into `room` columns, without cutting a field if there are
 * several. A character has at most as many columns as bytes. */
static size_t fitting(const fields *f, size_t room)
{
    size_t length = f->length;
    while (length > room) {
        size_t cut = length - 1;
        while (cut > 0 && strncmp(f->text + cut, "  ", 2) != 0) cut--;
        if (cut == 0) break;
        length = cut;
    }
    for (length = length < room ? length : room; length < f->length; length--)
        if (((unsigned char)f->text[length] & 0xc0) != 0x80) break; /* end of a character */
    return length;
}

static void draw(FILE *out, double done, double total, const fields *f)
{
    enum { WIDE = 60, SHARE = 8 };
    const int columns = columns_for_bar(out), cells = columns >= WIDE ? columns / SHARE : 0;
    const int full = done < total ? (int)(cells * done / total) : cells;
    size_t room    = (size_t)columns - 1;
    cpl_terminal_begin_line(out);
    if (cells) {
        fputc('[', out);
        for (int i = 0; i < cells; i++) fputc(i < full ? '=' : i == full ? '>' : ' ', out);
        fputs("] ", out);
        room -= (size_t)cells + 3;
    }
    fwrite(f->text, 1, fitting(f, room), out);
    fflush(out);
}

static const double often = 0.1, seldom = 10; /* seconds */

/* Returns true if `seconds` have passed since the last drawing, and at the first call. */
static bool is_due(double seconds)
{
    static double shown;
    const double now = cpl_seconds_now();
    if (shown == 0) shown = now - often;
    if (now - shown < seconds) return false;
    shown = now;
    return true;
}

void cpl_bar_files(void *ctx, int64_t files, int64_t of)
{
    fields f = {0};
    (void)ctx;
    if (!columns_for_bar(stderr)) return;
    add(&f, "%lld of %lld files", (long long)files, (long long)of);
    draw(stderr, (double)files, (double)of, &f);
}

/* ---- train ---- */

void cpl_progress_begin(cpl_progress *p, const cpl_train_facts *facts)
{
    *p = (cpl_progress){
        .first_step = facts->first_step,
        .last_step  = facts->settings->train.steps,
        .log_every  = facts->settings->log.every,
        .began      = cpl_seconds_now(),
    };
}

/* Returns the seconds left by the mean time of a step, which includes evaluations and
 * checkpoints. */
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

static fields fields_of_step(const cpl_progress *p, const cpl_metrics *m)
{
    const double speed = p->pace > 0 ? 1 / p->pace : 0;
    const double share = m->step_s > 0 ? m->peak_share * speed / step_speed(m) : 0;
    fields f           = {0};
    add(&f, "%lld/%lld  loss %.4f  %.0f tok/s", (long long)m->step, (long long)p->last_step,
        m->loss, speed);
    add_left(&f, seconds_left(p, m->step));
    /* Adds each auxiliary loss that is part of the step's total, unweighted. */
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        if (m->aux[i].computed && m->aux[i].weight > 0)
            add(&f, "  %s %#.3g", cpl_aux_losses[i].name, m->aux[i].value);
    add(&f, "  grad %.2f", m->grad_norm);
    if (isfinite(share)) add(&f, "  %.0f%% of peak", 100 * share);
    return f;
}

void cpl_progress_step(cpl_progress *p, const cpl_metrics *m)
{
    const bool last = m->step == p->last_step, logged = m->step % p->log_every == 0 || last;
    if (m->step_s > 0) cpl_progress_speed(p, step_speed(m));
    const fields f = fields_of_step(p, m);
    if (!columns_for_bar(stdout)) {
        if (logged || m->has_eval) printf("step %s\n", f.text);
    } else if (is_due(often) || last) {
        draw(stdout, (double)m->step, (double)p->last_step, &f);
    }
    if (m->has_eval && m->n_sources) {
        cpl_terminal_clear_line();
        printf("step %lld/%lld  held-out loss %.4f\n", (long long)m->step, (long long)p->last_step,
               cpl_metrics_validation(m));
    }
    fflush(stdout);
}

void cpl_progress_saved(int64_t step)
{
    if (!columns_for_bar(stdout)) printf("step %lld saved\n", (long long)step);
}

/* ---- eval ---- */

/* Computes the speed from the questions answered in this run. */
static fields fields_of_eval(const cpl_eval_bar *b)
{
    const double done = b->finished + b->now, seconds = cpl_seconds_now() - b->began;
    const double speed = seconds > 0 ? done / seconds : 0;
    const double open  = (double)(b->total - b->recorded) - done;
    fields f           = {0};
    add(&f, "%.0f/%lld questions  %.1f/s", done + (double)b->recorded, (long long)b->total, speed);
    if (open > 0) add_left(&f, open / speed);
    add(&f, "  %s", b->task);
    return f;
}

static void began(void *ctx, const cpl_task_evaluation *one, int64_t recorded)
{
    cpl_eval_bar *b = ctx;
    b->recorded += recorded;
    b->task = one->what->key;
    if (recorded && !columns_for_bar(stderr))
        fprintf(stderr, "%s: %lld of %lld answered before\n", one->what->key, (long long)recorded,
                (long long)one->n);
}

static void advanced(void *ctx, double questions)
{
    cpl_eval_bar *b = ctx;
    b->now          = questions;
    if (!columns_for_bar(stderr) || !is_due(often)) return;
    const fields f = fields_of_eval(b);
    draw(stderr, b->finished + b->now + (double)b->recorded, (double)b->total, &f);
}

static void finished(void *ctx, const cpl_task_evaluation *one)
{
    cpl_eval_bar *b = ctx;
    (void)one;
    b->finished += b->now;
    b->now = 0;
    if (!columns_for_bar(stderr)) fprintf(stderr, "%s\n", fields_of_eval(b).text);
}

cpl_evaluation_callbacks cpl_eval_bar_callbacks(cpl_eval_bar *bar, int64_t total)
{
    *bar = (cpl_eval_bar){.total = total, .task = "", .began = cpl_seconds_now()};
    return (cpl_evaluation_callbacks){bar, began, advanced, finished};
}

/* ---- inspect ---- */

void cpl_inspect_bar_progress(void *ctx, const cpl_inspect_progress *p)
{
    const bool redrawn = columns_for_bar(stderr) > 0;
    char read[32], all[32], rate[32];
    fields f = {0};
    (void)ctx;
    if (!is_due(redrawn ? often : seldom)) return;
    add(&f, "layer %lld  %s of %s  %s/s", (long long)p->layer, cpl_text_bytes(read, p->bytes_read),
        cpl_text_bytes(all, p->bytes),
        cpl_text_bytes(rate, p->seconds > 0 ? p->bytes_read / p->seconds : 0));
    add_left(&f, p->seconds_left);
    if (!redrawn)
        fprintf(stderr, "%s\n", f.text);
    else
        draw(stderr, p->bytes_read, p->bytes, &f);
}
