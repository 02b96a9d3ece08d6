/* test_compare.c - runs lined up: settings, groups, the point of comparison, figures, pairs, documents
 * and questions, each against what is worked out here. */
#include "study/compare.h"

#include "base/arena.h"
#include "base/rng.h"
#include "study/compare_case.h"
#include "study/compare_json.h"
#include "study/compare_page.h"
#include "study/compare_tables.h"

static const cpl_compared_figure *figure(const cpl_compare *c, const char *file)
{
    for (int64_t i = 0; i < c->n_figures; i++)
        if (strcmp(c->figures[i].file, file) == 0) return &c->figures[i];
    fail_msg("there is no figure %s", file);
    return NULL;
}

static bool warns(const cpl_compare *c, const char *part)
{
    for (int64_t i = 0; i < c->n_warnings; i++)
        if (strstr(c->warnings[i], part)) return true;
    return false;
}

static const cpl_compared_setting *setting(const cpl_compare *c, const char *name)
{
    for (int64_t i = 0; i < c->n_settings; i++)
        if (strcmp(c->settings[i].name, name) == 0) return &c->settings[i];
    fail_msg("there is no setting %s", name);
    return NULL;
}

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
    assert_int_equal(l.c.n_warnings, 0);
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
    two[0].more    = "z:\n    weight: 1e-3\nbalance:\n    weight: null\n";
    two[1].more    = "z:\n    weight: 0.001\nbalance:\n    weight: unset\n";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.n_groups, 1);
    assert_false(setting(&l.c, "z.weight")->differs);
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
    assert_ok(cpl_compare_page(&out, c));
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
    const cpl_compared_figure *f = figure(&l.c, "val_loss_equal_time");
    assert_near(f->values[0], a + (b - a) * (step - low) / 2, 1e-12);
    assert_near(f->values[1], case_val(&two[1], 20), 1e-12);
    release(&l);
}

/* ---- warnings ---- */

static void other_data_warns_first(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[3]};
    two[0].train   = "[/home/one/corpus/docs]";
    two[1].train   = "[/elsewhere/other/docs]";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_true(l.c.n_warnings > 0);
    assert_non_null(strstr(l.c.warnings[0], "vanilla-s0 and erc-s2 differ in their training data"));
    assert_non_null(strstr(l.c.warnings[0], "corpus/docs"));
    assert_non_null(strstr(l.c.warnings[0], "other/docs"));
    assert_int_equal(l.c.pairings[0].n, 0); /* no pair: other data */
    release(&l);
}

static void the_same_data_elsewhere_does_not(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[1]};
    two[0].train   = "[/home/one/corpus/docs]";
    two[1].train   = "[/mnt/two/corpus/docs/]";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.n_groups, 2 - 1);
    assert_int_equal(l.c.n_warnings, 0);
    release(&l);
}

static void fingerprints_count_where_both_have_them(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *folders[2];
    run_case two[]   = {six[0], six[1]};
    two[1].train     = "[/quite/another/place]";
    for (int i = 0; i < 2; i++) {
        folders[i] = write_run(root, &two[i]);
        assert_int_equal(mkdir(in_folder(folders[i], "step-000020"), 0777), 0);
        write_string(in_folder(folders[i], "step-000020/state.json"), "{\"data\":\"same\"}");
    }
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    assert_int_equal(l.c.n_groups, 1);
    release(&l);
    write_string(in_folder(folders[1], "step-000020/state.json"), "{\"data\":\"other\"}");
    line_up_folders(&l, folders, 2, NULL);
    assert_true(warns(&l.c, "(same) and [another/place] (other)"));
    release(&l);
}

/* Runs `cases` with a start.json that says this of each; NULL: without. */
static void line_up_started(lined_up *l, const run_case *cases, const char *const *says, int64_t n,
                            const char *by)
{
    const char *folders[CASE_RUNS], *root = scratch_folder();
    for (int64_t i = 0; i < n; i++) {
        folders[i] = write_run(root, &cases[i]);
        if (says[i]) write_string(in_folder(folders[i], "start.json"), says[i]);
    }
    line_up_folders(l, folders, n, by);
}

