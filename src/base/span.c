/* span.c - see span.h */
#include "base/span.h"

#include <string.h>

cpl_span cpl_span_of(const char *string)
{
    return (cpl_span){string, strlen(string)};
}

cpl_span cpl_span_text(const cpl_text *text)
{
    return (cpl_span){text->bytes, text->length};
}

cpl_span cpl_span_part(cpl_span text, size_t from, size_t end)
{
    CPL_ASSERT(from <= end && end <= text.length);
    return end > from ? (cpl_span){text.bytes + from, end - from} : (cpl_span){0};
}

bool cpl_span_equal(cpl_span a, cpl_span b)
{
    return a.length == b.length && (!a.length || memcmp(a.bytes, b.bytes, a.length) == 0);
}

bool cpl_span_is_at(cpl_span text, size_t at, const char *what)
{
    size_t length = strlen(what);
    return at <= text.length && text.length - at >= length &&
           (!length || memcmp(text.bytes + at, what, length) == 0);
}

size_t cpl_span_find(cpl_span text, size_t from, const char *what)
{
    size_t length = strlen(what);
    CPL_ASSERT(length);
    if (from >= text.length) return CPL_NOWHERE;
    const char *at = memmem(text.bytes + from, text.length - from, what, length);
    return at ? (size_t)(at - text.bytes) : CPL_NOWHERE;
}

size_t cpl_span_find_last(cpl_span text, const char *what)
{
    CPL_ASSERT(*what);
    for (size_t at = text.length; at-- > 0;)
        if (text.bytes[at] == *what && cpl_span_is_at(text, at, what)) return at;
    return CPL_NOWHERE;
}

size_t cpl_span_find_byte(cpl_span text, size_t from, char c)
{
    if (from >= text.length) return CPL_NOWHERE;
    const char *at = memchr(text.bytes + from, c, text.length - from);
    return at ? (size_t)(at - text.bytes) : CPL_NOWHERE;
}

size_t cpl_span_find_last_byte(cpl_span text, char c)
{
    const char *at = text.length ? memrchr(text.bytes, c, text.length) : NULL;
    return at ? (size_t)(at - text.bytes) : CPL_NOWHERE;
}

size_t cpl_span_line_end(cpl_span text, size_t at)
{
    size_t end = cpl_span_find_byte(text, at, '\n');
    return end == CPL_NOWHERE ? text.length : end;
}
