/* test_selection.c - the tasks that a user's words select: sets, profiles, forms, own files. */
#include "eval/prompts/selection.h"

#include "eval/prompts/questions_case.h"
#include "eval/run/runner.h"

static cpl_status add(cpl_selection *s, const char *word, const char *profile, const char *variant)
{
    const cpl_selection_options options = {
        .words = &word, .n_words = 1, .profile = profile, .variant = variant};
    return cpl_selection_add(s, &options);
}

static cpl_status add_file(cpl_selection *s, const char *path)
{
    const cpl_selection_options options = {.files = &path, .n_files = 1};
    return cpl_selection_add(s, &options);
}

static const char *keys_of(const cpl_selection *s)
{
    static char all[2000];
    all[0] = '\0';
    for (int64_t i = 0; i < s->count; i++) {
        assert_true(strlen(all) + strlen(s->at[i].key) + 2 < sizeof all);
        if (i) strcat(all, " ");
        strcat(all, s->at[i].key);
    }
    return all;
}

TEST(sets_of_the_paper)
{
    cpl_selection s;
    assert_ok(cpl_selection_init(&s, cpl_request_kinds));
    assert_int_equal(s.n_tasks, cpl_n_task_texts);
    assert_int_equal(s.count, 0);
    assert_ok(add(&s, "paper-3b", NULL, NULL));
    assert_string_equal(keys_of(&s), "arc_challenge commonsense_qa copa boolq hellaswag openbookqa "
                                     "sciq social_iqa winogrande mmlu");
    assert_string_equal(s.at[9].profile->name, "inloop");
    assert_ok(add(&s, "all", NULL, NULL)); /* a selected task is not added again */
    assert_int_equal(s.count, 18);
    assert_string_equal(s.at[10].key, "mmlu/harness");
    assert_string_equal(s.at[10].profile->name, "harness");
    cpl_selection_free(&s);
}

/* A profile of several forms selects the forms, and then itself. */
TEST(forms)
{
    cpl_selection s;
    assert_ok(cpl_selection_init(&s, cpl_request_kinds));
    assert_ok(add(&s, "arc_challenge", "olmes", NULL));
    assert_int_equal(s.count, 3);
    assert_string_equal(s.at[2].key, "arc_challenge");
    for (int i = 0; i < 2; i++) assert_int_equal(s.at[i].form_of, 2);
    assert_int_equal(s.at[2].form_of, -1);
    assert_ok(add(&s, "arc_challenge", NULL, NULL));
    assert_string_equal(s.at[3].key, "arc_challenge/inloop");
    cpl_selection_free(&s);
}

TEST(what_there_is_not)
{
    cpl_selection s;
    assert_ok(cpl_selection_init(&s, cpl_request_kinds));
    assert_fails(CPL_ERR_USAGE, "there is no task arc_chalenge; did you mean arc_challenge?",
                 add(&s, "arc_chalenge", NULL, NULL));
    static const char *const meant[][2] = {
        {"arc", "arc_challenge"}, {"siqa", "social_iqa"},        {"csqa", "commonsense_qa"},
        {"obqa", "openbookqa"},   {"gsm", "gsm8k or gsm8k_cot"}, {"paper", "paper-3b or paper-15b"},
        {"mmlu_anatomy", "mmlu"}, {"mmlu_pro_law", "mmlu_pro"},  {"agieval_en", "agieval"},
        {"mmul", "mmlu"}};
    char sentence[100];
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++) {
        snprintf(sentence, sizeof sentence, "there is no task %s; did you mean %s? (", meant[i][0],
                 meant[i][1]);
        assert_fails(CPL_ERR_USAGE, sentence, add(&s, meant[i][0], NULL, NULL));
    }
    assert_fails(CPL_ERR_USAGE, "there is no task paper3b; did you mean paper-3b?",
                 add(&s, "paper3b", NULL, NULL));
    assert_fails(CPL_ERR_USAGE, "there is no task xyz (`couplet eval --list` shows all)",
                 add(&s, "xyz", NULL, NULL));
    assert_fails(CPL_ERR_USAGE, "the name of a task is empty", add(&s, "", NULL, NULL));
    assert_fails(CPL_ERR_USAGE,
                 "copa: there is no profile olmes; there are inloop, harness, harness/one_space",
                 add(&s, "copa", "olmes", NULL));
    assert_fails(CPL_ERR_USAGE, "copa: there is no profile inlop; did you mean inloop?",
                 add(&s, "copa", "inlop", NULL));
    assert_int_equal(s.count, 0);
    cpl_selection_free(&s);
}

/* A user's task is in none of the paper's sets, but may have the id of a built-in task. */
TEST(files_of_ones_own)
{
    static const char file[] =
        "task: copa\nsets: [3b]\nsplits: {a: a.csv}\nfields: {q: q, o: {list: [q, q]}}\n"
        "choices: o\ngold: 0\nprofiles: {inloop: {split: a, ask: rank, context: x, scores: acc}}\n";
    const char *path = in_folder(scratch_folder(), "t.yaml");
    cpl_selection s;
    write_string(path, file);
    assert_ok(cpl_selection_init(&s, cpl_request_kinds));
    const int64_t n = s.n_tasks;
    assert_ok(add_file(&s, path));
    assert_int_equal(s.n_tasks, n + 1);
    assert_int_equal(s.count, 1);
    assert_string_equal(s.at[0].key, "copa");
    assert_false(cpl_selection_is_of(&s, n, "3b"));
    for (int64_t i = 0; i < n; i++)
        if (strcmp(s.tasks[i]->id, "copa") == 0) assert_true(cpl_selection_is_of(&s, i, "3b"));
    assert_ok(add(&s, "copa", NULL, NULL)); /* the file's task, which is selected already */
    assert_int_equal(s.count, 1);
    assert_ok(add(&s, "paper-3b", NULL, NULL)); /* the set's ten tasks, with copa */
    assert_int_equal(s.count, 11);
    assert_string_equal(s.at[3].key, "copa/inloop");
    assert_true(s.at[3].task != s.at[0].task);
    assert_fails(CPL_ERR_IO, "none.yaml", add_file(&s, "/none.yaml"));
    cpl_selection_free(&s);
}
