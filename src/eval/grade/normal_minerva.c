/* normal_minerva.c - see normal.h: answers of MATH as Lewkowycz et al. (2022, appendix D) compare
 * them, with lm-eval 0.4.13's care for whole words, LaTeX commands, roots and tuples. Every pass is
 * one of its substitutions, in its order. */
#include <string.h>

#include "eval/grade/grading.h"
#include "eval/grade/words.h"

static const struct {
    const char *what, *with;
} substitutions[] = {
    {"an ", ""},          {"a ", ""},
    {".$", "$"},          {"\\$", ""},
    {"\\ ", ""},          {" ", ""},
    {"mbox", "text"},     {",\\text{and}", ","},
    {"\\text{and}", ","}, {"\\text{m}", "\\text{}"},
};

/* Words (all letters) and other pieces that are left out. */
static const char *const removed[] = {
    "square",       "ways",
    "integers",     "dollars",
    "mph",          "inches",
    "ft",           "hours",
    "km",           "units",
    "\\ldots",      "sue",
    "points",       "feet",
    "minutes",      "digits",
    "cents",        "degrees",
    "cm",           "gm",
    "pounds",       "meters",
    "meals",        "edges",
    "students",     "childrentickets",
    "multiples",    "\\text{s}",
    "\\text{.}",    "\\text{\ns}",
    "\\text{}^2",   "\\text{}^3",
    "\\text{\n}",   "\\text{}",
    "\\mathrm{th}", "^\\circ",
    "^{\\circ}",    "\\;",
    ",\\!",         "{,}",
    "\"",           "\\dots",
};

static const size_t n_substitutions = sizeof substitutions / sizeof *substitutions;
static const size_t n_removed       = sizeof removed / sizeof *removed;

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_a_word(const char *what)
{
    while (is_letter(*what)) what++;
    return !*what;
}

/* Leaves `word` out where it stands alone and no backslash before it. */
static void remove_whole_word(cpl_text *text, const char *word, cpl_text *spare)
{
    cpl_span s = cpl_span_text(text);
    if (cpl_span_find(s, 0, word) == CPL_NOWHERE) return;
    size_t done = 0, length = strlen(word);
    cpl_text_clear(spare);
    for (size_t at = cpl_span_find(s, 0, word); at != CPL_NOWHERE;) {
        bool alone = !cpl_words_is_before(s, at) && !cpl_words_is_at(s, at + length) &&
                     (at == 0 || s.bytes[at - 1] != '\\');
        if (alone) {
            cpl_text_append(spare, s.bytes + done, at - done);
            done = at + length;
        }
        at = cpl_span_find(s, alone ? done : at + 1, word);
    }
    cpl_text_append(spare, s.bytes + done, s.length - done);
    cpl_edit_swap(text, spare);
}

/* Leaves `word` out but in names of commands. */
static void remove_outside_commands(cpl_text *text, const char *word, cpl_text *spare)
{
    cpl_span s = cpl_span_text(text);
    if (cpl_span_find(s, 0, word) == CPL_NOWHERE) return;
    cpl_text_clear(spare);
    for (size_t at = 0; at < s.length;) {
        if (cpl_span_is_at(s, at, word)) {
            at += strlen(word);
            continue;
        }
        size_t end = at + 1;
        if (s.bytes[at] == '\\')
            while (end < s.length && is_letter(s.bytes[end])) end++;
        cpl_text_append(spare, s.bytes + at, end - at);
        at = end;
    }
    cpl_edit_swap(text, spare);
}

/* Where `c` or the end of the line stands at or behind `from`; `known` is where it was the last
 * time, so that a long line is not searched again and again. */
static size_t next_in_line(cpl_span s, size_t from, char c, size_t *known)
{
    if (*known < from || *known == CPL_NOWHERE)
        for (*known = from; *known < s.length; ++*known)
            if (s.bytes[*known] == c || s.bytes[*known] == '\n') break;
    return *known;
}

