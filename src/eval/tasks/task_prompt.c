/* task_prompt.c - the prompts of some subjects; see task_internal.h */
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_internal.h"

enum { MOST_LISTS = 16 };

static cpl_status read_list(cpl_options_list *list, const cpl_task *task, json_t *from)
{
    static const char *const keys[] = {"each", "between"};
    const char *each                = json_string_value(from);
    list->between                   = "";
    if (!each) {
        CPL_TRY(cpl_task_keys(task, from, "list of options", keys, 2));
        CPL_TRY(cpl_task_text_of(&each, task, from, "each", NULL));
        CPL_TRY(cpl_task_text_of(&list->between, task, from, "between", ""));
    }
    if (!each) return FAIL(task, from, "%s: each: what is written of an option?", list->name);
    return AT(task, from, cpl_template_parse(&list->each, &task->parts->pool, each));
}

static cpl_status read_lists(cpl_prompt_spec *spec, const cpl_task *task, const json_t *from)
{
    json_t *lists = json_object_get(from, "lists"), *value;
    const char *name;
    if (!lists) return CPL_OK;
    if (!json_is_object(lists)) return FAIL(task, lists, "lists is a mapping, NAME: TEXT");
    if (json_object_size(lists) > MOST_LISTS)
        return FAIL(task, lists, "more than %d lists", MOST_LISTS);
    spec->lists = cpl_pool_take(&task->parts->pool, MOST_LISTS * sizeof *spec->lists);
    if (!spec->lists) return cpl_pool_status(&task->parts->pool);
    json_object_foreach(lists, name, value)
    {
        cpl_options_list *list = &spec->lists[spec->n_lists++];
        list->name             = name;
        CPL_TRY(read_list(list, task, value));
    }
    return CPL_OK;
}

static cpl_status read_prompt(cpl_prompt_spec *spec, const cpl_task *task, const json_t *from)
{
    static const char *const keys[]  = {"file", "as"};
    static const char *const kinds[] = {"bbh", "bbh_answers"};
    const json_t *prompt             = json_object_get(from, "prompt");
    size_t kind;
    if (!prompt) return CPL_OK;
    CPL_TRY(cpl_task_keys(task, prompt, "prompt", keys, 2));
    CPL_TRY(cpl_task_text_of(&spec->prompt_file, task, prompt, "file", NULL));
    CPL_TRY(cpl_task_word_of(&kind, task, prompt, "as", kinds, 2, 0));
    if (!spec->prompt_file) return FAIL(task, prompt, "file: which file is put in front?");
    if (strchr(spec->prompt_file, '*') && !task->parts->subject)
        return FAIL(task, prompt, "* is a subject, and the task has none");
    if (*spec->prompt_file == '/' || strstr(spec->prompt_file, ".."))
        return FAIL(task, prompt, "files lie below the folder of the data");
    spec->prompt = kind == 0 ? CPL_PROMPT_BBH : CPL_PROMPT_BBH_ANSWERS;
    return CPL_OK;
}

/* "strip|replace:_=-" */
static cpl_status read_context_as(cpl_prompt_spec *spec, const cpl_task *task, const json_t *from)
{
    const json_t *node = json_object_get(from, "context_as");
    const char *text;
    CPL_TRY(cpl_task_text_of(&text, task, from, "context_as", NULL));
    if (!text) return CPL_OK;
    CPL_TRY(
        AT(task, node, cpl_chain_parse(&spec->context_as, &task->parts->pool, cpl_span_of(text))));
    if (cpl_chain_makes_list(&spec->context_as))
        return FAIL(task, node, "a context is a text, not a list");
    return CPL_OK;
}

/* A template that may be left out: one of the pool's, or NULL. */
static cpl_status read_optional(const cpl_template **t, const cpl_task *task, const json_t *from,
                                const char *key)
{
    bool there;
    cpl_template *made = cpl_pool_take(&task->parts->pool, sizeof *made);
    if (!made) return cpl_pool_status(&task->parts->pool);
    CPL_TRY(cpl_task_template_of(made, &there, task, from, key));
    *t = there ? made : NULL;
    return CPL_OK;
}

static cpl_status read_texts(cpl_prompt_spec *spec, cpl_task *task, const json_t *from,
                             const json_t *place)
{
    cpl_pool *pool = &task->parts->pool;
    bool context;
    CPL_TRY(cpl_template_parse(&spec->option, pool, "{choice}"));
    CPL_TRY(cpl_template_parse(&spec->fewshot, pool, "{context}{delimiter}{target}\n\n"));
    CPL_TRY(cpl_task_template_of(&spec->context, &context, task, from, "context"));
    CPL_TRY(cpl_task_template_of(&spec->option, NULL, task, from, "option"));
    CPL_TRY(cpl_task_template_of(&spec->fewshot, NULL, task, from, "exemplar"));
    CPL_TRY(read_optional(&spec->description, task, from, "description"));
    CPL_TRY(read_optional(&spec->target, task, from, "target"));
    CPL_TRY(cpl_task_text_of(&spec->delimiter, task, from, "delimiter", " "));
    CPL_TRY(cpl_task_text_of(&spec->unconditional, task, from, "unconditional", "Answer:"));
    CPL_TRY(read_context_as(spec, task, from));
    if (!context) return FAIL(task, place, "context: what is the model given?");
    spec->context_each = cpl_template_names(&spec->context, "choice") ||
                         cpl_template_names(&spec->context, "letter");
    return CPL_OK;
}

static cpl_status read_schemas(cpl_row_schema **schemas, cpl_task *task,
                               const cpl_prompt_spec *spec, const cpl_split *split, bool fewshot,
                               const json_t *from, const json_t *place)
{
    *schemas = cpl_pool_take(&task->parts->pool, (size_t)split->n_sources * sizeof **schemas);
    if (!*schemas) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < split->n_sources; i++) {
        CPL_TRY(cpl_task_read_schema(&(*schemas)[i], task, &split->sources[i], from));
        CPL_TRY(cpl_task_check_schema(&(*schemas)[i], task, spec, fewshot, from, place));
    }
    return CPL_OK;
}

static bool is_wanted(const cpl_request_spec *form, const char *score)
{
    for (int64_t i = 0; i < form->n_scores; i++)
        if (strcmp(form->scores[i]->name, score) == 0) return true;
    return false;
}

cpl_status cpl_task_read_prompt_spec(cpl_prompt_spec *spec, cpl_task *task,
                                     const cpl_resolved_profile *resolved, const char *profile,
                                     const json_t *from, const json_t *place)
{
    CPL_TRY(read_texts(spec, task, from, place));
    CPL_TRY(read_lists(spec, task, from));
    CPL_TRY(read_prompt(spec, task, from));
    CPL_TRY(cpl_task_read_request(spec, task, profile, from, place));
    if (spec->context_each && !spec->form.kind->has_options)
        return FAIL(task, json_object_get(from, "context"),
                    "{choice} is of options, and text is generated");
    if (!is_wanted(&spec->form, "acc_uncond")) spec->unconditional = NULL;
    CPL_TRY(read_schemas(&spec->question_schemas, task, spec, resolved->split, false, from, place));
    if (!resolved->fewshot_split) return CPL_OK;
    return read_schemas(&spec->fewshot_schemas, task, spec, resolved->fewshot_split, true, from,
                        place);
}
