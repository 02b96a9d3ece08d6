/* words.c - see words.h */
#include "eval/grade/words.h"

#include <string.h>
#include <utf8proc.h>

enum { ILL_FORMED = 0xFFFD, CAPITAL_SIGMA = 0x3A3, FINAL_SIGMA = 0x3C2, DOTTED_I = 0x130 };

size_t cpl_words_next(uint32_t *point, cpl_span text, size_t at)
{
    CPL_ASSERT(at < text.length);
    const unsigned char *s = (const unsigned char *)text.bytes + at;
    int length             = *s < 0x80 ? 1 : cpl_utf8_length(s, text.length - at);
    *point                 = length ? cpl_utf8_decode(s, length) : ILL_FORMED;
    if (length) return (size_t)length;
    int bad = cpl_utf8_bad_length(s, text.length - at);
    return bad > 0 ? (size_t)bad : 1;
}

size_t cpl_words_previous(uint32_t *point, cpl_span text, size_t at)
{
    CPL_ASSERT(at > 0 && at <= text.length);
    for (size_t length = 1; length <= 4 && length <= at; length++)
        if (cpl_words_next(point, text, at - length) == length &&
            (length > 1 || *point != ILL_FORMED))
            return length;
    *point = ILL_FORMED;
    return 1;
}

bool cpl_words_is_space(uint32_t p)
{
    return (p >= 0x09 && p <= 0x0D) || (p >= 0x1C && p <= 0x20) || p == 0x85 || p == 0xA0 ||
           p == 0x1680 || (p >= 0x2000 && p <= 0x200A) || p == 0x2028 || p == 0x2029 ||
           p == 0x202F || p == 0x205F || p == 0x3000;
}

static utf8proc_category_t category(uint32_t point)
{
    return utf8proc_category((utf8proc_int32_t)point);
}

bool cpl_words_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_punctuation(char c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

cpl_span cpl_words_lstrip(cpl_span text)
{
    uint32_t point;
    size_t at = 0;
    while (at < text.length) {
        size_t length = cpl_words_next(&point, text, at);
        if (!cpl_words_is_space(point)) break;
        at += length;
    }
    return cpl_span_part(text, at, text.length);
}

cpl_span cpl_words_rstrip(cpl_span text)
{
    uint32_t point;
    size_t end = text.length;
    while (end > 0) {
        size_t length = cpl_words_previous(&point, text, end);
        if (!cpl_words_is_space(point)) break;
        end -= length;
    }
    return cpl_span_part(text, 0, end);
}

cpl_span cpl_words_strip(cpl_span text)
{
    return cpl_words_rstrip(cpl_words_lstrip(text));
}

size_t cpl_words_count(cpl_span text)
{
    uint32_t point;
    size_t count = 0;
    for (size_t at = 0; at < text.length; count++) at += cpl_words_next(&point, text, at);
    return count;
}

cpl_span cpl_words_word(cpl_span text, size_t *at)
{
    uint32_t point;
    size_t first = text.length - cpl_words_lstrip(cpl_span_part(text, *at, text.length)).length;
    size_t end   = first;
    while (end < text.length) {
        size_t length = cpl_words_next(&point, text, end);
        if (cpl_words_is_space(point)) break;
        end += length;
    }
    *at = end;
    return cpl_span_part(text, first, end);
}

static bool has_case(uint32_t point)
{
    utf8proc_category_t c = category(point);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LT;
}

/* Returns whether a character is allowed inside a word, between its letters: marks, modifiers,
 * formats, some punctuation. */
static bool is_passed_over(uint32_t point)
{
    utf8proc_category_t c = category(point);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || point == '\'' ||
           point == '.' || point == ':' || point == 0x2018 || point == 0x2019;
}

/* Returns whether the letter in the bytes [at, end) is the last of a word of several letters. */
static bool ends_word(cpl_span text, size_t at, size_t end)
{
    uint32_t before = ' ', behind = ' ';
    while (at > 0) {
        at -= cpl_words_previous(&before, text, at);
        if (!is_passed_over(before)) break;
    }
    while (end < text.length) {
        end += cpl_words_next(&behind, text, end);
        if (!is_passed_over(behind)) break;
    }
    return has_case(before) && !has_case(behind);
}

/* Appends `character`, which replaces `point`. If they are equal, appends `old`, the bytes of
 * `point`. */
static void append_as(cpl_text *out, uint32_t character, uint32_t point, cpl_span old)
{
    char bytes[4];
    if (character != point) old = (cpl_span){bytes, (size_t)cpl_utf8_encode(character, bytes)};
    cpl_text_append(out, old.bytes, old.length);
}

/* Appends the character at `at` in lower case. Returns its length in the text. */
static size_t lower_one(cpl_text *out, cpl_span text, size_t at)
{
    uint32_t point;
    size_t length  = cpl_words_next(&point, text, at);
    uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)point);
    if (point == CAPITAL_SIGMA && ends_word(text, at, at + length)) lower = FINAL_SIGMA;
    if (point == DOTTED_I)
        cpl_text_append(out, "i\xCC\x87", 3);
    else
        append_as(out, lower, point, cpl_span_part(text, at, at + length));
    return length;
}

void cpl_words_lower(cpl_text *out, cpl_span text)
{
    for (size_t at = 0; at < text.length;) at += lower_one(out, text, at);
}

void cpl_words_capitalize(cpl_text *out, cpl_span text)
{
    if (!text.length) return;
    uint32_t point;
    size_t at      = cpl_words_next(&point, text, 0);
    uint32_t title = (uint32_t)utf8proc_totitle((utf8proc_int32_t)point);
    append_as(out, title, point, cpl_span_part(text, 0, at));
    while (at < text.length) at += lower_one(out, text, at);
}

void cpl_words_uncapitalize(cpl_text *out, cpl_span text)
{
    if (!text.length) return;
    size_t at = lower_one(out, text, 0);
    cpl_text_append(out, text.bytes + at, text.length - at);
}

void cpl_words_unpunctuated(cpl_text *out, cpl_span text)
{
    for (size_t at = 0; at < text.length; at++)
        if (!is_punctuation(text.bytes[at])) cpl_text_char(out, text.bytes[at]);
}

void cpl_words_set(cpl_text *text, cpl_span to)
{
    cpl_text_clear(text);
    cpl_text_append(text, to.bytes, to.length);
}

void cpl_words_swap(cpl_text *text, cpl_text *spare)
{
    cpl_text other = *text;
    *text          = *spare;
    *spare         = other;
}

void cpl_words_replace(cpl_text *text, const char *what, const char *with, cpl_text *spare)
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
    cpl_words_swap(text, spare);
}
