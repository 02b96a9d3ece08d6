/* prompt_builder.c - a question, or a few-shot example, of a row; see internal.h */
#include <stdlib.h>
#include <string.h>

#include "eval/grade/words.h"
#include "eval/prompts/internal.h"

enum { MOST_OPTIONS = 26 };

/* The state of making a question or a few-shot example of a row. */
struct cpl_prompt_builder {
    const cpl_prompt_input *of;
    cpl_pool *pool;     /* memory of the question's texts */
    const char *before; /* the text before the context */
    bool described;     /* true if the description precedes `before` */
    cpl_scope scope;
    json_t *choices;            /* owned; NULL: not needed */
    int64_t gold[MOST_OPTIONS]; /* (n_gold) ascending */
    int64_t n_gold;
    cpl_text text; /* memory to work in */
};

static void end(cpl_prompt_builder *m)
{
    cpl_scope_end(&m->scope);
    json_decref(m->choices);
    cpl_text_free(&m->text);
}

/* Sets the value of a name. */
static cpl_status set(cpl_prompt_builder *m, const char *name, const char *bytes, size_t length)
{
    return cpl_scope_set(&m->scope, name, json_stringn(bytes ? bytes : "", length));
}

static cpl_status set_letter(cpl_prompt_builder *m, const char *name, int64_t place)
{
    char letter = (char)('A' + place);
    return set(m, name, &letter, 1);
}

/* ---- names set before any template is made ---- */

static cpl_status set_subject(cpl_prompt_builder *m)
{
    const struct cpl_task_parts *parts = m->of->task->parts;
    const char *subject                = m->of->subject;
    if (!subject || m->of->schema->subject_kind == CPL_SUBJECT_NONE) return CPL_OK;
    CPL_TRY(set(m, "subject", subject, strlen(subject)));
    CPL_TRY(cpl_task_find_subject(m->of->task, subject));
    const json_t *facts = json_object_get(parts->subjects, subject);
    for (int64_t i = 0; i < parts->n_facts; i++)
        CPL_TRY(cpl_scope_set(&m->scope, parts->facts[i].name,
                              json_incref(json_object_get(facts, parts->facts[i].name))));
    return CPL_OK;
}

/* Appends the output of a template. */
static cpl_status append_rendered(json_t *list, cpl_prompt_builder *m, const cpl_template *t)
{
    json_t *text = NULL;
    CPL_TRY(cpl_template_string(&text, t, &m->scope));
    if (json_array_append_new(list, text) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
}

/* Sets `*out` to a new array of the texts of a listing. */
static cpl_status make_listing(json_t **out, cpl_prompt_builder *m, const cpl_listing *listing)
{
    json_t *value;
    *out = NULL;
    if (listing->field) {
        CPL_TRY(cpl_scope_value(&value, &m->scope, listing->field));
        *out = json_incref(value);
        return CPL_OK;
    }
    *out              = json_array();
    cpl_status status = *out ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    for (int64_t i = 0; i < listing->count && status == CPL_OK; i++)
        status = append_rendered(*out, m, &listing->made[i]);
    if (status == CPL_OK) return CPL_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

/* Sets the current option, or removes it if `place` is -1. */
static cpl_status set_option(cpl_prompt_builder *m, int64_t place)
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
        CPL_TRY_DONE(set_option(m, (int64_t)i));
        CPL_TRY_DONE(cpl_template_make(&joined, &list->each, &m->scope));
    }
    CPL_TRY_DONE(cpl_text_status(&joined));
    CPL_TRY_DONE(set_option(m, -1));
    status = set(m, list->name, joined.bytes, joined.length);
done:
    cpl_text_free(&joined);
    return status;
}

static cpl_status make_options(cpl_prompt_builder *m)
{
    const cpl_prompt_spec *spec = m->of->spec;
    CPL_TRY(make_listing(&m->choices, m, &m->of->schema->choices));
    size_t n = json_array_size(m->choices);
    if (n < (m->of->one_option ? 1 : 2))
        return CPL_FAIL(CPL_ERR_INPUT, n ? "it has one option alone" : "it has no options");
    if (n > MOST_OPTIONS)
        return CPL_FAIL(CPL_ERR_INPUT, "it has %zu options, more than %d", n, MOST_OPTIONS);
    CPL_TRY(set_letter(m, "last_letter", (int64_t)n - 1));
    for (int64_t i = 0; i < spec->n_lists; i++) CPL_TRY(make_options_list(m, &spec->lists[i]));
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
    int64_t place    = place_of(&m->of->schema->gold, list, text);
    if (place < 0 || place >= (int64_t)json_array_size(m->choices))
        return CPL_FAIL(CPL_ERR_INPUT, "the right answer \"%.100s\" is none of its %zu options",
                        text, json_array_size(m->choices));
    add_gold(m, place);
    return CPL_OK;
}

