/* normal.c - see grading.h: the normal forms.
 *
 * A normal form is a list of substitutions, mostly the patterns of its reference program, in their
 * order. The patterns go over a text once: *+ never backtracks, and (*SKIP) makes the next
 * attempt begin at its place.
 * Source: triviaqa, gsm8k, minerva: lm-evaluation-harness 0.4.13, minerva after Lewkowycz et al.
 *         (2022, appendix D); hendrycks: Hendrycks et al. (2021); agieval: AGIEval's code. */
#include <stdio.h>

#include "base/text.h"
#include "eval/grade/grading.h"
#include "eval/grade/words.h"

#define WORD "[\\p{L}\\p{N}_]" /* \w of Python */

#define SUBSTITUTE(text, steps, spare)                                                             \
    cpl_regex_substitute(text, steps, sizeof(steps) / sizeof *(steps), spare)

/* Returns the first match, or an empty span without a match. The patterns match no empty text. */
static cpl_span first_match(cpl_text *text, const char *pattern)
{
    const cpl_regex regex = {pattern, .keep_space = true};
    bool found;
    cpl_span match;
    if (cpl_regex_find(&found, &match, &regex, cpl_span_text(text)) == CPL_ERR_MEMORY)
        text->failed = true;
    return match;
}

static bool normal_none(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    (void)spare;
    cpl_words_set(out, answer);
    return true;
}

static bool normal_lower(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    (void)spare;
    cpl_text_clear(out);
    cpl_words_lower(out, answer);
    return true;
}

static bool normal_unpunctuated(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    (void)spare;
    cpl_text_clear(out);
    cpl_words_unpunctuated(out, answer);
    return true;
}

static bool normal_lower_unpunctuated(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    normal_lower(spare, answer, out);
    return normal_unpunctuated(out, cpl_span_text(spare), NULL);
}

static bool normal_gsm8k(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    static const cpl_substitution steps[] = {
        {",", NULL, ""},
        {"$", NULL, ""},
        {"#### ", "(?s).*#### ", ""},
        {".", "\\.$", ""},
    };
    cpl_words_set(out, answer);
    SUBSTITUTE(out, steps, spare);
    cpl_words_swap(out, spare);
    return normal_lower(out, cpl_span_text(spare), NULL);
}

static bool normal_triviaqa(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    static const cpl_substitution steps[] = {
        {"", "[!-/:-@[-`{-~\\x{2018}\\x{2019}\\x{B4}]", " "},
        {"", "(?<!" WORD ")(?:an?|the)(?!" WORD ")", " "},
    };
    cpl_span word;
    normal_lower(out, answer, NULL);
    SUBSTITUTE(out, steps, spare);
    cpl_words_swap(out, spare);
    cpl_text_clear(out);
    for (size_t at = 0; (word = cpl_words_word(cpl_span_text(spare), &at)).length;) {
        if (out->length) cpl_text_char(out, ' ');
        cpl_text_append(out, word.bytes, word.length);
    }
    return true;
}

/* ---- Minerva ---- */

/* Words and other pieces that are left out. */
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

/* Removes pieces. With `alone`, removes the words that are separate and have no backslash before
 * them. Otherwise removes the words that are not part of a command's name, and the other pieces. */
static void leave_out(cpl_text *text, bool alone, cpl_text *spare)
{
    char pattern[128];
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        const char *what = removed[i];
        const bool word  = *what >= 'a' && *what <= 'z';
        snprintf(pattern, sizeof pattern,
                 alone ? "(?<!\\\\|" WORD ")%s(?!" WORD ")" : "\\\\[A-Za-z]*+(*SKIP)(*FAIL)|%s",
                 what);
        cpl_substitution step = {what, word ? pattern : NULL, ""};
        if (word || !alone) cpl_regex_substitute(text, &step, 1, spare);
    }
}

static bool normal_minerva(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    static const cpl_substitution first[] = {
        {"an ", NULL, ""},          {"a ", NULL, ""},
        {".$", NULL, "$"},          {"\\$", NULL, ""},
        {"\\ ", NULL, ""},          {" ", NULL, ""},
        {"mbox", NULL, "text"},     {",\\text{and}", NULL, ","},
        {"\\text{and}", NULL, ","}, {"\\text{m}", NULL, "\\text{}"},
    };
    static const cpl_substitution second[] = {
        {"$", "(?m)^[^$\\n]*+(\\$[^$\\n]*+\\$).*+", "$1"},
        {"\\text{", "\\\\text\\{([^}\\n]*+)(*SKIP)\\}", "$1"},
        {"\\textbf{", "\\\\textbf\\{([^}\\n]*+)(*SKIP)\\}", "$1"},
        {"\\overline{", "\\\\overline\\{([^}\\n]*+)(*SKIP)\\}", "$1"},
        {"\\boxed{", "\\\\boxed\\{(?:(.*)\\}|.*+(*SKIP)(*FAIL))", "$1"},
        {"frac", "frac([^{])(.)", "frac{$1}{$2}"},
        {"sqrt[", "(sqrt\\[[^]]*+(*SKIP)\\])(" WORD ")", "$1{$2}"},
        {"sqrt", "sqrt([^{[])", "sqrt{$1}"},
        {"$", NULL, ""},
    };
    size_t equals = cpl_span_find_last_byte(answer, '=');
    cpl_words_set(out,
                  cpl_span_part(answer, equals == CPL_NOWHERE ? 0 : equals + 1, answer.length));
    leave_out(out, true, spare);
    SUBSTITUTE(out, first, spare);
    leave_out(out, false, spare);
    SUBSTITUTE(out, second, spare);
    if (first_match(out, "\\A-?\\d{1,3}(?:,\\d{3})++\\z").length)
        cpl_words_replace(out, ",", "", spare);
    return true;
}

