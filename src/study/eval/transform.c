/* transform.c - see transform.h */
#include "study/eval/transform.h"

#include <string.h>

#include "study/eval/edit.h"
#include "study/eval/filters.h"
#include "study/eval/names.h"
#include "study/eval/words.h"

typedef enum wants { NOTHING, TEXT, PAIR } wants;

/* Appends what becomes of `text`. CPL_ERR_INPUT: it cannot be done. */
typedef cpl_status text_function(cpl_text *out, cpl_span text, const cpl_transform *how);
/* Appends the parts of `text` to an array. */
typedef cpl_status list_function(json_t *out, cpl_span text);

struct cpl_transform_kind {
    const char *name;
    wants argument;
    text_function *text; /* one of the two is NULL */
    list_function *list;
};

static cpl_status make_strip(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span inner = cpl_words_strip(text);
    cpl_text_append(out, inner.bytes, inner.length);
    return CPL_OK;
}

static cpl_status make_lstrip(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span inner = cpl_words_lstrip(text);
    cpl_text_append(out, inner.bytes, inner.length);
    return CPL_OK;
}

static cpl_status make_lower(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_lower(out, text);
    return CPL_OK;
}

static cpl_status make_capitalize(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_capitalize(out, text);
    return CPL_OK;
}

static cpl_status make_uncapitalize(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_uncapitalize(out, text);
    return CPL_OK;
}

static cpl_status make_without_last(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    uint32_t point;
    if (text.length)
        cpl_text_append(out, text.bytes,
                        text.length - cpl_words_previous(&point, text, text.length));
    return CPL_OK;
}

static cpl_status make_spaces(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    for (size_t i = 0; i < text.length; i++)
        cpl_text_char(out, text.bytes[i] == '_' ? ' ' : text.bytes[i]);
    return CPL_OK;
}

static cpl_status make_slug(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_text small = {0};
    cpl_words_lower(&small, text);
    cpl_span lower = cpl_span_text(&small);
    for (size_t at = 0; at < lower.length;) {
        uint32_t point;
        size_t length = cpl_words_next(&point, lower, at);
        if (point == '&')
            cpl_text_append(out, "and", 3);
        else if (point == '-' || cpl_point_is_space(point))
            cpl_text_char(out, '_');
        else
            cpl_text_append(out, lower.bytes + at, length);
        at += length;
    }
    cpl_status status = cpl_text_status(&small);
    cpl_text_free(&small);
    return status;
}

static cpl_status make_before(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", how->first);
    cpl_text_append(out, text.bytes, at);
    return CPL_OK;
}

static void append_behind(cpl_text *out, cpl_span text, size_t at, const char *what)
{
    size_t from = at + strlen(what);
    cpl_text_append(out, text.bytes + from, text.length - from);
}

static cpl_status make_after(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", how->first);
    append_behind(out, text, at, how->first);
    return CPL_OK;
}

static cpl_status make_behind(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE)
        cpl_text_append(out, text.bytes, text.length);
    else
        append_behind(out, text, at, how->first);
    return CPL_OK;
}

static cpl_status make_replace(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t from = 0;
    for (size_t at; (at = cpl_span_find(text, from, how->first)) != CPL_NOWHERE;
         from = at + strlen(how->first)) {
        cpl_text_append(out, text.bytes + from, at - from);
        cpl_text_append(out, how->second, strlen(how->second));
    }
    cpl_text_append(out, text.bytes + from, text.length - from);
    return CPL_OK;
}

/* Without what stands between a [ and the next ] of its line. */
static void without_brackets(cpl_text *out, cpl_span text)
{
    size_t open = 0; /* before this byte no bracket closes any more */
    for (size_t at = 0; at < text.length;) {
        size_t end = at;
        if (text.bytes[at] == '[' && at >= open)
            while (end < text.length && text.bytes[end] != ']' && text.bytes[end] != '\n') end++;
        if (end > at && end < text.length && text.bytes[end] == ']') {
            at = end + 1;
            continue;
        }
        if (end > at) open = end;
        cpl_text_char(out, text.bytes[at++]);
    }
}