static cpl_status make_gold_values(cpl_prompt_builder *m, const json_t *list)
{
    json_t *value;
    CPL_TRY(cpl_scope_value(&value, &m->scope, m->of->schema->gold.value));
    if (!json_is_array(value)) return add_gold_value(m, list, value);
    for (size_t i = 0; i < json_array_size(value); i++)
        CPL_TRY(add_gold_value(m, list, json_array_get(value, i)));
    if (!m->n_gold) return CPL_FAIL(CPL_ERR_INPUT, "it has no right answer");
    return CPL_OK;
}

/* Checks that a second field, which may hold the place as a number, agrees unless it is empty. */
static cpl_status check_again(cpl_prompt_builder *m, const char *again)
{
    json_t *value;
    CPL_TRY(cpl_scope_value(&value, &m->scope, again));
    const char *text = json_string_value(value);
    char place[32];
    snprintf(place, sizeof place, "%lld", (long long)m->gold[0]);
    if (!*text || strcmp(text, place) == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "its right answer is option %s (counted from 0) by the one field, and %.100s "
                    "by the other, %s",
                    place, text, again);
}

/* Checks that a list of labels has a label for every option. */
static cpl_status check_labels(const cpl_prompt_builder *m, const json_t *list)
{
    const size_t labels = json_array_size(list), options = json_array_size(m->choices);
    if (labels >= options) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "it has %zu options, but %zu label%s for them", options, labels,
                    labels == 1 ? "" : "s");
}

static cpl_status make_gold(cpl_prompt_builder *m)
{
    const cpl_gold_rule *rule = &m->of->schema->gold;
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
    CPL_TRY(set(m, "gold_choice", json_string_value(choice), json_string_length(choice)));
    return set_letter(m, "gold_letter", m->gold[0]);
}

/* Sets all names that templates may use, except the current option. The caller frees the builder
 * even after a failure. CPL_ERR_INPUT: the row is bad. */
static cpl_status start(cpl_prompt_builder *m)
{
    const cpl_prompt_input *of = m->of;
    CPL_TRY(cpl_scope_start(&m->scope, &of->schema->fields, of->row));
    CPL_TRY(set_subject(m));
    if (of->schema->needs_options) CPL_TRY(make_options(m));
    if (of->schema->needs_gold) CPL_TRY(make_gold(m));
    return CPL_OK;
}

/* Appends the context of a row, or of an option. */
static cpl_status append_context(cpl_text *out, cpl_prompt_builder *m)
{
    const cpl_prompt_spec *spec = m->of->spec;
    json_t *raw = NULL, *made = NULL;
    if (!spec->context_as.count) return cpl_template_make(out, &spec->context, &m->scope);
    CPL_TRY(cpl_template_string(&raw, &spec->context, &m->scope));
    cpl_status status = cpl_chain_apply(&made, &spec->context_as, raw);
    if (status == CPL_OK) cpl_text_append(out, json_string_value(made), json_string_length(made));
    json_decref(raw);
    json_decref(made);
    return status;
}

/* ---- questions ---- */

/* Sets `*context`: the description, the few-shot examples or the prompt, and the row's context. */
static cpl_status make_context(const char **context, cpl_prompt_builder *m)
{
    const cpl_template *description = m->described ? m->of->spec->description : NULL;
    cpl_text text                   = {0};
    cpl_status status = description ? cpl_template_make(&text, description, &m->scope) : CPL_OK;
    cpl_text_append(&text, m->before, strlen(m->before));
    if (status == CPL_OK) status = append_context(&text, m);
    if (status == CPL_OK) status = cpl_text_status(&text);
    if (status == CPL_OK)
        *context = cpl_pool_copy(m->pool, text.bytes ? text.bytes : "", text.length);
    cpl_text_free(&text);
    return status == CPL_OK ? cpl_pool_status(m->pool) : status;
}

static cpl_status make_continuation(cpl_option *option, cpl_prompt_builder *m)
{
    const char *delimiter = m->of->spec->delimiter;
    cpl_text_clear(&m->text);
    cpl_text_append(&m->text, delimiter, strlen(delimiter));
    CPL_TRY(cpl_template_make(&m->text, &m->of->spec->option, &m->scope));
    if (!m->text.length) return CPL_FAIL(CPL_ERR_INPUT, "one of its options is empty");
    option->continuation = cpl_pool_copy(m->pool, m->text.bytes, m->text.length);
    option->choice       = strlen(delimiter);
    return cpl_pool_status(m->pool);
}

cpl_status cpl_prompt_builder_options(cpl_question *q, cpl_prompt_builder *m)
{
    const cpl_prompt_spec *spec = m->of->spec;
    const char *shared          = NULL;
    q->n_options                = (int64_t)json_array_size(m->choices);
    q->options                  = cpl_pool_take(m->pool, (size_t)q->n_options * sizeof *q->options);
    q->gold                     = cpl_pool_take(m->pool, (size_t)m->n_gold * sizeof *q->gold);
    if (!q->options || !q->gold) return cpl_pool_status(m->pool);
    memcpy(q->gold, m->gold, (size_t)m->n_gold * sizeof *q->gold);
    q->n_gold        = m->n_gold;
    q->several       = m->of->schema->gold.several;
    q->unconditional = spec->unconditional;
    if (!spec->context_each) CPL_TRY(make_context(&shared, m));
    for (int64_t i = 0; i < q->n_options; i++) {
        q->options[i].context = shared;
        CPL_TRY(set_option(m, i));
        if (!shared) CPL_TRY(make_context(&q->options[i].context, m));
        CPL_TRY(make_continuation(&q->options[i], m));
    }
    return CPL_OK;
}

