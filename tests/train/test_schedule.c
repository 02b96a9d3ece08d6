/* test_schedule.c - the learning rate against the reference and at its corners. */
#include "train/schedule.h"

#include <math.h>

#include "check.h"
#include "io/json.h"

static void as_the_reference(void **state)
{
    (void)state;
    json_t *cases = NULL, *one, *pair;
    size_t i, k;
    int64_t seen = 0;
    assert_ok(cpl_json_load(&cases, golden_path("optim/schedule.json")));
    json_array_foreach(cases, i, one)
    {
        cpl_train_settings s = {.lr     = json_number_value(json_object_get(one, "peak")),
                                .lr_min = json_number_value(json_object_get(one, "min"))};
        s.warmup_steps       = json_integer_value(json_object_get(one, "warmup"));
        s.steps              = json_integer_value(json_object_get(one, "total"));
        json_array_foreach(json_object_get(one, "step_lr"), k, pair)
        {
            int64_t step = json_integer_value(json_array_get(pair, 0));
            double want  = json_number_value(json_array_get(pair, 1));
            assert_near(cpl_schedule_lr(&s, step), want, 1e-14);
            seen++;
        }
    }
    assert_true(seen > 100);
    json_decref(cases);
}

static void corners(void **state)
{
    (void)state;
    cpl_train_settings s = {.lr = 1, .lr_min = NAN, .warmup_steps = 0, .steps = 1};
    assert_near(cpl_schedule_lr(&s, 1), 0.1, 0); /* unset: a tenth of the peak */
    s.steps = 1000000;
    assert_true(cpl_schedule_lr(&s, 1) < 1 && cpl_schedule_lr(&s, 1) > 0.999999);
    assert_near(cpl_schedule_lr(&s, 500000), 0.55, 1e-12);
    assert_near(cpl_schedule_lr(&s, 1000000), 0.1, 0);
    assert_near(cpl_schedule_lr(&s, 2000000), 0.1, 0);
    s.warmup_steps = 999999;
    assert_near(cpl_schedule_lr(&s, 999999), 1, 0);
    assert_near(cpl_schedule_lr(&s, 1000000), 0.1, 0);
    s.lr_min = 0;
    assert_near(cpl_schedule_lr(&s, 1000000), 0, 0);
    for (int64_t step = 2; step < 999999; step += 991)
        assert_true(cpl_schedule_lr(&s, step) > cpl_schedule_lr(&s, step - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_reference),
        cmocka_unit_test(corners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
