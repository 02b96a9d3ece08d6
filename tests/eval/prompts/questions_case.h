/* questions_case.h - the questions of built-in and of written task files, and their hashes. */
#ifndef CPL_TESTS_EVAL_PROMPTS_QUESTIONS_CASE_H
#define CPL_TESTS_EVAL_PROMPTS_QUESTIONS_CASE_H

#include <jansson.h>
#include <sha256.h>
#include <zlib.h>

#include "base/text.h"
#include "check.h"
#include "eval/prompts/questions.h"
#include "eval/run/runner.h"
#include "settings/settings.h"

/* A built-in task. */
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

static inline cpl_questions_options options_of(const char *data)
{
    return (cpl_questions_options){
        .data = data, .limit = CPL_UNSET, .shots = CPL_UNSET, .max_tokens = CPL_UNSET};
}

/* SHA-256 of a text, a NUL and another text; of the first alone if there is no other. */
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

static inline json_t *load_gz(const char *path)
{
    cpl_text text = {0};
    char piece[65536];
    gzFile in = gzopen(path, "rb");
    if (!in) fail_msg("%s: cannot be read", path);
    for (int n; (n = gzread(in, piece, sizeof piece)) > 0;)
        cpl_text_append(&text, piece, (size_t)n);
    gzclose(in);
    json_t *json = json_loadb(text.bytes, text.length, 0, NULL);
    if (!json) fail_msg("%s: no JSON", path);
    cpl_text_free(&text);
    return json;
}

static inline void write_file(const char *folder, const char *name, const char *bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    if (!out) fail_msg("%s: cannot be written", path);
    fputs(bytes, out);
    fclose(out);
}

/* Writes DATA/task/name, where name may lie in further folders. */
static inline void put_file(const char *data, const char *task, const char *name, const char *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", data, task, name);
    for (char *slash = path + strlen(data) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    snprintf(path, sizeof path, "%s/%s", data, task);
    write_file(path, name, bytes);
}

#endif /* CPL_TESTS_EVAL_PROMPTS_QUESTIONS_CASE_H */