/* "(.*?)(\$)(.*?)(\$)(.*)" becomes "$\3$": a line with two $ keeps what the first two enclose. */
static void keep_first_dollars(cpl_text *text, cpl_text *spare)
{
    cpl_span s = cpl_span_text(text);
    cpl_text_clear(spare);
    for (size_t at = 0; at < s.length;) {
        size_t end    = cpl_span_line_end(s, at);
        cpl_span line = cpl_span_part(s, at, end);
        size_t first  = cpl_span_find_byte(line, 0, '$');
        size_t second = first == CPL_NOWHERE ? first : cpl_span_find_byte(line, first + 1, '$');
        if (second != CPL_NOWHERE) line = cpl_span_part(line, first, second + 1);
        cpl_text_append(spare, line.bytes, line.length);
        if (end < s.length) cpl_text_char(spare, '\n');
        at = end + 1;
    }
    cpl_edit_swap(text, spare);
}

/* "(\\text\{)(.*?)(\})" becomes "\2", `command` being "\text{". */
static void unwrap_shortest(cpl_text *text, const char *command, cpl_text *spare)
{
    cpl_span s   = cpl_span_text(text);
    size_t known = CPL_NOWHERE, done = 0, at = cpl_span_find(s, 0, command);
    if (at == CPL_NOWHERE) return;
    cpl_text_clear(spare);
    while (at != CPL_NOWHERE) {
        size_t first = at + strlen(command), close = next_in_line(s, first, '}', &known);
        if (close < s.length && s.bytes[close] == '}') {
            cpl_text_append(spare, s.bytes + done, at - done);
            cpl_text_append(spare, s.bytes + first, close - first);
            done = close + 1;
            at   = cpl_span_find(s, done, command);
        } else {
            at = cpl_span_find(s, first, command);
        }
    }
    cpl_text_append(spare, s.bytes + done, s.length - done);
    cpl_edit_swap(text, spare);
}

/* "(\\boxed\{)(.*)(\})" becomes "\2": up to the last brace of the line. */
static void unwrap_boxed(cpl_text *text, cpl_text *spare)
{
    static const char command[] = "\\boxed{";
    cpl_span s                  = cpl_span_text(text);
    if (cpl_span_find(s, 0, command) == CPL_NOWHERE) return;
    cpl_text_clear(spare);
    for (size_t at = 0; at < s.length;) {
        size_t end    = cpl_span_line_end(s, at);
        cpl_span line = cpl_span_part(s, at, end);
        size_t box = cpl_span_find(line, 0, command), close = cpl_span_find_last_byte(line, '}');
        if (box != CPL_NOWHERE && close != CPL_NOWHERE && close >= box + strlen(command)) {
            size_t first = box + strlen(command);
            cpl_text_append(spare, line.bytes, box);
            cpl_text_append(spare, line.bytes + first, close - first);
            line = cpl_span_part(line, close + 1, line.length);
        }
        cpl_text_append(spare, line.bytes, line.length);
        if (end < s.length) cpl_text_char(spare, '\n');
        at = end + 1;
    }
    cpl_edit_swap(text, spare);
}

static void append_braced(cpl_text *out, cpl_span s, size_t from, size_t end)
{
    cpl_text_char(out, '{');
    cpl_text_append(out, s.bytes + from, end - from);
    cpl_text_char(out, '}');
}

/* Where the character at `at` ends, if there is one. */
static size_t character_end(cpl_span s, size_t at)
{
    uint32_t point;
    return at < s.length ? at + cpl_words_next(&point, s, at) : at;
}

/* "(frac)([^{])(.)" becomes "frac{\2}{\3}". Appends what it made at `at`; returns where that ends in
 * the text, `at` if there is nothing to make. */
static size_t brace_fraction(cpl_text *out, cpl_span s, size_t at, size_t *known)
{
    (void)known;
    if (!cpl_span_is_at(s, at, "frac")) return at;
    size_t a = at + 4, b = character_end(s, a), end = character_end(s, b);
    if (end == b || s.bytes[a] == '{' || s.bytes[b] == '\n') return at;
    cpl_text_append(out, "frac", 4);
    append_braced(out, s, a, b);
    append_braced(out, s, b, end);
    return end;
}

