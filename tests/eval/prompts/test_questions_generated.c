/* test_questions_generated.c - worked examples of the protocols: questions answered by a text. */
#include "eval/prompts/asked.h"

/* ---- worked examples ---- */

TEST(test_mmlu_pro)
{
    const char *data =
        data_with("mmlu_pro", "test.jsonl",
                  "{\"question_id\": 70, \"question\": \"Typical bodies.\", \"options\": [\" Safe "
                  "practices\", \"Fear \"], \"answer\": \"B\", \"category\": \"computer science\", "
                  "\"cot_content\": \"\"}\n");
    const char *end_of_prompt = "Question:\nTypical bodies.\nOptions:\nA. Safe practices\nB. Fear\n"
                                "Answer: Let's think step by step.";
    const char *start = "The following are multiple choice questions (with answers) about computer "
                        "science. Think step by step and then finish your answer with \"the answer "
                        "is (X)\" where X is the correct letter choice.\n";
    const char *shot = "Question:\nHow?\nOptions:\nA. so\nB. so\nAnswer: Let's think step by step. "
                       "Thus. The answer is (A).\n\n";
    char prompt[1024];
    asked a = ask("mmlu_pro", "harness", NULL, data, 0);
    snprintf(prompt, sizeof prompt, "%s%s", start, end_of_prompt);
    assert_string_equal(a.q.question[0].prompt, prompt);
    assert_string_equal(a.q.question[0].references[0].at[0], "B");
    assert_string_equal(a.q.question[0].id, "computer_science/0");
    assert_int_equal(a.q.max_tokens, 2048);
    end(&a);
    put_file(data, "mmlu_pro", "test.jsonl", /* options are padded, as in old copies */
             "{\"question\": \"Typical bodies.\", \"options\": [\"Safe practices\", \"Fear\", "
             "\"N/A\", \"N/A \"], \"answer\": \"B\", \"answer_index\": 1, \"category\": \"computer "
             "science\", \"cot_content\": \"\"}\n"
             "{\"question\": \"What is left?\", \"options\": [\"N/A\", \"a\"], \"answer\": \"B\", "
             "\"category\": \"computer science\"}\n");
    a = ask("mmlu_pro", "harness", NULL, data, 0);
    assert_string_equal(a.q.question[0].prompt, prompt);
    assert_non_null(strstr(a.q.question[1].prompt, "\nA. N/A\nB. a\nAnswer"));
    end(&a);
    snprintf(prompt, sizeof prompt, "%s%s%s", start, shot, end_of_prompt);
    put_file(data, "mmlu_pro", "validation.jsonl",
             "{\"question\": \"How?\", \"options\": [\"so\", \"so\"], \"answer\": \"A\", "
             "\"cot_content\": \"A: Let's think step by step. Thus. The answer is (A).\", "
             "\"category\": \"computer science\"}\n");
    a = ask("mmlu_pro", "harness", NULL, data, 1);
    assert_string_equal(a.q.question[0].prompt, prompt);
    end(&a);
}

static const char bbh_prompt[] =
    "canary\n-----\nEvaluate it.\n\nQ: one\nA: Let's think step by step.\nSo.\n\n"
    "More. So the answer is True.\n\nQ: two\nA: Let's think step by step. Here the answer is no, "
    "so the answer is ] ].\n";

TEST(test_bbh)
{
    const char *data = data_with("bbh", "boolean_expressions.json",
                                 "{\"canary\": \"c\", \"examples\": [{\"input\": \"not ( True )\", "
                                 "\"target\": \"False\"}]}\n");
    put_file(data, "bbh", "cot-prompts/boolean_expressions.txt", bbh_prompt);
    asked a = ask("bbh", "harness", NULL, data, CPL_UNSET);
    assert_string_equal(
        a.q.question[0].prompt,
        "Evaluate it.\n\nQ: one\nA: Let's think step by step.\nSo.\n\nMore. So the answer is "
        "True.\n\nQ: two\nA: Let's think step by step.\nHere the answer is no, so the answer is ] "
        "].\n\nQ: not ( True )\nA: Let's think step by step.\n");
    assert_string_equal(a.q.question[0].references[0].at[0], "False");
    assert_int_equal(a.q.shots, 3);
    assert_int_equal(a.q.files.count, 2);
    end(&a);
    a = ask("bbh", "harness", "answers", data, 3);
    assert_string_equal(a.q.question[0].prompt,
                        "Evaluate it.\n\nQ: one\nA: True\n\nQ: two\nA: ] ]\n\nQ: not ( True )\nA:");
    assert_string_equal(a.q.question[0].form->answers[0].grading.filter->name, "without_space");
    end(&a);
    a = ask("bbh", "harness", "q_colon", data, CPL_UNSET);
    assert_string_equal(a.q.question[0].form->until[1], "Q:");
    end(&a);
}

TEST(test_math)
{
    const char *data = data_with(
        "math", "MATH/test/x/1.json",
        "{\"problem\": \"P?\", \"level\": \"Level 1\", \"type\": \"Counting & Probability\", "
        "\"solution\": \"so $\\\\boxed{2}$ then $\\\\boxed{\\\\frac{1}{2}}$.\"}\n");
    put_file(data, "math", "fewshot_minerva4.jsonl",
             "{\"problem\": \"A?\", \"solution\": \"$1$\"}\n");
    asked a = ask("math", "harness", NULL, data, 1);
    assert_string_equal(a.q.question[0].id, "counting_and_probability/0");
    assert_string_equal(a.q.question[0].prompt,
                        "Problem:\nA?\n\nSolution: $1$\n\nProblem:\nP?\n\nSolution:");
    assert_string_equal(a.q.question[0].references[0].at[0], "\\frac{1}{2}");
    end(&a);
    a = ask("math", "harness", "hendrycks", data, CPL_UNSET);
    assert_string_equal(a.q.question[0].prompt, "Problem: P?\nAnswer:");
    assert_string_equal(a.q.question[0].form->answers[0].grading.normal->name, "hendrycks");
    end(&a);
}

