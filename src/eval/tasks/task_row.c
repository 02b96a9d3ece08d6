/* task_row.c - see task_parts.h: the fields read of a row of a source, and checks of their names */
#include <string.h>

#include "base/text.h"
#include "eval/tasks/task_parts.h"

enum { MOST_KNOWN = 48 };

/* The names that templates may use, in addition to the names of the row. */
typedef enum scope_of {
    OF_ROW     = 0,
    OF_SUBJECT = 1, /* the subject, and its facts */
    OF_OPTIONS = 2, /* lists of the options, and the last letter */
    OF_OPTION  = 4, /* the current option */
    OF_GOLD    = 8,
    OF_SHOWN   = 16, /* a few-shot example's parts */
} scope_of;

/* The names that the engine gives itself. */
static const struct {
    const char *name;
    int scope;
} ours[] = {
    {"subject", OF_SUBJECT},     {"choice", OF_OPTION},    {"letter", OF_OPTION},
    {"last_letter", OF_OPTIONS}, {"gold_choice", OF_GOLD}, {"gold_letter", OF_GOLD},
    {"context", OF_SHOWN},       {"delimiter", OF_SHOWN},  {"target", OF_SHOWN},
};
enum { N_OURS = sizeof ours / sizeof *ours };

typedef struct known_names {
    cpl_builtin_name at[MOST_KNOWN];
    int64_t count;
} known_names;

static void know(known_names *known, const char *name)
{
    if (known->count < MOST_KNOWN) known->at[known->count++] = (cpl_builtin_name){name, false};
}

static known_names known_of(const cpl_task *task, const cpl_row_schema *schema,
                            const cpl_prompt_spec *spec, int scope)
{
    known_names known = {.count = 0};
    if (schema->subject_kind != CPL_SUBJECT_NONE) scope |= OF_SUBJECT;
    for (int one = OF_SUBJECT; one <= OF_SHOWN; one *= 2) {
        if (!(scope & one)) continue;
        for (int i = 0; i < N_OURS; i++)
            if (ours[i].scope == one) know(&known, ours[i].name);
        for (int64_t i = 0; one == OF_SUBJECT && i < task->parts->n_facts; i++)
            know(&known, task->parts->facts[i].name);
        for (int64_t i = 0; one == OF_OPTIONS && i < spec->n_lists; i++)
            know(&known, spec->lists[i].name);
    }
    return known;
}

/* ---- reading ---- */

static cpl_status read_listing(cpl_listing *listing, const cpl_task *task, const json_t *from,
                               const char *key)
{
    const json_t *node = json_object_get(from, key);
    if (json_is_string(node)) {
        *listing = (cpl_listing){.field = json_string_value(node)};
        return CPL_OK;
    }
    CPL_TRY(cpl_task_templates_of(listing, task, from, key, NULL));
    return listing->count
               ? CPL_OK
               : FAIL(task, node, "`%s` must name a field or list texts: %s: [\"{a}\", \"{b}\"]",
                      key, key);
}

/* Fails because `field`, from which a list is taken, is a text. */
static cpl_status no_list(const cpl_task *task, const json_t *fields, const char *field,
                          const json_t *node)
{
    const char *path = json_string_value(json_object_get(fields, field));
    if (!path) return FAIL(task, node, "%.100s is a text, and a list is needed", field);
    return FAIL(task, node,
                "%.100s is a text, and a list is needed; where %.100s is a list in the rows, its "
                "path ends in []: %.100s: \"%.100s[]\"",
                field, path, field, path);
}

static cpl_status check_listing(cpl_listing *listing, const cpl_task *task,
                                const cpl_scope_names *there, const json_t *fields,
                                const json_t *node)
{
    bool list = false;
    if (listing->field) {
        CPL_TRY(AT(task, node, cpl_scope_names_find(&list, there, listing->field)));
        if (!list) return no_list(task, fields, listing->field, node);
    }
    for (int64_t i = 0; i < listing->count; i++)
        CPL_TRY(AT(task, node, cpl_scope_names_check(there, &listing->made[i])));
    return CPL_OK;
}

/* Fails because `gold` is not valid. `field` is the text in its place, probably a field's name. */
static cpl_status refuse_gold(const cpl_task *task, const json_t *gold, const char *field)
{
    return FAIL(task, gold,
                "gold is the place of the right option, counted from 0, or {value: FIELD, among: "
                "LIST}: gold: {value: %.40s, among: numbers} if %.40s holds its place, among: "
                "letters if A, B, C, ..., among: FIELD if one of the texts of that field",
                field, field);
}

