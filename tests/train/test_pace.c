/* test_pace.c - when a run says that its steps wander. */
#include <math.h>

#include "check.h"
#include "train/pace.h"

/* Steps of `fast` seconds, of which every one but each fifth takes `slow`; `share` of the time of
 * two threads was got, on two processors of which `others` were taken. */
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
    assert_false(judge(window(0.1, 0.3, 0.95, 1.2))); /* got its time */
    assert_false(judge(window(0.1, 0.3, 0.4, 0)));    /* idle: it waited for something else */
    assert_false(judge(window(0.1, 0.3, 0.4, 0.1)));
    assert_false(judge(window(0.1, 0.3, 0.4, 0.6))); /* a processor was free for part of it */
}

TEST(test_what_cannot_be_measured_says_nothing)
{
    cpl_pace_window w = window(0.1, 0.3, 0.4, 1.2);
    w.all             = NAN;
    assert_false(cpl_pace_judge(&w));
}

/* A few outliers are no wandering: the first step, a page fault, a logged step. */
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
    assert_int_equal(pace.steps, 3 * CPL_PACE_STEPS); /* too short to judge */
    pace.began -= 2 * CPL_PACE_SECONDS;
    cpl_pace_begin(&pace);
    cpl_pace_end(&pace, &log);
    assert_int_equal(pace.steps, 0); /* judged, and the next window begins */
    assert_int_equal(said, 0);       /* most of so many processors are free */
}
