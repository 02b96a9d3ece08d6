/* test_bar.c - the speed in the progress line of a run. */
#include "cli/terminal/bar.h"

#include <math.h>

#include "check.h"

static void near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * wanted)) fail_msg("%.17g, wanted %.17g", value, wanted);
}

/* In the first steps the speed is the tokens over the time of all steps. */
TEST(mean_of_all)
{
    cpl_progress p = {.log_every = 10};
    near(cpl_progress_speed(&p, 100), 100);
    near(cpl_progress_speed(&p, 50), 2 / (1 / 100.0 + 1 / 50.0));
    near(cpl_progress_speed(&p, 200), 3 / (1 / 100.0 + 1 / 50.0 + 1 / 200.0));
}

/* One slow step of many changes the speed little, and a lasting change is followed. */
TEST(steady)
{
    cpl_progress p = {.log_every = 10};
    for (int i = 0; i < 30; i++) near(cpl_progress_speed(&p, 1000), 1000);
    const double speed = cpl_progress_speed(&p, 250); /* the step takes as long as four */
    assert_true(speed > 700 && speed < 800);
    for (int i = 0; i < 60; i++) (void)cpl_progress_speed(&p, 500);
    const double later = cpl_progress_speed(&p, 500);
    assert_true(later > 495 && later < 505);
    assert_true(cpl_progress_speed(&p, 0) == later); /* a step without a speed is not counted */
}

/* Prints the line of a step with this share of the peak. */
static void line_of(char out[256], double peak_share)
{
    char path[300];
    cpl_progress p = {.log_every = 1, .last_step = 2};
    cpl_metrics m  = {.step = 1, .tokens = 100, .step_s = 1, .peak_share = peak_share};
    snprintf(path, sizeof path, "%s/line", scratch_folder());
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "w+", stdout));
    cpl_progress_step(&p, &m);
    rewind(stdout);
    out[fread(out, 1, 255, stdout)] = '\0';
    fflush(stdout);
    assert_int_equal(dup2(kept, STDOUT_FILENO), STDOUT_FILENO);
    close(kept);
}

/* An unknown share is left out, beside other work. */
TEST(unknown_share)
{
    char line[256];
    line_of(line, 0.5);
    assert_non_null(strstr(line, "50% of peak"));
    line_of(line, (double)NAN);
    assert_non_null(strstr(line, "tok/s"));
    assert_null(strstr(line, "peak"));
}
