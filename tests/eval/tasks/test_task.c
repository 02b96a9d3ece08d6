/* test_task.c - the built-in task files, and the task file of the documentation. */
#include <math.h>

#include "check.h"
#include "eval/run/runner.h"
#include "eval/tasks/task_parts.h"

static cpl_task *built_in(size_t i)
{
    cpl_task *task = NULL;
    assert_ok(cpl_task_parse(&task, cpl_task_texts[i].id, cpl_task_texts[i].bytes,
                             cpl_task_texts[i].length, cpl_request_kinds));
    return task;
}

/* The first table of the protocols: profile of a set, split, exemplars, headline, chance. */
static const struct {
    const char *id, *set, *profile, *split, *shots, *headline;
    double chance;
} table[] = {
    {"arc_challenge", "3b", "inloop", "validation", "0", "len_norm", 25},
    {"commonsense_qa", "3b", "inloop", "validation", "0", "len_norm", 20},
    {"copa", "3b", "inloop", "validation", "0", "acc", 50},
    {"boolq", "3b", "inloop", "validation", "0", "acc", 50},
    {"hellaswag", "3b", "inloop", "validation", "0", "len_norm", 25},
    {"openbookqa", "3b", "inloop", "validation", "0", "len_norm", 25},
    {"sciq", "3b", "inloop", "validation", "0", "acc", 25},
    {"social_iqa", "3b", "inloop", "validation", "0", "len_norm", 33.3},
    {"winogrande", "3b", "inloop", "validation", "0", "acc", 50},
    {"mmlu", "3b", "inloop", "validation", "0-5", "len_norm", 25},
    {"mmlu", "15b", "harness", "test", "5", "acc", 25},
    {"ceval", "15b", "harness", "validation", "5", "acc", 25},
    {"mmlu_pro", "15b", "harness", "test", "5", "exact_match", 11.1},
    {"agieval", "15b", "harness", "test", "0", "acc", 26.3},
    {"bbh", "15b", "harness", "test", "3", "exact_match", 25.7},
    {"math", "15b", "harness", "test", "4", "exact_match", 0},
    {"gsm8k", "15b", "harness", "test", "5", "exact_match", 0},
    {"gsm8k_cot", NULL, "harness", "test", "8", "exact_match", 0},
    {"triviaqa", "15b", "harness", "validation", "5", "exact_match", 0},
};

TEST(test_table)
{
    const char *last = "";
    size_t seen = 0, unlicensed = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].id, last) != 0) seen++;
        last           = table[i].id;
        cpl_task *task = built_in(seen - 1);
        const cpl_profile *p;
        assert_string_equal(task->id, table[i].id);
        assert_ok(cpl_task_profile(&p, task, table[i].set, NULL, NULL));
        assert_string_equal(p->name, table[i].profile);
        assert_string_equal(p->split, table[i].split);
        assert_string_equal(p->shots, table[i].shots);
        assert_string_equal(p->metrics.at[0], table[i].headline);
        assert_near(task->chance, table[i].chance, 1e-9);
        assert_non_null(task->source);
        unlicensed += task->licence == NULL; /* their rows are not shipped */
        cpl_task_free(task);
    }
    assert_int_equal(seen, cpl_n_task_texts);
    assert_int_equal(unlicensed, 3);
}

static const cpl_task_group *group_of(const cpl_task *task, const char *name)
{
    const cpl_profile *profile = &task->profiles[0];
    for (int64_t i = 0; i < profile->n_groups; i++)
        if (strcmp(profile->groups[i].name, name) == 0) return &profile->groups[i];
    fail_msg("%s has no group %s", task->id, name);
    return NULL;
}