static void the_same_content_elsewhere_does_not_warn(void **state)
{
    (void)state;
    static const char says[] = "{\"data\":\"aa\",\"held_out\":\"bb\",\"tokenizer\":\"cc\"}";
    const char *const both[] = {says, says};
    run_case two[]           = {six[0], six[4]};
    two[0].train             = "[/home/one/here]\n    validation: /v/1\n    tokenizer: /t/1";
    two[1].train             = "[/quite/another/place]\n    validation: /v/2\n    tokenizer: /t/2";
    lined_up l;
    line_up_started(&l, two, both, 2, NULL);
    assert_int_equal(l.c.n_warnings, 0);
    assert_int_equal(l.c.pairings[0].n, 1);
    release(&l);
}

/* The same words in the configuration, and other text under them. */
static void other_content_under_one_path_separates(void **state)
{
    (void)state;
    static const char *const others[][2] = {
        {"{\"data\":\"other\",\"held_out\":\"bb\"}", "training data"},
        {"{\"data\":\"aa\",\"held_out\":\"other\"}", "validation data"},
    };
    for (int i = 0; i < 2; i++)
        for (int by = 0; by < 2; by++) {
            const char *const says[] = {"{\"data\":\"aa\",\"held_out\":\"bb\"}", others[i][0],
                                        NULL};
            const run_case three[]   = {six[0], six[1], six[4]};
            lined_up l;
            line_up_started(&l, three, says, 3, by ? "model.vocab_size" : NULL);
            assert_int_equal(l.c.n_groups, by ? 2 : 3);
            assert_int_equal(l.c.group_of[1], 1);
            assert_non_null(strstr(l.c.warnings[0], "vanilla-s0 and vanilla-s1 differ in their"));
            assert_non_null(strstr(l.c.warnings[0], others[i][1]));
            release(&l);
            const run_case same_seed[] = {six[0], six[4]};
            line_up_started(&l, same_seed, says, 2, NULL);
            assert_int_equal(l.c.pairings[0].n, 0);
            release(&l);
        }
}

/* Where one of three has no start.json, the others' content still counts between them. */
static void content_counts_between_those_that_know_it(void **state)
{
    (void)state;
    const char *const says[] = {NULL, "{\"held_out\":\"x\"}", "{\"held_out\":\"y\"}"};
    const run_case three[]   = {six[0], six[1], six[2]};
    lined_up l;
    line_up_started(&l, three, says, 3, NULL);
    assert_int_equal(l.c.n_groups, 2);
    assert_int_equal(l.c.group_of[1], 0); /* by the path */
    assert_int_equal(l.c.group_of[2], 1);
    assert_non_null(
        strstr(l.c.warnings[0], "vanilla-s1 and vanilla-s2 differ in their validation"));
    release(&l);
}

static void damage_is_told(void **state)
{
    (void)state;
    const char *folder = write_run(scratch_folder(), &six[0]);
    FILE *file         = fopen(in_folder(folder, "metrics.jsonl"), "a");
    fputs("{\"step\":\n{\"step\":20,\"tokens\":2000,\"loss\":2,\"val_loss\":1}\n{", file);
    fclose(file);
    lined_up l;
    line_up_folders(&l, &folder, 1, NULL);
    assert_true(warns(&l.c, "2 damaged lines of its metrics were passed over"));
    assert_true(warns(&l.c, "1 step has several lines"));
    assert_near(figure(&l.c, "validation-loss")->values[0], 1, 0);
    assert_int_equal(l.c.n_pairings, 0);
    release(&l);
}

/* ---- pairs ---- */