/* strip; titles; brackets; two spaces as one, in one pass (eval-tasks.md 2.5). */
static cpl_status clean_up(cpl_text *out, cpl_span text, const char *title_too)
{
    cpl_text now = {0}, spare = {0};
    cpl_edit_set(&now, cpl_words_strip(text));
    if (title_too) cpl_edit_replace(&now, title_too, ". ", &spare);
    cpl_edit_replace(&now, " [title]", ". ", &spare);
    cpl_text_clear(&spare);
    without_brackets(&spare, cpl_span_text(&now));
    cpl_edit_swap(&now, &spare);
    cpl_edit_replace(&now, "  ", " ", &spare);
    cpl_text_append(out, now.bytes, now.length);
    cpl_status status = cpl_text_status(&now);
    if (status == CPL_OK) status = cpl_text_status(&spare);
    cpl_text_free(&now);
    cpl_text_free(&spare);
    return status;
}

static cpl_status make_hellaswag(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    return clean_up(out, text, NULL);
}

static cpl_status make_hellaswag_olmes(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    return clean_up(out, text, ". [title]");
}

static cpl_status make_boxed(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span answer;
    if (!cpl_filter_last_boxed(&answer, text))
        return CPL_FAIL(CPL_ERR_INPUT, "it holds no \\boxed");
    cpl_text_append(out, answer.bytes, answer.length);
    return CPL_OK;
}

/* ---- lists ---- */

static cpl_status append_part(json_t *out, cpl_span text, size_t from, size_t end)
{
    json_t *part = json_stringn(text.bytes + from, end - from);
    if (json_array_append_new(out, part))
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list of options");
    return CPL_OK;
}

/* "(A) one (B) two": from the left, each mark in its turn, with a space before it. */
static cpl_status split_options(json_t *out, cpl_span text)
{
    if (!cpl_span_is_at(text, 0, "(A) "))
        return CPL_FAIL(CPL_ERR_INPUT, "it begins with no \"(A) \"");
    size_t from = 4;
    char mark[] = " (B) ";
    for (; mark[2] <= 'Z'; mark[2]++) {
        size_t at = cpl_span_find(text, from, mark);
        if (at == CPL_NOWHERE) break;
        CPL_TRY(append_part(out, text, from, at));
        from = at + strlen(mark);
    }
    return append_part(out, text, from, text.length);
}

static cpl_status split_lines(json_t *out, cpl_span text)
{
    if (!cpl_span_is_at(text, 0, "A. "))
        return CPL_FAIL(CPL_ERR_INPUT, "it begins with no \"A. \"");
    size_t from = 3;
    char mark[] = "\nB. ";
    for (; mark[1] <= 'Z'; mark[1]++) {
        size_t at = cpl_span_find(text, from, mark);
        if (at == CPL_NOWHERE) break;
        CPL_TRY(append_part(out, text, from, at));
        from = at + strlen(mark);
    }
    return append_part(out, text, from, text.length);
}

/* ---- chains ---- */

