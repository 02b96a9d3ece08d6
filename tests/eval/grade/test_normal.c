/* test_normal.c - worked values of docs/tasks.md, "Normal forms", numbers written in LaTeX, words
 * in common, and which names there are. */
#include "eval/grade/grading.h"

#include "eval/answers.h"

#define NONE "[none]"

static void check(const char *normal, const char *const (*cases)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_string_equal(normal_of(normal, cases[i][0]), cases[i][1]);
}

static void answers_of_math(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"$\\frac12$", "\\frac{1}{2}"},
        {"x = 5", "5"},
        {"10,000", "10000"},
        {"1,234.5", "1,234.5"},
        {"\\$18", "18"},
        {"$\\text{Monday}$", "Monday"},
        {"3\\sqrt2", "3\\sqrt{2}"},
        {"90^\\circ", "90"},
        {"12 \\text{ cm}", "12"},
        {"an apple", "apple"},
        {"5\\%", "5\\%"},
        {"-\\dfrac{3}{4}", "-\\dfrac{3}{4}"},
        {"2 \\text{ and } 3", "2,3"}, /* the specification says 23 */
        {"$x$ and $y$", "x"},
        {"\\boxed{[2,5)}", "[2,5)"},
        /* where lm-eval differs */
        {"\\left(3,4\\right)", "\\left(3,4\\right)"},
        {"(0,\\infty)", "(0,\\infty)"},
        {"2\\pi cm", "2\\pi"},
        {"12ft", "12"},
        {"12 ft", "12"},
        {"\\sqrt[3]8", "\\sqrt[3]{8}"},
        {"\\sqrt[3]{8}", "\\sqrt[3]{8}"},
        {"0,1", "0,1"},
        {"4,6,14,15", "4,6,14,15"},
        {"-1,234,567", "-1234567"},
        {"1234,567", "1234,567"},
        {"1,23", "1,23"},
        /* edges */
        {"\\text{a\n}\\text{b}", "\\text{a\n}b"},
        {"\\boxed{1}}\n\\boxed{2}", "1}\n2"},
        {"\\frac1", "\\frac1"},
        {"a$b\n$c$d$", "ab\nc"},
        {"", ""},
        {"=", ""},
    };
    check("minerva", cases, sizeof cases / sizeof *cases);
}

static void answers_of_hendrycks(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\\frac12", "\\frac{1}{2}"},
        {"\\dfrac{1}{2}", "\\frac{1}{2}"},
        {"0.5", "\\frac{1}{2}"},
        {".5", "\\frac{1}{2}"},
        {"1/2", "\\frac{1}{2}"},
        {"3\\sqrt2", "3\\sqrt{2}"},
        {"10\\%", "10"},
        {"90^\\circ", "90"},
        {"x = 5", "5"},
        {"\\left( 1, 2 \\right)", "(1,2)"},
        {"5 \\text{ cm}", "5"},
        {"\\$18", "18"},
        {"\\frac1{72}", "\\frac{1}{72}"},
        {"1 000", "1000"},
        {"\\text{Monday}", "\\text{Monday}"},
        {"\\frac{72}1", "\\frac{72}1"},
        {"\\frac1", "\\frac1"},
        {"01/2", "01/2"},
        {"1/2/3", "1/2/3"},
        {"xyz = 5", "xyz=5"},
        {"x = y = 5", "x=y=5"},
        {"", ""},
    };
    static const char *const failures[] = {"\\sqrt", "1\\frac", "1\\text{ a}\\text{ b}"};
    check("hendrycks", cases, sizeof cases / sizeof *cases);
    check("agieval", cases, sizeof cases / sizeof *cases);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(normal_of("hendrycks", failures[i]), NONE);
        assert_string_equal(normal_of("agieval", failures[i]), NONE);
    }
    assert_string_equal(normal_of("hendrycks", "a/2"), NONE);
    assert_string_equal(normal_of("agieval", "a/2"), "a/2");
}

