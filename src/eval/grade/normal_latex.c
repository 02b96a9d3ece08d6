/* normal_latex.c - see normal.h: answers of MATH as Hendrycks et al. (2021) and AGIEval compare them.
 * Every pass is one step of theirs, in its order. */
#include <string.h>

#include "eval/grade/grading.h"
#include "eval/grade/words.h"

/* Cuts the text at "\text{ ", which begins units; false if that stands there twice. */
static bool cut_units(cpl_text *text)
{
    static const char units[] = "\\text{ ";
    cpl_span s                = cpl_span_text(text);
    size_t at                 = cpl_span_find(s, 0, units);
    if (at == CPL_NOWHERE) return true;
    if (cpl_span_find(s, at + strlen(units), units) != CPL_NOWHERE) return false;
    cpl_edit_keep(text, 0, at);
    return true;
}

/* Cuts "x = " off, what stands there being at most two characters. */
static void cut_name(cpl_text *text)
{
    cpl_span s = cpl_span_text(text);
    size_t at  = cpl_span_find_byte(s, 0, '=');
    if (at == CPL_NOWHERE || at != cpl_span_find_last_byte(s, '=')) return;
    if (cpl_words_count(cpl_span_part(s, 0, at)) <= 2) cpl_edit_keep(text, at + 1, text->length);
}

/* The braces of an argument of one character at `*at`, which goes behind it. */
static void brace_character(cpl_text *out, cpl_span s, size_t *at)
{
    uint32_t point;
    size_t length = cpl_words_next(&point, s, *at);
    cpl_text_char(out, '{');
    cpl_text_append(out, s.bytes + *at, length);
    cpl_text_char(out, '}');
    *at += length;
}

/* Where the piece ends that a command behind `at` begins. */
static size_t piece_end(cpl_span s, size_t at, const char *command)
{
    size_t end = cpl_span_find(s, at, command);
    return end == CPL_NOWHERE ? s.length : end;
}

/* "\sqrt3" becomes "\sqrt{3}"; false if nothing stands behind one. */
static bool brace_roots(cpl_text *text, cpl_text *spare)
{
    static const char root[] = "\\sqrt";
    cpl_span s               = cpl_span_text(text);
    size_t at                = piece_end(s, 0, root);
    cpl_edit_set(spare, cpl_span_part(s, 0, at));
    while (at < s.length) {
        size_t first = at + strlen(root), end = piece_end(s, first, root);
        if (first == end) return false;
        cpl_text_append(spare, root, strlen(root));
        if (s.bytes[first] != '{') brace_character(spare, s, &first);
        cpl_text_append(spare, s.bytes + first, end - first);
        at = end;
    }
    cpl_edit_swap(text, spare);
    return true;
}

/* "\frac12" becomes "\frac{1}{2}", "\frac1{72}" becomes "\frac{1}{72}"; all of them stay as they are
 * if a single character stands behind one; false if nothing does before that. */
static bool brace_fractions(cpl_text *text, cpl_text *spare)
{
    static const char fraction[] = "\\frac";
    cpl_span s                   = cpl_span_text(text);
    size_t at                    = piece_end(s, 0, fraction);
    cpl_edit_set(spare, cpl_span_part(s, 0, at));
    while (at < s.length) {
        size_t first = at + strlen(fraction), end = piece_end(s, first, fraction);
        if (first == end) return false;
        cpl_text_append(spare, fraction, strlen(fraction));
        if (s.bytes[first] != '{') {
            if (cpl_words_count(cpl_span_part(s, first, end)) < 2) return true;
            brace_character(spare, s, &first);
            if (s.bytes[first] != '{') brace_character(spare, s, &first);
        }
        cpl_text_append(spare, s.bytes + first, end - first);
        at = end;
    }
    cpl_edit_swap(text, spare);
    return true;
}

/* Whether Python's int() reads it: white space around, a sign, digits of any script and single
 * underscores between them. */
static bool is_integer(cpl_span s)
{
    s          = cpl_words_strip(s);
    size_t at  = cpl_span_is_at(s, 0, "-") || cpl_span_is_at(s, 0, "+") ? 1 : 0;
    bool digit = false;
    for (size_t length; at < s.length; at += length) {
        uint32_t point;
        length = cpl_words_next(&point, s, at);
        if (!cpl_point_is_digit(point) && !(point == '_' && digit)) return false;
        digit = point != '_';
    }
    return digit;
}

/* Whether it is an integer as it is printed: no zeros at its beginning, no plus, no "-0". */
static bool is_printed_integer(cpl_span s)
{
    size_t first = cpl_span_is_at(s, 0, "-") ? 1 : 0;
    for (size_t at = first; at < s.length; at++)
        if (!cpl_byte_is_digit(s.bytes[at])) return false;
    return first < s.length && (s.bytes[first] != '0' || s.length == 1);
}

/* "1/2" becomes "\frac{1}{2}"; false if what one slash divides are no integers. */
static bool fraction_of_slash(cpl_text *text, cpl_text *spare)
{
    cpl_span s   = cpl_span_text(text);
    size_t slash = cpl_span_find_byte(s, 0, '/');
    if (slash == CPL_NOWHERE || slash != cpl_span_find_last_byte(s, '/')) return true;
    cpl_span a = cpl_span_part(s, 0, slash), b = cpl_span_part(s, slash + 1, s.length);
    if (!is_integer(a) || !is_integer(b)) return false;
    if (!is_printed_integer(a) || !is_printed_integer(b)) return true;
    cpl_edit_set(spare, cpl_span_of("\\frac{"));
    cpl_text_append(spare, a.bytes, a.length);
    cpl_text_append(spare, "}{", 2);
    cpl_text_append(spare, b.bytes, b.length);
    cpl_text_char(spare, '}');
    cpl_edit_swap(text, spare);
    return true;
}

/* All steps but the last; false if one of them has no result. */
static bool strip(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    static const struct {
        const char *what, *with;
    } first[] = {{"\n", ""},        {"\\!", ""},    {"\\\\", "\\"},  {"tfrac", "frac"},
                 {"dfrac", "frac"}, {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""},
                 {"^\\circ", ""},   {"\\$", ""}};
    cpl_edit_set(out, answer);
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        cpl_edit_replace(out, first[i].what, first[i].with, spare);
    if (!cut_units(out)) return false;
    /* Theirs has this step twice, and once can leave what the other takes. */
    for (int i = 0; i < 2; i++) cpl_edit_replace(out, "\\%", "", spare);
    cpl_edit_replace(out, " .", " 0.", spare);
    cpl_edit_replace(out, "{.", "{0.", spare);
    if (cpl_span_is_at(cpl_span_text(out), 0, ".")) {
        cpl_edit_set(spare, cpl_span_of("0"));
        cpl_text_append(spare, out->bytes, out->length);
        cpl_edit_swap(out, spare);
    }
    cut_name(out);
    if (!brace_roots(out, spare)) return false;
    cpl_edit_replace(out, " ", "", spare);
    if (!brace_fractions(out, spare)) return false;
    if (cpl_span_equal(cpl_span_text(out), cpl_span_of("0.5")))
        cpl_edit_set(out, cpl_span_of("\\frac{1}{2}"));
    return true;
}

bool cpl_normal_hendrycks(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    return strip(out, answer, spare) && fraction_of_slash(out, spare);
}

bool cpl_normal_agieval(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    if (!strip(out, answer, spare)) return false;
    (void)fraction_of_slash(out, spare);
    return true;
}
