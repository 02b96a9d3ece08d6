/* transform_texts.c - what becomes of a text: the functions of transforms.def; see transform_internal.h */
#include <string.h>

#include "eval/grade/edit.h"
#include "eval/grade/filters.h"
#include "eval/grade/words.h"
#include "eval/tasks/transform_internal.h"

cpl_status cpl_transform_strip(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span inner = cpl_words_strip(text);
    cpl_text_append(out, inner.bytes, inner.length);
    return CPL_OK;
}

cpl_status cpl_transform_lstrip(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_span inner = cpl_words_lstrip(text);
    cpl_text_append(out, inner.bytes, inner.length);
    return CPL_OK;
}

cpl_status cpl_transform_lower(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_lower(out, text);
    return CPL_OK;
}

cpl_status cpl_transform_capitalize(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_capitalize(out, text);
    return CPL_OK;
}

cpl_status cpl_transform_uncapitalize(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    cpl_words_uncapitalize(out, text);
    return CPL_OK;
}

cpl_status cpl_transform_without_last(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    uint32_t point;
    if (text.length)
        cpl_text_append(out, text.bytes,
                        text.length - cpl_words_previous(&point, text, text.length));
    return CPL_OK;
}

cpl_status cpl_transform_spaces(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    for (size_t i = 0; i < text.length; i++)
        cpl_text_char(out, text.bytes[i] == '_' ? ' ' : text.bytes[i]);
    return CPL_OK;
}

cpl_status cpl_transform_slug(cpl_text *out, cpl_span text, const cpl_transform *how)
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

cpl_status cpl_transform_before(cpl_text *out, cpl_span text, const cpl_transform *how)
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

cpl_status cpl_transform_after(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", how->first);
    append_behind(out, text, at, how->first);
    return CPL_OK;
}

cpl_status cpl_transform_behind(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find(text, 0, how->first);
    if (at == CPL_NOWHERE)
        cpl_text_append(out, text.bytes, text.length);
    else
        append_behind(out, text, at, how->first);
    return CPL_OK;
}

cpl_status cpl_transform_holding(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    size_t at = cpl_span_find_last(text, how->first);
    if (at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", how->first);
    cpl_span behind = cpl_span_part(text, at + strlen(how->first), text.length);
    if (cpl_words_strip(behind).length == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "nothing stands behind its \"%.100s\"", how->first);
    cpl_text_append(out, text.bytes, text.length);
    return CPL_OK;
}

cpl_status cpl_transform_replace(cpl_text *out, cpl_span text, const cpl_transform *how)
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

cpl_status cpl_transform_hellaswag(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    return clean_up(out, text, false);
}

cpl_status cpl_transform_hellaswag_olmes(cpl_text *out, cpl_span text, const cpl_transform *how)
{
    (void)how;
    return clean_up(out, text, true);
}

cpl_status cpl_transform_boxed(cpl_text *out, cpl_span text, const cpl_transform *how)
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
cpl_status cpl_transform_options(json_t *out, cpl_span text)
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

cpl_status cpl_transform_lines(json_t *out, cpl_span text)
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

size_t cpl_transform_unpadded(const json_t *list, const cpl_transform *how)
{
    size_t kept = json_array_size(list);
    while (kept > 0 && strcmp(json_string_value(json_array_get(list, kept - 1)), how->first) == 0)
        kept--;
    return kept;
}
