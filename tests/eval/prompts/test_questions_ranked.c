/* test_questions_ranked.c - worked examples of the protocols: questions of single rows whose
 * options are ranked. */
#include "eval/prompts/asked.h"

/* ---- worked examples ---- */

TEST(test_arc)
{
    const char *data = data_with(
        "arc_challenge", "ARC-Challenge-Dev.jsonl",
        "{\"id\": \"x\", \"question\": {\"stem\": \"A substance in the solid phase (state) of "
        "matter has\", \"choices\": [{\"text\": \"a definite shape and a definite volume\", "
        "\"label\": \"1\"}, {\"text\": \"a definite shape, but no definite volume\", \"label\": "
        "\"2\"}]}, \"answerKey\": \"1\"}\n\n"
        /* the flat layout of copies, with five options and one more key */
        "{\"question\": \"Why?\", \"choices\": {\"text\": [\"a\", \"b\", \"c\", \"d\", \"e\"], "
        "\"label\": [\"A\", \"B\", \"C\", \"D\", \"E\"]}, \"answerKey\": \"E\", \"more\": 1}\n");
    asked a = ask("arc_challenge", "inloop", NULL, data, CPL_UNSET);
    assert_int_equal(a.q.count, 2);
    CHECK_RANKED(&a.q.question[0],
                 "Question: A substance in the solid phase (state) of matter has\nAnswer:", 0,
                 " a definite shape and a definite volume",
                 " a definite shape, but no definite volume");
    CHECK_RANKED(&a.q.question[1], "Question: Why?\nAnswer:", 4, " a", " b", " c", " d", " e");
    assert_int_equal(a.q.question[0].options[0].choice, 1);
    assert_int_equal(a.q.question[0].form->joining, CPL_JOIN_SEPARATE);
    assert_int_equal(a.q.question[0].form->window, 2048);
    assert_null(a.q.question[0].unconditional);
    assert_false(a.q.question[0].several);
    assert_null(a.q.question[0].subject);
    assert_string_equal(a.q.question[1].id, "1");
    end(&a);
}

TEST(test_commonsense_qa)
{
    const char *data = data_with(
        "commonsense_qa", "dev_rand_split.jsonl",
        "{\"answerKey\": \"B\", \"question\": {\"stem\": \" What goes? \", \"choices\": "
        "[{\"label\": \"A\", \"text\": \"bank\"}, {\"label\": \"B\", \"text\": \"new york\"}]}}\n");
    asked a = ask("commonsense_qa", "harness", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Question: What goes?\nA. bank\nB. new york\nAnswer:", 1, " A",
                 " B");
    assert_int_equal(a.q.question[0].form->joining, CPL_JOIN_JOINT);
    assert_int_equal(a.q.question[0].form->window, 0);
    end(&a);
    CHECK_FIRST(ask("commonsense_qa", "inloop", NULL, data, CPL_UNSET),
                "Question:  What goes? \nAnswer:", 1, " bank", " new york");
}

TEST(test_copa)
{
    const char *row = "{\"premise\": \"The man turned on the faucet.\", \"choice1\": \"The toilet "
                      "filled with water.\", \"choice2\": \"Water flowed from the spout.\", "
                      "\"question\": \"effect\", \"label\": 1, \"idx\": 0}\n";
    const char *context = "The man turned on the faucet therefore";
    const char *data    = data_with("copa", "val.jsonl", row);
    CHECK_FIRST(ask("copa", "inloop", NULL, data, CPL_UNSET), context, 1,
                " the toilet filled with water.", " water flowed from the spout.");
    asked a = ask("copa", "harness", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], context, 1, "  the toilet filled with water.",
                 "  water flowed from the spout.");
    assert_int_equal(a.q.question[0].options[0].choice, 1);
    end(&a);
    CHECK_FIRST(ask("copa", "harness", "one_space", data, CPL_UNSET), context, 1,
                " the toilet filled with water.", " water flowed from the spout.");
}

