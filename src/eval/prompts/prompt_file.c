/* prompt_file.c - prompts that are published as files; see questions_internal.h
 *
 * Source: https://github.com/suzgunmirac/BIG-Bench-Hard, cot-prompts/<task>.txt. */
#include <string.h>

#include "base/arena.h"
#include "eval/grade/words.h"
#include "eval/prompts/questions_internal.h"
#include "eval/prompts/rows.h"
#include "io/paths.h"

static const char step_by_step[] = "A: Let's think step by step.";

/* Appends the lines behind the first two: a canary and "-----". */
static cpl_status append_lines(cpl_text *out, cpl_rows *rows, const char *path)
{
    for (int64_t line = 1;; line++) {
        cpl_row row = {0};
        CPL_TRY(cpl_rows_next(rows, &row));
        if (row.bad) return CPL_FAIL(CPL_ERR_INPUT, "%s", row.bad);
        if (!row.values && line <= 3) return CPL_FAIL(CPL_ERR_INPUT, "%s: holds no prompt", path);
        if (!row.values) return cpl_text_status(out);
        const char *text = json_string_value(json_object_get(row.values, "line"));
        bool rule        = strncmp(text, "---", 3) == 0;
        if (line > 2) cpl_text_printf(out, "%s\n", text);
        json_decref(row.values);
        if (line == 2 && !rule)
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: line 2: the canary and a line of hyphens should stand above the prompt", path);
    }
}

static cpl_status read_lines(cpl_text *out, const char *path)
{
    const cpl_rows_kind kind = {.format = CPL_ROWS_LINES};
    cpl_rows *rows           = NULL;
    CPL_TRY(cpl_rows_open(&rows, path, &kind));
    cpl_status status = append_lines(out, rows, path);
    cpl_rows_close(rows);
    return status;
}

/* A reasoning begins on a line of its own: one file of the 27 has it on the same. */
static void break_lines(cpl_text *text, cpl_text *spare)
{
    static const char same_line[] = "A: Let's think step by step. ";
    static const char next_line[] = "A: Let's think step by step.\n";
    cpl_edit_replace(text, same_line, next_line, spare);
}

/* The final answer of a reasoning: behind the last "the answer is ", without a full stop. */
static cpl_span final_answer(cpl_span reasoning)
{
    static const char mark[] = "the answer is ";
    size_t at                = cpl_span_find_last(reasoning, mark);
    size_t from              = at == CPL_NOWHERE ? 0 : at + strlen(mark);
    cpl_span answer          = cpl_words_strip(cpl_span_part(reasoning, from, reasoning.length));
    if (answer.length && answer.bytes[answer.length - 1] == '.') answer.length--;
    return answer;
}

/* Every reasoning, up to the next blank line with a question behind it, becomes its answer. */
static void keep_answers(cpl_text *text, cpl_text *spare)
{
    cpl_span all = cpl_span_text(text);
    size_t from  = 0;
    cpl_text_clear(spare);
    for (size_t at; (at = cpl_span_find(all, from, step_by_step)) != CPL_NOWHERE;) {
        size_t begin = at + strlen(step_by_step), end = cpl_span_find(all, begin, "\n\nQ: ");
        if (end == CPL_NOWHERE) end = all.length;
        cpl_span answer = final_answer(cpl_span_part(all, begin, end));
        cpl_text_append(spare, all.bytes + from, at - from);
        cpl_text_append(spare, "A: ", 3);
        cpl_text_append(spare, answer.bytes, answer.length);
        from = end;
    }
    cpl_text_append(spare, all.bytes + from, all.length - from);
    cpl_edit_swap(text, spare);
}

/* A folder of the user's is named where no folder has the file: nobody can put one into ours. */
static cpl_status find_file(cpl_strings *paths, const cpl_task *task, const cpl_prompt_spec *spec,
                            const char *subject, const cpl_questions_options *options)
{
    cpl_text name     = {0};
    cpl_status status = CPL_OK;
    for (const char *c = spec->prompt_file; *c; c++)
        if (*c == '*' && subject)
            cpl_text_append(&name, subject, strlen(subject));
        else
            cpl_text_char(&name, *c);
    CPL_TRY_DONE(cpl_text_status(&name));
    status = cpl_rows_find(paths, options->data, task->id, name.bytes);
    if (status == CPL_ERR_INPUT && options->own) {
        status = cpl_rows_find(paths, options->own, task->id, name.bytes);
        if (status == CPL_ERR_INPUT)
            status = cpl_rows_find(paths, options->data, task->id, name.bytes);
    }
done:
    cpl_text_free(&name);
    return status;
}

cpl_status cpl_prompt_read(cpl_text *out, const cpl_task *task, const cpl_prompt_spec *spec,
                           const char *subject, const cpl_questions_options *options,
                           cpl_strings *files)
{
    cpl_strings paths = {0};
    cpl_text text = {0}, spare = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(find_file(&paths, task, spec, subject, options));
    CPL_TRY_DONE(cpl_paths_add(files, paths.at[0]));
    CPL_TRY_DONE(read_lines(&text, paths.at[0]));
    break_lines(&text, &spare);
    if (spec->prompt == CPL_PROMPT_BBH_ANSWERS) keep_answers(&text, &spare);
    cpl_span inner = cpl_words_strip(cpl_span_text(&text));
    if (!inner.length) CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT, "%s: holds no prompt", paths.at[0]));
    cpl_text_append(out, inner.bytes, inner.length);
    cpl_text_append(out, "\n\n", 2);
    CPL_TRY_DONE(cpl_text_status(&text));
    CPL_TRY_DONE(cpl_text_status(&spare));
    status = cpl_text_status(out);
done:
    cpl_paths_free(&paths);
    cpl_text_free(&text);
    cpl_text_free(&spare);
    return status;
}