/* "(sqrt)(\[[^\]]*\])(\w)" becomes "\1\2{\3}"; `known` is where the next ']' stands. */
static size_t brace_indexed_root(cpl_text *out, cpl_span s, size_t at, size_t *known)
{
    if (!cpl_span_is_at(s, at, "sqrt[")) return at;
    if (*known <= at) *known = cpl_span_find_byte(s, at, ']');
    if (*known == CPL_NOWHERE || !cpl_words_is_at(s, *known + 1)) return at;
    size_t first = *known + 1, end = character_end(s, first);
    cpl_text_append(out, s.bytes + at, first - at);
    append_braced(out, s, first, end);
    return end;
}

/* "(sqrt)(?!\[)([^{])" becomes "sqrt{\2}". */
static size_t brace_root(cpl_text *out, cpl_span s, size_t at, size_t *known)
{
    (void)known;
    if (!cpl_span_is_at(s, at, "sqrt")) return at;
    size_t first = at + 4, end = character_end(s, first);
    if (end == first || s.bytes[first] == '{' || s.bytes[first] == '[') return at;
    cpl_text_append(out, "sqrt", 4);
    append_braced(out, s, first, end);
    return end;
}

static void put_braces(cpl_text *text, size_t (*brace)(cpl_text *, cpl_span, size_t, size_t *known),
                       cpl_text *spare)
{
    cpl_span s   = cpl_span_text(text);
    size_t known = 0;
    cpl_text_clear(spare);
    for (size_t at = 0, end; at < s.length; at = end) {
        end = brace(spare, s, at, &known);
        if (end == at) cpl_text_char(spare, s.bytes[end++]);
    }
    cpl_edit_swap(text, spare);
}

/* Reads up to `most` digits from `at`; returns where they end. */
static size_t some_digits(cpl_span s, size_t at, int most)
{
    uint32_t point;
    for (int i = 0; i < most && at < s.length; i++) {
        size_t length = cpl_words_next(&point, s, at);
        if (!cpl_point_is_digit(point)) break;
        at += length;
    }
    return at;
}

/* Whether all of it is "-?\d{1,3}(,\d{3})+": a number with its thousands apart. */
static bool has_thousands(cpl_span s)
{
    size_t at = cpl_span_is_at(s, 0, "-") ? 1 : 0, end = some_digits(s, at, 3), groups = 0;
    if (end == at) return false;
    for (at = end; at < s.length; at = end, groups++) {
        if (s.bytes[at] != ',') return false;
        end = some_digits(s, at + 1, 3);
        if (cpl_words_count(cpl_span_part(s, at + 1, end)) != 3) return false;
    }
    return groups > 0;
}

bool cpl_normal_minerva(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    size_t equals = cpl_span_find_last_byte(answer, '=');
    if (equals != CPL_NOWHERE) answer = cpl_span_part(answer, equals + 1, answer.length);
    cpl_edit_set(out, answer);
    for (size_t i = 0; i < n_removed; i++)
        if (is_a_word(removed[i])) remove_whole_word(out, removed[i], spare);
    for (size_t i = 0; i < n_substitutions; i++)
        cpl_edit_replace(out, substitutions[i].what, substitutions[i].with, spare);
    for (size_t i = 0; i < n_removed; i++)
        if (is_a_word(removed[i]))
            remove_outside_commands(out, removed[i], spare);
        else
            cpl_edit_replace(out, removed[i], "", spare);
    keep_first_dollars(out, spare);
    unwrap_shortest(out, "\\text{", spare);
    unwrap_shortest(out, "\\textbf{", spare);
    unwrap_shortest(out, "\\overline{", spare);
    unwrap_boxed(out, spare);
    put_braces(out, brace_fraction, spare);
    put_braces(out, brace_indexed_root, spare);
    put_braces(out, brace_root, spare);
    cpl_edit_replace(out, "$", "", spare);
    if (has_thousands(cpl_span_text(out))) cpl_edit_replace(out, ",", "", spare);
    return true;
}
