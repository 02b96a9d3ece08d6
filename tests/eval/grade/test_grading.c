/* test_grading.c - texts with the marks that lm-eval 0.4.13 gives them, real generations with the
 * marks of the tasks' authors, and stop strings. */
#include "eval/grade/grading.h"

#include "eval/answers.h"

/* The metrics of the tasks, as data/eval/tasks has them. */
typedef struct metric {
    const char *task, *key; /* `key` inside answer and correct; NULL: they are no objects */
    const char *filter, *reference, *normal, *comparison;
} metric;

static const metric metrics[] = {
    {"gsm8k", "strict-match", "gsm8k_strict", NULL, "gsm8k", "exact"},
    {"gsm8k", "flexible-extract", "last_number", NULL, "gsm8k", "exact"},
    {"gsm8k_cot", "strict-match", "answer_is_number", NULL, "gsm8k", "exact"},
    {"gsm8k_cot", "flexible-extract", "last_number", NULL, "gsm8k", "exact"},
    {"bbh", NULL, "the_answer_is", NULL, "none", "exact"},
    {"math", NULL, "minerva", NULL, "minerva", "number"},
    {"mmlu_pro", NULL, "answer_letter", NULL, "lower_unpunctuated", "exact"},
    {"triviaqa", NULL, "none", NULL, "lower_unpunctuated", "exact"},
    {"agieval", NULL, "agieval", "agieval", "agieval", "exact_or_none"},
};

/* Texts of MATH that lm-eval's computer algebra system accepts and cpl_latex_equal does not, with
 * what is extracted: two with letters, which it takes for variables (neither is n e i t h e r), and
 * seven of which it reads the first expression and passes over the ".0" behind it. */
static const char *const algebra[][2] = {
    {"intermediate_algebra/1", "\\left(neither\\right)"},
    {"intermediate_algebra/1", "2\\cdot\\frac{neither}{2}"},
    {"counting_and_probability/0", "\\frac{10}{11}.0"},
    {"geometry/0", "\\frac{3}{4}.0"},
    {"geometry/1", "\\frac{4}{5}.0"},
    {"intermediate_algebra/0", "\\sqrt{74}.0"},
    {"intermediate_algebra/1", "neither.0"},
    {"number_theory/0", "\\frac{1}{11}.0"},
    {"precalculus/1", "\\frac{1}{4}.0"},
};

static cpl_grading marking_of(const metric *m)
{
    cpl_grading grading = {0};
    assert_ok(cpl_filter_find(&grading.filter, m->filter));
    if (m->reference) assert_ok(cpl_filter_find(&grading.reference, m->reference));
    assert_ok(cpl_normal_find(&grading.normal, m->normal));
    assert_ok(cpl_comparison_find(&grading.comparison, m->comparison));
    return grading;
}

static bool needs_algebra(const char *id, const char *answer, bool seen[])
{
    for (size_t i = 0; i < sizeof algebra / sizeof *algebra; i++)
        if (strcmp(algebra[i][0], id) == 0 && strcmp(algebra[i][1], answer) == 0)
            return seen[i] = true;
    return false;
}

/* The references of a case: one string, or a list. Static, until the next call. */
static const cpl_span *references_of(const json_t *c, int64_t *n)
{
    static cpl_span spans[200];
    const json_t *target = json_object_get(c, "reference");
    if (!target) target = json_object_get(c, "target");
    *n = json_is_array(target) ? (int64_t)json_array_size(target) : 1;
    assert_true(*n > 0 && *n <= 200);
    for (int64_t i = 0; i < *n; i++)
        spans[i] = cpl_span_of(member(
            *n > 1 || json_is_array(target) ? json_array_get(target, (size_t)i) : target, NULL));
    return spans;
}

static const json_t *under(const json_t *c, const char *name, const char *key)
{
    const json_t *value = json_object_get(c, name);
    return key ? json_object_get(value, key) : value;
}

/* What is reported as the answer: of MATH the normal form. */
static const char *reported(const cpl_grade *mark, const metric *m)
{
    bool math = strcmp(m->task, "math") == 0;
    if (!mark->found) return math ? "[invalidanswer]" : "[invalid]";
    return string_of(math ? mark->normal : mark->answer);
}

/* One text by one metric against what lm-eval says. */
static void check_case(const json_t *c, const metric *m, cpl_grading_scratch *room, bool seen[])
{
    cpl_grading grading = marking_of(m);
    cpl_grade mark;
    int64_t n;
    const cpl_span *references = references_of(c, &n);
    const json_t *wanted = under(c, "answer", m->key), *id = json_object_get(c, "id");
    int correct = (int)json_integer_value(under(c, "correct", m->key));
    assert_ok(
        cpl_grading_grade(&mark, &grading, cpl_span_of(member(c, "text")), references, n, room));
    const char *answer = reported(&mark, m);
    if (json_is_null(wanted))
        assert_false(mark.found);
    else
        assert_string_equal(answer, member(wanted, NULL));
    if (json_object_get(c, "extracted"))
        assert_string_equal(mark.found ? string_of(mark.answer) : "[invalidanswer]",
                            member(c, "extracted"));
    if (json_object_get(c, "robust"))
        assert_string_equal(extracted("the_answer_is_robust", member(c, "text")),
                            member(c, "robust"));
    if (json_is_string(id) && needs_algebra(json_string_value(id), answer, seen)) {
        assert_true(correct && !mark.correct);
        return;
    }
    if (mark.correct != (bool)correct)
        fail_msg("%s %s: \"%s\" is marked %d", m->task, json_string_value(id), answer,
                 mark.correct);
}