/* ---- Hendrycks, AGIEval ---- */

/* Makes all steps but the last. Returns false if a step has no result. */
static bool strip_latex(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    static const cpl_substitution first[] = {
        {"\n", NULL, ""},        {"\\!", NULL, ""},       {"\\\\", NULL, "\\"},
        {"tfrac", NULL, "frac"}, {"dfrac", NULL, "frac"}, {"\\left", NULL, ""},
        {"\\right", NULL, ""},   {"^{\\circ}", NULL, ""}, {"^\\circ", NULL, ""},
        {"\\$", NULL, ""},
    };
    static const cpl_substitution second[] = {
        {"\\text{ ", "(?s)\\\\text\\{ .*", ""}, /* units */
        {"\\%", NULL, ""},
        {"\\%", NULL, ""}, /* twice, as in the reference program: one pass can leave some */
        {" .", NULL, " 0."},
        {"{.", NULL, "{0."},
        {".", "\\A\\.", "0."},
        {"=", "\\A[^=]{0,2}=(?=[^=]*+\\z)", ""}, /* "x = " */
    };
    static const cpl_substitution third[] = {
        {"\\sqrt", "\\\\sqrt([^{])", "\\sqrt{$1}"},
        {" ", NULL, ""},
    };
    /* "\frac12", "\frac1{72}" */
    static const cpl_substitution fractions[] = {
        {"\\frac", "\\\\frac([^{])(?=\\{)", "\\frac{$1}"},
        {"\\frac", "\\\\frac([^{])([^{])", "\\frac{$1}{$2}"},
        {"0.5", "\\A0\\.5\\z", "\\frac{1}{2}"},
    };
    cpl_words_set(out, answer);
    SUBSTITUTE(out, first, spare);
    if (first_match(out, "(?s)\\\\text\\{ .*\\\\text\\{ ").length) return false;
    SUBSTITUTE(out, second, spare);
    if (first_match(out, "\\\\sqrt(?=\\\\sqrt|\\z)").length) return false;
    SUBSTITUTE(out, third, spare);
    /* A \frac without an argument has no result. If a \frac has a single character as its only
     * argument, all fractions stay. */
    cpl_span bad = first_match(out, "\\\\frac[^{]?(?=\\\\frac|\\z)");
    if (cpl_span_equal(bad, cpl_span_of("\\frac"))) return false;
    if (!bad.length) SUBSTITUTE(out, fractions, spare);
    return true;
}

/* Returns whether Python's int() reads the text. */
static bool is_integer(cpl_span s, cpl_text *spare)
{
    cpl_words_set(spare, cpl_words_strip(s));
    return first_match(spare, "\\A[-+]?\\d++(?:_\\d++)*+\\z").length > 0;
}

/* Changes "1/2" into "\frac{1}{2}", if both integers are written as Python prints them. Returns
 * false if the text has one slash and the parts beside it are no integers. */
static bool fraction_of_slash(cpl_text *text, cpl_text *spare)
{
    static const cpl_substitution steps[] = {
        {"/", "\\A(0|-?[1-9][0-9]*+)/(0|-?[1-9][0-9]*+)\\z", "\\frac{$1}{$2}"},
    };
    cpl_span s   = cpl_span_text(text);
    size_t slash = cpl_span_find_byte(s, 0, '/');
    if (slash == CPL_NOWHERE || slash != cpl_span_find_last_byte(s, '/')) return true;
    if (!is_integer(cpl_span_part(s, 0, slash), spare)) return false;
    if (!is_integer(cpl_span_part(s, slash + 1, s.length), spare)) return false;
    SUBSTITUTE(text, steps, spare);
    return true;
}

static bool normal_hendrycks(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    return strip_latex(out, answer, spare) && fraction_of_slash(out, spare);
}

static bool normal_agieval(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    if (!strip_latex(out, answer, spare)) return false;
    (void)fraction_of_slash(out, spare);
    return true;
}

/* ---- the list ---- */

const cpl_normal cpl_normals[] = {
    {"none", normal_none, "the answer as it is"},
    {"lower", normal_lower, "in lower case"},
    {"unpunctuated", normal_unpunctuated, "without ASCII punctuation"},
    {"lower_unpunctuated", normal_lower_unpunctuated, "in lower case, without ASCII punctuation"},
    {"gsm8k", normal_gsm8k,
     "without commas, $, all before the last \"#### \" and a full stop at its end; lower case"},
    {"triviaqa", normal_triviaqa,
     "in lower case; punctuation a space; without a, an, the; white space collapsed"},
    {"minerva", normal_minerva,
     "LaTeX without units, text commands and spaces, \\frac and \\sqrt with braces"},
    {"hendrycks", normal_hendrycks,
     "LaTeX without spaces, units and brackets' sizes; a/b must be of integers"},
    {"agieval", normal_agieval, "the same, but a/b of anything else stays"},
};
const size_t cpl_n_normals = sizeof cpl_normals / sizeof *cpl_normals;

cpl_status cpl_normal_find(const cpl_normal **normal, const char *name)
{
    size_t index;
    CPL_TRY(cpl_lookup_in(&index, "normal form", name, cpl_normals, cpl_n_normals,
                          sizeof *cpl_normals));
    *normal = &cpl_normals[index];
    return CPL_OK;
}
