/* questions_row.c - a row before any template is made of it: subject, options, right answers; see
 * questions_internal.h */
#include <stdlib.h>
#include <string.h>

#include "eval/prompts/questions_internal.h"

void cpl_prompt_builder_end(cpl_prompt_builder *m)
{
    cpl_scope_end(&m->scope);
    json_decref(m->choices);
    cpl_text_free(&m->text);
}

cpl_status cpl_prompt_builder_set(cpl_prompt_builder *m, const char *name, const char *bytes,
                                  size_t length)
{
    return cpl_scope_set(&m->scope, name, json_stringn(bytes ? bytes : "", length));
}

static cpl_status set_letter(cpl_prompt_builder *m, const char *name, int64_t place)
{
    char letter = (char)('A' + place);
    return cpl_prompt_builder_set(m, name, &letter, 1);
}

cpl_status cpl_prompt_render(cpl_prompt_builder *m, const cpl_template *t)
{
    cpl_text_clear(&m->text);
    return cpl_template_make(&m->text, t, &m->scope);
}

/* ---- what is known before any template is made ---- */

static cpl_status set_subject(cpl_prompt_builder *m)
{
    const struct cpl_task_parts *parts = m->of->task->parts;
    const char *subject                = m->of->subject;
    if (!subject || m->of->sheet->subject_kind == CPL_SUBJECT_NONE) return CPL_OK;
    CPL_TRY(cpl_prompt_builder_set(m, "subject", subject, strlen(subject)));
    CPL_TRY(cpl_task_find_subject(m->of->task, subject));
    const json_t *facts = json_object_get(parts->subjects, subject);
    for (int64_t i = 0; i < parts->n_facts; i++)
        CPL_TRY(cpl_scope_set(&m->scope, parts->facts[i].name,
                              json_incref(json_object_get(facts, parts->facts[i].name))));
    return CPL_OK;
}

/* A new array of the texts of a listing. */
static cpl_status make_listing(json_t **out, cpl_prompt_builder *m, const cpl_listing *listing)
{
    json_t *value;
    *out = NULL;
    if (listing->field) {
        CPL_TRY(cpl_scope_value(&value, &m->scope, listing->field));
        *out = json_incref(value);
        return CPL_OK;
    }
    json_t *list = json_array();
    if (!list) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    for (int64_t i = 0; i < listing->count; i++) {
        cpl_status status = cpl_prompt_render(m, &listing->made[i]);
        if (status == CPL_OK &&
            json_array_append_new(list,
                                  json_stringn(m->text.bytes ? m->text.bytes : "", m->text.length)))
            status = CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
        if (status == CPL_OK) continue;
        json_decref(list);
        return status;
    }
    *out = list;
    return CPL_OK;
}

cpl_status cpl_prompt_builder_option(cpl_prompt_builder *m, int64_t place)
{
    if (place < 0) {
        json_object_del(m->scope.values, "choice");
        json_object_del(m->scope.values, "letter");
        return CPL_OK;
    }
    json_t *choice = json_incref(json_array_get(m->choices, (size_t)place));
    CPL_TRY(cpl_scope_set(&m->scope, "choice", choice));
    return set_letter(m, "letter", place);
}

static cpl_status make_options_list(cpl_prompt_builder *m, const cpl_options_list *list)
{
    cpl_text joined   = {0};
    cpl_status status = CPL_OK;
    for (size_t i = 0; i < json_array_size(m->choices); i++) {
        if (i) cpl_text_append(&joined, list->between, strlen(list->between));
        CPL_TRY_DONE(cpl_prompt_builder_option(m, (int64_t)i));
        CPL_TRY_DONE(cpl_template_make(&joined, &list->each, &m->scope));
    }
    CPL_TRY_DONE(cpl_text_status(&joined));
    CPL_TRY_DONE(cpl_prompt_builder_option(m, -1));
    status = cpl_prompt_builder_set(m, list->name, joined.bytes, joined.length);
done:
    cpl_text_free(&joined);
    return status;
}

static cpl_status make_options(cpl_prompt_builder *m)
{
    const cpl_prompt_spec *manner = m->of->manner;
    CPL_TRY(make_listing(&m->choices, m, &m->of->sheet->choices));
    size_t n = json_array_size(m->choices);
    if (n < (m->of->one_option ? 1 : 2))
        return CPL_FAIL(CPL_ERR_INPUT, n ? "it has one option alone" : "it has no options");
    if (n > CPL_MOST_OPTIONS)
        return CPL_FAIL(CPL_ERR_INPUT, "it has %zu options, more than %d", n, CPL_MOST_OPTIONS);
    CPL_TRY(set_letter(m, "last_letter", (int64_t)n - 1));
    for (int64_t i = 0; i < manner->n_lists; i++) CPL_TRY(make_options_list(m, &manner->lists[i]));
    return CPL_OK;
}

