/* questions_case.h - the questions of built-in and of written task files, and their hashes. */
#ifndef CPL_TESTS_EVAL_PROMPTS_QUESTIONS_CASE_H
#define CPL_TESTS_EVAL_PROMPTS_QUESTIONS_CASE_H

#include <jansson.h>
#include <sha256.h>

#include "eval/prompts/questions.h"
#include "eval/run/runner.h"
#include "settings/settings.h"
#include "support/files.h"

/* Returns a built-in task. */
static inline cpl_task *built_in(const char *id)
{
    cpl_task *task = NULL;
    for (size_t i = 0; i < cpl_n_task_texts; i++) {
        if (strcmp(cpl_task_texts[i].id, id) != 0) continue;
        assert_ok(cpl_task_parse(&task, id, cpl_task_texts[i].bytes, cpl_task_texts[i].length,
                                 cpl_request_kinds));
        assert_string_equal(task->id, id);
        return task;
    }
    fail_msg("there is no task %s", id);
    return NULL;
}

/* Returns the task of a file with this text. */
static inline cpl_task *task_of(const char *text)
{
    cpl_task *task;
    assert_ok(cpl_task_parse(&task, "task.yaml", text, strlen(text), cpl_request_kinds));
    return task;
}

static inline const cpl_profile *profile_of_task(const cpl_task *task, const char *name,
                                                 const char *variant)
{
    const cpl_profile *profile;
    assert_ok(cpl_task_profile(&profile, task, NULL, name, variant));
    return profile;
}

static inline cpl_questions_options options_of(const char *data)
{
    return (cpl_questions_options){
        .data = data, .limit = CPL_UNSET, .shots = CPL_UNSET, .max_tokens = CPL_UNSET};
}

/* Returns the SHA-256 of a text, a NUL and another text, or without `other` of the first alone. */
static inline const char *sum_of(const char *text, const char *other)
{
    static char hex[SHA256_DIGEST_STRING_LENGTH];
    SHA2_CTX sum;
    SHA256Init(&sum);
    SHA256Update(&sum, (const uint8_t *)text, strlen(text));
    if (other) SHA256Update(&sum, (const uint8_t *)"", 1);
    if (other) SHA256Update(&sum, (const uint8_t *)other, strlen(other));
    return SHA256End(&sum, hex);
}

/* Writes DATA/task/name, where name may lie in further folders. */
static inline void put_file(const char *data, const char *task, const char *name, const char *bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s", data, task, name);
    for (char *slash = path + strlen(data) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    write_string(path, bytes);
}

static inline cpl_status read_with(cpl_questions *q, const cpl_task *task, const char *profile,
                                   const cpl_questions_options *options)
{
    return cpl_questions_read(q, task, profile_of_task(task, profile, NULL), options);
}

/* Checks that the questions cannot be read, with a sentence that contains `sentence`. */
static inline void expect_refusal(const cpl_task *task, const char *profile,
                                  const cpl_questions_options *options, const char *sentence)
{
    cpl_questions q;
    cpl_status status = read_with(&q, task, profile, options);
    if (status == CPL_OK || !strstr(cpl_last_error(), sentence))
        fail_msg("says \"%s\", not \"%s\"", status ? cpl_last_error() : "nothing", sentence);
    assert_null(q.store);
}

/* A prompt file of BBH with one few-shot example. */
#define BBH_PROMPT "c\n---\nE.\n\nQ: a\nA: Let's think step by step.\nSo the answer is b.\n"

#endif /* CPL_TESTS_EVAL_PROMPTS_QUESTIONS_CASE_H */