static cpl_status read_gold(cpl_gold_rule *rule, const cpl_task *task, const json_t *gold)
{
    static const char *const keys[] = {"value", "among", "again"};
    const char *among, *text = json_string_value(gold);
    if (text && *text) {
        if (!strchr("-+0123456789", *text)) return refuse_gold(task, gold, text);
        rule->among = CPL_AMONG_FIXED;
        return cpl_task_int(&rule->place, task, gold, "gold", 0, 25);
    }
    if (!json_object_get(gold, "value")) return refuse_gold(task, gold, "FIELD");
    CPL_TRY(cpl_task_keys(task, gold, "right answer", keys, 3));
    CPL_TRY(cpl_task_text_of(&rule->value, task, gold, "value", NULL));
    CPL_TRY(cpl_task_text_of(&rule->again, task, gold, "again", NULL));
    if (!json_object_get(gold, "among")) return refuse_gold(task, gold, rule->value);
    rule->among = CPL_AMONG_LIST;
    if (!json_is_string(json_object_get(gold, "among")))
        return read_listing(&rule->list, task, gold, "among");
    CPL_TRY(cpl_task_text_of(&among, task, gold, "among", NULL));
    if (!*among) return refuse_gold(task, gold, rule->value);
    if (strcmp(among, "letters") == 0) rule->among = CPL_AMONG_LETTERS;
    if (strcmp(among, "numbers") == 0) rule->among = CPL_AMONG_NUMBERS;
    if (rule->among == CPL_AMONG_LIST) rule->list.field = among;
    return CPL_OK;
}

static cpl_status check_gold(cpl_gold_rule *rule, const cpl_task *task,
                             const cpl_scope_names *there, const json_t *fields, const json_t *node)
{
    if (rule->value)
        CPL_TRY(AT(task, node, cpl_scope_names_find(&rule->several, there, rule->value)));
    bool list = false;
    if (rule->again) CPL_TRY(AT(task, node, cpl_scope_names_find(&list, there, rule->again)));
    if (list || (rule->again && rule->several))
        return FAIL(task, node, "again: only a single index can be given again, by a text");
    return check_listing(&rule->list, task, there, fields, node);
}

static cpl_status read_subject(cpl_row_schema *schema, const cpl_task *task, const json_t *node)
{
    cpl_scope_names there = {&schema->fields, NULL, 0};
    if (!node) return CPL_OK;
    if (!json_is_string(node)) return FAIL(task, node, "subject is file, none or a text");
    const char *text = json_string_value(node);
    if (strcmp(text, "none") == 0) return CPL_OK;
    schema->subject_kind = strcmp(text, "file") == 0 ? CPL_SUBJECT_FILE : CPL_SUBJECT_MADE;
    if (schema->subject_kind == CPL_SUBJECT_FILE) return CPL_OK;
    CPL_TRY(AT(task, node, cpl_template_parse(&schema->subject, &task->parts->pool, text)));
    return AT(task, node, cpl_scope_names_check(&there, &schema->subject));
}

/* Checks that no field has a name that the engine gives itself. */
static cpl_status check_names(const cpl_task *task, const json_t *fields)
{
    for (int i = 0; i < N_OURS; i++)
        if (json_object_get(fields, ours[i].name))
            return FAIL(task, json_object_get(fields, ours[i].name),
                        "a field cannot be called %s: that name is the engine's", ours[i].name);
    return CPL_OK;
}

cpl_status cpl_task_read_schema(cpl_row_schema *schema, cpl_task *task,
                                const cpl_task_source *source, const json_t *from)
{
    const json_t *fields  = json_object_get(from, "fields");
    const json_t *gold    = source->gold ? source->gold : json_object_get(from, "gold");
    const json_t *choices = json_object_get(from, "choices");
    const json_t *subject = source->subject ? source->subject : task->parts->subject;
    if (fields && !json_is_object(fields))
        return FAIL(task, fields, "`fields` must be a mapping: fields: {question: question.stem}");
    if (source->fields && !json_is_object(source->fields))
        return FAIL(task, source->fields,
                    "`fields` must be a mapping: fields: {question: question.stem}");
    CPL_TRY(cpl_task_join(&fields, task, fields, source->fields));
    CPL_TRY(check_names(task, fields));
    bool none = !subject ||
                strcmp(json_string_value(subject) ? json_string_value(subject) : "", "none") == 0;
    cpl_row_schema with = {.subject_kind = none ? CPL_SUBJECT_NONE : CPL_SUBJECT_FILE};
    known_names known   = known_of(task, &with, NULL, OF_ROW);
    CPL_TRY(cpl_fields_parse(&schema->fields, &task->parts->pool, &task->parts->tree, fields,
                             known.at, known.count));
    CPL_TRY(read_subject(schema, task, subject));
    cpl_scope_names there = {&schema->fields, known.at, known.count};
    if (choices)
        CPL_TRY(read_listing(&schema->choices, task, from, "choices"));
    else if (json_object_get(fields, "choices"))
        schema->choices.field = "choices";
    if (!choices) choices = json_object_get(fields, "choices");
    CPL_TRY(check_listing(&schema->choices, task, &there, fields, choices));
    if (!gold) return CPL_OK;
    CPL_TRY(read_gold(&schema->gold, task, gold));
    return check_gold(&schema->gold, task, &there, fields, gold);
}

/* ---- checking ---- */

static bool names_gold(const cpl_template *t)
{
    return t && (cpl_template_names(t, "gold_choice") || cpl_template_names(t, "gold_letter"));
}