static void pairs_share_their_seed(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, six, 6, NULL);
    assert_int_equal(l.c.n_pairings, 1);
    const cpl_pairing *p = &l.c.pairings[0];
    /* vanilla-s0 with erc-s0, ... ; the losses of a pair differ by their shifts */
    static const double want[] = {-0.04, 0.01, -0.03};
    static const int other[]   = {4, 5, 3};
    double mean = (-0.04 + 0.01 - 0.03) / 3, squares = 0;
    assert_int_equal(p->n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p->pairs[i].base, i);
        assert_int_equal(p->pairs[i].other, other[i]);
        assert_near(p->pairs[i].difference, want[i], 1e-12);
        squares += (want[i] - mean) * (want[i] - mean);
    }
    const double sd = sqrt(squares / 2);
    assert_near(p->spread.mean, mean, 1e-12);
    assert_near(p->spread.sd, sd, 1e-12);
    assert_near(p->half, 4.30265272974946 * sd / sqrt(3), 1e-9);
    assert_near(p->detectable, 3.2640435496995703 * sd, 1e-6 * sd);
    release(&l);
}

static void the_seed_of_the_order_must_agree(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[4]};
    two[0].more    = "data2:\n    x: 1\n";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_int_equal(l.c.pairings[0].n, 1);
    release(&l);
    const char *root = scratch_folder(), *folders[2];
    for (int i = 0; i < 2; i++) folders[i] = write_run(root, &six[i * 4]);
    write_string(
        in_folder(folders[1], "config.yaml"),
        "data:\n    seed: 5\n    train: [/some/where/docs]\n    batch_tokens: 100\ntrain:\n"
        "    seed: 0\n    steps: 20\nerc:\n    weight: 1\n    alpha: 1\n");
    line_up_folders(&l, folders, 2, NULL);
    assert_int_equal(l.c.pairings[0].n, 0);
    release(&l);
}

static void a_run_is_in_one_pair(void **state)
{
    (void)state;
    run_case three[] = {six[0], six[0], six[4]};
    three[1].name    = "vanilla-again";
    lined_up l;
    line_up(&l, three, 3, NULL);
    assert_int_equal(l.c.groups[0].n, 2);
    assert_int_equal(l.c.pairings[0].n, 1);
    assert_int_equal(l.c.pairings[0].pairs[0].base, 0);
    assert_true(isnan(l.c.pairings[0].half)); /* one pair has no interval */
    release(&l);
}

/* ---- documents ---- */

enum { DOCUMENTS = 400 };

static double a_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static double bytes_of(int d)
{
    return 200 + (d * 37) % 300;
}

/* nll of document `d` in run `r` */
static double nll_of(int d, int r)
{
    uint64_t state = (uint64_t)(d * 8 + r + 1);
    a_number(&state);
    return bytes_of(d) * (0.8 + 0.1 * (d % 7) + 0.05 * a_number(&state) - 0.02 * (r >= 3));
}

static void write_documents(const char *folder, int r, int first, int last, bool packed)
{
    cpl_text text = {0}, gz = {0};
    cpl_text_printf(&text, "{\"step\":20,\"window\":64,\"documents\":[");
    for (int d = first; d < last; d++)
        cpl_text_printf(&text,
                        "%s{\"source\":\"%s\",\"id\":\"d%d\",\"bytes\":%g,\"tokens\":9,"
                        "\"nll\":%.17g}",
                        d > first ? "," : "", d % 3 ? "a" : "b", d, bytes_of(d), nll_of(d, r));
    cpl_text_append(&text, "]}", 2);
    append_gzip(&gz, text.bytes, text.length);
    if (packed)
        write_bytes(in_folder(folder, "documents.json.gz"), gz.bytes, gz.length);
    else
        write_bytes(in_folder(folder, "documents.json"), text.bytes, text.length);
    cpl_text_free(&text);
    cpl_text_free(&gz);
}

static void line_up_documents(lined_up *l)
{
    const char *root = scratch_folder(), *folders[6];
    for (int r = 0; r < 6; r++) {
        folders[r] = write_run(root, &six[r]);
        /* the baseline lacks the first two, the others the last three */
        write_documents(folders[r], r, r < 3 ? 2 : 0, r < 3 ? DOCUMENTS : DOCUMENTS - 3, r % 2);
    }
    line_up_folders(l, folders, 6, NULL);
}

