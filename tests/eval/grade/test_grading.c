/* test_grading.c - spellings with the grades that lm-eval 0.4.13 gives them, real generations with
 * the grades of the tasks' authors, and stop strings. run/test_runner_golden.c grades whole
 * texts. */
#include "eval/grade/grading.h"

#include "eval/answers.h"

static bool are_equal(const char *a, const char *b, cpl_grading_scratch *room)
{
    const cpl_grading grading = grading_of("none", NULL, "minerva", "number");
    const cpl_span reference  = cpl_span_of(a);
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, &grading, cpl_span_of(b), &reference, 1, room));
    return mark.correct;
}

/* Other spellings of the answers of MATH, and answers that are nearly right: no answer counts as
 * right that lm-eval finds wrong, and nearly all spellings that it finds right count as right. */
TEST(other_spellings_are_marked_as_lm_eval_does)
{
    static const struct {
        const char *name;
        size_t most_missed; /* most right spellings that may be missed, in percent */
    } lists[]                = {{"spellings", 3}, {"near", 100}};
    cpl_grading_scratch room = {0};
    json_t *file             = load_plain(golden_path("eval/math_pairs.json.gz")), *pair;
    for (int k = 0; k < 2; k++) {
        size_t i, right = 0, missed = 0;
        json_array_foreach(json_object_get(file, lists[k].name), i, pair)
        {
            const char *a = member(json_array_get(pair, 0), NULL);
            const char *b = member(json_array_get(pair, 1), NULL);
            bool wanted   = json_integer_value(json_array_get(pair, 2));
            bool got      = are_equal(a, b, &room);
            if (got && !wanted) fail_msg("%s is marked %s", b, a);
            right += wanted;
            missed += wanted && !got;
        }
        print_message("%s: %zu pairs, %zu equal in lm-eval, %zu missed\n", lists[k].name, i, right,
                      missed);
        assert_true(right > 100 && 100 * missed <= lists[k].most_missed * right);
    }
    cpl_grading_scratch_free(&room);
    json_decref(file);
}

TEST(letters_of_a_real_run)
{
    json_t *rows = load_lines(golden_path("eval/fixtures/mmlu_pro.jsonl.gz")), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *pred = json_string_value(json_object_get(row, "pred"));
        assert_string_equal(extracted("answer_letter", member(row, "generated_text")),
                            pred ? pred : "[invalid]");
    }
    assert_int_equal(i, 112);
    json_decref(rows);
}

TEST(solutions_of_real_models)
{
    static const char *const models[] = {"6b_finetuning", "6b_verification", "175b_finetuning",
                                         "175b_verification"};
    const cpl_grading last            = grading_of("last_number", "last_number", "gsm8k", "exact");
    cpl_grading_scratch room          = {0};
    json_t *rows = load_lines(golden_path("eval/fixtures/gsm8k.jsonl.gz")), *row;
    size_t i;
    int64_t correct = 0;
    json_array_foreach(rows, i, row)
    {
        cpl_span truth = cpl_span_of(member(row, "ground_truth"));
        for (int k = 0; k < 4; k++) {
            const json_t *of = json_object_get(row, models[k]);
            cpl_grade mark;
            assert_ok(cpl_grading_grade(&mark, &last, cpl_span_of(member(of, "solution")), &truth,
                                        1, &room));
            assert_int_equal(mark.correct, json_is_true(json_object_get(of, "is_correct")));
            correct += mark.correct;
        }
    }
    assert_int_equal(i, 60);
    assert_true(correct > 30 && correct < 210);
    cpl_grading_scratch_free(&room);
    json_decref(rows);
}

TEST(answers_of_a_real_run)
{
    const cpl_grading plain  = grading_of("the_answer_is", NULL, "none", "exact");
    const cpl_grading robust = grading_of("the_answer_is_robust", NULL, "none", "exact");
    cpl_grading_scratch room = {0};
    json_t *rows             = load_lines(golden_path("eval/fixtures/bbh.jsonl.gz")), *row;
    size_t i;
    int64_t right = 0, robustly = 0;
    json_array_foreach(rows, i, row)
    {
        cpl_span text   = cpl_span_of(member(row, "prediction"));
        cpl_span wanted = cpl_span_of(member(row, "target"));
        cpl_grade mark;
        assert_ok(cpl_grading_grade(&mark, &plain, text, &wanted, 1, &room));
        right += mark.correct;
        assert_ok(cpl_grading_grade(&mark, &robust, text, &wanted, 1, &room));
        robustly += mark.correct;
    }
    assert_int_equal(i, 64);
    assert_int_equal(right, 37); /* as the pattern and Python's re have it */
    assert_int_equal(robustly, 37);
    cpl_grading_scratch_free(&room);
    json_decref(rows);
}