static bool same(const char *a, const char *b)
{
    const char *first = normal_of("hendrycks", a);
    return strcmp(first, normal_of("hendrycks", b)) == 0;
}

static void pairs_of_hendrycks(void **state)
{
    (void)state;
    assert_true(same("\\tfrac{1}{2} +\\! \\frac1{72}", "\\\\dfrac{1}{2} +\\frac{1}{72}"));
    assert_true(same("10\\text{ units}", "10 "));
    assert_true(same("10", "\\$10"));
    assert_true(same("\\left(x-2\\right)\\left(x+2\\right)", "(x-2)(x+2)"));
    assert_true(same("0.1", ".1"));
    assert_true(same("10\\%", "10"));
    assert_false(same("10, 4, -2", "4, 10, -2"));
    assert_false(same("10\\text{ units}", "100 "));
}

static void answers_of_triviaqa(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"The Sunset Blvd.", "sunset blvd", "the sunset blvd"},
        {"Sunset_Boulevard", "sunset boulevard", "sunsetboulevard"},
        {"U.S.A", "u s", "usa"},
        {"Andrew Lloyd-Webber", "andrew lloyd webber", "andrew lloydwebber"},
        {"O'Neill", "o neill", "oneill"},
        {"Beyonc\xC3\xA9", "beyonc\xC3\xA9", "beyonc\xC3\xA9"},
        {"A \xE2\x80\x98man\xE2\x80\x99\xC2\xB4\xC2\xA0of  the\tanvil", "man of anvil",
         "a \xE2\x80\x98man\xE2\x80\x99\xC2\xB4\xC2\xA0of  the\tanvil"},
        {"the an", "", "the an"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(normal_of("triviaqa", cases[i][0]), cases[i][1]);
        assert_string_equal(normal_of("lower_unpunctuated", cases[i][0]), cases[i][2]);
    }
    assert_string_equal(normal_of("triviaqa", " U.S.A "), "u s");
}

static void plain_ones(void **state)
{
    (void)state;
    assert_string_equal(normal_of("none", " A. "), " A. ");
    assert_string_equal(normal_of("lower", "A. B"), "a. b");
    assert_string_equal(normal_of("unpunctuated", "A. B"), "A B");
    assert_string_equal(normal_of("gsm8k", "1\n#### 2 #### $1,000.00.\n"), "1000.00\n");
    assert_string_equal(normal_of("gsm8k", "2.."), "2.");
}

static double number(const char *text)
{
    double value;
    if (!cpl_number_read(&value, cpl_span_of(text))) fail_msg("%s is no number", text);
    return value;
}

