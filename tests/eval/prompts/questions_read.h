/* questions_read.h - the questions of a profile read from folders of data that a test writes. */
#ifndef CPL_TESTS_EVAL_PROMPTS_QUESTIONS_READ_H
#define CPL_TESTS_EVAL_PROMPTS_QUESTIONS_READ_H

#include "eval/prompts/questions_case.h"

static inline const char *new_data(const char *task)
{
    const char *folder = scratch_folder();
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, task);
    assert_int_equal(mkdir(path, 0777), 0);
    return folder;
}

static inline cpl_status read_with(cpl_questions *q, const cpl_task *task, const char *profile,
                                   const cpl_questions_options *options)
{
    const cpl_profile *chosen;
    assert_ok(cpl_task_profile(&chosen, task, NULL, profile, NULL));
    return cpl_questions_read(q, task, chosen, options);
}

#define CANARY "c\n---\nE.\n\nQ: a\nA: Let's think step by step.\nSo the answer is b.\n"

static inline void expect(const cpl_task *task, const char *profile,
                          const cpl_questions_options *options, const char *sentence)
{
    cpl_questions q;
    cpl_status status = read_with(&q, task, profile, options);
    if (status == CPL_OK || !strstr(cpl_last_error(), sentence))
        fail_msg("says \"%s\", not \"%s\"", status ? cpl_last_error() : "nothing", sentence);
    assert_null(q.store);
}

#endif /* CPL_TESTS_EVAL_PROMPTS_QUESTIONS_READ_H */
