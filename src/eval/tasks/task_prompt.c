/* task_prompt.c - how the questions of some subjects are asked; see task_internal.h */
#include <string.h>

#include "base/lookup.h"
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

static cpl_status read_lists(cpl_prompt_spec *manner, const cpl_task *task, const json_t *from)
{
    json_t *lists = json_object_get(from, "lists"), *value;
    const char *name;
    if (!lists) return CPL_OK;
    if (!json_is_object(lists)) return FAIL(task, lists, "lists is a mapping, NAME: TEXT");
    if (json_object_size(lists) > MOST_LISTS)
        return FAIL(task, lists, "more than %d lists", MOST_LISTS);
    manner->lists = cpl_pool_take(&task->parts->pool, MOST_LISTS * sizeof *manner->lists);
    if (!manner->lists) return cpl_pool_status(&task->parts->pool);
    json_object_foreach(lists, name, value)
    {
        cpl_options_list *list = &manner->lists[manner->n_lists++];
        list->name             = name;
        CPL_TRY(read_list(list, task, value));
    }
    return CPL_OK;
}

static cpl_status read_prompt(cpl_prompt_spec *manner, const cpl_task *task, const json_t *from)
{
    static const char *const keys[]  = {"file", "as"};
    static const char *const kinds[] = {"bbh", "bbh_answers"};
    const json_t *prompt             = json_object_get(from, "prompt");
    size_t kind;
    if (!prompt) return CPL_OK;
    CPL_TRY(cpl_task_keys(task, prompt, "prompt", keys, 2));
    CPL_TRY(cpl_task_text_of(&manner->prompt_file, task, prompt, "file", NULL));
    CPL_TRY(cpl_task_word_of(&kind, task, prompt, "as", kinds, 2, 0));
    if (!manner->prompt_file) return FAIL(task, prompt, "file: which file is put in front?");
    if (strchr(manner->prompt_file, '*') && !task->parts->subject)
        return FAIL(task, prompt, "* is a subject, and the task has none");
    if (*manner->prompt_file == '/' || strstr(manner->prompt_file, ".."))
        return FAIL(task, prompt, "files lie below the folder of the data");
    manner->prompt = kind == 0 ? CPL_PROMPT_BBH : CPL_PROMPT_BBH_ANSWERS;
    return CPL_OK;
}

/* "strip|replace:_=-" */
static cpl_status read_context_as(cpl_prompt_spec *manner, const cpl_task *task, const json_t *from)
{
    const json_t *node = json_object_get(from, "context_as");
    const char *text;
    CPL_TRY(cpl_task_text_of(&text, task, from, "context_as", NULL));
    if (!text) return CPL_OK;
    CPL_TRY(AT(task, node,
               cpl_chain_parse(&manner->context_as, &task->parts->pool, cpl_span_of(text))));
    if (cpl_chain_makes_list(&manner->context_as))
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

static cpl_status read_texts(cpl_prompt_spec *manner, cpl_task *task, const json_t *from,
                             const json_t *place)
{
    cpl_pool *pool = &task->parts->pool;
    bool context;
    CPL_TRY(cpl_template_parse(&manner->option, pool, "{choice}"));
    CPL_TRY(cpl_template_parse(&manner->exemplar, pool, "{context}{delimiter}{target}\n\n"));
    CPL_TRY(cpl_task_template_of(&manner->context, &context, task, from, "context"));
    CPL_TRY(cpl_task_template_of(&manner->option, NULL, task, from, "option"));
    CPL_TRY(cpl_task_template_of(&manner->exemplar, NULL, task, from, "exemplar"));
    CPL_TRY(read_optional(&manner->description, task, from, "description"));
    CPL_TRY(read_optional(&manner->target, task, from, "target"));
    CPL_TRY(cpl_task_text_of(&manner->delimiter, task, from, "delimiter", " "));
    CPL_TRY(cpl_task_text_of(&manner->unconditional, task, from, "unconditional", "Answer:"));
    CPL_TRY(read_context_as(manner, task, from));
    if (!context) return FAIL(task, place, "context: what is the model given?");
    manner->context_each = cpl_template_names(&manner->context, "choice") ||
                           cpl_template_names(&manner->context, "letter");
    const char *ask = json_string_value(json_object_get(from, "ask"));
    if (manner->context_each && ask && strcmp(ask, "generate") == 0)
        return FAIL(task, json_object_get(from, "context"),
                    "{choice} is of options, and text is generated");
    return CPL_OK;
}

static cpl_status read_sheets(cpl_row_schema **sheets, cpl_task *task,
                              const cpl_prompt_spec *manner, const cpl_split *split, bool exemplar,
                              const json_t *from, const json_t *place)
{
    *sheets = cpl_pool_take(&task->parts->pool, (size_t)split->n_sources * sizeof **sheets);
    if (!*sheets) return cpl_pool_status(&task->parts->pool);
    for (int64_t i = 0; i < split->n_sources; i++) {
        CPL_TRY(cpl_task_read_sheet(&(*sheets)[i], task, &split->sources[i], from));
        CPL_TRY(cpl_task_check_sheet(&(*sheets)[i], task, manner, exemplar, from, place));
    }
    return CPL_OK;
}

static bool is_wanted(const cpl_request_spec *form, const char *score)
{
    for (int64_t i = 0; i < form->n_scores; i++)
        if (strcmp(form->scores[i]->name, score) == 0) return true;
    return false;
}

cpl_status cpl_task_read_manner(cpl_prompt_spec *manner, cpl_task *task,
                                const cpl_resolved_profile *way, const char *profile,
                                const json_t *from, const json_t *place)
{
    CPL_TRY(read_texts(manner, task, from, place));
    CPL_TRY(read_lists(manner, task, from));
    CPL_TRY(read_prompt(manner, task, from));
    CPL_TRY(cpl_task_read_form(manner, task, profile, from, place));
    if (!is_wanted(&manner->form, "acc_uncond")) manner->unconditional = NULL;
    CPL_TRY(read_sheets(&manner->asked, task, manner, way->split, false, from, place));
    if (!way->exemplars) return CPL_OK;
    return read_sheets(&manner->shown, task, manner, way->exemplars, true, from, place);
}