static int64_t check_cases(const json_t *cases, const char *task, bool seen[])
{
    cpl_grading_scratch room = {0};
    int64_t marked           = 0;
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c)
    {
        const char *of = task ? task : member(c, "task");
        if (!json_object_get(c, "text")) continue; /* a ranked question */
        for (size_t k = 0; k < sizeof metrics / sizeof *metrics; k++)
            if (strcmp(metrics[k].task, of) == 0) check_case(c, &metrics[k], &room, seen);
        marked++;
    }
    cpl_grading_scratch_free(&room);
    return marked;
}

TEST_ANY(given_texts_are_marked_as_lm_eval_does)
{
    bool seen[sizeof algebra / sizeof *algebra] = {false};
    json_t *file = load_plain(reference_path("eval/scoring.json.gz"));
    assert_int_equal(check_cases(json_object_get(file, "cases"), NULL, seen), 1196);
    for (size_t i = 0; i < sizeof seen; i++)
        if (!seen[i]) fail_msg("%s %s is not met", algebra[i][0], algebra[i][1]);
    json_decref(file);
}

TEST_ANY(generated_texts_are_marked_as_lm_eval_does)
{
    static const struct {
        const char *task, *file;
        int64_t texts[2]; /* in the checkout, in the larger data */
    } files[] = {
        {"gsm8k", "gsm8k", {3, 10}},
        {"gsm8k_cot", "gsm8k_cot", {3, 10}},
        {"bbh", "bbh", {27, 27}},
        {"math", "math", {7, 14}},
        {"mmlu_pro", "mmlu_pro", {14, 14}},
        {"triviaqa", "triviaqa", {4, 20}},
        {"triviaqa", "triviaqa.0shot", {4, 10}},
        {"agieval", "agieval", {4, 4}},
    };
    bool seen[sizeof algebra / sizeof *algebra];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        snprintf(name, sizeof name, "eval/harness/%s.json.gz", files[i].file);
        json_t *file     = load_plain(reference_path(name));
        json_t *result   = json_object_get(json_object_get(file, "results"), files[i].task);
        const json_t *of = json_object_get(result, "samples");
        assert_int_equal(check_cases(of, files[i].task, seen), files[i].texts[further]);
        json_decref(file);
    }
}

static bool are_equal(const char *a, const char *b, cpl_grading_scratch *room)
{
    const cpl_grading grading =
        marking_of(&(metric){NULL, NULL, "none", NULL, "minerva", "number"});
    const cpl_span reference = cpl_span_of(a);
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, &grading, cpl_span_of(b), &reference, 1, room));
    return mark.correct;
}

/* Other spellings of the answers of MATH, and what is nearly one: nothing counts as right that
 * lm-eval finds wrong, and of the spellings that it finds right nearly all do. */
TEST(other_spellings_are_marked_as_lm_eval_does)
{
    static const struct {
        const char *name;
        size_t most_missed; /* of a hundred */
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
    const cpl_grading last =
        marking_of(&(metric){NULL, NULL, "last_number", "last_number", "gsm8k", "exact"});
    cpl_grading_scratch room = {0};
    json_t *rows             = load_lines(golden_path("eval/fixtures/gsm8k.jsonl.gz")), *row;
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
    const cpl_grading plain = marking_of(&metrics[4]);
    const cpl_grading robust =
        marking_of(&(metric){NULL, NULL, "the_answer_is_robust", NULL, "none", "exact"});
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

/* One text under the metric of triviaqa, its official one, and hendrycks' of MATH. */
static cpl_grade mark_by(const metric *m, const char *text, const char *reference,
                         cpl_grading_scratch *room)
{
    cpl_grading grading = marking_of(m);
    cpl_span wanted[]   = {cpl_span_of("something else"), cpl_span_of(reference)};
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, &grading, cpl_span_of(text), wanted, 2, room));
    return mark;
}

TEST(what_no_file_shows)
{
    const metric official    = {NULL, NULL, "none", NULL, "triviaqa", "exact"};
    const metric f1          = {NULL, NULL, "none", NULL, "triviaqa", "shared_words"};
    const metric hendrycks   = {NULL, NULL, "dollars", NULL, "hendrycks", "exact"};
    const metric agieval     = {NULL, NULL, "agieval", "agieval", "agieval", "exact_or_none"};
    cpl_grading_scratch room = {0};
    assert_true(mark_by(&official, " Sunset_Blvd!", "The Sunset blvd", &room).correct);
    assert_near(mark_by(&f1, "sunset road", "Sunset Blvd", &room).score, 0.5, 0);
    assert_true(mark_by(&f1, "the blvd: Sunset", "Sunset Blvd", &room).correct);
    assert_true(mark_by(&hendrycks, "it is $ 1/2 $.", "\\frac12", &room).correct);
    assert_true(mark_by(&hendrycks, "$a/b$", "a/b", &room).correct); /* as they are */
    assert_false(mark_by(&hendrycks, "$ a/b$", "a/b", &room).correct);
    assert_true(mark_by(&agieval, "none", "none either", &room).correct);
    assert_false(mark_by(&agieval, "1", "none", &room).correct);
    assert_false(mark_by(&metrics[4], "none", "[invalid]", &room).correct);
    cpl_grading grading = marking_of(&official);
    cpl_grade mark;
    assert_ok(cpl_grading_grade(&mark, &grading, cpl_span_of("a"), NULL, 0, &room));
    assert_true(mark.found && !mark.correct && mark.score == 0);
    cpl_alloc_fail_at(1);
    cpl_grading_scratch none = {0};
    assert_int_equal(cpl_grading_grade(&mark, &grading, cpl_span_of("b"), NULL, 0, &none),
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
    /* the first stop string takes the second one's end away */
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
