/* comparison.c - see comparison.h */
#include "eval/grade/comparison.h"

#include <stdlib.h>
#include <string.h>

#include "base/lookup.h"
#include "eval/grade/number.h"
#include "eval/grade/words.h"

const cpl_comparison cpl_comparisons[] = {
#define CPL_COMPARISON(name, score_if_both_empty, what)                                            \
    {#name, cpl_compare_##name, score_if_both_empty, what},
#include "eval/grade/comparisons.def"
#undef CPL_COMPARISON
};
const size_t cpl_n_comparisons = sizeof cpl_comparisons / sizeof *cpl_comparisons;

cpl_status cpl_comparison_find(const cpl_comparison **comparison, const char *name)
{
    static const char *const names[] = {
#define CPL_COMPARISON(name, score_if_both_empty, what) #name,
#include "eval/grade/comparisons.def"
#undef CPL_COMPARISON
    };
    size_t index;
    CPL_TRY(cpl_lookup(&index, "comparison", name, names, cpl_n_comparisons));
    *comparison = &cpl_comparisons[index];
    return CPL_OK;
}

double cpl_compare_exact(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    (void)spare;
    return cpl_span_equal(answer, reference);
}

double cpl_compare_exact_or_none(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    return cpl_compare_exact(answer, reference, spare);
}

double cpl_compare_number(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    (void)spare;
    return cpl_span_equal(answer, reference) || cpl_number_equal(answer, reference);
}

/* ---- words ---- */

/* Appends the words of `text` as spans, one behind the other; returns how many. */
static size_t list_words(cpl_text *spans, cpl_span text)
{
    size_t count = 0, first = 0, length;
    uint32_t point;
    for (size_t at = 0; at < text.length; at += length) {
        length   = cpl_words_next(&point, text, at);
        bool gap = cpl_point_is_space(point), last = at + length == text.length;
        size_t to = gap ? at : at + length;
        if ((gap || last) && to > first) {
            cpl_span word = cpl_span_part(text, first, to);
            cpl_text_append(spans, &word, sizeof word);
            count++;
        }
        if (gap) first = at + length;
    }
    return count;
}

static int by_bytes(const void *left, const void *right)
{
    const cpl_span *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* How many words two sorted lists share, each as often as it stands in both. */
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

double cpl_compare_shared_words(cpl_span answer, cpl_span reference, cpl_text *spare)
{
    cpl_text_clear(spare);
    size_t n_a = list_words(spare, answer), n_b = list_words(spare, reference);
    if (!n_a || !n_b || spare->failed) return 0;
    cpl_span *a = (void *)spare->bytes, *b = a + n_a;
    qsort(a, n_a, sizeof *a, by_bytes);
    qsort(b, n_b, sizeof *b, by_bytes);
    return 2 * (double)shared(a, n_a, b, n_b) / (double)(n_a + n_b);
}
