/* transform.c - see scope.h: the transformations, and chains of them */
#include "eval/tasks/scope.h"

#include <string.h>

#include "base/text.h"
#include "eval/grade/grading.h"
#include "eval/grade/words.h"

/* Without white space at both ends. */
static cpl_status transform_strip(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span inner = cpl_words_strip(text);
    cpl_text_append(out, inner.bytes, inner.length);
    return CPL_OK;
}

/* Without white space at the beginning. */
static cpl_status transform_lstrip(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span inner = cpl_words_lstrip(text);
    cpl_text_append(out, inner.bytes, inner.length);
    return CPL_OK;
}

/* Letters in lower case. */
static cpl_status transform_lower(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_lower(out, text);
    return CPL_OK;
}

/* The first character in upper case, all others in lower. */
static cpl_status transform_capitalize(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_capitalize(out, text);
    return CPL_OK;
}

/* The first character in lower case. */
static cpl_status transform_uncapitalize(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_uncapitalize(out, text);
    return CPL_OK;
}

/* Without the last character. */
static cpl_status transform_without_last(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    uint32_t point;
    if (text.length)
        cpl_text_append(out, text.bytes,
                        text.length - cpl_words_previous(&point, text, text.length));
    return CPL_OK;
}

/* _ as a space. */
static cpl_status transform_spaces(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    for (size_t i = 0; i < text.length; i++)
        cpl_text_char(out, text.bytes[i] == '_' ? ' ' : text.bytes[i]);
    return CPL_OK;
}

/* Lower case, & as and, white space and hyphens as _. */
static cpl_status transform_slug(cpl_text *out, cpl_span text, const cpl_transform *how)
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

/* What stands before a text's first occurrence. */
static cpl_status transform_before(cpl_text *out, cpl_span text, const cpl_transform *how)
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

/* What stands behind a text's first occurrence. */
static cpl_status transform_after(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", how->first);
    append_behind(out, text, at, how->first);
    return CPL_OK;
}

/* What stands behind a text's first occurrence, or all. */
static cpl_status transform_behind(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE)
        cpl_text_append(out, text.bytes, text.length);
    else
        append_behind(out, text, at, how->first);
    return CPL_OK;
}

/* As it is, if something stands behind a text's last occurrence. */
static cpl_status transform_holding(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find_last(text, how->first);
    if (at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", how->first);
    cpl_span behind = cpl_span_part(text, at + strlen(how->first), text.length);
    if (cpl_words_strip(behind).length == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "nothing stands behind its \"%.100s\"", how->first);
    cpl_text_append(out, text.bytes, text.length);
    return CPL_OK;
}

/* Every occurrence of a text replaced. */
static cpl_status transform_replace(cpl_text *out, cpl_span text, const cpl_transform *how)
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

/* " [title]" becomes ". ", and a full stop before it goes with it where `stop_too`: one pass, so that
 * of several titles in a row what has been written is not looked at again. */
static void replace_titles(cpl_text *out, cpl_span text, bool stop_too)
{
    static const char stopped[] = ". [title]", bare[] = " [title]";
    for (size_t at = 0; at < text.length;) {
        const char *title = stop_too && cpl_span_is_at(text, at, stopped) ? stopped : bare;
        const bool there  = cpl_span_is_at(text, at, title);
        cpl_text_append(out, there ? ". " : text.bytes + at, there ? 2 : 1);
        at += there ? strlen(title) : 1;
    }
}

/* strip; titles; brackets; two spaces as one, in one pass (docs/tasks.md, "Strings"). */
static cpl_status clean_up(cpl_text *out, cpl_span text, bool stop_too)
{
    cpl_text now = {0}, spare = {0};
    replace_titles(&now, cpl_words_strip(text), stop_too);
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

/* Without HellaSwag's brackets, " [title]" as a full stop. */
static cpl_status transform_hellaswag(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    return clean_up(out, text, false);
}

/* The same, with a full stop before " [title]" taken off. */
static cpl_status transform_hellaswag_olmes(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    return clean_up(out, text, true);
}

/* What is in the last \boxed. */
static cpl_status transform_boxed(cpl_text *out, cpl_span text, const cpl_transform *how)
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
static cpl_status transform_options(json_t *out, cpl_span text)
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

/* The lines that begin "A. ", "B. ", ..., without that. */
static cpl_status transform_lines(json_t *out, cpl_span text)
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

/* Without the last members as long as they are a text. */
static size_t transform_unpadded(const json_t *list, const cpl_transform *how)
{
    size_t kept = json_array_size(list);
    while (kept > 0 && strcmp(json_string_value(json_array_get(list, kept - 1)), how->first) == 0)
        kept--;
    return kept;
}

/* Appends what becomes of `text`. CPL_ERR_INPUT: it cannot be done. */
typedef cpl_status cpl_text_transform(cpl_text *out, cpl_span text, const cpl_transform *how);

/* Appends the parts of `text` to an array. The same. */
typedef cpl_status cpl_parse_transform(json_t *out, cpl_span text);

/* How many members of a list it keeps, from the first. */
typedef size_t cpl_parse_sieve(const json_t *list, const cpl_transform *how);

typedef enum wants { NOTHING, TEXT, PAIR } wants;

struct cpl_transform_kind {
    const char *name;
    wants argument;
    cpl_text_transform *text; /* two of the three are NULL */
    cpl_parse_transform *list;
    cpl_parse_sieve *sieve;
};

static const cpl_transform_kind kinds[] = {
    {"strip", NOTHING, .text = transform_strip},
    {"lstrip", NOTHING, .text = transform_lstrip},
    {"lower", NOTHING, .text = transform_lower},
    {"capitalize", NOTHING, .text = transform_capitalize},
    {"uncapitalize", NOTHING, .text = transform_uncapitalize},
    {"without_last", NOTHING, .text = transform_without_last},
    {"spaces", NOTHING, .text = transform_spaces},
    {"slug", NOTHING, .text = transform_slug},
    {"before", TEXT, .text = transform_before},
    {"after", TEXT, .text = transform_after},
    {"behind", TEXT, .text = transform_behind},
    {"holding", TEXT, .text = transform_holding},
    {"replace", PAIR, .text = transform_replace},
    {"hellaswag", NOTHING, .text = transform_hellaswag},
    {"hellaswag_olmes", NOTHING, .text = transform_hellaswag_olmes},
    {"boxed", NOTHING, .text = transform_boxed},
    {"options", NOTHING, .list = transform_options},
    {"lines", NOTHING, .list = transform_lines},
    {"unpadded", TEXT, .sieve = transform_unpadded},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static cpl_status find_kind(const cpl_transform_kind **kind, const char *name)
{
    size_t index;
    CPL_TRY(cpl_lookup_in(&index, "transformation", name, kinds, N_KINDS, sizeof *kinds));
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
    if (how->kind->sieve)
        return CPL_FAIL(CPL_ERR_INPUT, "%s wants a list, not a text", how->kind->name);
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
    const size_t kept = how->kind->sieve ? how->kind->sieve(value, how) : json_array_size(value);
    *out              = json_array();
    if (!*out) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    for (i = 0; i < kept; i++) {
        json_t *made = NULL;
        item         = json_array_get(value, i);
        if (how->kind->sieve)
            made = json_incref((json_t *)(uintptr_t)item);
        else
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
