/* filters_math.c - see filters.h: the filters of MATH and AGIEval */
#include <string.h>

#include "eval/grade/grading.h"
#include "eval/grade/words.h"

static bool nothing(cpl_span *answer)
{
    *answer = (cpl_span){0};
    return false;
}

/* P6: "Final Answer: The final answer is(.*?). I hope it is correct." in the text with "I hope it is
 * correct." put behind it. Of what is put there a match can use only what a line feed would spoil:
 * all of it where the text ends in a space, or its first letter. */
bool cpl_filter_minerva(cpl_span *answer, cpl_span text)
{
    static const char before[] = "Final Answer: The final answer is";
    static const char behind[] = " I hope it is correct";
    for (size_t at = cpl_span_find(text, 0, before); at != CPL_NOWHERE;) {
        size_t first = at + strlen(before), end = cpl_span_line_end(text, first);
        cpl_span line = cpl_span_part(text, 0, end);
        size_t hope   = cpl_span_find(line, first + 1, behind);
        if (hope != CPL_NOWHERE && hope + strlen(behind) == end && end < text.length)
            hope = CPL_NOWHERE;
        if (hope == CPL_NOWHERE && end == text.length && end > first + 1 &&
            text.bytes[end - 1] == ' ')
            hope = end - 1;
        if (hope != CPL_NOWHERE) {
            uint32_t point;
            size_t stop = hope - cpl_words_previous(&point, text, hope);
            *answer     = cpl_words_strip(cpl_span_part(text, first, stop));
            return true;
        }
        at = cpl_span_find(text, end, before);
    }
    return nothing(answer);
}

/* Where the brace that closes the one at `open` stands. */
static size_t closing_brace(cpl_span text, size_t open)
{
    size_t depth = 0;
    for (size_t at = open; at < text.length; at++) {
        if (text.bytes[at] == '{') depth++;
        if (text.bytes[at] == '}' && --depth == 0) return at;
    }
    return CPL_NOWHERE;
}

/* What stands in the braces behind `command`, which begins at `at`. */
static bool braced(cpl_span *answer, cpl_span text, size_t at, const char *command)
{
    size_t open  = at + strlen(command);
    size_t close = cpl_span_is_at(text, open, "{") ? closing_brace(text, open) : CPL_NOWHERE;
    if (close == CPL_NOWHERE) return nothing(answer);
    *answer = cpl_span_part(text, open + 1, close);
    return true;
}

/* The last \boxed, else the last \fbox. */
static bool last_box(cpl_span *answer, cpl_span text)
{
    static const char *const commands[] = {"\\boxed", "\\fbox"};
    for (int i = 0; i < 2; i++) {
        size_t at = cpl_span_find_last(text, commands[i]);
        if (at != CPL_NOWHERE) return braced(answer, text, at, commands[i]);
    }
    return nothing(answer);
}

bool cpl_filter_last_boxed(cpl_span *answer, cpl_span text)
{
    static const char spaced[] = "\\boxed ";
    size_t at                  = cpl_span_find_last(text, spaced);
    if (at == CPL_NOWHERE) return last_box(answer, text);
    size_t first = at + strlen(spaced), dollar = cpl_span_find_byte(text, first, '$');
    *answer = cpl_span_part(text, first, dollar == CPL_NOWHERE ? text.length : dollar);
    return true;
}

bool cpl_filter_dollars(cpl_span *answer, cpl_span text)
{
    size_t first = cpl_span_find_byte(text, 0, '$'), last = cpl_span_find_last_byte(text, '$');
    *answer = first == last ? text : cpl_span_part(text, first + 1, last);
    return true;
}

/* ---- AGIEval ---- */

/* What stands behind the last '=' and spaces there; without one the text itself. */
static cpl_span behind_equals(cpl_span text)
{
    size_t at = cpl_span_find_last_byte(text, '=');
    if (at == CPL_NOWHERE) return text;
    for (at++; at < text.length && text.bytes[at] == ' ';) at++;
    return cpl_span_part(text, at, text.length);
}

/* Between the first and the last $ of the last line that has two; empty if there is none. */
static cpl_span between_dollars(cpl_span text)
{
    cpl_span last = {0};
    for (size_t first = cpl_span_find_byte(text, 0, '$'); first != CPL_NOWHERE;) {
        size_t end    = cpl_span_line_end(text, first);
        cpl_span line = cpl_span_part(text, first, end);
        size_t close  = cpl_span_find_last_byte(line, '$');
        if (close > 0) last = cpl_span_part(line, 1, close);
        first = cpl_span_find_byte(text, end, '$');
    }
    return behind_equals(last);
}

/* Behind the last '=', without full stops at the end, up to a literal \n (two characters). */
static cpl_span sentence_behind_equals(cpl_span text)
{
    cpl_span s = behind_equals(text);
    while (s.length && s.bytes[s.length - 1] == '.') s.length--;
    size_t cut = cpl_span_find(s, 0, "\\n");
    return cut == CPL_NOWHERE ? s : cpl_span_part(s, 0, cut);
}

/* Where the digits that begin at `at` end. */
static size_t digits_end(cpl_span text, size_t at)
{
    uint32_t point;
    while (at < text.length) {
        size_t length = cpl_words_next(&point, text, at);
        if (!cpl_point_is_digit(point)) break;
        at += length;
    }
    return at;
}

/* "(?:\$)?\d+(?:\.\d+)?(?![\w\d])", the last one. Digits that a letter follows are no number, but
 * those before a full stop are one even if what is behind it is not. */
static bool last_number(cpl_span *answer, cpl_span text)
{
    bool any = false;
    for (size_t at = 0; at < text.length;) {
        uint32_t point;
        size_t end = digits_end(text, at), from = at;
        if (end == at) {
            at += cpl_words_next(&point, text, at);
            continue;
        }
        if (from > 0 && text.bytes[from - 1] == '$') from--;
        size_t fraction = cpl_span_is_at(text, end, ".") ? digits_end(text, end + 1) : end + 1;
        bool whole      = fraction > end + 1 && !cpl_words_is_at(text, fraction);
        at              = whole ? fraction : end;
        if (!whole && cpl_words_is_at(text, end)) continue;
        *answer = cpl_span_part(text, from, at);
        any     = true;
    }
    return any;
}

bool cpl_filter_agieval(cpl_span *answer, cpl_span text)
{
    *answer = (cpl_span){0};
    if (cpl_span_find(text, 0, "\\boxed") != CPL_NOWHERE) {
        bool boxed = last_box(answer, text);
        *answer    = behind_equals(*answer);
        return boxed;
    }
    *answer = between_dollars(text);
    if (answer->length) return true;
    if (cpl_span_find_byte(text, 0, '=') == CPL_NOWHERE) return last_number(answer, text);
    *answer = sentence_behind_equals(text);
    return true;
}