static void bits_per_byte_are_of_the_same_documents(void **state)
{
    (void)state;
    lined_up l;
    line_up_documents(&l);
    const cpl_document_difference *d = &l.c.pairings[0].documents;
    double base[2] = {0}, other[2] = {0}, bytes[2] = {0};
    for (int i = 2; i < DOCUMENTS - 3; i++) {
        bytes[i % 3 == 0] += bytes_of(i);
        for (int r = 0; r < 3; r++) base[i % 3 == 0] += nll_of(i, r) / 3;
        for (int r = 3; r < 6; r++) other[i % 3 == 0] += nll_of(i, r) / 3;
    }
    assert_int_equal(d->n_pairs, 3);
    assert_int_equal(d->step, 20);
    assert_int_equal(d->only_base, 3);
    assert_int_equal(d->only_other, 2);
    assert_int_equal(d->n_sets, 3);
    assert_int_equal(d->sets[0].n, DOCUMENTS - 5);
    assert_near(d->sets[0].base, (base[0] + base[1]) / log(2) / (bytes[0] + bytes[1]), 1e-12);
    assert_near(d->sets[0].other, (other[0] + other[1]) / log(2) / (bytes[0] + bytes[1]), 1e-12);
    for (int s = 0; s < 2; s++) {
        assert_string_equal(d->sets[s + 1].source, s ? "b" : "a");
        assert_near(d->sets[s + 1].difference, (other[s] - base[s]) / log(2) / bytes[s], 1e-12);
        assert_near(d->sets[s + 1].bytes, bytes[s], 0);
    }
    release(&l);
}

/* Of many documents the interval is that of a normal distribution with the deviation of a ratio of
 * sums. */
static void the_bootstrap_is_near_the_analytic_interval(void **state)
{
    (void)state;
    lined_up l;
    line_up_documents(&l);
    const cpl_document_set *set = &l.c.pairings[0].documents.sets[0];
    double bytes = 0, squares = 0;
    const double n = DOCUMENTS - 5;
    for (int i = 2; i < DOCUMENTS - 3; i++) {
        double delta = 0;
        for (int r = 0; r < 3; r++) delta += (nll_of(i, r + 3) - nll_of(i, r)) / 3 / log(2);
        bytes += bytes_of(i);
        squares += pow(delta - set->difference * bytes_of(i), 2);
    }
    const double sd = sqrt(squares * n / (n - 1)) / bytes;
    assert_near(set->high - set->low, 2 * 1.96 * sd, 0.1 * 2 * 1.96 * sd);
    assert_near((set->high + set->low) / 2, set->difference, 0.3 * sd);
    assert_true(set->low < set->difference && set->difference < set->high);
    release(&l);
}

static void the_bootstrap_is_the_same_twice(void **state)
{
    (void)state;
    double delta[50], bytes[50], low[3], high[3];
    uint64_t numbers = 7;
    for (int i = 0; i < 50; i++) {
        delta[i] = a_number(&numbers) - 0.4;
        bytes[i] = 100 + i;
    }
    for (int i = 0; i < 3; i++)
        assert_ok(cpl_document_interval(&low[i], &high[i], delta, bytes, 50, (uint32_t)(i == 2)));
    assert_true(low[0] == low[1] && high[0] == high[1]);
    assert_true(low[0] != low[2]); /* another set draws other documents */
    /* one resample by hand: the first draws are those of the generator */
    double drawn[CPL_BOOTSTRAP_RESAMPLES];
    for (uint64_t k = 0; k < CPL_BOOTSTRAP_RESAMPLES; k++) {
        const cpl_rng_key key = {.step = k, .stream = CPL_STREAM_BOOTSTRAP};
        double sum = 0, size = 0;
        for (uint64_t i = 0; i < 50; i++) {
            const int at = (int)((double)cpl_rng_u32(&key, i) / 4294967296.0 * 50);
            sum += delta[at];
            size += bytes[at];
        }
        drawn[k] = sum / size;
    }
    assert_near(low[0], cpl_quantile(drawn, CPL_BOOTSTRAP_RESAMPLES, 0.025), 1e-15);
    assert_near(high[0], cpl_quantile(drawn, CPL_BOOTSTRAP_RESAMPLES, 0.975), 1e-15);
}

