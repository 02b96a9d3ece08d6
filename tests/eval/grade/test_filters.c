/* test_filters.c - worked values of the patterns of docs/tasks.md, "Patterns", and their edges. */
#include "eval/grade/grading.h"

#include "eval/answers.h"

#define NONE "[invalid]"

TEST(numbers)
{
    static const struct {
        const char *text, *p1, *p2, *p3, *cleaned;
    } cases[] = {
        {"She has 9 eggs.\n#### 18", "18", "18", NONE, "18"},
        {"#### 1,234.", "1,234.", "1,234.", NONE, "1234"},
        {"#### $1,234", NONE, "$1,234", NONE, "1234"},
        {"The answer is 18.", NONE, "18.", "18", "18"},
        {"The answer is 18", NONE, "18", "1", "18"},
        {"The answer is 5", NONE, "5", NONE, "5"},
        {"The answer is 1,080. So", NONE, "1,080.", "1,080.", "1080"},
        {"costs $18.00 total.", NONE, "$18.00", NONE, "18.00"},
        {"so 5 apples", NONE, "5", NONE, "5"},
        {"the change is -7", NONE, "-7", NONE, "-7"},
        {"Total: 3, 4, 5.", NONE, "5.", NONE, "5"},
        {"no digits", NONE, NONE, NONE, NONE},
        /* beyond the table */
        {"#### -\n#### -3 #### 4", "-3", "4", NONE, "4"},
        {"##### 5", "5", "5", NONE, "5"},
        {"The answer is -5", NONE, "-5", NONE, "-5"},
        {"The answer is -15\nThe answer is 6 b", NONE, "6", "-1", "6"},
        {"The answer is x. The answer is 6!", NONE, "6", "6", "6"},
        {"5 $ - .", NONE, "5", NONE, "5"},
        {"5 --$.", NONE, "-$.", NONE, "-"},
        {"", NONE, NONE, NONE, NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text, *p2 = extracted("last_number", text);
        assert_string_equal(extracted("gsm8k_strict", text), cases[i].p1);
        assert_string_equal(p2, cases[i].p2);
        assert_string_equal(extracted("answer_is_number", text), cases[i].p3);
        assert_string_equal(normal_of("gsm8k", p2), cases[i].cleaned);
    }
}

TEST(what_the_answer_is_said_to_be)
{
    static const struct {
        const char *text, *p4, *robust;
    } cases[] = {
        {"So the answer is (B).", "(B)", "(B)"},
        {"So the answer is valid", "vali", "valid"},
        {"So the answer is (B). I am sure.", "(B). I am sure", "(B). I am sure"},
        {"So the answer is ] }.", "] }", "] }"},
        {"The answer is 5.", NONE, NONE},
        {"so the answer is \nthe answer is 7.", "7", ""},
        {"the answer is x", "", "x"},
        {"the answer is no .\n", "no", "no "},
        {"the answer is \xE4\xB8\xAD\xE6\x96\x87", "\xE4\xB8\xAD", "\xE4\xB8\xAD\xE6\x96\x87"},
        {"the answer is ", NONE, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(extracted("the_answer_is", cases[i].text), cases[i].p4);
        assert_string_equal(extracted("the_answer_is_robust", cases[i].text), cases[i].robust);
    }
}

TEST(letters)
{
    static const struct {
        const char *text, *p5, *chain;
    } cases[] = {
        {"The answer is (D).", "D", "D"},
        {"the answer is D", "D", "D"},
        {"answer is (Apple)", "A", "A"},
        {"The answer is I think C", "I", "I"},
        {"answer is **B**", NONE, "B"},
        {"The answer is (C). Question: x The answer is (A).", "C", "C"},
        {"answer is ((A", NONE, "A"},
        {"answer is K, answer is J", "J", "J"},
        {"Answer: C or A", NONE, "C"},
        {"Answer: C, no, answer: \n B.\nAnswer: D", NONE, "B"},
        {"The Answer:\n\xE3\x80\x80"
         "EX",
         NONE, "E"},
        {"nswer: C; A_ B\xC3\xA9 \xE4\xB8\xAD"
         "D (F) GH",
         NONE, "F"},
        {"A", NONE, "A"},
        {"none: K", NONE, NONE},
        {"", NONE, NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(extracted("answer_letter", cases[i].text), cases[i].p5);
        assert_string_equal(extracted("answer_letter_chain", cases[i].text), cases[i].chain);
    }
}

TEST(final_answers_of_math)
{
    static const char *const cases[][2] = {
        {"So x=2.\nFinal Answer: The final answer is $2$. I hope it is correct.", "$2$"},
        {"Final Answer: The final answer is 7", NONE},
        {"Final Answer: The final answer is 7. ", "7"},
        {"The answer is 7.", NONE},
        {"Final Answer: The final answer is\n$7$. I hope it is correct.", NONE},
        {"Final Answer: The final answer is 7. I hope it is correct", "7"},
        {"Final Answer: The final answer is 7. I hope it is correct\n", NONE},
        {"Final Answer: The final answer is 7 ", ""},
        {"Final Answer: The final answer is ", NONE},
        {"Final Answer: The final answer is. I hope it is correct.", ""},
        {"Final Answer: The final answer is I hope it is correct. I hope it is correct!",
         "I hope it is correct"},
        {"Final Answer: The final answer is 1\nFinal Answer: The final answer is 2. I hope it is "
         "correct.",
         "2"},
        {"Final Answer: The final answer is 1\xC3\xA9 I hope it is correct.", "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(extracted("minerva", cases[i][0]), cases[i][1]);
}

TEST(boxes_and_dollars)
{
    static const char *const boxed[][2] = {
        {"so $\\boxed{2}$ then $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"},
        {"$\\boxed 7$ done", "7"},
        {"$\\boxed{1} \\boxed 7", "7"},
        {"\\fbox{3}", "3"},
        {"\\boxed{1", NONE},
        {"\\boxed1", NONE},
        {"\\boxed{{}}}", "{}"},
        {"7", NONE},
    };
    static const char *const dollars[][2] = {
        {"a $1$ b $2$ c", "1$ b $2"}, {"a $1", "a $1"}, {" 5 ", " 5 "}, {"$$", ""}, {"", ""},
    };
    for (size_t i = 0; i < sizeof boxed / sizeof *boxed; i++)
        assert_string_equal(extracted("last_boxed", boxed[i][0]), boxed[i][1]);
    for (size_t i = 0; i < sizeof dollars / sizeof *dollars; i++)
        assert_string_equal(extracted("dollars", dollars[i][0]), dollars[i][1]);
    assert_string_equal(extracted("none", " a b\n"), "a b");
}

TEST(answers_of_agieval)
{
    static const char *const cases[][2] = {
        {"The answer is $\\frac{1}{2}$.", "\\frac{1}{2}"},
        {"x = 5.", "5"},
        {"the result 12.5 meters", "12.5"},
        {"\\boxed{x=3}", "3"},
        {" (3,4]", "4"},
        {"2", "2"},
        {"\\boxed{1} $2$ \\boxed", NONE},
        {"\\boxed{a= b=  c}", "c"},
        {"$1$\n$y = 2$ and $3", "2$ and "},
        {"$1$\n$x$ = $$", "$"},
        {"$1$\n$$ is 5", "5"},
        {"$$ = 5..", "5"},
        {"= 4\\n5", "4"},
        {"x =", ""},
        {"12.5m", "12"},
        {"12m", NONE},
        {"$12, or 3\xE7\xB1\xB3", "$12"},
        {"1.2.3", "3"},
        {"", NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(extracted("agieval", cases[i][0]), cases[i][1]);
}

static const char *captured(cpl_regex regex, const char *text)
{
    cpl_span answer;
    bool found;
    assert_ok(cpl_regex_find(&found, &answer, &regex, cpl_span_of(text)));
    return found ? string_of(answer) : NONE;
}

/* The patterns match as Python's re.findall does, and lm-evaluation-harness takes one match. */
TEST(patterns)
{
    static const struct {
        cpl_regex regex;
        const char *text, *found;
    } cases[] = {
        {{"a.c", false, false}, "xabcaxc", "abc"},
        {{"a.c", true, false}, "xabcaxc", "axc"},
        {{"a(.)c", true, false}, "abca c", ""},
        {{"a(.)c", true, true}, "abca c", " "},
        {{"(x)|(b)", false, false}, "ab", "b"},
        {{"(x*)(y*)z", false, false}, "z", NONE},
        {{"(x)?z", false, false}, "z", ""},
        {{"x*", true, false}, "xxa", ""},
        {{"b*", true, false}, "abb", ""},
        {{"\\d+", false, false}, "n \xD9\xA3\xD9\xA4", "\xD9\xA3\xD9\xA4"},
        {{"\\bB\\b", false, false},
         "\xC3\xA9"
         "B B",
         "B"},
        {{"a$", false, false}, "a\n", "a"},
        {{".+", false, false},
         "\xFF"
         "ab\xE4",
         "ab"},
        {{"(?P<n>[ab])(?!.*[ab])", false, false}, "a b c", "b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(captured(cases[i].regex, cases[i].text), cases[i].found);
}

TEST(a_pattern_has_a_limit)
{
    const cpl_regex slow = {"(a|aa)+$", false, false};
    cpl_span answer;
    bool found;
    assert_fails(
        CPL_ERR_INPUT, "the pattern (a|aa)+$ takes more than 4000000 steps on a text",
        cpl_regex_find(&found, &answer, &slow,
                       cpl_span_of("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")));
    assert_fails(CPL_ERR_INPUT, "the pattern [a is wrong at its byte 3: missing terminating ]",
                 cpl_regex_check("[a"));
}

TEST(filters_have_names)
{
    const cpl_filter *filter;
    for (size_t i = 0; i < cpl_n_filters; i++) {
        assert_ok(cpl_filter_find(&filter, cpl_filters[i].name));
        assert_ptr_equal(filter, &cpl_filters[i]);
        assert_true(strlen(filter->what) > 10);
    }
    assert_fails(CPL_ERR_INPUT, "did you mean last_number?",
                 cpl_filter_find(&filter, "lastnumber"));
    assert_fails(CPL_ERR_INPUT, "gsm8k_strict, last_number,", cpl_filter_find(&filter, "regexp"));
}

/* Only one space is removed: other white space distinguishes answers. */
TEST(a_space_in_front)
{
    static const char *const cases[][2] = {
        {" True", "True"}, {"  True", " True"}, {"True ", "True "}, {"\nTrue", "\nTrue"}, {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(extracted("without_space", cases[i][0]), cases[i][1]);
}
