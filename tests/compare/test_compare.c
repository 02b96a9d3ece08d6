/* test_compare.c - runs lined up: settings, groups, the point of comparison and the figures there,
 * each against what is worked out here. */
#include "compare/compare_case.h"

/* ---- groups ---- */

static void runs_of_other_seeds_are_a_group(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, six, 6, NULL);
    assert_int_equal(l.c.n_groups, 2);
    assert_string_equal(l.c.groups[0].name, "vanilla");
    assert_string_equal(l.c.groups[1].name, "erc");
    assert_int_equal(l.c.groups[1].n, 3);
    assert_int_equal(l.c.groups[1].members[0], 3);
    assert_int_equal(l.c.baseline, 0);
    assert_true(l.c.grouped);
    assert_int_equal(l.c.warnings.count, 0);
    release(&l);
}

static void mean_and_deviation_are_the_members(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, six, 6, NULL);
    const cpl_spread s = figure(&l.c, "validation-loss")->spread[1];
    double sum = 0, squares = 0;
    for (int i = 3; i < 6; i++) sum += case_val(&six[i], 20);
    for (int i = 3; i < 6; i++) squares += pow(case_val(&six[i], 20) - sum / 3, 2);
    assert_int_equal(s.n, 3);
    assert_near(s.mean, sum / 3, 1e-12);
    assert_near(s.sd, sqrt(squares / 2), 1e-12);
    release(&l);
}

static void bookkeeping_splits_no_group(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[1]};
    two[0].more    = "log:\n    every: 10\ncheckpoint:\n    keep: 2\ncompute:\n    threads: 1\n";
    two[1].more    = "log:\n    every: 20\ncheckpoint:\n    keep: 4\ncompute:\n    threads: 2\n";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.n_groups, 1);
    assert_true(setting(&l.c, "log.every")->differs);
    assert_int_equal(setting(&l.c, "log.every")->role, CPL_ROLE_BOOKKEEPING);
    assert_int_equal(setting(&l.c, "train.seed")->role, CPL_ROLE_SEED);
    /* settings that matter come first, bookkeeping last */
    for (int64_t i = 1; i < l.c.n_settings; i++)
        assert_true(l.c.settings[i].role >= l.c.settings[i - 1].role);
    release(&l);
}

static void a_setting_of_another_version_has_its_default(void **state)
{
    (void)state;
    run_case three[] = {six[0], six[1], six[2]};
    three[1].more    = "    noise: bounded\n";
    three[2].more    = "    noise: none\n    unheard_of: 1\n";
    lined_up l;
    line_up(&l, three, 3, NULL);
    assert_int_equal(l.c.n_groups, 2); /* erc.noise is bounded where it is not named */
    assert_int_equal(l.c.groups[0].n, 2);
    assert_string_equal(setting(&l.c, "erc.noise")->texts[0], "bounded");
    assert_string_equal(setting(&l.c, "erc.unheard_of")->texts[0], "-");
    release(&l);
}

static void numbers_mean_the_same_however_written(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[1]};
    two[0].more    = "z:\n    weight: 1e-3\nbalance:\n    weight: null\n"
                     "orth:\n    words: []\n";
    two[1].more    = "z:\n    weight: 0.001\nbalance:\n    weight: unset\n"
                     "orth:\n    words:\n";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.n_groups, 1);
    assert_false(setting(&l.c, "z.weight")->differs);
    assert_false(setting(&l.c, "orth.words")->differs);
    release(&l);
}

/* Which tasks a run is asked on the way changes nothing of what it learns. */
static void evaluated_tasks_split_no_group(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[1]};
    two[1].more    = "eval:\n    tasks: [boolq]\n    tasks_every: 10\n    tasks_limit: 5\n"
                     "    tasks_data: rows\n";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.n_groups, 1);
    assert_true(setting(&l.c, "eval.tasks")->differs);
    release(&l);
}

static const run_case by_alpha[] = {
    {.name = "x", .seed = 0, .alpha = 10, .last = 20, .steps = 20, .weight = 1},
    {.name = "y", .seed = 0, .alpha = 2, .last = 20, .steps = 20, .weight = 1},
    {.name = "z", .seed = 1, .alpha = 2, .last = 20, .steps = 20, .weight = 0.5},
};