static void documents_of_other_steps_are_not_compared(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *folders[2];
    for (int i = 0; i < 2; i++) folders[i] = write_run(root, &six[i * 4]);
    write_string(in_folder(folders[0], "documents.json"),
                 "{\"step\":20,\"window\":64,\"documents\":[{\"source\":\"a\",\"id\":\"x\","
                 "\"bytes\":10,\"tokens\":3,\"nll\":5}]}");
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    assert_int_equal(l.c.pairings[0].documents.n_pairs, 0); /* one has none: nothing to tell */
    assert_int_equal(l.c.n_warnings, 0);
    release(&l);
    static const char *const bad[][2] = {
        {"{\"step\":10,\"window\":64,\"documents\":[]}", "of different steps or windows"},
        {"{\"step\":20,\"window\":32,\"documents\":[]}", "of different steps or windows"},
        {"{\"step\":20,\"window\":64,\"documents\":[]}", "no document in common"},
        {"{\"step\":20,\"window\":64,\"documents\":[{\"source\":\"a\",\"id\":\"x\","
         "\"bytes\":11,\"nll\":5}]}",
         "no document in common"}, /* other bytes are another document */
        {"{\"step\":", "documents.json: line 1"},
    };
    for (int i = 0; i < 5; i++) {
        write_string(in_folder(folders[1], "documents.json"), bad[i][0]);
        line_up_folders(&l, folders, 2, NULL);
        assert_int_equal(l.c.pairings[0].documents.n_pairs, 0);
        assert_true(warns(&l.c, bad[i][1]));
        release(&l);
    }
}

/* ---- questions ---- */

/* Questions 0 .. n-1 are right where `is` says so; question 3 is left out by the second side. */
static void write_questions(const char *folder, const char *is, bool other)
{
    cpl_text text = {0};
    cpl_text_printf(&text, "{\"settings\":{},\"results\":{\"ranked\":{\"metrics\":{\"acc_norm\":0,"
                           "\"acc\":0},\"samples\":[");
    for (int i = 0; is[i]; i++)
        if (i != 3 || !other)
            cpl_text_printf(&text, "%s{\"id\":%d,\"correct\":{\"acc\":0,\"acc_norm\":%c}}",
                            i ? "," : "", i, is[i]);
    cpl_text_printf(&text,
                    "]},\"%s\":{\"metrics\":{\"exact_match\":1},\"samples\":[{\"id\":\"q/0\","
                    "\"correct\":1}]},\"written\":{\"metrics\":{\"exact_match,b\":0,"
                    "\"exact_match,a\":0},\"samples\":[{\"id\":\"w\",\"correct\":{\"a\":0,"
                    "\"b\":1}}]}}}",
                    other ? "theirs" : "ours");
    write_bytes(in_folder(folder, "questions.json"), text.bytes, text.length);
    cpl_text_free(&text);
}

static void questions_are_counted_both_ways(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *folders[2];
    for (int i = 0; i < 2; i++) folders[i] = write_run(root, &six[i * 4]);
    write_questions(folders[0], "111000000000", false);
    write_questions(folders[1], "100111111000", true);
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    const cpl_question_counts *q = &l.c.pairings[0].questions;
    assert_int_equal(q->n, 2); /* tasks of one side alone are none */
    const cpl_question_table *t = &q->tables[0];
    assert_string_equal(t->task, "ranked");
    assert_string_equal(t->metric, "acc_norm"); /* the first of "metrics" */
    assert_int_equal(t->both, 1);
    assert_int_equal(t->only_base, 2);
    assert_int_equal(t->only_other, 5);
    assert_int_equal(t->neither, 3);
    assert_int_equal(t->left_out, 1);
    assert_near(t->p, 0.453125, 1e-12); /* binomtest(2, 7) */
    assert_string_equal(q->tables[1].metric, "b");
    assert_int_equal(q->tables[1].both, 1);
    assert_near(q->tables[1].p, 1, 0);
    release(&l);
}