static const cpl_transform_kind kinds[] = {
#define CPL_TRANSFORM(name, wants, what) {#name, wants, make_##name, NULL},
#define CPL_SPLITTER(name, what)         {#name, NOTHING, NULL, split_##name},
#include "study/eval/transforms.def"
#undef CPL_TRANSFORM
#undef CPL_SPLITTER
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static cpl_status find_kind(const cpl_transform_kind **kind, const char *name)
{
    const char *names[N_KINDS];
    size_t index;
    for (int i = 0; i < N_KINDS; i++) names[i] = kinds[i].name;
    CPL_TRY(cpl_names_find(&index, "transformation", name, names, N_KINDS));
    *kind = &kinds[index];
    return CPL_OK;
}

static cpl_status parse_one(cpl_transform *transform, cpl_pool *pool, cpl_span text)
{
    size_t colon     = cpl_span_find_byte(text, 0, ':');
    size_t end       = colon == CPL_NOWHERE ? text.length : colon;
    const char *name = cpl_pool_copy(pool, text.bytes, end);
    *transform       = (cpl_transform){0};
    CPL_TRY(cpl_pool_status(pool));
    CPL_TRY(find_kind(&transform->kind, name));
    wants argument = transform->kind->argument;
    if ((argument == NOTHING) != (colon == CPL_NOWHERE))
        return CPL_FAIL(CPL_ERR_INPUT, "%s %s", name,
                        argument == NOTHING ? "takes nothing behind it"
                                            : "wants a text behind it: \":TEXT\"");
    if (argument == NOTHING) return CPL_OK;
    cpl_span rest = cpl_span_part(text, colon + 1, text.length);
    size_t equals = argument == PAIR ? cpl_span_find_byte(rest, 0, '=') : rest.length;
    if (equals == CPL_NOWHERE || equals == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s wants a text behind it: \"%s\"", name,
                        argument == PAIR ? ":TEXT=WITH" : ":TEXT");
    transform->first = cpl_pool_copy(pool, rest.bytes, equals);
    if (argument == PAIR)
        transform->second = cpl_pool_copy(pool, rest.bytes + equals + 1, rest.length - equals - 1);
    return cpl_pool_status(pool);
}

cpl_status cpl_chain_parse(cpl_chain *chain, cpl_pool *pool, cpl_span text)
{
    int64_t count = 1;
    for (size_t i = 0; i < text.length; i++) count += text.bytes[i] == '|';
    cpl_transform *at = cpl_pool_take(pool, (size_t)count * sizeof *at);
    if (!at) return cpl_pool_status(pool);
    *chain    = (cpl_chain){at, count};
    bool list = false;
    for (int64_t i = 0; i < count; i++) {
        size_t bar = cpl_span_find_byte(text, 0, '|');
        size_t end = bar == CPL_NOWHERE ? text.length : bar;
        CPL_TRY(parse_one(&at[i], pool, cpl_span_part(text, 0, end)));
        if (list && at[i].kind->list)
            return CPL_FAIL(CPL_ERR_INPUT, "%s wants a text, not a list", at[i].kind->name);
        list |= at[i].kind->list != NULL;
        if (bar != CPL_NOWHERE) text = cpl_span_part(text, bar + 1, text.length);
    }
    return CPL_OK;
}

bool cpl_chain_makes_list(const cpl_chain *chain)
{
    for (int64_t i = 0; i < chain->count; i++)
        if (chain->at[i].kind->list) return true;
    return false;
}

static cpl_status apply_to_text(json_t **out, const cpl_transform *how, const json_t *value)
{
    cpl_span text     = {json_string_value(value), json_string_length(value)};
    cpl_text made     = {0};
    cpl_status status = CPL_OK;
    if (how->kind->list) {
        *out   = json_array();
        status = *out ? how->kind->list(*out, text) : CPL_FAIL(CPL_ERR_MEMORY, "out of memory");
    } else {
        status = how->kind->text(&made, text, how);
        if (status == CPL_OK) status = cpl_text_status(&made);
        if (status == CPL_OK) *out = json_stringn(made.bytes ? made.bytes : "", made.length);
        if (status == CPL_OK && !*out)
            status = CPL_FAIL(CPL_ERR_INPUT, "%s leaves what is no UTF-8", how->kind->name);
    }
    cpl_text_free(&made);
    if (status == CPL_OK) return CPL_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

static cpl_status apply_to_list(json_t **out, const cpl_transform *how, const json_t *value)
{
    size_t i;
    const json_t *item;
    cpl_status status = CPL_OK;
    *out              = json_array();
    if (!*out) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    json_array_foreach(value, i, item)
    {
        json_t *made = NULL;
        CPL_TRY_DONE(apply_to_text(&made, how, item));
        if (json_array_append_new(*out, made))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list"));
    }
    return CPL_OK;
done:
    json_decref(*out);
    *out = NULL;
    return status;
}

cpl_status cpl_chain_apply(json_t **out, const cpl_chain *chain, json_t *value)
{
    json_t *now = json_incref(value);
    for (int64_t i = 0; i < chain->count; i++) {
        json_t *made            = NULL;
        const cpl_transform *it = &chain->at[i];
        cpl_status status =
            json_is_array(now) ? apply_to_list(&made, it, now) : apply_to_text(&made, it, now);
        json_decref(now);
        if (status != CPL_OK) return status;
        now = made;
    }
    *out = now;
    return CPL_OK;
}