/* Appends the texts of a reference to an array. */
static cpl_status add_references(json_t *list, bool *listed, cpl_prompt_builder *m,
                                 const cpl_template *t)
{
    json_t *value = NULL;
    if (cpl_template_is_name(t)) CPL_TRY(cpl_scope_value(&value, &m->scope, t->pieces[0].name));
    if (json_is_array(value)) {
        json_t *made = NULL;
        CPL_TRY(cpl_chain_apply(&made, &t->pieces[0].chain, value));
        bool failed = json_array_extend(list, made) != 0;
        json_decref(made);
        *listed = true;
        return failed ? CPL_FAIL(CPL_ERR_MEMORY, "out of memory for references") : CPL_OK;
    }
    return append_rendered(list, m, t);
}

/* Keeps the references. At least one reference must hold a text. */
static cpl_status keep_references(cpl_references *references, cpl_pool *pool, const json_t *list)
{
    size_t n        = json_array_size(list);
    const char **at = cpl_pool_take(pool, n * sizeof *at);
    bool empty      = true;
    if (!at) return cpl_pool_status(pool);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(list, i);
        at[i]              = cpl_pool_copy(pool, json_string_value(text), json_string_length(text));
        empty              = empty && !cpl_words_strip(cpl_span_of(at[i])).length;
    }
    if (empty)
        return CPL_FAIL(CPL_ERR_INPUT, "there is no reference to compare an answer with%s",
                        n ? ": its right answer is empty" : "");
    *references = (cpl_references){at, (int64_t)n};
    return cpl_pool_status(pool);
}

static cpl_status make_references(cpl_references *references, bool *listed, cpl_prompt_builder *m,
                                  const cpl_listing *rule)
{
    json_t *list      = json_array();
    cpl_status status = list ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for references");
    *listed           = rule->count > 1;
    for (int64_t i = 0; status == CPL_OK && i < rule->count; i++)
        status = add_references(list, listed, m, &rule->made[i]);
    if (status == CPL_OK) status = keep_references(references, m->pool, list);
    json_decref(list);
    return status;
}

cpl_status cpl_prompt_builder_text(cpl_question *q, cpl_prompt_builder *m)
{
    const cpl_prompt_spec *spec = m->of->spec;
    int64_t n                   = spec->form.n_answers;
    q->references               = cpl_pool_take(m->pool, (size_t)n * sizeof *q->references);
    if (!q->references) return cpl_pool_status(m->pool);
    CPL_TRY(make_context(&q->prompt, m));
    for (int64_t i = 0; i < n; i++) {
        bool listed;
        CPL_TRY(make_references(&q->references[i], &listed, m, &spec->references[i]));
        if (i == 0) q->listed = listed;
    }
    return CPL_OK;
}

cpl_status cpl_prompt_builder_question(cpl_question *question, cpl_pool *pool,
                                       const cpl_prompt_input *input, const char *before,
                                       bool described)
{
    cpl_prompt_builder m = {.of = input, .pool = pool, .before = before, .described = described};
    cpl_status status    = start(&m);
    question->form       = &input->spec->form;
    question->subject    = input->subject;
    if (status == CPL_OK) status = input->spec->form.kind->build(question, &m);
    end(&m);
    return status;
}

/* ---- few-shot examples ---- */

/* Appends the answer of a few-shot example: the profile's target, or the right option. */
static cpl_status append_target(cpl_text *out, cpl_prompt_builder *m)
{
    const cpl_prompt_spec *spec = m->of->spec;
    if (spec->target) return cpl_template_make(out, spec->target, &m->scope);
    CPL_TRY(set_option(m, m->gold[0]));
    return cpl_template_make(out, &spec->option, &m->scope);
}

static cpl_status set_parts(cpl_prompt_builder *m)
{
    const cpl_prompt_spec *spec = m->of->spec;
    cpl_text text               = {0};
    cpl_status status           = CPL_OK;
    if (spec->context_each) CPL_TRY(set_option(m, m->gold[0]));
    CPL_TRY_DONE(append_context(&text, m));
    CPL_TRY_DONE(set(m, "context", text.bytes, text.length));
    cpl_text_clear(&text);
    CPL_TRY_DONE(append_target(&text, m));
    CPL_TRY_DONE(set(m, "target", text.bytes, text.length));
    status = set(m, "delimiter", spec->delimiter, strlen(spec->delimiter));
done:
    cpl_text_free(&text);
    return status;
}

cpl_status cpl_prompt_builder_fewshot(cpl_text *out, const cpl_prompt_input *input)
{
    cpl_prompt_builder m = {.of = input};
    cpl_status status    = start(&m);
    if (status == CPL_OK) status = set_parts(&m);
    if (status == CPL_OK) status = cpl_template_make(out, &input->spec->fewshot, &m.scope);
    end(&m);
    return status;
}
