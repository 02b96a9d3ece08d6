/* fewshot.c - the text before a question: few-shot examples, or a prompt that is published as a
 * file; see internal.h
 *
 * Few-shot examples are rows of their own split. The rows that are needed are kept. They become
 * texts when the first question of their subject is made, since the prompt depends on the subject.
 *
 * Source: https://github.com/suzgunmirac/BIG-Bench-Hard, cot-prompts/<task>.txt. */
#include <string.h>

#include "eval/grade/words.h"
#include "eval/prompts/internal.h"
#include "eval/prompts/rows.h"
#include "io/paths.h"

/* Returns the input that makes a row a few-shot example for `subject`, which may be NULL. */
static cpl_prompt_input input_of(const cpl_reading *r, const cpl_prompt_spec *spec,
                                 const char *subject, const json_t *row)
{
    return (cpl_prompt_input){.task       = r->task,
                              .spec       = spec,
                              .schema     = &spec->fewshot_schemas[r->fewshot_source],
                              .subject    = subject,
                              .row        = row,
                              .one_option = r->resolved->one_option};
}

/* Checks that a row can be shown: in the prompt spec of its subject, or, without a subject, in all
 * prompt specs. */
static cpl_status try_fewshot(const cpl_reading *r, const cpl_seen_row *row)
{
    cpl_text text     = {0};
    cpl_status status = row->values ? CPL_OK : CPL_ERR_INPUT;
    for (int64_t i = 0; i < r->resolved->n_specs && status == CPL_OK; i++) {
        const cpl_prompt_spec *spec = &r->resolved->specs[i];
        if (row->subject && spec != cpl_reading_spec(r->resolved, row->subject)) continue;
        const cpl_prompt_input input = input_of(r, spec, row->subject, row->values);
        status                       = cpl_prompt_builder_fewshot(&text, &input);
    }
    cpl_text_free(&text);
    return status;
}

static cpl_status keep_fewshot(void *ctx, cpl_seen_row *row)
{
    cpl_reading *r      = ctx;
    const char *subject = row->subject ? row->subject : "";
    cpl_status status   = try_fewshot(r, row);
    row->passed_over    = status == CPL_ERR_INPUT;
    if (row->passed_over) return cpl_reading_leave_out(r, row);
    CPL_TRY(status);
    json_t *rows = json_object_get(r->store->fewshot_split, subject);
    bool failed  = false;
    if (!rows) {
        rows   = json_array();
        failed = json_object_set_new(r->store->fewshot_split, subject, rows) != 0;
    }
    if (failed || json_array_append(rows, row->values) != 0)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for few-shot examples", row->path);
    return CPL_OK;
}

cpl_status cpl_reading_fewshot(cpl_reading *r)
{
    const cpl_split *split = r->resolved->fewshot_split;
    cpl_split_files files  = {0};
    cpl_status status      = CPL_OK;
    if (!cpl_reading_shows(r)) return CPL_OK;
    CPL_TRY_DONE(cpl_split_find(&files, r->task, split, r->options->data));
    if (files.source < 0 && r->options->own)
        CPL_TRY_DONE(cpl_split_find(&files, r->task, split, r->options->own));
    if (files.source < 0) CPL_TRY_DONE(cpl_split_missing(r->task, split, r->options));
    r->fewshot_source = files.source;
    CPL_TRY_DONE(cpl_reading_add_files(r, &files));
    status = cpl_split_walk(&files, r->resolved->specs[0].fewshot_schemas, 0, r->most_shots,
                            keep_fewshot, r);
done:
    cpl_split_files_free(&files);
    return status;
}

/* Appends the first `n` few-shot examples of a subject. */
static cpl_status append_fewshot(cpl_text *out, cpl_reading *r, const cpl_prompt_spec *spec,
                                 const char *subject, int64_t n)
{
    json_t *rows = json_object_get(r->store->fewshot_split, subject ? subject : "");
    if (!rows) rows = json_object_get(r->store->fewshot_split, "");
    if ((int64_t)json_array_size(rows) < n)
        return CPL_FAIL(
            CPL_ERR_INPUT, "%s: %lld few-shot examples are required, and the split %s has %zu%s%s",
            r->task->id, (long long)n, r->resolved->fewshot_split->name, json_array_size(rows),
            subject ? " of the subject " : "", subject ? subject : "");
    for (int64_t i = 0; i < n; i++) {
        const cpl_prompt_input input = input_of(r, spec, subject, json_array_get(rows, (size_t)i));
        CPL_TRY(cpl_prompt_builder_fewshot(out, &input));
    }
    return CPL_OK;
}

