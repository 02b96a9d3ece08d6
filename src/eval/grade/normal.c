/* normal.c - see normal.h: the list, and the normal forms of words and numbers */
#include "eval/grade/grading.h"

#include <string.h>

#include "base/text.h"
#include "eval/grade/words.h"

static bool normal_none(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    (void)spare;
    cpl_edit_set(out, answer);
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
    cpl_text_clear(out);
    cpl_words_unpunctuated(out, cpl_span_text(spare));
    return true;
}

/* Where the full stop stands that a pattern "\.$" finds: at the end, or before a last line feed. */
static size_t last_stop(cpl_span text)
{
    size_t end = text.length;
    if (end && text.bytes[end - 1] == '.') return end - 1;
    if (end > 1 && text.bytes[end - 1] == '\n' && text.bytes[end - 2] == '.') return end - 2;
    return CPL_NOWHERE;
}

static bool normal_gsm8k(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    static const char mark[] = "#### ";
    cpl_edit_set(spare, answer);
    cpl_edit_replace(spare, ",", "", out);
    cpl_edit_replace(spare, "$", "", out);
    cpl_span s  = cpl_span_text(spare);
    size_t at   = cpl_span_find_last(s, mark);
    s           = cpl_span_part(s, at == CPL_NOWHERE ? 0 : at + strlen(mark), s.length);
    size_t stop = last_stop(s);
    cpl_text_clear(out);
    cpl_words_lower(out, cpl_span_part(s, 0, stop == CPL_NOWHERE ? s.length : stop));
    if (stop != CPL_NOWHERE) cpl_text_append(out, s.bytes + stop + 1, s.length - stop - 1);
    return true;
}

/* ---- TriviaQA ---- */

/* Appends the text with ASCII punctuation, U+2018, U+2019 and U+00B4 as spaces. */
static void punctuation_to_spaces(cpl_text *out, cpl_span text)
{
    uint32_t point;
    for (size_t at = 0, length; at < text.length; at += length) {
        length = cpl_words_next(&point, text, at);
        if (cpl_byte_is_punctuation(text.bytes[at]) || point == 0x2018 || point == 0x2019 ||
            point == 0xB4)
            cpl_text_char(out, ' ');
        else
            cpl_text_append(out, text.bytes + at, length);
    }
}

/* Length of the article that stands as a word of its own at `at`; 0 if none does. */
static size_t article(cpl_span text, size_t at)
{
    static const char *const articles[] = {"a", "an", "the"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(articles[i]);
        if (cpl_span_is_at(text, at, articles[i]) && !cpl_words_is_at(text, at + length) &&
            !cpl_words_is_before(text, at))
            return length;
    }
    return 0;
}

static void articles_to_spaces(cpl_text *out, cpl_span text)
{
    for (size_t at = 0; at < text.length; at++) {
        size_t length = article(text, at);
        cpl_text_char(out, length ? ' ' : text.bytes[at]);
        if (length) at += length - 1;
    }
}

/* Appends the words of the text with one space between them. */
static void collapse(cpl_text *out, cpl_span text)
{
    uint32_t point;
    bool space = false, any = false;
    for (size_t at = 0, length; at < text.length; at += length) {
        length = cpl_words_next(&point, text, at);
        if (cpl_point_is_space(point)) {
            space = any;
            continue;
        }
        if (space) cpl_text_char(out, ' ');
        cpl_text_append(out, text.bytes + at, length);
        space = false;
        any   = true;
    }
}

static bool normal_triviaqa(cpl_text *out, cpl_span answer, cpl_text *spare)
{
    normal_lower(spare, answer, out);
    cpl_text_clear(out);
    punctuation_to_spaces(out, cpl_span_text(spare));
    cpl_text_clear(spare);
    articles_to_spaces(spare, cpl_span_text(out));
    cpl_text_clear(out);
    collapse(out, cpl_span_text(spare));
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
    {"minerva", cpl_normal_minerva,
     "LaTeX without units, text commands and spaces, \\frac and \\sqrt with braces"},
    {"hendrycks", cpl_normal_hendrycks,
     "LaTeX without spaces, units and brackets' sizes; a/b must be of integers"},
    {"agieval", cpl_normal_agieval, "the same, but a/b of anything else stays"},
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
