/* task_prompt.c - the prompts of some subjects, with their request: scores, answers;
 * see task_parts.h */
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_parts.h"

/* ---- the request ---- */

/* The defaults that follow from the name of a profile, without its variant. */
typedef struct habit {
    const char *name;
    cpl_joining joining;
    int64_t window;
    bool fixed; /* true if the model's window does not limit it, as in the reference */
    const char *scores[4];
} habit;

static const habit habits[] = {
    {"harness", CPL_JOIN_JOINT, 0, false, {"acc", "acc_norm", "acc_bytes"}},
    {"inloop", CPL_JOIN_SEPARATE, 2048, true, {"acc", "len_norm", "len_norm_v2"}},
    {"olmes", CPL_JOIN_SEPARATE, 2048, false, {"acc", "acc_per_char", "acc_per_token"}},
};

static const habit *habit_of(const char *profile)
{
    size_t length = strcspn(profile, "/");
    for (size_t i = 1; i < sizeof habits / sizeof *habits; i++)
        if (strlen(habits[i].name) == length && strncmp(habits[i].name, profile, length) == 0)
            return &habits[i];
    return &habits[0];
}

cpl_status cpl_task_read_scores(cpl_request_spec *form, const cpl_task *task, const char *profile,
                                const json_t *from)
{
    const habit *usual    = habit_of(profile);
    cpl_string_list names = {usual->scores, 0};
    while (names.count < 4 && usual->scores[names.count]) names.count++;
    const json_t *given = json_object_get(from, "scores");
    if (given) CPL_TRY(cpl_task_names_of(&names, task, from, "scores"));
    const cpl_score **at = cpl_pool_take(&task->parts->pool, (size_t)names.count * sizeof *at);
    if (!at) return cpl_pool_status(&task->parts->pool);
    if (!names.count) return FAIL(task, given, "scores is an empty list: scores: acc");
    for (int64_t i = 0; i < names.count; i++) {
        CPL_TRY(AT(task, given, cpl_score_find(&at[i], names.at[i])));
        if (at[i]->loss)
            return FAIL(task, given, "%s is of the right option alone: a metric, no score",
                        names.at[i]);
    }
    form->scores   = at;
    form->n_scores = names.count;
    return CPL_OK;
}

static cpl_status read_reference(cpl_listing *rule, const cpl_task *task, const json_t *from,
                                 const cpl_template *target, const json_t *place)
{
    CPL_TRY(
        cpl_task_templates_of(rule, task, from, "reference", json_object_get(from, "reference")));
    if (rule->count) return CPL_OK;
    if (!target) return FAIL(task, place, "an answer needs a reference, or the profile a target");
    *rule = (cpl_listing){NULL, target, 1};
    return CPL_OK;
}

/* Reads {regex_pattern: PATTERN, group_select: -1, strip: false}. */
static cpl_status read_pattern(cpl_regex *regex, const cpl_task *task, const json_t *from)
{
    static const char *const keys[]   = {"regex_pattern", "group_select", "strip"};
    static const char *const truths[] = {"false", "true"};
    int64_t select;
    size_t strip;
    CPL_TRY(cpl_task_keys(task, from, "filter", keys, 3));
    CPL_TRY(cpl_task_text_of(&regex->pattern, task, from, "regex_pattern", NULL));
    CPL_TRY(cpl_task_int_of(&select, task, from, "group_select", -1, 0, 0));
    CPL_TRY(cpl_task_word_of(&strip, task, from, "strip", truths, 2, 1));
    if (!regex->pattern || !*regex->pattern)
        return FAIL(
            task, from,
            "the filter has no pattern: write {regex_pattern: '[0-9]+'}, or the name of a filter");
    regex->last       = select == -1;
    regex->keep_space = strip == 0;
    return AT(task, json_object_get(from, "regex_pattern"), cpl_regex_check(regex->pattern));
}

