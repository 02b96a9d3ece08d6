/* filters.c - see filters.h: the list, and the filters of numbers, letters and lines */
#include "eval/grade/grading.h"

#include <string.h>

#include "base/lookup.h"
#include "eval/grade/words.h"

const cpl_filter cpl_filters[] = {
#define CPL_FILTER(name, what) {#name, cpl_filter_##name, what},
#include "eval/grade/filters.def"
#undef CPL_FILTER
};
const size_t cpl_n_filters = sizeof cpl_filters / sizeof *cpl_filters;

cpl_status cpl_filter_find(const cpl_filter **filter, const char *name)
{
    static const char *const names[] = {
#define CPL_FILTER(name, what) #name,
#include "eval/grade/filters.def"
#undef CPL_FILTER
    };
    size_t index;
    CPL_TRY(cpl_lookup(&index, "filter", name, names, cpl_n_filters));
    *filter = &cpl_filters[index];
    return CPL_OK;
}

static bool nothing(cpl_span *answer)
{
    *answer = (cpl_span){0};
    return false;
}

/* The answer is what stands in [from, end), stripped. */
static bool found(cpl_span *answer, cpl_span text, size_t from, size_t end)
{
    *answer = cpl_words_strip(cpl_span_part(text, from, end));
    return true;
}

bool cpl_filter_none(cpl_span *answer, cpl_span text)
{
    return found(answer, text, 0, text.length);
}

bool cpl_filter_without_space(cpl_span *answer, cpl_span text)
{
    *answer = cpl_span_part(text, text.length && text.bytes[0] == ' ' ? 1 : 0, text.length);
    return true;
}

/* ---- numbers ---- */

static bool is_of_number(char c)
{
    return cpl_byte_is_digit(c) || c == '.' || c == ',';
}

/* Where the run of digits, dots and commas that begins at `at`, behind a minus sign if there is
 * one, ends; `at` itself if there is none. */
static size_t number_end(cpl_span text, size_t at)
{
    size_t first = at < text.length && text.bytes[at] == '-' ? at + 1 : at, end = first;
    while (end < text.length && is_of_number(text.bytes[end])) end++;
    return end > first ? end : at;
}

/* P1: "#### (\-?[0-9\.\,]+)" */
bool cpl_filter_gsm8k_strict(cpl_span *answer, cpl_span text)
{
    static const char mark[] = "#### ";
    for (size_t at = cpl_span_find(text, 0, mark); at != CPL_NOWHERE;
         at        = cpl_span_find(text, at + 1, mark)) {
        size_t first = at + strlen(mark), end = number_end(text, first);
        if (end > first) return found(answer, text, first, end);
    }
    return nothing(answer);
}

/* P3: "The answer is (\-?[0-9\.\,]+)." - the last character of the text or line can only be the one
 * behind the number. */
bool cpl_filter_answer_is_number(cpl_span *answer, cpl_span text)
{
    static const char mark[] = "The answer is ";
    for (size_t at = cpl_span_find(text, 0, mark); at != CPL_NOWHERE;
         at        = cpl_span_find(text, at + 1, mark)) {
        size_t first = at + strlen(mark), end = number_end(text, first);
        if (end == first) continue;
        bool last = end == text.length || text.bytes[end] == '\n';
        if (last && is_of_number(text.bytes[end - 2]))
            end--;
        else if (last)
            continue;
        return found(answer, text, first, end);
    }
    return nothing(answer);
}

/* P2: "(-?[$0-9.,]{2,})|(-?[0-9]+)", the last one */
bool cpl_filter_last_number(cpl_span *answer, cpl_span text)
{
    size_t from = CPL_NOWHERE, to = 0;
    for (size_t at = 0; at < text.length;) {
        size_t first = at + (text.bytes[at] == '-'), end = first;
        while (end < text.length && (is_of_number(text.bytes[end]) || text.bytes[end] == '$'))
            end++;
        if (end - first >= 2 || (end - first == 1 && cpl_byte_is_digit(text.bytes[first]))) {
            from = at;
            to   = end;
        }
        at = end > at ? end : at + 1;
    }
    return from == CPL_NOWHERE ? nothing(answer) : found(answer, text, from, to);
}

