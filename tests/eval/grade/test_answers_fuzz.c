/* test_answers_fuzz.c - filters, normal forms and comparisons on damaged, random and very long
 * texts: answers lie in their texts, memory is freed, and no call takes more than a moment. */
#include <time.h>

#include "eval/answers.h"
#include "eval/grade/grading.h"
#include "fuzz.h"

enum { ROUNDS = 400 };

static const char *const pieces[] =
    LIST("#### ", "The answer is ", "the answer is ", "answer is (", "Answer: ", "A", "-", "12",
         "3.5", ",", "$", "\n", " ", ".", "=", "\\boxed{", "\\boxed ", "\\frac", "\\sqrt", "sqrt[",
         "]", "{", "}", "(", ")", "\\left", "\\text{", "\\text{ ", "cm", "/", "\\pi", "^",
         "Final Answer: The final answer is", " I hope it is correct.", "\xC3\xA9", "\xE4\xB8",
         "\xFF", "\xCE\xA3", "\xC4\xB0", "the ", "_", "\\");

static void random_text(fuzz *f, cpl_text *text)
{
    cpl_text_clear(text);
    for (size_t n = fuzz_below(f, 60); n; n--) {
        const char *piece = pieces[fuzz_below(f, sizeof pieces / sizeof *pieces)];
        cpl_text_append(text, piece, strlen(piece));
        if (fuzz_below(f, 12) == 0) cpl_text_char(text, (char)(1 + fuzz_below(f, 255)));
    }
    for (size_t n = fuzz_below(f, 3); n; n--) fuzz_once(f, text);
}

static void lies_within(cpl_span answer, cpl_span text)
{
    if (!answer.length) return;
    assert_true(answer.bytes >= text.bytes);
    assert_true(answer.bytes + answer.length <= text.bytes + text.length);
}

/* Runs all filters, normal forms and comparisons on one text, which is its own reference too. */
static void mark_all(cpl_span text, cpl_span reference, cpl_grading_scratch *room)
{
    cpl_grade mark;
    for (size_t i = 0; i < cpl_n_filters; i++)
        for (size_t k = 0; k < cpl_n_normals; k++) {
            const cpl_comparison *comparison = &cpl_comparisons[(i + k) % cpl_n_comparisons];
            cpl_span both[2]                 = {reference, text};
            cpl_grading grading = {&cpl_filters[i], &cpl_filters[i], &cpl_normals[k], comparison};
            assert_ok(cpl_grading_grade(&mark, &grading, text, both, 2, room));
            lies_within(mark.answer, text);
            assert_true(mark.found || !mark.answer.length);
            assert_true(mark.score >= 0 && mark.score <= 1);
            if (mark.found && strcmp(comparison->name, "shared_words") != 0)
                assert_true(mark.correct); /* a text is a right answer to itself */
        }
}

TEST(any_text_is_marked)
{
    static const char *const stops[] = {"\n\n", "Q", "</s>"};
    cpl_text text = {0}, other = {0};
    cpl_grading_scratch room = {0};
    int64_t held             = cpl_alloc_in_use();
    for (fuzz f = fuzz_start(91, ROUNDS); fuzz_next(&f);) {
        random_text(&f, &text);
        random_text(&f, &other);
        mark_all(cpl_span_text(&text), cpl_span_text(&other), &room);
        cpl_span cut = cpl_grading_cut_at_stop(cpl_span_text(&text), stops, 3);
        assert_false(cpl_grading_stop_reached(cut, 0, stops, 3));
        assert_int_equal(cut.length < text.length,
                         cpl_grading_stop_reached(cpl_span_text(&text), 0, stops, 3));
    }
    cpl_grading_scratch_free(&room);
    cpl_text_free(&text);
    cpl_text_free(&other);
    assert_int_equal(cpl_alloc_in_use(), held);
}

TEST(real_texts_are_cut_anywhere)
{
    json_t *file  = load_plain(golden_path("eval/scoring.json.gz")),
           *cases = json_object_get(file, "cases");
    cpl_text text = {0}, whole = {0};
    cpl_grading_scratch room = {0};
    for (fuzz f = fuzz_start(92, ROUNDS); fuzz_next(&f);) {
        size_t at       = fuzz_below(&f, json_array_size(cases));
        const char *own = member(json_array_get(cases, at), "text");
        cpl_text_clear(&whole);
        cpl_text_append(&whole, own, strlen(own));
        fuzz_damage(&f, &text, &whole);
        size_t from = fuzz_below(&f, text.length + 1);
        size_t end  = from + fuzz_below(&f, text.length - from + 1);
        mark_all(cpl_span_part(cpl_span_text(&text), from, end), cpl_span_text(&whole), &room);
    }
    cpl_grading_scratch_free(&room);
    cpl_text_free(&text);
    cpl_text_free(&whole);
    json_decref(file);
}

/* One piece is repeated many times. A quadratic algorithm would take minutes of processor time. */
TEST(long_texts_take_a_moment)
{
    enum { BYTES = 1 << 18 };
    cpl_text text = {0}, spare = {0}, out = {0};
    double slowest = 0;
    bool found;
    int too_long = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        cpl_text_clear(&text);
        while (text.length < BYTES) cpl_text_append(&text, pieces[i], strlen(pieces[i]));
        cpl_span s    = cpl_span_text(&text), answer;
        clock_t began = clock();
        for (size_t k = 0; k < cpl_n_filters; k++)
            if (cpl_filter_apply(&found, &answer, &cpl_filters[k], s) != CPL_OK) {
                assert_non_null(strstr(cpl_last_error(), "steps on a text"));
                too_long++;
            }
        for (size_t k = 0; k < cpl_n_normals; k++) cpl_normals[k].make(&out, s, &spare);
        for (size_t k = 0; k < cpl_n_comparisons; k++) cpl_comparisons[k].score(s, s, &spare);
        double took = (double)(clock() - began) / CLOCKS_PER_SEC;
        if (took > slowest) slowest = took;
    }
    print_message("slowest of %d bytes: %.2f s; %d matches took too many steps\n", BYTES, slowest,
                  too_long);
    assert_true(slowest < 20);
    cpl_text_free(&text);
    cpl_text_free(&spare);
    cpl_text_free(&out);
}