static void groups_by_a_setting_are_in_its_order(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, by_alpha, 3, "erc.alpha");
    assert_int_equal(l.c.n_groups, 2);
    assert_near(l.c.groups[0].place, 2, 0);
    assert_near(l.c.groups[1].place, 10, 0);
    assert_string_equal(l.c.groups[0].name, "erc.alpha 2");
    assert_int_equal(l.c.baseline, 1); /* the first run's */
    assert_true(warns(&l.c, "erc.alpha 2 differ in more than their seeds: erc.weight"));
    release(&l);
}

/* Two groups of runs that are called alike: a name is none of a count. */
static void groups_of_one_stem_have_other_names(void **state)
{
    (void)state;
    run_case five[]                  = {six[3], six[4], six[3], six[4], six[3]};
    static const char *const names[] = {"erc-s0", "erc-s1", "erc-s2", "erc-s3", "erc-4"};
    for (int i = 0; i < 5; i++) {
        five[i].name  = names[i];
        five[i].alpha = i / 2;
    }
    five[4].name = "erc";
    lined_up l;
    cpl_text out = {0};
    line_up(&l, five, 5, NULL);
    assert_int_equal(l.c.n_groups, 3);
    assert_string_equal(l.c.groups[0].name, "erc");
    assert_string_equal(l.c.groups[1].name, "erc [2]");
    assert_string_equal(l.c.groups[2].name, "erc [3]");
    assert_ok(cpl_compare_text(&out, &l.c));
    assert_non_null(strstr(out.bytes, "erc [2] (2 runs)"));
    assert_non_null(strstr(out.bytes, "erc [3] (1 run)"));
    cpl_text_free(&out);
    release(&l);
}

static void a_setting_that_is_not_there_is_told(void **state)
{
    (void)state;
    cpl_run_record run;
    cpl_compare c;
    const cpl_compare_options options = {.group_by = "erc.alpa"};
    assert_ok(cpl_run_record_open(&run, write_run(scratch_folder(), &six[0])));
    assert_fails(CPL_ERR_USAGE, "did you mean erc.alpha?", cpl_compare_open(&c, &run, 1, &options));
    cpl_run_record_close(&run);
}

/* ---- the point, and figures there ---- */

static void the_point_is_the_last_that_all_evaluated(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[3]};
    two[1].last    = 13;
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.point_kind, CPL_POINT_EVALUATED);
    assert_near(l.c.point, 1200, 0);
    assert_near(figure(&l.c, "validation-loss")->values[0], case_val(&two[0], 12), 1e-12);
    assert_near(figure(&l.c, "validation-loss-b")->values[1], case_val(&two[1], 12) + 0.5, 1e-12);
    assert_near(figure(&l.c, "eps")->values[1],
                (case_eps(&two[1], 12, 0) + case_eps(&two[1], 12, 1)) / 2, 1e-12);
    /* the mean over the lines of the last tenth: of 1080 < tokens <= 1200, two */
    assert_near(figure(&l.c, "training-loss")->values[0],
                (case_loss(&two[0], 11) + case_loss(&two[0], 12)) / 2, 1e-12);
    /* over the whole run */
    assert_near(figure(&l.c, "memory")->values[0], 1048576 * 6, 0);
    assert_near(figure(&l.c, "tokens-per-s")->values[1], 1200 + 10, 1e-9);
    assert_near(figure(&l.c, "tokens")->values[1], 1300, 0);
    assert_true(isnan(figure(&l.c, "grad-norm")->values[0]));
    release(&l);
}

static void without_evaluations_the_last_that_all_logged(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[3]};
    two[1].last    = 13;
    two[1].no_eval = true;
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.point_kind, CPL_POINT_LOGGED);
    assert_near(l.c.point, 1300, 0);
    assert_true(warns(&l.c, "at which every run was evaluated"));
    assert_true(isnan(figure(&l.c, "validation-loss")->values[1]));
    const double a = case_val(&two[0], 12), b = case_val(&two[0], 14);
    assert_near(figure(&l.c, "validation-loss")->values[0], (a + b) / 2, 1e-12);
    assert_near(figure(&l.c, "validation-loss-b")->values[0], (a + b) / 2 + 0.5, 1e-12);
    release(&l);
}