/* ---- prompts that are files ---- */

static const char step_by_step[] = "A: Let's think step by step.";

/* Appends the lines after the first two, which are a canary and "-----". */
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
                "%s: line 2: the canary and a line of hyphens are expected above the prompt", path);
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

/* Moves every reasoning to its own line: one file of the 27 has it on the same line. */
static void break_lines(cpl_text *text, cpl_text *spare)
{
    static const char same_line[] = "A: Let's think step by step. ";
    static const char next_line[] = "A: Let's think step by step.\n";
    cpl_words_replace(text, same_line, next_line, spare);
}

/* Returns the final answer of a reasoning: the text after the last "the answer is ", without a full
 * stop. */
static cpl_span final_answer(cpl_span reasoning)
{
    static const char mark[] = "the answer is ";
    size_t at                = cpl_span_find_last(reasoning, mark);
    size_t from              = at == CPL_NOWHERE ? 0 : at + strlen(mark);
    cpl_span answer          = cpl_words_strip(cpl_span_part(reasoning, from, reasoning.length));
    if (answer.length && answer.bytes[answer.length - 1] == '.') answer.length--;
    return answer;
}

/* Replaces every reasoning, up to the next blank line before a question, by its answer. */
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
    cpl_words_swap(text, spare);
}

/* Finds the prompt file. If no folder has the file, the failure names the user's folder, since
 * users do not add files to the program's own. */
static cpl_status find_prompt(cpl_strings *paths, const cpl_reading *r, const char *name,
                              const char *subject)
{
    const char *data = r->options->data, *own = r->options->own;
    cpl_status status = cpl_split_find_of(paths, r->task, data, name, subject);
    if (status != CPL_ERR_INPUT || !own) return status;
    status = cpl_split_find_of(paths, r->task, own, name, subject);
    return status == CPL_ERR_INPUT ? cpl_split_find_of(paths, r->task, data, name, subject)
                                   : status;
}

/* Appends the text that a profile's prompt file puts before a question of a subject: the file of
 * the user's data, or, if it is missing, the program's own. CPL_ERR_INPUT if both files are
 * missing, or the file is not a prompt. */
static cpl_status append_prompt(cpl_text *out, cpl_reading *r, const cpl_prompt_spec *spec,
                                const char *subject)
{
    cpl_strings paths = {0};
    cpl_text text = {0}, spare = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(find_prompt(&paths, r, spec->prompt_file, subject));
    CPL_TRY_DONE(cpl_paths_add(&r->store->files, paths.at[0]));
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

/* ---- the text before a question ---- */

static cpl_status append_before(cpl_text *out, cpl_reading *r, const cpl_prompt_spec *spec,
                                const char *subject, int64_t shots)
{
    if (spec->prompt != CPL_PROMPT_NONE) return append_prompt(out, r, spec, subject);
    return append_fewshot(out, r, spec, subject, shots > 0 ? shots : 0);
}

static cpl_status make_before(json_t *list, cpl_reading *r, const cpl_prompt_spec *spec,
                              const char *subject)
{
    cpl_text text     = {0};
    cpl_status status = CPL_OK;
    for (int64_t i = 0; status == CPL_OK && i < r->n_shots; i++) {
        cpl_text_clear(&text);
        status = append_before(&text, r, spec, subject, r->shots[i]);
        if (status == CPL_OK) status = cpl_text_status(&text);
        if (status == CPL_OK &&
            json_array_append_new(list, json_stringn(text.bytes ? text.bytes : "", text.length)))
            status =
                CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for few-shot examples", r->task->id);
    }
    cpl_text_free(&text);
    return status;
}

cpl_status cpl_reading_before(const json_t **list, cpl_reading *r, const cpl_prompt_spec *spec,
                              const char *subject)
{
    const char *key = subject ? subject : "";
    json_t *there   = json_object_get(r->store->before, key);
    *list           = there;
    if (there) return CPL_OK;
    there = json_array();
    if (json_object_set_new(r->store->before, key, there))
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for few-shot examples", r->task->id);
    *list = there;
    return make_before(there, r, spec, subject);
}
