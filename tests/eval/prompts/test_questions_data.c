/* test_questions_data.c - the rows that are shipped in data/eval: each of them gives a question,
 * and tasks without rows are named. */
#include "eval/prompts/questions_case.h"

/* Profiles whose rows or few-shot examples are not shipped. */
static const char *const absent[] = LIST("openbookqa/", "sciq/", "social_iqa/", "ceval/",
                                         "triviaqa/", "mmlu/inloop ", "mmlu/inloop/mc_5shot ");

static bool is_absent(const char *task, const char *profile)
{
    char name[128];
    snprintf(name, sizeof name, "%s/%s ", task, profile);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strncmp(name, absent[i], strlen(absent[i])) == 0) return true;
    return false;
}

static void check_profile(const cpl_task *task, const cpl_profile *profile)
{
    int64_t rows, bad;
    cpl_questions q;
    const cpl_questions_options options = options_of("data/eval");
    assert_ok(cpl_questions_count(&rows, &bad, task, profile, "data/eval"));
    assert_int_equal(bad, 0);
    cpl_status status = cpl_questions_read(&q, task, profile, &options);
    if (is_absent(task->id, profile->name)) {
        assert_int_equal(rows, -1);
        assert_int_equal(status, CPL_ERR_INPUT);
        assert_non_null(strstr(cpl_last_error(), "there are no rows of the split"));
        assert_non_null(strstr(cpl_last_error(), "published at"));
        return;
    }
    if (status != CPL_OK) fail_msg("%s/%s: %s", task->id, profile->name, cpl_last_error());
    assert_true(rows > 0);
    assert_int_equal(q.count, rows * (strcmp(profile->shots, "0-5") == 0 ? 7 : 1));
    assert_true(q.files.count > 0);
    cpl_questions_free(&q);
}

TEST(test_shipped)
{
    for (size_t i = 0; i < cpl_n_task_texts; i++) {
        cpl_task *task = built_in(cpl_task_texts[i].id);
        for (int64_t k = 0; k < task->n_profiles; k++)
            if (!task->profiles[k].forms.count) check_profile(task, &task->profiles[k]);
        cpl_task_free(task);
    }
}

/* Checks the numbers of shipped rows that the documentation states. */
TEST(test_counts)
{
    static const struct {
        const char *task, *profile;
        int64_t rows;
    } all[] = {{"arc_challenge", "harness", 100}, {"mmlu", "harness", 285},
               {"bbh", "harness", 135},           {"mmlu_pro", "harness", 70},
               {"math", "harness", 70},           {"agieval", "harness", 85},
               {"gsm8k_cot", "harness", 100},     {"copa", "inloop", 100}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cpl_task *task = built_in(all[i].task);
        int64_t rows, bad;
        assert_ok(cpl_questions_count(&rows, &bad, task,
                                      profile_of_task(task, all[i].profile, NULL), "data/eval"));
        assert_int_equal(rows, all[i].rows);
        cpl_task_free(task);
    }
}