static void without_a_common_line_each_ones_last(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *folders[2];
    run_case two[]   = {six[0], six[3]};
    for (int i = 0; i < 2; i++) folders[i] = write_run(root, &two[i]);
    write_string(in_folder(folders[1], "config.yaml"),
                 "data:\n    batch_tokens: 130\ntrain:\n    seed: 0\n");
    write_string(in_folder(folders[1], "metrics.jsonl"),
                 "{\"step\":1,\"tokens\":130,\"loss\":3}\n"
                 "{\"step\":2,\"tokens\":260,\"loss\":2,\"val_loss\":2.5}\n");
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    assert_int_equal(l.c.point_kind, CPL_POINT_LAST);
    assert_true(warns(&l.c, "there is no number of tokens at which every run has a line"));
    assert_near(l.c.point, 260, 0);
    assert_int_equal(cpl_compare_line(&l.c, 0)->step, 2);
    /* no line of the first is in the last tenth before the point, one is before its own line */
    assert_near(figure(&l.c, "training-loss")->values[0], case_loss(&two[0], 2), 1e-12);
    assert_near(figure(&l.c, "training-loss")->values[1], 2, 1e-12);
    /* 260 lies between the evaluations at 200 and 400 */
    const double a = case_val(&two[0], 2), b = case_val(&two[0], 4);
    assert_near(figure(&l.c, "validation-loss")->values[0], a + (b - a) * 60 / 200, 1e-12);
    assert_near(figure(&l.c, "validation-loss-a")->values[0], a - 0.5 + (b - a) * 60 / 200, 1e-12);
    assert_near(figure(&l.c, "validation-loss")->values[1], 2.5, 0);
    char words[CPL_POINT_WORDS];
    assert_non_null(strstr(cpl_compare_point_words(words, &l.c),
                           "validation loss linear between two evaluations"));
    assert_int_equal(cpl_compare_line(&l.c, 1)->step, 2);
    release(&l);
}

static void check_page(const cpl_compare *c)
{
    cpl_text out = {0};
    json_t *data = page_data(c);
    assert_ok(cpl_compare_page(&out, c, data));
    json_decref(data);
    assert_non_null(strstr(out.bytes, "no step logged yet"));
    cpl_text_free(&out);
}

/* First of its group and of all, and in no one's way. */
static void a_run_that_has_just_begun_is_listed(void **state)
{
    (void)state;
    run_case four[] = {six[0], six[1], six[3], six[4]};
    four[0].last = four[3].last = 0;
    lined_up l;
    cpl_text out = {0};
    line_up(&l, four, 4, NULL);
    assert_int_equal(l.c.point_kind, CPL_POINT_EVALUATED);
    assert_near(l.c.point, 2000, 0);
    assert_int_equal(l.c.n_groups, 2);
    assert_int_equal(l.c.groups[0].n, 2);
    assert_true(isnan(figure(&l.c, "validation-loss")->values[0]));
    assert_true(isnan(figure(&l.c, "tokens")->values[0]));
    assert_true(isnan(l.c.speed[0]));
    assert_near(figure(&l.c, "validation-loss")->spread[0].mean, case_val(&four[1], 20), 1e-12);
    assert_int_equal(l.c.pairings[0].n, 0); /* erc-s0 would be the other of vanilla-s0 */
    assert_ok(cpl_compare_text(&out, &l.c));
    assert_non_null(strstr(out.bytes, "no step logged yet"));
    assert_non_null(strstr(out.bytes, "(n = 1)"));
    assert_non_null(strstr(out.bytes, "n: so many runs of the group have the figure."));
    check_page(&l.c);
    json_t *o = cpl_compare_json(&l.c), *run = json_array_get(json_object_get(o, "runs"), 0);
    assert_true(json_is_null(json_object_get(run, "step")));
    assert_true(json_is_true(json_object_get(run, "in_progress")));
    json_decref(o);
    cpl_text_free(&out);
    release(&l);
    line_up(&l, four, 1, NULL); /* nothing but a run that has begun */
    assert_int_equal(l.c.point_kind, CPL_POINT_NONE);
    check_page(&l.c);
    release(&l);
}

