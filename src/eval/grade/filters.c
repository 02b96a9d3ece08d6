/* filters.c - see grading.h: the answer in a text.
 *
 * A filter is a row of the table below: patterns, of which the first that matches counts, or a
 * function. A task file may have its own patterns (docs/tasks.md, "Patterns").
 * Source: lm-evaluation-harness 0.4.13; agieval: AGIEval's code. */
#include <string.h>

#include "base/text.h"
#include "eval/grade/grading.h"
#include "eval/grade/words.h"

static bool nothing(cpl_span *answer)
{
    *answer = (cpl_span){0};
    return false;
}

/* ---- the content of a \boxed: braces are balanced ---- */

/* Returns the place of the brace that closes the brace at `open`, or CPL_NOWHERE. */
static size_t closing_brace(cpl_span text, size_t open)
{
    size_t depth = 0;
    for (size_t at = open; at < text.length; at++) {
        if (text.bytes[at] == '{') depth++;
        if (text.bytes[at] == '}' && --depth == 0) return at;
    }
    return CPL_NOWHERE;
}

/* Finds the text in the braces after `command`, which begins at `at`. */
static bool braced(cpl_span *answer, cpl_span text, size_t at, const char *command)
{
    size_t open  = at + strlen(command);
    size_t close = cpl_span_is_at(text, open, "{") ? closing_brace(text, open) : CPL_NOWHERE;
    if (close == CPL_NOWHERE) return nothing(answer);
    *answer = cpl_span_part(text, open + 1, close);
    return true;
}

/* Finds the content of the last \boxed, else of the last \fbox. */
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

/* ---- AGIEval ---- */

/* Returns the text after the last '=' and the spaces after it, or the whole text without a '='. */
static cpl_span behind_equals(cpl_span text)
{
    size_t at = cpl_span_find_last_byte(text, '=');
    if (at == CPL_NOWHERE) return text;
    for (at++; at < text.length && text.bytes[at] == ' ';) at++;
    return cpl_span_part(text, at, text.length);
}

/* Returns the text between the first and the last $ of the last line that has two, after its last
 * '='. The span is empty if no line has two. */
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

/* Returns the text after the last '=', without full stops at the end, up to a literal \n (two
 * characters). */
static cpl_span sentence_behind_equals(cpl_span text)
{
    cpl_span s = behind_equals(text);
    while (s.length && s.bytes[s.length - 1] == '.') s.length--;
    size_t cut = cpl_span_find(s, 0, "\\n");
    return cut == CPL_NOWHERE ? s : cpl_span_part(s, 0, cut);
}

/* Finds all answers of AGIEval's filter except the last number, which is a pattern. */
static bool agieval(cpl_span *answer, cpl_span text)
{
    *answer = (cpl_span){0};
    if (cpl_span_find(text, 0, "\\boxed") != CPL_NOWHERE) {
        bool boxed = last_box(answer, text);
        *answer    = behind_equals(*answer);
        return boxed;
    }
    *answer = between_dollars(text);
    if (answer->length) return true;
    if (cpl_span_find_byte(text, 0, '=') == CPL_NOWHERE) return false;
    *answer = sentence_behind_equals(text);
    return true;
}

/* ---- the list ---- */

enum { FIRST = false, LAST = true, STRIP = false, KEEP = true };