TEST(test_boolq)
{
    const char *titled =
        data_with("boolq", "val.jsonl",
                  "{\"question\": \"is it\", \"passage\": \"Fuel -- All -- of it.\", \"label\": "
                  "false}\n{\"question\": \"q\", \"passage\": \"none\", \"label\": true}\n");
    const char *bare    = data_with("boolq", "dev.jsonl",
                                    "{\"question\": \"is it\", \"title\": \"Fuel\", \"answer\": "
                                       "false, \"passage\": \"All -- of it.\"}\n");
    const char *without = "All -- of it.\nQuestion: is it?\nAnswer:";
    const char *with    = "Fuel -- All -- of it.\nQuestion: is it?\nAnswer:";
    asked a             = ask("boolq", "inloop", NULL, titled, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], without, 1, " yes", " no");
    CHECK_RANKED(&a.q.question[1], "none\nQuestion: q?\nAnswer:", 0, " yes", " no");
    end(&a);
    CHECK_FIRST(ask("boolq", "inloop", NULL, bare, CPL_UNSET), without, 1, " yes", " no");
    CHECK_FIRST(ask("boolq", "harness", NULL, titled, CPL_UNSET), with, 0, " no", " yes");
    CHECK_FIRST(ask("boolq", "harness", NULL, bare, CPL_UNSET), with, 0, " no", " yes");
    /* exemplars of the authors' rows have their titles too */
    put_file(bare, "boolq", "train.jsonl",
             "{\"question\": \"was it\", \"title\": \"Oil\", \"answer\": true, \"passage\": "
             "\"Some.\"}\n");
    CHECK_FIRST(ask("boolq", "harness", NULL, bare, 1),
                "Oil -- Some.\nQuestion: was it?\nAnswer: yes\n\nFuel -- All -- of it.\nQuestion: "
                "is it?\nAnswer:",
                0, " no", " yes");
}

TEST(test_hellaswag)
{
    const char *data =
        data_with("hellaswag", "hellaswag_val.jsonl",
                  "{\"activity_label\": \"Pole vault\", \"ctx_a\": \"Pole vault is a sport.\", "
                  "\"ctx_b\": \"a woman in a NY shirt\", \"endings\": [\"go down a rock and "
                  "stop.\", \"watch.\"], \"label\": 1}\n"
                  "{\"activity_label\": \"Sports\", \"ctx\": \"[header] How to bowl [title] To "
                  "bowl, you grip. [step] As  you   bowl.\", \"endings\": [\"[title] If you're "
                  "outside. [title] If [not\\n] closed.\", \"b\"], \"label\": \"0\"}\n"
                  "{\"activity_label\": \"Walks\", \"ctx\": \"A man walks. She\", \"ctx_b\": "
                  "\"She\", \"endings\": [\"a\", \"b\"], \"label\": 0}\n");
    asked a = ask("hellaswag", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Pole vault: Pole vault is a sport. A woman in a ny shirt", 1,
                 " go down a rock and stop.", " watch.");
    CHECK_RANKED(&a.q.question[1], "Sports: How to bowl. To bowl, you grip. As you  bowl.", 0,
                 "  If you're outside.. If [not\n] closed.", " b");
    CHECK_RANKED(&a.q.question[2], "Walks: A man walks. She", 0, " a", " b");
    end(&a);
    data = data_with("hellaswag", "hellaswag_val.jsonl",
                     "{\"activity_label\": \"A\", \"ctx\": \"One. [title][title] Two [title] "
                     "Three.\", \"endings\": [\"x. [title] [title] y\", \"b\"], \"label\": 0}\n");
    a    = ask("hellaswag", "olmes", "cf", data,
               0); /* a text that was written for one title is not used for another */
    CHECK_RANKED(&a.q.question[0], "A: One. Two. Three.", 0, " x. . y", " b");
    end(&a);
    CHECK_FIRST(ask("hellaswag", "inloop", NULL, data, CPL_UNSET), "A: One.. Two. Three.", 0,
                " x.. . y", " b");
}

TEST(test_openbookqa)
{
    const char *data =
        data_with("openbookqa", "Main/test.tsv",
                  "ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key\n"
                  "8\tIt is \"known\" as\t(A) Deep (sea) (B) a (B) fish (C) Long\tx\tB\n");
    CHECK_FIRST(ask("openbookqa", "harness", NULL, data, CPL_UNSET), "It is \"known\" as", 1,
                " Deep (sea)", " a (B) fish", " Long");
    data =
        data_with("openbookqa", "Main/test.jsonl",
                  "{\"question\": {\"stem\": \"It is\", \"choices\": [{\"text\": \"a\", \"label\": "
                  "\"A\"}, {\"text\": \"b\", \"label\": \"B\"}]}, \"answerKey\": \"B\"}\n");
    CHECK_FIRST(ask("openbookqa", "harness", NULL, data, CPL_UNSET), "It is", 1, " a", " b");
}