/* A run twice as fast would be where it is after half of its tokens. */
static void equal_time_is_between_evaluations(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[5]};
    lined_up l;
    line_up(&l, two, 2, NULL);
    /* medians: 1010 and 1110 tokens/s; the faster run reaches 2000 tokens first */
    const double seconds = 2000 / 1110.0, tokens = seconds * 1010, step = tokens / 100;
    const int low  = (int)(step / 2) * 2;
    const double a = case_val(&two[0], low), b = case_val(&two[0], low + 2);
    assert_near(l.c.seconds, seconds, 1e-12);
    const cpl_compared_figure *f = figure(&l.c, "validation-loss-equal-time");
    assert_near(f->values[0], a + (b - a) * (step - low) / 2, 1e-12);
    assert_near(f->values[1], case_val(&two[1], 20), 1e-12);
    release(&l);
}

/* ---- out ---- */

static void the_text_says_it_all(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[3]};
    two[1].last    = 13;
    two[1].train   = "[/another/place]";
    lined_up l;
    cpl_text out = {0};
    line_up(&l, two, 2, NULL);
    assert_ok(cpl_compare_text(&out, &l.c));
    assert_true(strncmp(out.bytes, "warning: vanilla-s0 and erc-s2", 30) == 0);
    assert_null(strstr(out.bytes, "n = "));
    assert_non_null(strstr(out.bytes, "13 of 20, in progress"));
    assert_non_null(strstr(out.bytes, "at 1,200 tokens"));
    assert_non_null(strstr(out.bytes, "validation loss, b"));
    assert_null(strstr(out.bytes, "gradient norm")); /* no run has it */
    assert_null(strstr(out.bytes, "−"));             /* plain signs on a terminal */
    cpl_text_free(&out);
    release(&l);
}

static void the_json_has_what_was_measured(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, six, 6, NULL);
    json_t *o = cpl_compare_json(&l.c), *run = json_array_get(json_object_get(o, "runs"), 4);
    assert_string_equal(json_string_value(json_object_get(run, "name")), "erc-s0");
    assert_string_equal(json_string_value(json_object_get(run, "group")), "erc");
    const json_t *figures = json_object_get(run, "figures"),
                 *layers  = json_object_get(run, "layers");
    assert_near(json_number_value(json_object_get(figures, "val_loss")), case_val(&six[4], 20),
                1e-12);
    assert_true(json_is_null(json_object_get(figures, "erc")));
    assert_near(json_number_value(json_array_get(json_object_get(layers, "eps_mean"), 1)),
                case_eps(&six[4], 20, 1), 1e-12);
    const json_t *pairs = json_array_get(json_object_get(o, "comparisons"), 0);
    assert_near(json_number_value(json_object_get(pairs, "mean")), -0.02, 1e-12);
    assert_int_equal(json_array_size(json_object_get(pairs, "pairs")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "point_tokens")), 2000);
    json_decref(o);
    release(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_other_seeds_are_a_group),
        cmocka_unit_test(mean_and_deviation_are_the_members),
        cmocka_unit_test(bookkeeping_splits_no_group),
        cmocka_unit_test(evaluated_tasks_split_no_group),
        cmocka_unit_test(a_setting_of_another_version_has_its_default),
        cmocka_unit_test(numbers_mean_the_same_however_written),
        cmocka_unit_test(groups_by_a_setting_are_in_its_order),
        cmocka_unit_test(groups_of_one_stem_have_other_names),
        cmocka_unit_test(a_setting_that_is_not_there_is_told),
        cmocka_unit_test(the_point_is_the_last_that_all_evaluated),
        cmocka_unit_test(without_evaluations_the_last_that_all_logged),
        cmocka_unit_test(without_a_common_line_each_ones_last),
        cmocka_unit_test(a_run_that_has_just_begun_is_listed),
        cmocka_unit_test(equal_time_is_between_evaluations),
        cmocka_unit_test(the_text_says_it_all),
        cmocka_unit_test(the_json_has_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
