/* test_pace.c - the warning of a run whose steps differ in time. */
#include <math.h>

#include "check.h"
#include "train/pace.h"

/* Returns a window of steps. Every fifth step takes `fast` seconds, the others `slow`. The process
 * got `share` of the time of two threads, on two processors of which others used `others`. */
static cpl_pace_window window(double fast, double slow, double share, double others)
{
    cpl_pace_window w = {.n_threads = 2, .n_processors = 2};
    for (int i = 0; i < CPL_PACE_STEPS; i++) {
        w.wall[i] = i % 5 ? slow : fast;
        w.cpu[i]  = share * 2 * w.wall[i];
    }
    w.own = 2 * share;
    w.all = fmin(w.own + others, 2);
    return w;
}

static bool judge(cpl_pace_window w)
{
    return cpl_pace_judge(&w);
}

TEST(test_busy_neighbours)
{
    assert_true(judge(window(0.1, 0.3, 0.4, 1.2)));
    assert_true(judge(window(0.001, 0.0016, 0.7, 0.6)));
}

TEST(test_each_condition_alone_says_nothing)
{
    assert_false(judge(window(0.1, 0.1, 0.4, 1.2)));  /* equally slow */
    assert_false(judge(window(0.1, 0.14, 0.4, 1.2))); /* nearly */
    assert_false(judge(window(0.1, 0.3, 0.95, 1.2))); /* the process got its time */
    assert_false(judge(window(0.1, 0.3, 0.4, 0)));    /* idle: it waited for other reasons */
    assert_false(judge(window(0.1, 0.3, 0.4, 0.1)));
    assert_false(judge(window(0.1, 0.3, 0.4, 0.6))); /* a processor was free for a part */
}

TEST(test_what_cannot_be_measured_says_nothing)
{
    cpl_pace_window w = window(0.1, 0.3, 0.4, 1.2);
    w.all             = NAN;
    assert_false(cpl_pace_judge(&w));
}

/* A few outliers raise no warning: the first step, a page fault, a logged step. */
TEST(test_outliers)
{
    cpl_pace_window w = window(0.1, 0.1, 0.4, 1.2);
    for (int i = 0; i < 8; i++) w.wall[2 * i] = 5;
    assert_false(cpl_pace_judge(&w));
}

/* ---- over steps ---- */

static void count(void *ctx, cpl_log_level level, const char *sentence)
{
    (void)level, (void)sentence;
    ++*(int *)ctx;
}

TEST(test_steps_of_this_process)
{
    int said      = 0;
    cpl_log log   = {count, &said};
    cpl_pace pace = {.window = {.n_threads = 1, .n_processors = 1 << 20}};
    for (int i = 0; i < 3 * CPL_PACE_STEPS; i++) {
        cpl_pace_begin(&pace);
        cpl_pace_end(&pace, &log);
    }
    assert_int_equal(pace.steps, 3 * CPL_PACE_STEPS); /* too short for a judgement */
    pace.began -= 2 * CPL_PACE_SECONDS;
    cpl_pace_begin(&pace);
    cpl_pace_end(&pace, &log);
    assert_int_equal(pace.steps, 0); /* the window was judged, and the next begins */
    assert_int_equal(said, 0);       /* most processors are free */
}