/* Reads the name of a filter, a pattern, or a list of patterns. The first that matches counts. */
static cpl_status read_filter(const cpl_filter **filter, const cpl_task *task, const json_t *from,
                              const char *key)
{
    const json_t *node = json_object_get(from, key);
    const char *name   = json_string_value(node);
    if (name && strpbrk(name, " .\\([{*+?^$|"))
        return FAIL(
            task, node,
            "%.100s is no name of a filter; a pattern is written {regex_pattern: 'PATTERN'}", name);
    if (name) return AT(task, from, cpl_filter_find(filter, name));
    const bool list  = json_is_array(node);
    const size_t n   = list ? json_array_size(node) : 1;
    cpl_pool *pool   = &task->parts->pool;
    cpl_filter *made = cpl_pool_take(pool, sizeof *made);
    if (!made) return cpl_pool_status(pool);
    if (n == 0 || n > CPL_FILTER_PATTERNS)
        return FAIL(task, node, "a filter has 1 to %d patterns", CPL_FILTER_PATTERNS);
    made->name = "";
    for (size_t i = 0; i < n; i++) {
        cpl_regex *regex = &made->patterns[i];
        CPL_TRY(read_pattern(regex, task, list ? json_array_get(node, i) : node));
        made->name = cpl_pool_printf(pool, "%s%s %d %d\n", made->name, regex->pattern, regex->last,
                                     regex->keep_space);
        if (!made->name) return cpl_pool_status(pool);
    }
    *filter = cpl_filter_named(made);
    return CPL_OK;
}

/* Returns whether an answer may have this name, to which results add endings such as these. */
static bool is_answer_name(const char *name)
{
    static const char *const taken[] = {"_stderr", "_macro", "_micro"};
    for (int i = 0; i < 3; i++)
        if (strstr(name, taken[i])) return false;
    return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(name);
}

static cpl_status read_answer(cpl_answer *answer, cpl_listing *rule, const cpl_task *task,
                              const cpl_prompt_spec *spec, const json_t *from, const json_t *place)
{
    static const char *const keys[]  = {"filter",     "reference", "clean", "normal",
                                        "comparison", "invalid",   "show",  "filter_name"};
    static const char *const shown[] = {"found", "normal"};
    const char *normal, *comparison;
    size_t show;
    CPL_TRY(cpl_task_keys(task, from, "answer", keys, sizeof keys / sizeof *keys));
    CPL_TRY(cpl_task_text_of(&normal, task, from, "normal", "none"));
    CPL_TRY(cpl_task_text_of(&comparison, task, from, "comparison", "exact"));
    CPL_TRY(cpl_task_text_of(&answer->invalid, task, from, "invalid", "[invalid]"));
    CPL_TRY(cpl_task_word_of(&show, task, from, "show", shown, 2, 0));
    CPL_TRY(cpl_task_text_of(&answer->filter_name, task, from, "filter_name", "none"));
    if (!is_answer_name(answer->filter_name))
        return FAIL(task, json_object_get(from, "filter_name"),
                    "filter_name is made of letters, digits, _ and -");
    if (spec->form.filters && json_object_get(from, "filter_name"))
        return FAIL(task, json_object_get(from, "filter_name"),
                    "with metrics: filters the name of the answer is that of the filter");
    CPL_TRY(cpl_filter_find(&answer->grading.filter, "none"));
    if (json_object_get(from, "filter"))
        CPL_TRY(read_filter(&answer->grading.filter, task, from, "filter"));
    if (json_object_get(from, "clean"))
        CPL_TRY(read_filter(&answer->grading.reference, task, from, "clean"));
    CPL_TRY(AT(task, from, cpl_normal_find(&answer->grading.normal, normal)));
    CPL_TRY(AT(task, from, cpl_comparison_find(&answer->grading.comparison, comparison)));
    if (strcmp(answer->invalid, "null") == 0) answer->invalid = NULL;
    answer->show_normal = show == 1;
    return read_reference(rule, task, from, spec->target, place);
}

cpl_status cpl_task_read_answers(cpl_prompt_spec *spec, cpl_task *task, const json_t *from,
                                 const json_t *place)
{
    const json_t *answers = json_object_get(from, "answers"),
                 *metrics = json_object_get(from, "metrics");
    const char *name;
    json_t *value;
    if (!answers) {
        CPL_TRY(cpl_task_join(&answers, task, NULL, NULL));
        if (json_object_set_new((json_t *)(uintptr_t)answers, "exact_match", json_object()))
            return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the task %s", task->id);
    }
    size_t n = json_object_size(answers);
    if (!n) return FAIL(task, answers, "answers: NAME: {filter: ...}");
    cpl_answer *at   = cpl_pool_take(&task->parts->pool, n * sizeof *at);
    spec->references = cpl_pool_take(&task->parts->pool, n * sizeof *spec->references);
    if (!at || !spec->references) return cpl_pool_status(&task->parts->pool);
    spec->form.answers = at;
    spec->form.filters =
        json_is_string(metrics) && strcmp(json_string_value(metrics), "filters") == 0;
    json_object_foreach((json_t *)(uintptr_t)answers, name, value)
    {
        int64_t i = spec->form.n_answers++;
        if (!is_answer_name(name))
            return FAIL(
                task, value,
                "answers: \"%.100s\" is no name: letters, digits, _ and -, and not _stderr, "
                "_macro or _micro, which results have after it",
                name);
        at[i].name = name;
        CPL_TRY(read_answer(&at[i], &spec->references[i], task, spec, value, place));
    }
    return CPL_OK;
}

