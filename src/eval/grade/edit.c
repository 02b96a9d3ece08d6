/* edit.c - see edit.h */
#include "eval/grade/edit.h"

#include <string.h>

void cpl_edit_set(cpl_text *text, cpl_span to)
{
    cpl_text_clear(text);
    cpl_text_append(text, to.bytes, to.length);
}

void cpl_edit_swap(cpl_text *text, cpl_text *spare)
{
    cpl_text other = *text;
    *text          = *spare;
    *spare         = other;
}

void cpl_edit_keep(cpl_text *text, size_t from, size_t end)
{
    CPL_ASSERT(from <= end && end <= text->length);
    if (end == from) {
        cpl_text_clear(text);
        return;
    }
    memmove(text->bytes, text->bytes + from, end - from);
    text->length              = end - from;
    text->bytes[text->length] = '\0';
}

void cpl_edit_replace(cpl_text *text, const char *what, const char *with, cpl_text *spare)
{
    cpl_span s  = cpl_span_text(text);
    size_t done = 0, at = cpl_span_find(s, 0, what);
    if (at == CPL_NOWHERE) return;
    cpl_text_clear(spare);
    for (; at != CPL_NOWHERE; at = cpl_span_find(s, done, what)) {
        cpl_text_append(spare, s.bytes + done, at - done);
        cpl_text_append(spare, with, strlen(with));
        done = at + strlen(what);
    }
    cpl_text_append(spare, s.bytes + done, s.length - done);
    cpl_edit_swap(text, spare);
}
