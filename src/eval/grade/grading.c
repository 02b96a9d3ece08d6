/* grading.c - see grading.h */
#include "eval/grade/grading.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "eval/grade/words.h"

static double compare_exact(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    (void)spare;
    return cpl_span_equal(answer, reference);
}

static double compare_number(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    (void)spare;
    return cpl_span_equal(answer, reference) || cpl_latex_equal(answer, reference, false);
}

static double compare_decimal(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    (void)spare;
    return cpl_span_equal(answer, reference) || cpl_latex_equal(answer, reference, true);
}

/* ---- words ---- */

/* Appends the words of `text` as spans, in order. Returns the number of words. */
static size_t list_words(cpl_text *spans, cpl_span text)
{
    size_t count = 0;
    cpl_span word;
    for (size_t at = 0; (word = cpl_words_word(text, &at)).length; count++)
        cpl_text_append(spans, &word, sizeof word);
    return count;
}

static int by_bytes(const void *left, const void *right)
{
    const cpl_span *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* Returns the number of words that two sorted lists share. A repeated word counts as often as it is
 * in both lists. */
static size_t shared(const cpl_span *a, size_t n_a, const cpl_span *b, size_t n_b)
{
    size_t count = 0;
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        int order = by_bytes(&a[i], &b[j]);
        count += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return count;
}

static double compare_shared_words(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    cpl_text_clear(spare);
    size_t n_a = list_words(spare, answer), n_b = list_words(spare, reference);
    if (!n_a || !n_b || spare->failed) return 0;
    cpl_span *a = (void *)spare->bytes, *b = a + n_a;
    qsort(a, n_a, sizeof *a, by_bytes);
    qsort(b, n_b, sizeof *b, by_bytes);
    return 2 * (double)shared(a, n_a, b, n_b) / (double)(n_a + n_b);
}

const cpl_comparison cpl_comparisons[] = {
    {"exact", compare_exact, 0, true, "the same bytes"},
    {"exact_or_none", compare_exact, 1, true, "the same bytes, or nothing found in both"},
    {"number", compare_number, 0, false,
     "the same bytes, or equal numbers or expressions in LaTeX"},
    {"decimal", compare_decimal, 0, false, "the same, and a number may be written .5, 5. or 007"},
    {"shared_words", compare_shared_words, 0, false, "the F1 of the words they share"},
};
const size_t cpl_n_comparisons = sizeof cpl_comparisons / sizeof *cpl_comparisons;

cpl_status cpl_comparison_find(const cpl_comparison **comparison, const char *name)
{
    size_t index;
    CPL_TRY(cpl_lookup_in(&index, "comparison", name, cpl_comparisons, cpl_n_comparisons,
                          sizeof *cpl_comparisons));
    *comparison = &cpl_comparisons[index];
    return CPL_OK;
}

/* ---- stop strings ---- */

cpl_span cpl_grading_cut_at_stop(cpl_span text, const char *const *stops, int64_t n_stops)
{
    for (int64_t i = 0; i < n_stops; i++) {
        size_t at = *stops[i] ? cpl_span_find(text, 0, stops[i]) : CPL_NOWHERE;
        if (at != CPL_NOWHERE) text = cpl_span_part(text, 0, at);
    }
    return text;
}

bool cpl_grading_stop_reached(cpl_span text, size_t known, const char *const *stops,
                              int64_t n_stops)
{
    for (int64_t i = 0; i < n_stops; i++) {
        size_t length = strlen(stops[i]), from = known < length ? 0 : known - length + 1;
        if (length && cpl_span_find(text, from, stops[i]) != CPL_NOWHERE) return true;
    }
    return false;
}

/* ---- grades ---- */

void cpl_grading_scratch_free(cpl_grading_scratch *room)
{
    cpl_text_free(&room->answer);
    cpl_text_free(&room->reference);
    cpl_text_free(&room->spare);
}

/* Sets the score against one reference. */
static cpl_status score_of(double *score, const cpl_grade *grade, bool has_normal,
                           const cpl_grading *m, cpl_span reference, cpl_grading_scratch *room)
{
    cpl_span wanted = reference;
    bool there      = true;
    if (m->reference) CPL_TRY(cpl_filter_apply(&there, &wanted, m->reference, reference));
    if (!grade->found || !there)
        *score = grade->found == there ? m->comparison->score_if_both_empty : 0;
    else if (!has_normal || !m->normal->make(&room->reference, wanted, &room->spare))
        *score = cpl_span_equal(grade->answer, wanted);
    else
        *score = m->comparison->score(grade->normal, cpl_span_text(&room->reference), &room->spare);
    return CPL_OK;
}

cpl_status cpl_grading_grade(cpl_grade *grade, const cpl_grading *m, cpl_span text,
                             const cpl_span *references, int64_t n_references,
                             cpl_grading_scratch *room)
{
    *grade = (cpl_grade){0};
    CPL_TRY(cpl_filter_apply(&grade->found, &grade->answer, m->filter, text));
    bool has_normal = grade->found && m->normal->make(&room->answer, grade->answer, &room->spare);
    grade->normal   = has_normal ? cpl_span_text(&room->answer) : grade->answer;
    for (int64_t i = 0; i < n_references; i++) {
        double score;
        CPL_TRY(score_of(&score, grade, has_normal, m, references[i], room));
        if (score > grade->score) grade->score = score;
    }
    grade->correct = grade->score >= 1;
    CPL_TRY(cpl_text_status(&room->answer));
    CPL_TRY(cpl_text_status(&room->reference));
    return cpl_text_status(&room->spare);
}
