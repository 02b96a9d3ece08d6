/* template.c - see template.h */
#include "eval/tasks/template.h"

#include <string.h>

#include "eval/grade/words.h"
#include "eval/tasks/fields.h"

static cpl_status parse_name(cpl_template_part *piece, cpl_pool *pool, cpl_span inner)
{
    size_t bar = cpl_span_find_byte(inner, 0, '|'), end = bar == CPL_NOWHERE ? inner.length : bar;
    if (end == 0) return CPL_FAIL(CPL_ERR_INPUT, "{} holds no name; a brace is written {{ or }}");
    piece->name = cpl_pool_copy(pool, inner.bytes, end);
    if (bar == CPL_NOWHERE) return CPL_OK;
    CPL_TRY(cpl_chain_parse(&piece->chain, pool, cpl_span_part(inner, bar + 1, inner.length)));
    if (cpl_chain_makes_list(&piece->chain))
        return CPL_FAIL(CPL_ERR_INPUT, "{%.*s} makes a list, and a text is wanted",
                        (int)inner.length, inner.bytes);
    return CPL_OK;
}

/* Takes the piece that begins at `*at`, and sets `*at` behind it. */
static cpl_status parse_piece(cpl_template_part *piece, cpl_pool *pool, cpl_span text, size_t *at)
{
    char c = text.bytes[*at], following = *at + 1 < text.length ? text.bytes[*at + 1] : '\0';
    if (c == '{' && following != '{') {
        size_t close = cpl_span_find_byte(text, *at, '}');
        if (close == CPL_NOWHERE)
            return CPL_FAIL(CPL_ERR_INPUT, "\"{\" is not closed; a brace is written {{ or }}");
        cpl_span inner = cpl_span_part(text, *at + 1, close);
        *at            = close + 1;
        return parse_name(piece, pool, inner);
    }
    if (c == '}' && following != '}')
        return CPL_FAIL(CPL_ERR_INPUT, "\"}\" closes nothing; a brace is written {{ or }}");
    size_t from = *at, end = from + 1;
    *at += c == '{' || c == '}' ? 2 : 1;
    for (; *at == end && end < text.length && text.bytes[end] != '{' && text.bytes[end] != '}';
         end++)
        *at = end + 1;
    piece->text   = cpl_pool_copy(pool, text.bytes + from, end - from);
    piece->length = end - from;
    return CPL_OK;
}

cpl_status cpl_template_parse(cpl_template *t, cpl_pool *pool, const char *text)
{
    cpl_span span = cpl_span_of(text);
    size_t most   = 1;
    for (size_t i = 0; i < span.length; i++)
        if (text[i] == '{' || text[i] == '}') most += 2;
    cpl_template_part *pieces = cpl_pool_take(pool, most * sizeof *pieces);
    int64_t count             = 0;
    if (!pieces) return cpl_pool_status(pool);
    for (size_t at = 0; at < span.length;) CPL_TRY(parse_piece(&pieces[count++], pool, span, &at));
    *t = (cpl_template){pieces, count};
    return cpl_pool_status(pool);
}

bool cpl_template_names(const cpl_template *t, const char *name)
{
    for (int64_t i = 0; i < t->count; i++)
        if (t->pieces[i].name && strcmp(t->pieces[i].name, name) == 0) return true;
    return false;
}

bool cpl_template_is_name(const cpl_template *t)
{
    return t->count == 1 && t->pieces[0].name;
}

cpl_status cpl_template_make(cpl_text *out, const cpl_template *t, struct cpl_scope *scope)
{
    for (int64_t i = 0; i < t->count; i++) {
        const cpl_template_part *piece = &t->pieces[i];
        json_t *value = NULL, *made = NULL;
        if (!piece->name) {
            cpl_text_append(out, piece->text, piece->length);
            continue;
        }
        CPL_TRY(cpl_scope_value(&value, scope, piece->name));
        CPL_TRY(cpl_chain_apply(&made, &piece->chain, value));
        cpl_text_append(out, json_string_value(made), json_string_length(made));
        json_decref(made);
    }
    return cpl_text_status(out);
}