TEST(test_sciq)
{
    const char *data =
        data_with("sciq", "valid.json",
                  "[{\"question\": \"What?\", \"distractor3\": \"c\", \"distractor1\": \"a\", "
                  "\"distractor2\": \"b\", \"correct_answer\": \"d\", \"support\": \" S. \"},\n"
                  " {\"question\": \"Q?\", \"distractor3\": \"c\", \"distractor1\": \"a\", "
                  "\"distractor2\": \"b\", \"correct_answer\": \"d\", \"support\": \"\"}]\n");
    asked a = ask("sciq", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "S.\nQuestion: What?\nAnswer:", 3, " a", " b", " c", " d");
    CHECK_RANKED(&a.q.question[1], "\nQuestion: Q?\nAnswer:", 3, " a", " b", " c", " d");
    end(&a);
}

TEST(test_social_iqa)
{
    const char *rows =
        "{\"context\": \"S.\", \"question\": \"Q?\", \"answerA\": \"a\", \"answerB\": \"b\", "
        "\"answerC\": \"c\"}\n\n{\"context\": \"T.\", \"question\": \"R?\", \"answerA\": \"a\", "
        "\"answerB\": \"b\", \"answerC\": \"c\"}\n";
    const char *data = data_with("social_iqa", "dev.jsonl", rows);
    put_file(data, "social_iqa", "dev-labels.lst", "3\n1\n");
    asked a = ask("social_iqa", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Question: S. Q?\nAnswer:", 2, " a", " b", " c");
    CHECK_RANKED(&a.q.question[1], "Question: T. R?\nAnswer:", 0, " a", " b", " c");
    assert_int_equal(a.q.files.count, 2);
    end(&a);
    data = data_with("social_iqa", "dev.jsonl",
                     "{\"context\": \"S.\", \"question\": \"Q?\", \"answerA\": \"a\", \"answerB\": "
                     "\"b\", \"answerC\": \"c\", \"correct\": \"B\"}\n");
    CHECK_FIRST(ask("social_iqa", "harness", NULL, data, CPL_UNSET), "Q: S. Q?\nA:", 1, " a", " b",
                " c");
}

TEST(test_winogrande)
{
    const char *row =
        "{\"sentence\": \"Sarah was a much better surgeon than Maria so _ always got the easier "
        "cases.\", \"option1\": \"Sarah\", \"option2\": \"Maria\", \"answer\": \"2\"}\n";
    const char *data = data_with("winogrande", "winogrande_1.1/dev.jsonl", row);
    put_file(data, "winogrande", "winogrande_1.1/train_xl.jsonl", row);
    asked a               = ask("winogrande", "harness", NULL, data, 1);
    const cpl_question *q = &a.q.question[0];
    assert_string_equal(
        q->options[0].context,
        "Sarah was a much better surgeon than Maria so Maria always got the easier cases.\n\n"
        "Sarah was a much better surgeon than Maria so Sarah");
    assert_string_equal(
        q->options[1].context,
        "Sarah was a much better surgeon than Maria so Maria always got the easier cases.\n\n"
        "Sarah was a much better surgeon than Maria so Maria");
    assert_string_equal(q->options[1].continuation, " always got the easier cases.");
    assert_int_equal(q->gold[0], 1);
    assert_int_equal(a.q.shots, 1);
    end(&a);
}

static void check_mmlu(const char *data)
{
    asked a = ask("mmlu", "harness", NULL, data, 1);
    CHECK_RANKED(
        &a.q.question[0],
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "Find all c.\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer: B\n\n"
        "Find the degree, of \"Q\".\nA. 0\nB. 4\nC. 2\nD. 6\nAnswer:",
        1, " A", " B", " C", " D");
    assert_string_equal(a.q.question[0].id, "abstract_algebra/0");
    assert_string_equal(a.q.question[0].subject, "abstract_algebra");
    assert_int_equal(a.q.files.count, 2);
    end(&a);
    CHECK_FIRST(
        ask("mmlu", "inloop", NULL, data, 0),
        "The following are multiple choice questions (with answers) about abstract algebra:\n\n"
        "Question: Which?\nAnswer:",
        1, " 0", " 4", " 2", " 6");
    CHECK_FIRST(
        ask("mmlu", "olmes", "mcf", data, 0),
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "Question: Find the degree, of \"Q\".\n\n A. 0\n B. 4\n C. 2\n D. 6\nAnswer:",
        1, " A", " B", " C", " D");
}

/* The authors' files, and a hub's copy of them, give equal questions. */
TEST(test_mmlu)
{
    const char *data = data_with("mmlu", "test/abstract_algebra_test.csv",
                                 "\"Find the degree, of \"\"Q\"\".\n\",0,4,2,6,B\n");
    put_file(data, "mmlu", "dev/abstract_algebra_dev.csv", "Find all c.,0,1,2,3,B\nx,1,2,3,4,A\n");
    put_file(data, "mmlu", "val/abstract_algebra_val.csv", "Which?,0,4,2,6,B\n");
    check_mmlu(data);
#define HUB "\"subject\": \"abstract_algebra\", \"choices\": [\"0\", "
    data = data_with("mmlu", "test.jsonl",
                     "{\"question\": \"Find the degree, of \\\"Q\\\".\\n\", " HUB
                     "\"4\", \"2\", \"6\"], \"answer\": 1}\n");
    put_file(data, "mmlu", "dev.jsonl",
             "{\"question\": \"Find all c.\", " HUB "\"1\", \"2\", \"3\"], \"answer\": 1}\n");
    put_file(data, "mmlu", "validation.jsonl",
             "{\"question\": \"Which?\", " HUB "\"4\", \"2\", \"6\"], \"answer\": 1}\n");
#undef HUB
    check_mmlu(data);
}

TEST(test_ceval)
{
    const char *data = data_with("ceval", "val/computer_network_val.csv",
                                 "id,question,A,B,C,D,answer\n0,\" 问____\r\n\",一,2,3,4,C\n");
    CHECK_FIRST(ask("ceval", "harness", NULL, data, 0),
                "以下是中国关于计算机网络的单项选择题，请选出其中的正确答案。\n\n"
                "问____\nA. 一\nB. 2\nC. 3\nD. 4\n答案：",
                2, " A", " B", " C", " D");
    asked a = ask("ceval", "harness", "authors", data, 0);
    CHECK_RANKED(&a.q.question[0],
                 "以下是中国关于计算机网络考试的单项选择题，请选出其中的正确答案。\n\n"
                 "问____\nA. 一\nB. 2\nC. 3\nD. 4\n答案：",
                 2, "A", "B", "C", "D");
    assert_int_equal(a.q.question[0].options[0].choice, 0);
    end(&a);
}

TEST(test_agieval)
{
    const char *data = data_with("agieval", "v1/sat-math.jsonl",
                                 "{\"passage\": null, \"question\": \"If $k=3$?\", \"options\": "
                                 "[\"(A)2\", \"(B)4\"], \"label\": \"B\", \"answer\": null}\n");
    put_file(data, "agieval", "v1/jec-qa-kd.jsonl",
             "{\"passage\": \"甲\", \"question\": \"乙\", \"options\": [\"(A)一\", \"(B)二\", "
             "\"(C)三\"], \"label\": [\"C\", \"A\"], \"answer\": null}\n");
    put_file(data, "agieval", "v1/math.jsonl",
             "{\"passage\": null, \"question\": \"Find it.\", \"options\": null, \"label\": null, "
             "\"answer\": \"(3,4]\"}\n");
    asked a               = ask("agieval", "harness", NULL, data, CPL_UNSET);
    const cpl_question *q = a.q.question;
    assert_int_equal(a.q.count, 3);
    assert_string_equal(q[0].id, "jec-qa-kd/0");
    assert_string_equal(q[0].options[0].context,
                        "甲问题：乙 选项：(A)一 (B)二 (C)三\n答案：从A到C, 我们应选择");
    assert_true(q[0].several && q[0].n_gold == 2 && q[0].gold[0] == 0 && q[0].gold[1] == 2);
    assert_string_equal(q[1].prompt, "Q: Find it.\nA: The answer is");
    assert_string_equal(q[1].references[0].at[0], "(3,4]");
    assert_null(q[1].form->answers[0].invalid);
    assert_true(q[1].form->answers[0].show_normal);
    CHECK_RANKED(&q[2],
                 "Q: If $k=3$? Answer Choices: (A)2 (B)4\nA: Among A through B, the answer is", 1,
                 " (A)2", " (B)4");
    assert_true(q[2].several);
    assert_int_equal(a.q.max_tokens, 32);
    end(&a);
}
