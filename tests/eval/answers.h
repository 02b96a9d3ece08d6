/* answers.h - filters and normal forms on strings, and reference files of answers. */
#ifndef CPL_TESTS_EVAL_ANSWERS_H
#define CPL_TESTS_EVAL_ANSWERS_H

#include "base/arena.h"
#include "eval/grade/grading.h"
#include "io/json.h"
#include "support/files.h"

/* Returns the span as a string, in one of four static buffers in turn. */
static inline const char *string_of(cpl_span span)
{
    static char strings[4][4096];
    static int turn;
    char *out = strings[turn = (turn + 1) % 4];
    assert_true(span.length < sizeof strings[0]);
    if (span.length) memcpy(out, span.bytes, span.length);
    out[span.length] = '\0';
    return out;
}

/* Returns the answer that the filter finds, or "[invalid]". */
__attribute__((unused)) static const char *extracted(const char *name, const char *text)
{
    const cpl_filter *filter;
    cpl_span answer;
    assert_ok(cpl_filter_find(&filter, name));
    bool found;
    assert_ok(cpl_filter_apply(&found, &answer, filter, cpl_span_of(text)));
    return found ? string_of(answer) : "[invalid]";
}

/* Returns the normal form, or "[none]". */
__attribute__((unused)) static const char *normal_of(const char *name, const char *text)
{
    const cpl_normal *normal;
    cpl_text out = {0}, spare = {0};
    assert_ok(cpl_normal_find(&normal, name));
    bool made       = normal->make(&out, cpl_span_of(text), &spare);
    const char *got = made ? string_of(cpl_span_text(&out)) : "[none]";
    cpl_text_free(&out);
    cpl_text_free(&spare);
    return got;
}

/* Returns the grading with these names; `reference` may be NULL. */
__attribute__((unused)) static cpl_grading grading_of(const char *filter, const char *reference,
                                                      const char *normal, const char *comparison)
{
    cpl_grading grading = {0};
    assert_ok(cpl_filter_find(&grading.filter, filter));
    if (reference) assert_ok(cpl_filter_find(&grading.reference, reference));
    assert_ok(cpl_normal_find(&grading.normal, normal));
    assert_ok(cpl_comparison_find(&grading.comparison, comparison));
    return grading;
}

/* Returns a JSON file, which may be compressed. */
__attribute__((unused)) static json_t *load_plain(const char *path)
{
    cpl_text bytes = read_plain(path);
    json_t *json   = NULL;
    assert_ok(cpl_json_parse(&json, bytes.bytes, bytes.length, path));
    cpl_text_free(&bytes);
    return json;
}

/* Returns JSON lines, which may be compressed, as an array. */
__attribute__((unused)) static json_t *load_lines(const char *path)
{
    cpl_text bytes = read_plain(path);
    json_t *rows   = json_array();
    for (char *line = bytes.bytes, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *row = NULL;
        assert_ok(cpl_json_parse(&row, line, (size_t)(end - line), path));
        json_array_append_new(rows, row);
    }
    cpl_text_free(&bytes);
    return rows;
}

/* Returns a member that is a string; `key` NULL: the string itself. */
__attribute__((unused)) static const char *member(const json_t *object, const char *key)
{
    const char *value = json_string_value(key ? json_object_get(object, key) : object);
    if (!value) fail_msg("there is no string %s", key ? key : "");
    return value;
}

#endif /* CPL_TESTS_EVAL_ANSWERS_H */