/* ---- BBH: what the answer is said to be ---- */

static const char the_answer_is[] = "the answer is ";

/* P4: "(?<=the answer is )(.*)(?=.)" */
bool cpl_filter_the_answer_is(cpl_span *answer, cpl_span text)
{
    for (size_t at = cpl_span_find(text, 0, the_answer_is); at != CPL_NOWHERE;
         at        = cpl_span_find(text, at + 1, the_answer_is)) {
        size_t first = at + strlen(the_answer_is), end = cpl_span_line_end(text, first);
        if (end == first) continue;
        uint32_t point;
        return found(answer, text, first, end - cpl_words_previous(&point, text, end));
    }
    return nothing(answer);
}

bool cpl_filter_the_answer_is_robust(cpl_span *answer, cpl_span text)
{
    size_t at = cpl_span_find(text, 0, the_answer_is);
    if (at == CPL_NOWHERE) return nothing(answer);
    size_t first = at + strlen(the_answer_is);
    found(answer, text, first, cpl_span_line_end(text, first));
    if (answer->length && answer->bytes[answer->length - 1] == '.') answer->length--;
    return true;
}

/* ---- MMLU-Pro: a letter ---- */

static bool is_letter_at(cpl_span text, size_t at)
{
    return at < text.length && text.bytes[at] >= 'A' && text.bytes[at] <= 'J';
}

/* P5: "answer is \(?([ABCDEFGHIJ])\)?" */
bool cpl_filter_answer_letter(cpl_span *answer, cpl_span text)
{
    static const char mark[] = "answer is ";
    for (size_t at = cpl_span_find(text, 0, mark); at != CPL_NOWHERE;
         at        = cpl_span_find(text, at + 1, mark)) {
        size_t first = at + strlen(mark);
        if (cpl_span_is_at(text, first, "(")) first++;
        if (is_letter_at(text, first)) return found(answer, text, first, first + 1);
    }
    return nothing(answer);
}

/* ".*[aA]nswer:\s*([A-J])": the last such place of the first line that has one */
static bool letter_behind_colon(cpl_span *answer, cpl_span text)
{
    static const char mark[] = "nswer:";
    size_t letter = CPL_NOWHERE, line_end = 0;
    for (size_t at = cpl_span_find(text, 0, mark); at != CPL_NOWHERE;
         at        = cpl_span_find(text, at + 1, mark)) {
        if (letter != CPL_NOWHERE && at > line_end) break;
        if (at == 0 || (text.bytes[at - 1] != 'a' && text.bytes[at - 1] != 'A')) continue;
        size_t behind = at + strlen(mark);
        cpl_span rest = cpl_words_lstrip(cpl_span_part(text, behind, text.length));
        if (!is_letter_at(rest, 0)) continue;
        if (letter == CPL_NOWHERE) line_end = cpl_span_line_end(text, at);
        letter = text.length - rest.length;
    }
    return letter == CPL_NOWHERE ? nothing(answer) : found(answer, text, letter, letter + 1);
}

/* "\b[A-J]\b(?!.*\b[A-J]\b)", the dot a newline too */
static bool last_lone_letter(cpl_span *answer, cpl_span text)
{
    for (size_t at = text.length; at-- > 0;)
        if (is_letter_at(text, at) && !cpl_words_is_before(text, at) &&
            !cpl_words_is_at(text, at + 1))
            return found(answer, text, at, at + 1);
    return nothing(answer);
}

bool cpl_filter_answer_letter_chain(cpl_span *answer, cpl_span text)
{
    return cpl_filter_answer_letter(answer, text) || letter_behind_colon(answer, text) ||
           last_lone_letter(answer, text);
}