TEST(test_groups)
{
    static const struct {
        size_t task;
        const char *group;
        int64_t subjects;
        const char *metric;
    } all[] = {{9, "mmlu_stem", 18, NULL},
               {9, "mmlu_humanities", 13, NULL},
               {9, "mmlu_social_sciences", 12, NULL},
               {9, "mmlu_other", 14, NULL},
               {10, "ceval_hard", 8, NULL},
               {12, "agieval_en", 10, "acc"},
               {12, "agieval_cn", 11, "acc"},
               {12, "agieval_nous", 8, "acc_norm"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cpl_task *task              = built_in(all[i].task);
        const cpl_task_group *group = group_of(task, all[i].group);
        assert_int_equal(group->subjects.count, all[i].subjects);
        assert_int_equal(group->metrics.count, all[i].metric != NULL);
        if (all[i].metric) assert_string_equal(group->metrics.at[0], all[i].metric);
        cpl_task_free(task);
    }
}

TEST(test_profiles)
{
    const cpl_profile *p;
    cpl_task *mmlu = built_in(9);
    assert_ok(cpl_task_profile(&p, mmlu, NULL, NULL, NULL));
    assert_string_equal(p->name, "inloop");
    assert_int_equal(p->headline, CPL_OF_GROUPS);
    assert_string_equal(p->shots, "0-5");
    assert_ok(cpl_task_profile(&p, mmlu, "15b", "inloop", "mc_5shot"));
    assert_string_equal(p->name, "inloop/mc_5shot");
    assert_int_equal(p->headline, CPL_OF_GROUPS);
    assert_ok(cpl_task_profile(&p, mmlu, NULL, "inloop", "mc_5shot_test"));
    assert_string_equal(p->split, "test");
    assert_string_equal(p->metrics.at[0], "acc");
    assert_ok(cpl_task_profile(&p, mmlu, NULL, "harness", NULL));
    assert_int_equal(p->headline, CPL_OF_QUESTIONS);
    assert_fails(CPL_ERR_INPUT, "mmlu: there is no profile harnes; did you mean harness?",
                 cpl_task_profile(&p, mmlu, NULL, "harnes", NULL));
    assert_fails(CPL_ERR_INPUT,
                 "mmlu: there is no profile inloop/seventh; there are inloop, inloop/test",
                 cpl_task_profile(&p, mmlu, NULL, "inloop", "seventh"));
    cpl_task_free(mmlu);
    cpl_task_free(NULL);
}

/* Patterns of the built-in tasks are those of named filters, so hashes of questions stay. */
TEST(built_in_patterns_have_names)
{
    int generated = 0;
    for (size_t i = 0; i < cpl_n_task_texts; i++) {
        cpl_task *task = built_in(i);
        for (int64_t p = 0; p < task->n_profiles; p++) {
            const cpl_resolved_profile *resolved = &task->parts->resolved[p];
            for (int64_t k = 0; k < resolved->n_specs; k++)
                for (int64_t a = 0; a < resolved->specs[k].form.n_answers; a++) {
                    const cpl_filter *filter = resolved->specs[k].form.answers[a].grading.filter;
                    assert_true(filter >= cpl_filters && filter < cpl_filters + cpl_n_filters);
                    generated++;
                }
        }
        cpl_task_free(task);
    }
    assert_true(generated > 20);
}

/* The examples of docs/tasks.md are task files. */
TEST(test_documented)
{
    char page[65536];
    FILE *in      = fopen("docs/tasks.md", "rb");
    size_t length = fread(page, 1, sizeof page - 1, in);
    fclose(in);
    page[length] = '\0';
    char *end    = page;
    for (int64_t profiles = 1; profiles <= 2; profiles++) {
        char *begin = strstr(end, "```yaml\n") + 8;
        cpl_task *task;
        end = strstr(begin, "```");
        assert_ok(cpl_task_parse(&task, "docs/tasks.md", begin, (size_t)(end - begin),
                                 cpl_request_kinds));
        assert_int_equal(task->n_profiles, profiles);
        cpl_task_free(task);
    }
}

TEST(test_shots)
{
    static const struct {
        int64_t n, shots[7];
        const char *words;
    } lists[]     = {{1, {5}, "5"},
                     {1, {-1}, "0"},
                     {2, {0, 1}, "0,1"},
                     {3, {5, 0, 1}, "0,1,5"},
                     {3, {2, 3, 4}, "2-4"},
                     {2, {-1, 0}, "0"},
                     {7, {-1, 0, 1, 2, 3, 4, 5}, "0-5"}};
    cpl_pool pool = {0};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        assert_string_equal(cpl_task_shots_words(&pool, lists[i].shots, lists[i].n),
                            lists[i].words);
    assert_ok(cpl_pool_status(&pool));
    cpl_pool_free(&pool);
}
