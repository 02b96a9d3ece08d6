/* asked.h - the questions that a task makes of given rows. */
#ifndef CPL_TESTS_EVAL_PROMPTS_ASKED_H
#define CPL_TESTS_EVAL_PROMPTS_ASKED_H

#include "eval/prompts/questions_case.h"

/* Returns a new folder of data with one file in DATA/task/. */
static inline const char *data_with(const char *task, const char *name, const char *bytes)
{
    const char *folder = scratch_folder();
    put_file(folder, task, name, bytes);
    return folder;
}

typedef struct asked {
    cpl_task *task;
    cpl_questions q;
} asked;

static inline asked ask(const char *task, const char *profile, const char *variant,
                        const char *data, int64_t shots)
{
    asked a                       = {.task = built_in(task)};
    cpl_questions_options options = options_of(data);
    options.shots                 = shots;
    assert_ok(
        cpl_questions_read(&a.q, a.task, profile_of_task(a.task, profile, variant), &options));
    return a;
}

/* Reads the questions of a profile of a task file with this text. */
static inline asked ask_own(const char *text, const char *profile,
                            const cpl_questions_options *options)
{
    asked a = {.task = task_of(text)};
    assert_ok(read_with(&a.q, a.task, profile, options));
    return a;
}

static inline void end(asked *a)
{
    cpl_questions_free(&a->q);
    cpl_task_free(a->task);
}

static inline void check_ranked(const cpl_question *q, const char *context,
                                const char *const *continuations, int64_t n, int64_t gold)
{
    assert_int_equal(q->n_options, n);
    for (int64_t i = 0; i < n; i++) {
        assert_string_equal(q->options[i].context, context);
        assert_string_equal(q->options[i].continuation, continuations[i]);
    }
    assert_int_equal(q->n_gold, 1);
    assert_int_equal(q->gold[0], gold);
}

#define CHECK_RANKED(q, context, gold, ...)                                                        \
    do {                                                                                           \
        static const char *const all_[] = {__VA_ARGS__};                                           \
        check_ranked((q), (context), all_, sizeof all_ / sizeof *all_, (gold));                    \
    } while (0)

/* Checks the first of some questions, and gives them back. */
#define CHECK_FIRST(asked_, context, gold, ...)                                                    \
    do {                                                                                           \
        asked first_ = (asked_);                                                                   \
        CHECK_RANKED(first_.q.question, (context), (gold), __VA_ARGS__);                           \
        end(&first_);                                                                              \
    } while (0)

#endif /* CPL_TESTS_EVAL_PROMPTS_ASKED_H */