static void numbers_in_latex(void **state)
{
    (void)state;
    const double pi                 = 3.14159265358979323846;
    static const char *const none[] = {
        "",          "x",        "1,2",        "(1,2)", "1.2.3",   "\\frac{1}{0}",
        "\\frac{1}", "\\frac12", "\\sqrt{-1}", "\\pir", "2\\cdot", "--",
        "(1",        "1)",       "\\left(1)",  "{1",    "1}",      "\\frac{10}{11}.0",
        "1 2",       "5\\%",     "\\",         "-",     "1/0",     "\\sqrt",
        "2^",        "neither",  "[2,5)",      "."};
    assert_near(number("12"), 12, 0);
    assert_near(number("-0.25"), -0.25, 0);
    assert_near(number(".5"), 0.5, 0);
    assert_near(number("5."), 5, 0);
    assert_near(number("\\frac{3}{4}"), 0.75, 0);
    assert_near(number("-\\dfrac{3}{4}"), -0.75, 0);
    assert_near(number("\\frac{\\frac{10}{11}}{2}"), 5.0 / 11, 1e-15);
    assert_near(number("3/4"), 0.75, 0);
    assert_near(number("3\\sqrt{2}"), 4.242640687119285, 1e-14);
    assert_near(number("\\sqrt[3]{8}"), 2, 1e-15);
    assert_near(number("2\\pi"), 2 * pi, 1e-14);
    assert_near(number("\\frac{\\pi}{4}"), pi / 4, 1e-15);
    assert_near(number("2\\cdot\\frac{-30}{2}"), -30, 0);
    assert_near(number("\\left(2\\right)"), 2, 0);
    assert_near(number("2(3)(4)"), 24, 0);
    assert_near(number("1+2\\times3-4"), 3, 0);
    assert_near(number("1-2-3"), -4, 0);
    assert_near(number("-2^2"), -4, 0);
    assert_near(number("2^{-1}"), 0.5, 0);
    assert_near(number("2^{10}"), 1024, 0);
    assert_near(number("8/4/2"), 1, 0);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        double value;
        if (cpl_number_read(&value, cpl_span_of(none[i]))) fail_msg("%s is a number", none[i]);
    }
    assert_true(cpl_number_equal(cpl_span_of("0.5"), cpl_span_of("\\frac{1}{2}")));
    assert_true(cpl_number_equal(cpl_span_of("0"), cpl_span_of("-0")));
    assert_true(cpl_number_equal(cpl_span_of("0.33333333333"), cpl_span_of("1/3")));
    assert_false(cpl_number_equal(cpl_span_of("0.33333333"), cpl_span_of("1/3")));
    assert_false(cpl_number_equal(cpl_span_of("1"), cpl_span_of("-1")));
    assert_false(cpl_number_equal(cpl_span_of("x"), cpl_span_of("x")));
}

static double compare(const char *name, const char *a, const char *b)
{
    const cpl_comparison *comparison;
    cpl_text spare = {0};
    assert_ok(cpl_comparison_find(&comparison, name));
    double got = comparison->score(cpl_span_of(a), cpl_span_of(b), &spare);
    cpl_text_free(&spare);
    return got;
}

static void words_in_common(void **state)
{
    (void)state;
    assert_near(compare("shared_words", "sunset boulevard", "sunset boulevard"), 1, 0);
    assert_near(compare("shared_words", "a b c", "c"), 0.5, 0);
    assert_near(compare("shared_words", "a a b", "a a a"), 2.0 / 3, 1e-15);
    assert_near(compare("shared_words", "ab", "a b"), 0, 0);
    assert_near(compare("shared_words", "", ""), 0, 0);
    assert_near(compare("number", "[2,5)", "[2,5)"), 1, 0);
    assert_near(compare("number", "0.50", "1/2"), 1, 0);
    assert_near(compare("exact", "0.50", "0.5"), 0, 0);
}

static void all_have_names(void **state)
{
    (void)state;
    const cpl_normal *normal;
    const cpl_comparison *comparison;
    for (size_t i = 0; i < cpl_n_normals; i++) {
        assert_ok(cpl_normal_find(&normal, cpl_normals[i].name));
        assert_ptr_equal(normal, &cpl_normals[i]);
    }
    for (size_t i = 0; i < cpl_n_comparisons; i++) {
        assert_ok(cpl_comparison_find(&comparison, cpl_comparisons[i].name));
        assert_ptr_equal(comparison, &cpl_comparisons[i]);
    }
    assert_fails(CPL_ERR_INPUT, "normal form minerba; did you mean minerva?",
                 cpl_normal_find(&normal, "minerba"));
    assert_fails(CPL_ERR_INPUT, "comparison numbers; did you mean number?",
                 cpl_comparison_find(&comparison, "numbers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_of_math),    cmocka_unit_test(answers_of_hendrycks),
        cmocka_unit_test(pairs_of_hendrycks), cmocka_unit_test(answers_of_triviaqa),
        cmocka_unit_test(plain_ones),         cmocka_unit_test(numbers_in_latex),
        cmocka_unit_test(words_in_common),    cmocka_unit_test(all_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