/* Reads the kind by its name, or by its name in lm-evaluation-harness. */
static cpl_status read_kind(cpl_request_spec *form, const cpl_task *task, const json_t *from)
{
    enum { MOST_KINDS = 16 };
    const cpl_request_kind *const *kinds = task->parts->kinds;
    const char *names[2 * MOST_KINDS]    = {0};
    size_t n                             = 0, index;
    while (kinds[n]) n++;
    CPL_ASSERT(n <= MOST_KINDS);
    for (size_t i = 0; i < n; i++) {
        names[i]     = kinds[i]->name;
        names[n + i] = kinds[i]->output_type;
    }
    CPL_TRY(cpl_task_word_of(&index, task, from, "ask", names, 2 * n, 0));
    form->kind       = kinds[index % n];
    form->kind_index = (int64_t)(index % n);
    return CPL_OK;
}

static cpl_status read_request(cpl_prompt_spec *spec, cpl_task *task, const char *profile,
                               const json_t *from, const json_t *place)
{
    static const char *const tokens[]  = {"joint", "separate"};
    static const char *const beyonds[] = {"cut", "error"};
    const habit *usual                 = habit_of(profile);
    cpl_request_spec *form             = &spec->form;
    size_t joining, beyond;
    CPL_TRY(read_kind(form, task, from));
    CPL_TRY(cpl_task_word_of(&joining, task, from, "tokens", tokens, 2, usual->joining));
    CPL_TRY(cpl_task_word_of(&beyond, task, from, "beyond", beyonds, 2, 0));
    CPL_TRY(cpl_task_int_of(&form->window, task, from, "window", 1, 1 << 24, usual->window));
    form->joining     = (cpl_joining)joining;
    form->stop_beyond = beyond == 1;
    form->fixed       = usual->fixed && !json_object_get(from, "window");
    return form->kind->read(spec, task, profile, from, place);
}

/* ---- the prompt ---- */

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
    if (!each)
        return FAIL(task, from, "%s has no text of an option: each: \"{choice}\"", list->name);
    return AT(task, from, cpl_template_parse(&list->each, &task->parts->pool, each));
}

static cpl_status read_lists(cpl_prompt_spec *spec, const cpl_task *task, const json_t *from)
{
    json_t *lists = json_object_get(from, "lists"), *value;
    const char *name;
    if (!lists) return CPL_OK;
    if (!json_is_object(lists))
        return FAIL(
            task, lists,
            "`lists` must be a mapping, for example lists: {listed: \"{letter}. {choice}\"}");
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
    if (!spec->prompt_file) return FAIL(task, prompt, "the prompt has no file: file: prompt.txt");
    if (strchr(spec->prompt_file, '*') && !task->parts->subject)
        return FAIL(task, prompt,
                    "the * stands for the subject, and the task has none: write subject: file");
    if (*spec->prompt_file == '/' || strstr(spec->prompt_file, ".."))
        return FAIL(task, prompt, "files lie below the folder of the data");
    spec->prompt = kind == 0 ? CPL_PROMPT_BBH : CPL_PROMPT_BBH_ANSWERS;
    return CPL_OK;
}

/* Reads transformations such as "strip|replace:_=-". */
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

/* Reads a template, allocated from the pool, or sets NULL if it is missing. */
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
    if (!context)
        return FAIL(task, place, "the profile has no text for the model: context: \"{question}\"");
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
    CPL_TRY(read_request(spec, task, profile, from, place));
    if (spec->context_each && !spec->form.kind->has_options)
        return FAIL(task, json_object_get(from, "context"),
                    "{choice} is of options, and text is generated");
    if (!is_wanted(&spec->form, "acc_uncond")) spec->unconditional = NULL;
    CPL_TRY(read_schemas(&spec->question_schemas, task, spec, resolved->split, false, from, place));
    if (!resolved->fewshot_split) return CPL_OK;
    return read_schemas(&spec->fewshot_schemas, task, spec, resolved->fewshot_split, true, from,
                        place);
}
