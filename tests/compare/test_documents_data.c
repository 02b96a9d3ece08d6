/* test_documents_data.c - runs lined up: whether their data are the same, what is warned of, and
 * which runs are a pair. */
#include "compare/compare_case.h"

/* ---- warnings ---- */

static void other_data_warns_first(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[3]};
    two[0].train   = "[/home/one/corpus/docs]";
    two[1].train   = "[/elsewhere/other/docs]";
    lined_up l;
    line_up(&l, two, 2, NULL);
    assert_true(l.c.warnings.count > 0);
    assert_non_null(
        strstr(l.c.warnings.at[0], "vanilla-s0 and erc-s2 differ in their training data"));
    assert_non_null(strstr(l.c.warnings.at[0], "corpus/docs"));
    assert_non_null(strstr(l.c.warnings.at[0], "other/docs"));
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
    assert_int_equal(l.c.warnings.count, 0);
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
    assert_int_equal(l.c.warnings.count, 0);
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
            assert_non_null(
                strstr(l.c.warnings.at[0], "vanilla-s0 and vanilla-s1 differ in their"));
            assert_non_null(strstr(l.c.warnings.at[0], others[i][1]));
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
        strstr(l.c.warnings.at[0], "vanilla-s1 and vanilla-s2 differ in their validation"));
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
    const char *folders[2];
    write_pair(folders);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