/* Grades a text against two references. The first reference never matches. */
static cpl_grade grade_by(const cpl_grading *grading, const char *text, const char *reference,
                          cpl_grading_scratch *room)
{
    cpl_span wanted[] = {cpl_span_of("something else"), cpl_span_of(reference)};
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, grading, cpl_span_of(text), wanted, 2, room));
    return mark;
}

TEST(what_no_file_shows)
{
    const cpl_grading official  = grading_of("none", NULL, "triviaqa", "exact");
    const cpl_grading f1        = grading_of("none", NULL, "triviaqa", "shared_words");
    const cpl_grading hendrycks = grading_of("dollars", NULL, "hendrycks", "exact");
    const cpl_grading agieval   = grading_of("agieval", "agieval", "agieval", "exact_or_none");
    const cpl_grading bbh       = grading_of("the_answer_is", NULL, "none", "exact");
    cpl_grading_scratch room    = {0};
    assert_true(grade_by(&official, " Sunset_Blvd!", "The Sunset blvd", &room).correct);
    assert_near(grade_by(&f1, "sunset road", "Sunset Blvd", &room).score, 0.5, 0);
    assert_true(grade_by(&f1, "the blvd: Sunset", "Sunset Blvd", &room).correct);
    assert_true(grade_by(&hendrycks, "it is $ 1/2 $.", "\\frac12", &room).correct);
    assert_true(grade_by(&hendrycks, "$a/b$", "a/b", &room).correct); /* equal as they are */
    assert_false(grade_by(&hendrycks, "$ a/b$", "a/b", &room).correct);
    assert_true(grade_by(&agieval, "none", "none either", &room).correct);
    assert_false(grade_by(&agieval, "1", "none", &room).correct);
    assert_false(grade_by(&bbh, "none", "[invalid]", &room).correct);
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, &official, cpl_span_of("a"), NULL, 0, &room));
    assert_true(mark.found && !mark.correct && mark.score == 0);
    cpl_alloc_fail_at(1);
    cpl_grading_scratch none = {0};
    assert_int_equal(cpl_grading_grade(&mark, &official, cpl_span_of("b"), NULL, 0, &none),
                     CPL_ERR_MEMORY);
    cpl_alloc_fail_at(0);
    cpl_grading_scratch_free(&none);
    cpl_grading_scratch_free(&room);
}

TEST(texts_end_at_stop_strings)
{
    static const char *const trivia[] = {"\n", ".", ","}, *const nested[] = {"ab", "xa", ""};
    assert_string_equal(
        string_of(cpl_grading_cut_at_stop(cpl_span_of(" Sunset Blvd.\n"), trivia, 3)),
        " Sunset Blvd");
    assert_string_equal(string_of(cpl_grading_cut_at_stop(cpl_span_of("a.b,c\nd"), trivia, 3)),
                        "a");
    /* the first stop string removes the end of the second */
    assert_string_equal(string_of(cpl_grading_cut_at_stop(cpl_span_of("1xab"), nested, 3)), "1x");
    assert_string_equal(string_of(cpl_grading_cut_at_stop(cpl_span_of("\nQ"), trivia, 3)), "");
    assert_string_equal(string_of(cpl_grading_cut_at_stop(cpl_span_of("none"), trivia, 3)), "none");
}

TEST(growing_texts_reach_stop_strings)
{
    static const char *const stops[] = {"", "Question:", "</s>"};
    const char *text                 = "It is a Quest, Question";
    assert_false(cpl_grading_stop_reached(cpl_span_of(text), 0, stops, 3));
    text = "It is a Quest, Question: what";
    for (size_t known = 0; known <= 23; known++) /* as long as the end was not known */
        assert_true(cpl_grading_stop_reached(cpl_span_of(text), known, stops, 3));
    assert_false(cpl_grading_stop_reached(cpl_span_of(text), 24, stops, 3));
    assert_false(cpl_grading_stop_reached(cpl_span_of(text), 0, stops, 1));
}
