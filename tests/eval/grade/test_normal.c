/* test_normal.c - worked values of docs/tasks.md, "Normal forms", expressions in LaTeX, common
 * words, and the list of names. */
#include "eval/grade/grading.h"

#include "eval/answers.h"

#define NONE "[none]"

static void check(const char *normal, const char *const (*cases)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_string_equal(normal_of(normal, cases[i][0]), cases[i][1]);
}

TEST(answers_of_math)
{
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

TEST(answers_of_hendrycks)
{
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

TEST(pairs_of_hendrycks)
{
    assert_true(same("\\tfrac{1}{2} +\\! \\frac1{72}", "\\\\dfrac{1}{2} +\\frac{1}{72}"));
    assert_true(same("10\\text{ units}", "10 "));
    assert_true(same("10", "\\$10"));
    assert_true(same("\\left(x-2\\right)\\left(x+2\\right)", "(x-2)(x+2)"));
    assert_true(same("0.1", ".1"));
    assert_true(same("10\\%", "10"));
    assert_false(same("10, 4, -2", "4, 10, -2"));
    assert_false(same("10\\text{ units}", "100 "));
}

TEST(answers_of_triviaqa)
{
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

TEST(plain_ones)
{
    assert_string_equal(normal_of("none", " A. "), " A. ");
    assert_string_equal(normal_of("lower", "A. B"), "a. b");
    assert_string_equal(normal_of("unpunctuated", "A. B"), "A B");
    assert_string_equal(normal_of("gsm8k", "1\n#### 2 #### $1,000.00.\n"), "1000.00\n");
    assert_string_equal(normal_of("gsm8k", "2.."), "2.");
}

static bool equal(const char *a, const char *b)
{
    bool yes = cpl_latex_equal(cpl_span_of(a), cpl_span_of(b), false);
    assert_int_equal(yes, cpl_latex_equal(cpl_span_of(b), cpl_span_of(a), false));
    return yes;
}

/* SymPy 1.14 gives equal values. */
TEST(expressions_in_latex)
{
    static const char *const same[][2] = {
        {"x^{2}+1", "1+x^2"},
        {"x^10", "x^{10}"},
        {"2x+3", "3+2x"},
        {"(x-1)(x+2)", "\\left(x+2\\right)\\left(x-1\\right)"},
        {"(x+1)^{2}", "x^2+2x+1"},
        {"\\frac{x^2-1}{x-1}", "x+1"},
        {"3/x", "\\dfrac{3}{x}"},
        {"\\frac{270}7", "270:7"},
        {"x^{-1}", "1/x"},
        {"1/2x", "\\frac{1}{2x}"},
        {"a/bc", "a\\div(bc)"},
        {"a/b\\cdot(c)", "c*a/b"},
        {"3*x", "3\\cdot(x)"},
        {"-2x", "2(-1)x"},
        {"2--3", "5"},
        {"-3i+2", "2-3i"},
        {"x^2^3", "x^6"},
        {"e^{x+1}", "e^{1+x}"},
        {"x^{1/2}", "\\sqrt{x}"},
        {"a_{1}b_2^2", "b_{2}^{2}a_1"},
        {"a_{12}", "a_12"},
        {"f(x+1)", "f(1+x)"},
        {"2516_{8}", "2516_8"},
        {"0.25\\pi", "\\frac{\\pi}{4}"},
        {"\\frac{1}{4}\\pi", "\\pi/4"},
        {"\\theta+\\alpha_1", "\\alpha_1+\\theta"},
        {"2\\sqrt{3}", "\\sqrt{12}"},
        {"\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"},
        {"\\sqrt{2}\\sqrt{3}", "\\sqrt{6}"},
        {"\\sqrt{\\frac{3}{4}}", "\\frac{\\sqrt{3}}{2}"},
        {"\\sqrt{7}\\sqrt{7}", "7"},
        {"\\sqrt[3]{16}", "2\\sqrt[3]{2}"},
        {"8^{2/3}", "4"},
        {"\\sqrt{x+1}", "\\sqrt{1+x}"},
        {"1,234.50", "1234.5"},
        {"0.2", "\\frac{1}{5}"},
        {"5.4\\times10^{3}", "5400"},
        {"-0", "0.0"},
        {"10!", "3628800"},
        {"\\binom{5}{2}", "10"},
        {"2^{100}", "1267650600228229401496703205376"},
        {"(C)", "C"},
        {"\\frac{5}{2},-3", "5/2,-(3)"},
    };
    static const char *const other[][2] = {
        {"x+1", "x-1"},
        {"x^2", "(x)2"},
        {"2^{10}", "2^1"},
        {"1/2x", "\\frac{1}{2}x"},
        {"1/2\\pi", "\\frac{\\pi}{2}"},
        {"a/bc", "\\frac{a}{b}c"},
        {"-x^2", "(-x)^2"},
        {"2^{3^2}", "2^3^2"},
        {"x(x+1)", "x^2+x"}, /* x() is a function */
        {"x^2_1", "x_1^2"},
        {"a_1", "a_2"},
        {"2516_8", "2516_9"},
        {"x1_1", "1x_1"},
        {"2x\\sqrt{3}", "2\\sqrt{3}x"}, /* x between constants is a multiplication sign there */
        {"\\sqrt{x^2}", "x"},
        {"\\sqrt{-4}", "2i"},
        {"2\\frac{1}{2}", "2.5"},
        {"3.14159265358979", "\\pi"},
        {"0.3333333333", "\\frac{1}{3}"},
        {"1000000000", "1000000001"},
        {"1267650600228229401496703205376", "1267650600228229401496703205377"},
        {"2^{100}", "2^{39}"}, /* modulo 2^61 - 1 the two would be equal, as in the next row */
        {"4^{61}", "1"},
        {"\\sqrt{2}^{122}", "1"},
        {"2^{62}x", "2x"},
        {"0.1\\cdot3", "0.3"}, /* in double the two differ, as in the next row */
        {"\\frac{1}{0.07}", "\\frac{100}{7}"},
        {"\\frac{x}{0.07}", "\\frac{100x}{7}"},
        {"0.1x\\cdot3y", "0.3xy"},
        {"\\frac{0.1x}{0.3y}", "\\frac{x}{3y}"},
        {"f(0.5)", "f(\\frac12)"},
        {"1+1,1000", "2,1000"}, /* thousands begin with three digits */
        {"12-1.2", "10.8"},
        {".5", "0.5"},
        {"5.", "5"},
        {"06", "6"},
        {"x^-1", "1/x"},
        {"dx", "xd"},
        {"east", "seat"},
        {"\\infty", "+\\infty"},
        {"1,3", "1,5"},
        {"1,3", "3,1"},
        {"(1,2)", "(1,2)"},
        {"1/0", "1/0"},
        {"(1", "(1"},
        {"2\\cdot", "2"},
        {"5\\%", "5"},
        {"\\pir", "r\\pi"},
        {"x<3", "3>x"},
        {"", ""},
        {"2^{99999}", "2^{99999}"},
        {"\\sqrt", "\\sqrt"},
        {"\\frac{1}", "1"},
        {"|3|", "3"},
        {"4!^2", "576"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!equal(same[i][0], same[i][1])) fail_msg("%s is not %s", same[i][0], same[i][1]);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (equal(other[i][0], other[i][1])) fail_msg("%s is %s", other[i][0], other[i][1]);
}

/* Deep and long expressions are not compared. */
TEST(expressions_have_bounds)
{
    static const int depths[] = {60, 70}, lengths[] = {4000, 5000};
    for (int i = 0; i < 2; i++) {
        cpl_text deep = {0}, sum = {0};
        for (int k = 0; k < depths[i]; k++) cpl_text_char(&deep, '(');
        cpl_text_char(&deep, 'x');
        for (int k = 0; k < depths[i]; k++) cpl_text_char(&deep, ')');
        cpl_text_char(&sum, '1');
        while (sum.length < (size_t)lengths[i]) cpl_text_append(&sum, "+x", 2);
        assert_int_equal(cpl_latex_equal(cpl_span_text(&deep), cpl_span_of("x"), false), i == 0);
        assert_int_equal(cpl_latex_equal(cpl_span_text(&sum), cpl_span_text(&sum), false), i == 0);
        cpl_text_clear(&deep);
        for (int k = 0; k < depths[i]; k++) cpl_text_append(&deep, "a_{", 3);
        cpl_text_char(&deep, 'x');
        for (int k = 0; k < depths[i]; k++) cpl_text_char(&deep, '}');
        assert_int_equal(cpl_latex_equal(cpl_span_text(&deep), cpl_span_text(&deep), false),
                         i == 0);
        cpl_text_free(&deep);
        cpl_text_free(&sum);
    }
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

TEST(words_in_common)
{
    assert_near(compare("shared_words", "sunset boulevard", "sunset boulevard"), 1, 0);
    assert_near(compare("shared_words", "a b c", "c"), 0.5, 0);
    assert_near(compare("shared_words", "a a b", "a a a"), 2.0 / 3, 1e-15);
    assert_near(compare("shared_words", "ab", "a b"), 0, 0);
    assert_near(compare("shared_words", "", ""), 0, 0);
    assert_near(compare("number", "[2,5)", "[2,5)"), 1, 0);
    assert_near(compare("number", "0.50", "1/2"), 1, 0);
    assert_near(compare("number", "007.", "7"), 0, 0);
    assert_near(compare("decimal", "007.", "7"), 1, 0);
    assert_near(compare("decimal", ".5", "0.50"), 1, 0);
    assert_near(compare("decimal", ".", "0"), 0, 0);
    assert_near(compare("decimal", "18.01", "18"), 0, 0);
    assert_near(compare("exact", "0.50", "0.5"), 0, 0);
}

TEST(all_have_names)
{
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