TEST(test_gsm8k)
{
    const char *data = data_with(
        "gsm8k", "test.jsonl",
        "{\"question\": \"Janet\\u2019s?\", \"answer\": \"9 * 2 = $<<9*2=18>>18.\\n#### 18\"}\n");
    put_file(data, "gsm8k", "fewshot_cot8.jsonl",
             "{\"question\": \"Q?\", \"target\": \"The answer is 6.\"}\n");
    put_file(data, "gsm8k", "train.jsonl",
             "{\"question\": \"T?\", \"answer\": \"<<1=1>>1\\n#### 1\"}\n");
    asked a = ask("gsm8k_cot", "harness", NULL, data, 1);
    assert_string_equal(a.q.question[0].prompt, "Q: Q?\nA: The answer is 6.\n\nQ: Janet’s?\nA:");
    assert_string_equal(a.q.question[0].references[0].at[0], "18");
    assert_true(a.q.question[0].form->filters);
    assert_string_equal(a.q.profile->metrics.at[0], "exact_match");
    end(&a);
    a = ask("gsm8k", "harness", NULL, data, 1);
    assert_string_equal(a.q.question[0].prompt,
                        "Question: T?\nAnswer: <<1=1>>1\n#### 1\n\nQuestion: Janet’s?\nAnswer:");
    assert_int_equal(a.q.question[0].form->n_answers, 2);
    end(&a);
}

/* The copies on hubs are JSON Lines. Their member names are the published ones or the hub's own. */
TEST(test_triviaqa_lines)
{
    static const char *const names[][4] = {
        {"qa/web-dev.jsonl", "qa/wikipedia-dev.jsonl", "qa/web-train.jsonl",
         "qa/wikipedia-train.jsonl"},
        {"validation.jsonl", "more.jsonl", "train.jsonl", "more.jsonl"}};
    for (int i = 0; i < 2; i++) {
        const char *data =
            data_with("triviaqa", names[i][0],
                      "{\"question\": \"Which?\", \"question_id\": \"tc_1\", \"answer\": "
                      "{\"value\": \"Sunset\", \"aliases\": [\"Sunset Blvd\", \"Sunset\"], "
                      "\"normalized_aliases\": [\"sunset blvd\"], \"normalized_value\": "
                      "\"sunset\", \"type\": \"WikipediaEntity\"}}\n");
        put_file(data, "triviaqa", names[i][1], "");
        put_file(data, "triviaqa", names[i][3], "");
        put_file(data, "triviaqa", names[i][2],
                 "{\"question\": \"T\", \"answer\": {\"value\": \"v\", \"aliases\": [\"first\", "
                 "\"v\"]}}\n");
        asked a               = ask("triviaqa", "harness", NULL, data, 1);
        const cpl_question *q = a.q.question;
        assert_int_equal(a.q.count, 1);
        assert_string_equal(q[0].prompt,
                            "Question: T?\nAnswer: first\n\nQuestion: Which??\nAnswer:");
        assert_int_equal(q[0].references[0].count, 2);
        assert_string_equal(q[0].references[1].at[0], "sunset blvd");
        end(&a);
    }
}

TEST(test_triviaqa)
{
    const char *data = data_with(
        "triviaqa", "qa/web-dev.json",
        "{\"Data\": [{\"Question\": \"Which?\", \"Answer\": {\"Value\": \"Sunset\", \"Aliases\": "
        "[\"Sunset Blvd\", \"Sunset\"], \"NormalizedAliases\": [\"sunset blvd\"], "
        "\"HumanAnswers\": [\"The sun\"]}, \"SearchResults\": []}], \"Version\": 1.0}\n");
    put_file(data, "triviaqa", "qa/wikipedia-dev.json",
             "{\"Data\": [{\"question\": \"Who\", \"answer\": {\"value\": \"x\", \"aliases\": "
             "[\"x\"]}}]}\n");
    put_file(data, "triviaqa", "qa/web-train.json",
             "{\"Data\": [{\"Question\": \"T\", \"Answer\": {\"Value\": \"v\", \"Aliases\": "
             "[\"first\", \"v\"]}}]}\n");
    put_file(data, "triviaqa", "qa/wikipedia-train.json", "{\"Data\": []}\n");
    asked a               = ask("triviaqa", "harness", NULL, data, 1);
    const cpl_question *q = a.q.question;
    assert_int_equal(a.q.count, 2);
    assert_string_equal(q[0].prompt, "Question: T?\nAnswer: first\n\nQuestion: Which??\nAnswer:");
    assert_true(q[0].listed);
    assert_int_equal(q[0].references[0].count, 2);
    assert_string_equal(q[0].references[0].at[0], "Sunset Blvd");
    assert_int_equal(q[0].references[1].count, 2);
    assert_string_equal(q[0].references[1].at[0], "sunset blvd");
    assert_string_equal(q[0].references[1].at[1], "The sun");
    assert_int_equal(q[1].references[2].count, 1);
    assert_string_equal(q[1].id, "1");
    end(&a);
    CHECK_FIRST(ask("triviaqa", "inloop", NULL, data, CPL_UNSET), "\nQuestion: Who\nAnswer:", 0,
                " x");
}
