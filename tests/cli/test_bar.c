/* test_bar.c - the speed that the line of a run shows. */
#include "cli/terminal/bar.h"

#include <math.h>

#include "check.h"

static void near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * wanted)) fail_msg("%.17g, wanted %.17g", value, wanted);
}

/* The first steps: as many tokens over the time that all of them took. */
static void mean_of_all(void **state)
{
    (void)state;
    cpl_progress p = {.log_every = 10};
    near(cpl_progress_speed(&p, 100), 100);
    near(cpl_progress_speed(&p, 50), 2 / (1 / 100.0 + 1 / 50.0));
    near(cpl_progress_speed(&p, 200), 3 / (1 / 100.0 + 1 / 50.0 + 1 / 200.0));
}

/* One slow step of many moves it little, and a lasting change is followed. */
static void steady(void **state)
{
    (void)state;
    cpl_progress p = {.log_every = 10};
    for (int i = 0; i < 30; i++) near(cpl_progress_speed(&p, 1000), 1000);
    const double speed = cpl_progress_speed(&p, 250); /* takes as long as four */
    assert_true(speed > 700 && speed < 800);
    for (int i = 0; i < 60; i++) (void)cpl_progress_speed(&p, 500);
    const double later = cpl_progress_speed(&p, 500);
    assert_true(later > 495 && later < 505);
    assert_true(cpl_progress_speed(&p, 0) == later); /* a step without a speed counts for nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mean_of_all), cmocka_unit_test(steady)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
