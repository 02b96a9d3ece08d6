/* test_gsm8k.c - GSM8K's variant that compares numbers, and its headline, which compares texts. */
#include "eval/prompts/questions_case.h"

/* Texts that answer the first row of the samples, whose answer is 18, and whether strict-match and
 * flexible-extract find them right, as texts and as numbers. */
static const struct {
    const char *text;
    bool strict, flexible, strict_number, flexible_number;
} texts[] = {
    {"#### 18", true, true, true, true},
    {"#### 18.00", false, false, true, true},
    {"#### 18.0.", false, false, true, true},
    {"#### 018", false, false, true, true},
    {"#### 18.01", false, false, false, false},
    {"#### -18", false, false, false, false},
    {"She makes 18.00", false, false, false, true},
    {"She makes nothing", false, false, false, false},
};

static void check_mark(const cpl_questions *q, int64_t answer, const char *text, bool right)
{
    const cpl_answer *a      = &q->question[0].form->answers[answer];
    const cpl_span wanted    = cpl_span_of(q->question[0].references[answer].at[0]);
    cpl_grading_scratch room = {0};
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, &a->grading, cpl_span_of(text), &wanted, 1, &room));
    if (mark.correct != right) fail_msg("%s: %s is %sright", a->name, text, right ? "not " : "");
    cpl_grading_scratch_free(&room);
}

static void check_variant(const char *task_id, const char *variant, const char *before)
{
    const bool numeric            = variant != NULL;
    cpl_task *task                = built_in(task_id);
    cpl_questions q               = {0};
    cpl_questions_options options = options_of("data/eval");
    options.limit                 = 1;
    assert_ok(cpl_questions_read(&q, task, profile_of_task(task, "harness", variant), &options));
    assert_string_equal(q.question[0].form->answers[0].name, "strict-match");
    assert_string_equal(q.question[0].form->answers[1].name, "flexible-extract");
    assert_true(q.question[0].form->filters);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const bool strict = strncmp(texts[i].text, "#### ", 5) == 0;
        char text[64];
        snprintf(text, sizeof text, "%s%s ", strict ? before : "",
                 texts[i].text + (strict ? 5 : 0));
        check_mark(&q, 0, text, numeric ? texts[i].strict_number : texts[i].strict);
        check_mark(&q, 1, text, numeric ? texts[i].flexible_number : texts[i].flexible);
    }
    cpl_questions_free(&q);
    cpl_task_free(task);
}

TEST(test_numbers)
{
    check_variant("gsm8k", "numeric", "#### ");
    check_variant("gsm8k_cot", "numeric", "The answer is ");
}

TEST(test_texts)
{
    check_variant("gsm8k", NULL, "#### ");
    check_variant("gsm8k_cot", NULL, "The answer is ");
}