static bool names_options(const cpl_template *t, const cpl_prompt_spec *spec)
{
    if (!t) return false;
    bool named = cpl_template_names(t, "last_letter");
    for (int64_t i = 0; i < spec->n_lists; i++) named |= cpl_template_names(t, spec->lists[i].name);
    return named;
}

static cpl_status check_template(const cpl_task *task, const cpl_row_schema *schema,
                                 const cpl_prompt_spec *spec, const cpl_template *t, int scope,
                                 const json_t *node)
{
    known_names known     = known_of(task, schema, spec, scope);
    cpl_scope_names there = {&schema->fields, known.at, known.count};
    return AT(task, node, cpl_scope_names_check(&there, t));
}

/* Checks the names in references. A reference that is a single name may be a list. */
static cpl_status check_references(const cpl_task *task, const cpl_row_schema *schema,
                                   const cpl_prompt_spec *spec, const json_t *node)
{
    known_names known     = known_of(task, schema, spec, OF_OPTIONS | OF_GOLD);
    cpl_scope_names there = {&schema->fields, known.at, known.count};
    bool list;
    for (int64_t i = 0; i < spec->form.n_answers; i++) {
        const cpl_listing *rule = &spec->references[i];
        for (int64_t k = 0; k < rule->count; k++) {
            const cpl_template *t = &rule->made[k];
            if (cpl_template_is_name(t))
                CPL_TRY(AT(task, node, cpl_scope_names_find(&list, &there, t->pieces[0].name)));
            else
                CPL_TRY(AT(task, node, cpl_scope_names_check(&there, t)));
        }
    }
    return CPL_OK;
}

static void note_references(cpl_row_schema *schema, const cpl_prompt_spec *spec)
{
    for (int64_t i = 0; i < spec->form.n_answers; i++)
        for (int64_t k = 0; k < spec->references[i].count; k++) {
            schema->needs_gold |= names_gold(&spec->references[i].made[k]);
            schema->needs_options |= names_options(&spec->references[i].made[k], spec);
        }
}

/* Notes which values of a row its templates need. */
static void note_wants(cpl_row_schema *schema, const cpl_prompt_spec *spec, bool fewshot)
{
    schema->needs_gold    = names_gold(&spec->context);
    schema->needs_options = spec->context_each || names_options(&spec->context, spec);
    if (fewshot) {
        schema->needs_gold |= !spec->target || spec->context_each || names_gold(spec->target) ||
                              names_gold(&spec->fewshot);
        schema->needs_options |=
            names_options(spec->target, spec) || names_options(&spec->fewshot, spec);
    } else {
        schema->needs_gold |= spec->form.kind->has_options;
        note_references(schema, spec);
    }
    schema->needs_options |= schema->needs_gold;
}

static const json_t *node_of(const json_t *from, const char *key, const json_t *place)
{
    const json_t *node = json_object_get(from, key);
    return node ? node : place;
}

static cpl_status check_lists(const cpl_task *task, const cpl_row_schema *schema,
                              const cpl_prompt_spec *spec, const json_t *node)
{
    bool list;
    cpl_scope_names there = {&schema->fields, NULL, 0};
    for (int64_t i = 0; i < spec->n_lists; i++) {
        const char *name = spec->lists[i].name;
        if (cpl_scope_names_find(&list, &there, name) == CPL_OK)
            return FAIL(task, node, "lists: %s is a field already", name);
        CPL_TRY(check_template(task, schema, spec, &spec->lists[i].each, OF_OPTION, node));
    }
    return CPL_OK;
}

cpl_status cpl_task_check_schema(cpl_row_schema *schema, const cpl_task *task,
                                 const cpl_prompt_spec *spec, bool fewshot, const json_t *from,
                                 const json_t *place)
{
    note_wants(schema, spec, fewshot);
    if (schema->needs_options && !schema->choices.field && !schema->choices.count)
        return FAIL(task, place,
                    "the task has no options of a question: choices: FIELD for a field that is a "
                    "list, choices: [\"{a}\", \"{b}\"] for fields of their own");
    if (schema->needs_gold && schema->gold.among == CPL_AMONG_NOTHING)
        return refuse_gold(task, place, "FIELD");
    const int all = OF_OPTIONS | OF_OPTION | OF_GOLD;
    if (schema->needs_options)
        CPL_TRY(check_lists(task, schema, spec, node_of(from, "lists", place)));
    CPL_TRY(
        check_template(task, schema, spec, &spec->context, all, node_of(from, "context", place)));
    if (spec->form.kind->has_options || (fewshot && !spec->target))
        CPL_TRY(
            check_template(task, schema, spec, &spec->option, all, node_of(from, "option", place)));
    if (!fewshot && spec->description)
        CPL_TRY(check_template(task, schema, spec, spec->description, OF_ROW,
                               node_of(from, "description", place)));
    if (!fewshot) return check_references(task, schema, spec, node_of(from, "answers", place));
    if (spec->target)
        CPL_TRY(check_template(task, schema, spec, spec->target, OF_OPTIONS | OF_GOLD,
                               node_of(from, "target", place)));
    return check_template(task, schema, spec, &spec->fewshot, OF_OPTIONS | OF_GOLD | OF_SHOWN,
                          node_of(from, "exemplar", place));
}