const cpl_filter cpl_filters[] = {
    {"none", "the whole text, stripped", NULL, {{"(?s).*", FIRST, STRIP}}},
    {"without_space",
     "the whole text, without one space at its beginning",
     NULL,
     {{"(?s)^ ?(.*)", FIRST, KEEP}}},
    {"gsm8k_strict",
     "the first number after \"#### \"",
     NULL,
     {{"#### (\\-?[0-9\\.\\,]+)", FIRST, STRIP}}},
    {"last_number",
     "the last run of digits, $, dots and commas",
     NULL,
     {{"(-?[$0-9.,]{2,})|(-?[0-9]+)", LAST, STRIP}}},
    {"answer_is_number",
     "the first number after \"The answer is \", with a character after it",
     NULL,
     {{"The answer is (\\-?[0-9\\.\\,]+).", FIRST, STRIP}}},
    {"the_answer_is",
     "the line after \"the answer is \" without its last character",
     NULL,
     {{"(?<=the answer is )(.*)(?=.)", FIRST, STRIP}}},
    {"the_answer_is_robust",
     "the line after \"the answer is \" without a full stop at its end",
     NULL,
     {{"the answer is [^\\S\\n]*(.*?)\\.?[^\\S\\n]*(?m:$)", FIRST, KEEP}}},
    {"answer_letter",
     "the first of A to J after \"answer is \" or \"answer is (\"",
     NULL,
     {{"answer is \\(?([ABCDEFGHIJ])\\)?", FIRST, STRIP}}},
    {"answer_letter_chain",
     "the same, else a letter after \"answer:\", else the last letter by itself",
     NULL,
     {{"answer is \\(?([ABCDEFGHIJ])\\)?", FIRST, STRIP},
      {".*[aA]nswer:\\s*([A-J])", FIRST, STRIP},
      {"\\b[A-J]\\b", LAST, STRIP}}},
    {"minerva",
     "between \"Final Answer: The final answer is\" and \". I hope it is correct.\", which may "
     "lack at the end",
     NULL,
     /* A line without an end of an answer is skipped: no later beginning on it has an end. */
     {{"Final Answer: The final answer is(?:(.*?).(?: I hope it is correct(?:.|\\z)| "
       "\\z)|.*(*SKIP)(*FAIL))",
       FIRST, STRIP}}},
    {"last_boxed", "the content of the last \\boxed", cpl_filter_last_boxed, {{.pattern = NULL}}},
    {"dollars",
     "between the first and the last $, or the whole text",
     NULL,
     {{"(?s)\\$(.*)\\$", FIRST, KEEP}, {"(?s)^(.*)", FIRST, KEEP}}},
    {"agieval",
     "the last \\boxed, else the last $...$, else after the last =, else the last number",
     agieval,
     /* Finds the last number of a text without \boxed. Digits before a letter are no number. Digits
      * before a full stop are a number, whatever follows the full stop. */
     {{"(?s)\\A.*\\\\boxed(*COMMIT)(*FAIL)|(?:\\$|(?<!\\d))\\d++(?:\\.\\d++(?![\\p{L}\\p{N}_])|(?!["
       "\\p{L}\\p{N}_]))",
       LAST, KEEP}}},
};
const size_t cpl_n_filters = sizeof cpl_filters / sizeof *cpl_filters;

cpl_status cpl_filter_find(const cpl_filter **filter, const char *name)
{
    size_t index;
    CPL_TRY(cpl_lookup_in(&index, "filter", name, cpl_filters, cpl_n_filters, sizeof *cpl_filters));
    *filter = &cpl_filters[index];
    return CPL_OK;
}

static bool same_patterns(const cpl_regex *a, const cpl_regex *b)
{
    for (int i = 0; i < CPL_FILTER_PATTERNS; i++) {
        if (!a[i].pattern || !b[i].pattern) return a[i].pattern == b[i].pattern;
        if (strcmp(a[i].pattern, b[i].pattern) != 0 || a[i].last != b[i].last ||
            a[i].keep_space != b[i].keep_space)
            return false;
    }
    return true;
}

const cpl_filter *cpl_filter_named(const cpl_filter *filter)
{
    for (size_t i = 0; i < cpl_n_filters; i++)
        if (!cpl_filters[i].find && cpl_filters[i].patterns[0].pattern &&
            same_patterns(cpl_filters[i].patterns, filter->patterns))
            return &cpl_filters[i];
    return filter;
}

cpl_status cpl_filter_apply(bool *found, cpl_span *answer, const cpl_filter *filter, cpl_span text)
{
    *found = filter->find && filter->find(answer, text);
    for (int i = 0; !*found && i < CPL_FILTER_PATTERNS && filter->patterns[i].pattern; i++)
        CPL_TRY(cpl_regex_find(found, answer, &filter->patterns[i], text));
    return CPL_OK;
}