/* ---- right answers ---- */

static int64_t place_in_list(const json_t *list, const char *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), value) == 0) return (int64_t)i;
    return -1;
}

static int64_t place_of(const cpl_gold_rule *rule, const json_t *list, const char *value)
{
    if (rule->among == CPL_AMONG_LETTERS)
        return *value >= 'A' && *value <= 'Z' && !value[1] ? *value - 'A' : -1;
    if (rule->among == CPL_AMONG_NUMBERS) {
        size_t digits = strspn(value, "0123456789");
        return digits && digits < 3 && !value[digits] ? atoi(value) : -1;
    }
    return place_in_list(list, value);
}

static void add_gold(cpl_prompt_builder *m, int64_t place)
{
    int64_t at = m->n_gold;
    for (int64_t i = 0; i < m->n_gold; i++)
        if (m->gold[i] == place) return;
    for (; at > 0 && m->gold[at - 1] > place; at--) m->gold[at] = m->gold[at - 1];
    m->gold[at] = place;
    m->n_gold++;
}

static cpl_status add_gold_value(cpl_prompt_builder *m, const json_t *list, const json_t *value)
{
    const char *text = json_string_value(value);
    int64_t place    = place_of(&m->of->sheet->gold, list, text);
    if (place < 0 || place >= (int64_t)json_array_size(m->choices))
        return CPL_FAIL(CPL_ERR_INPUT, "the right answer \"%.100s\" is none of its %zu options",
                        text, json_array_size(m->choices));
    add_gold(m, place);
    return CPL_OK;
}

static cpl_status make_gold_values(cpl_prompt_builder *m, const json_t *list)
{
    json_t *value;
    CPL_TRY(cpl_scope_value(&value, &m->scope, m->of->sheet->gold.value));
    if (!json_is_array(value)) return add_gold_value(m, list, value);
    for (size_t i = 0; i < json_array_size(value); i++)
        CPL_TRY(add_gold_value(m, list, json_array_get(value, i)));
    if (!m->n_gold) return CPL_FAIL(CPL_ERR_INPUT, "it has no right answer");
    return CPL_OK;
}

/* The place is told a second time, as a number: where it is told at all, it is the same. */
static cpl_status check_again(cpl_prompt_builder *m, const char *again)
{
    json_t *value;
    CPL_TRY(cpl_scope_value(&value, &m->scope, again));
    const char *text = json_string_value(value);
    char place[32];
    snprintf(place, sizeof place, "%lld", (long long)m->gold[0]);
    if (!*text || strcmp(text, place) == 0) return CPL_OK;
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "its right answer is option %s (counted from 0) by the one field, and %.100s by "
        "the other, %s",
        place, text, again);
}

/* Among a list of labels every option has its own. */
static cpl_status check_labels(const cpl_prompt_builder *m, const json_t *list)
{
    const size_t labels = json_array_size(list), options = json_array_size(m->choices);
    if (labels >= options) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "it has %zu options, but %zu label%s for them", options, labels,
                    labels == 1 ? "" : "s");
}

static cpl_status make_gold(cpl_prompt_builder *m)
{
    const cpl_gold_rule *rule = &m->of->sheet->gold;
    json_t *list              = NULL;
    if (rule->among == CPL_AMONG_FIXED) {
        if (rule->place >= (int64_t)json_array_size(m->choices))
            return CPL_FAIL(CPL_ERR_INPUT, "the right answer is option %lld of %zu",
                            (long long)rule->place, json_array_size(m->choices));
        add_gold(m, rule->place);
    } else {
        if (rule->among == CPL_AMONG_LIST) CPL_TRY(make_listing(&list, m, &rule->list));
        cpl_status status = list ? check_labels(m, list) : CPL_OK;
        if (status == CPL_OK) status = make_gold_values(m, list);
        json_decref(list);
        if (status != CPL_OK) return status;
    }
    if (rule->again) CPL_TRY(check_again(m, rule->again));
    const json_t *choice = json_array_get(m->choices, (size_t)m->gold[0]);
    CPL_TRY(cpl_prompt_builder_set(m, "gold_choice", json_string_value(choice),
                                   json_string_length(choice)));
    return set_letter(m, "gold_letter", m->gold[0]);
}

cpl_status cpl_prompt_builder_start(cpl_prompt_builder *m, const cpl_prompt_input *of)
{
    *m = (cpl_prompt_builder){.of = of};
    CPL_TRY(cpl_scope_start(&m->scope, &of->sheet->fields, of->row));
    CPL_TRY(set_subject(m));
    if (of->sheet->wants_options) CPL_TRY(make_options(m));
    if (of->sheet->wants_gold) CPL_TRY(make_gold(m));
    return CPL_OK;
}
