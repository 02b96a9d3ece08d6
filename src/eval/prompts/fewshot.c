/* fewshot.c - what stands before a question: few-shot examples, or a prompt; see questions_internal.h
 *
 * Few-shot examples are rows of a split of their own. Those that are wanted are kept, and become texts when the
 * first question of their subject comes, since the prompt depends on the subject. */
#include <string.h>

#include "eval/prompts/questions_internal.h"
#include "io/paths.h"

/* What a row is made a few-shot example with, for questions of a subject, which may be NULL. */
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

/* Whether a row can be shown: in the prompt spec of its subject, or, where it has none, in all of them. */
static cpl_status try_fewshot(const cpl_reading *r, const cpl_seen_row *row)
{
    cpl_text text     = {0};
    cpl_status status = row->values ? CPL_OK : CPL_ERR_INPUT;
    for (int64_t i = 0; i < r->resolved->n_specs && status == CPL_OK; i++) {
        const cpl_prompt_spec *spec = &r->resolved->specs[i];
        if (row->subject && spec != cpl_resolved_profile_prompt(r->resolved, row->subject))
            continue;
        const cpl_prompt_input input = input_of(r, spec, row->subject, row->values);
        status                       = cpl_prompt_input_fewshot(&text, &input);
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
    const char *data       = r->options->data;
    cpl_split_files files  = {0};
    cpl_status status      = CPL_OK;
    if (!cpl_reading_shows(r)) return CPL_OK;
    CPL_TRY_DONE(cpl_split_find(&files, r->task, split, data));
    if (files.source < 0 && r->options->own) {
        data = r->options->own;
        CPL_TRY_DONE(cpl_split_find(&files, r->task, split, data));
    }
    if (files.source < 0) CPL_TRY_DONE(cpl_split_missing(r->task, split, r->options));
    r->fewshot_source = files.source;
    CPL_TRY_DONE(cpl_reading_add_files(r, &files));
    status = cpl_split_walk(&files, r->task, split, r->resolved->specs[0].fewshot_schemas, data, 0,
                            r->most_shots, keep_fewshot, r);
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
            CPL_ERR_INPUT, "%s: %lld few-shot examples are wanted, and the split %s has %zu%s%s",
            r->task->id, (long long)n, r->resolved->fewshot_split->name, json_array_size(rows),
            subject ? " of the subject " : "", subject ? subject : "");
    for (int64_t i = 0; i < n; i++) {
        const cpl_prompt_input input = input_of(r, spec, subject, json_array_get(rows, (size_t)i));
        CPL_TRY(cpl_prompt_input_fewshot(out, &input));
    }
    return CPL_OK;
}

/* ---- what stands before a question ---- */

static cpl_status append_before(cpl_text *out, cpl_reading *r, const cpl_prompt_spec *spec,
                                const char *subject, int64_t shots)
{
    if (spec->prompt != CPL_PROMPT_NONE)
        return cpl_prompt_read(out, r->task, spec, subject, r->options, &r->store->files);
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
