/* rows_case.h - small files of rows, written and read back. */
#ifndef CPL_TESTS_EVAL_PROMPTS_ROWS_CASE_H
#define CPL_TESTS_EVAL_PROMPTS_ROWS_CASE_H

#include "eval/prompts/rows.h"
#include "io/file.h"
#include "support/files.h"

/* Kinds of files, for initialisers. */
#define FORMAT(name)                                                                               \
    {                                                                                              \
        .format = CPL_ROWS_##name                                                                  \
    }
#define HEADLESS(name)                                                                             \
    {                                                                                              \
        .format = CPL_ROWS_##name, .headless = true                                                \
    }
#define MEMBERS(name, member_)                                                                     \
    {                                                                                              \
        .format = CPL_ROWS_##name, .member = member_                                               \
    }

SCRATCH_FOLDER(folder); /* the folder of the files */

/* Opens a file that was written into the folder. */
static inline cpl_rows *open_rows(const char *name, cpl_rows_kind kind)
{
    cpl_rows *rows;
    assert_ok(cpl_rows_open(&rows, in_folder(folder, name), &kind));
    return rows;
}

static inline cpl_rows *open_text(const char *text, cpl_rows_kind kind)
{
    write_string(in_folder(folder, "text"), text);
    return open_rows("text", kind);
}

/* Checks that the next row is good, on this line, and equal to `wanted` as JSON. */
static inline void expect_row(cpl_rows *rows, int64_t line, const char *wanted)
{
    cpl_row row;
    assert_ok(cpl_rows_next(rows, &row));
    if (row.bad) fail_msg("%s", row.bad);
    assert_non_null(row.values);
    char *got = json_dumps(row.values, JSON_COMPACT);
    assert_string_equal(got, wanted);
    assert_int_equal(row.line, line);
    free(got);
    json_decref(row.values);
}

static inline void expect_end(cpl_rows *rows)
{
    cpl_row row;
    for (int again = 0; again < 2; again++) {
        assert_ok(cpl_rows_next(rows, &row));
        assert_true(!row.values && !row.bad && !row.line);
    }
    cpl_rows_close(rows);
}

#endif /* CPL_TESTS_EVAL_PROMPTS_ROWS_CASE_H */