static void questions_of_another_shape_are_told(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *folders[2];
    for (int i = 0; i < 2; i++) folders[i] = write_run(root, &six[i * 4]);
    write_questions(folders[0], "1110", false);
    static const char *const bad[][2] = {
        {"[]", "erc-s0/questions.json: it is no object"},
        {"{\"result\":{}}", "questions.json: its member results is no object"},
        {"{\"results\":[]}", "questions.json: its member results is no object"},
        {"{\"results\":{\"ranked\":{\"sample\":[]}}}", "its task ranked has no array samples"},
        {"{\"results\":{\"ranked\":[]}}", "its task ranked has no array samples"},
        {"{\"results\":{\"ranked\":{\"samples\":[1,{\"id\":1,\"correct\":1},{\"id\":2}]}}}",
         "2 of the samples of its task ranked have no id"},
        {"{\"results\":", "questions.json: line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lined_up l;
        write_string(in_folder(folders[1], "questions.json"), bad[i][0]);
        line_up_folders(&l, folders, 2, NULL);
        assert_true(warns(&l.c, bad[i][1]));
        release(&l);
    }
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

static void memory_that_is_not_there_is_told(void **state)
{
    (void)state;
    const char *root = scratch_folder();
    cpl_run_record runs[2];
    const cpl_compare_options options = {.group_by = NULL};
    for (int i = 0; i < 2; i++) {
        const char *folder = write_run(root, &six[i * 4]);
        write_documents(folder, i * 4, 0, 30, false);
        write_questions(folder, "10101", false);
        assert_ok(cpl_run_record_open(&runs[i], folder));
    }
    const int64_t held = cpl_alloc_held();
    int failed         = 0;
    for (int64_t n = 1; n < 60; n++) {
        cpl_compare c;
        cpl_text out = {0};
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_compare_open(&c, runs, 2, &options);
        if (status == CPL_OK) status = cpl_compare_text(&out, &c);
        cpl_alloc_fail_at(0);
        failed += status == CPL_ERR_MEMORY;
        cpl_text_free(&out);
        cpl_compare_close(&c);
        assert_int_equal(cpl_alloc_held(), held);
    }
    assert_true(failed > 10);
    for (int i = 0; i < 2; i++) cpl_run_record_close(&runs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_other_seeds_are_a_group),
        cmocka_unit_test(mean_and_deviation_are_the_members),
        cmocka_unit_test(bookkeeping_splits_no_group),
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
        cmocka_unit_test(other_data_warns_first),
        cmocka_unit_test(the_same_data_elsewhere_does_not),
        cmocka_unit_test(fingerprints_count_where_both_have_them),
        cmocka_unit_test(the_same_content_elsewhere_does_not_warn),
        cmocka_unit_test(other_content_under_one_path_separates),
        cmocka_unit_test(content_counts_between_those_that_know_it),
        cmocka_unit_test(damage_is_told),
        cmocka_unit_test(pairs_share_their_seed),
        cmocka_unit_test(the_seed_of_the_order_must_agree),
        cmocka_unit_test(a_run_is_in_one_pair),
        cmocka_unit_test(bits_per_byte_are_of_the_same_documents),
        cmocka_unit_test(the_bootstrap_is_near_the_analytic_interval),
        cmocka_unit_test(the_bootstrap_is_the_same_twice),
        cmocka_unit_test(documents_of_other_steps_are_not_compared),
        cmocka_unit_test(questions_are_counted_both_ways),
        cmocka_unit_test(questions_of_another_shape_are_told),
        cmocka_unit_test(the_text_says_it_all),
        cmocka_unit_test(the_json_has_what_was_measured),
        cmocka_unit_test(memory_that_is_not_there_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
