/* Questions of single rows: worked examples of the protocols, and task files that somebody else writes. */
#include <sys/stat.h>

#include "eval/prompts/questions_case.h"

/* A folder of data with one file in DATA/task/; "a/b" makes the folder a too. */
static const char *data_with(const char *task, const char *name, const char *bytes)
{
    const char *folder = scratch_folder();
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, task);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, task, name);
    for (char *slash = path + strlen(folder) + strlen(task) + 2; (slash = strchr(slash, '/'));
         slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    snprintf(path, sizeof path, "%s/%s", folder, task);
    write_file(path, name, bytes);
    return folder;
}

static void add_file(const char *data, const char *task, const char *name, const char *bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", data, task);
    char *slash = strchr(name, '/') ? path + strlen(path) : NULL;
    if (slash) {
        snprintf(slash, sizeof path - (size_t)(slash - path), "/%.*s", (int)strcspn(name, "/"),
                 name);
        mkdir(path, 0777);
        *slash = '\0';
    }
    write_file(path, name, bytes);
}

typedef struct asked {
    cpl_task *task;
    cpl_questions q;
} asked;

static asked ask(const char *task, const char *profile, const char *variant, const char *data,
                 int64_t shots)
{
    asked a = {.task = built_in(task)};
    const cpl_profile *chosen;
    cpl_questions_options options = options_of(data);
    options.shots                 = shots;
    assert_ok(cpl_task_profile(&chosen, a.task, NULL, profile, variant));
    assert_ok(cpl_questions_read(&a.q, a.task, chosen, &options));
    return a;
}

static void end(asked *a)
{
    cpl_questions_free(&a->q);
    cpl_task_free(a->task);
}

static void check_ranked(const cpl_question *q, const char *context,
                         const char *const *continuations, int64_t n, int64_t gold)
{
    assert_int_equal(q->n_options, n);
    for (int64_t i = 0; i < n; i++) {
        assert_string_equal(q->options[i].context, context);
        assert_string_equal(q->options[i].continuation, continuations[i]);
    }
    assert_int_equal(q->n_gold, 1);
    assert_int_equal(q->gold[0], gold);
}

#define CHECK_RANKED(q, context, gold, ...)                                                        \
    do {                                                                                           \
        static const char *const all_[] = {__VA_ARGS__};                                           \
        check_ranked((q), (context), all_, sizeof all_ / sizeof *all_, (gold));                    \
    } while (0)

/* ---- worked examples ---- */

static void test_arc(void **state)
{
    (void)state;
    const char *data = data_with(
        "arc_challenge", "ARC-Challenge-Dev.jsonl",
        "{\"id\": \"x\", \"question\": {\"stem\": \"A substance in the solid phase (state) of "
        "matter has\", \"choices\": [{\"text\": \"a definite shape and a definite volume\", "
        "\"label\": \"1\"}, {\"text\": \"a definite shape, but no definite volume\", \"label\": "
        "\"2\"}]}, \"answerKey\": \"1\"}\n\n"
        /* the flat layout of copies, with five options and a key more */
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

static void test_commonsense_qa(void **state)
{
    (void)state;
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
    a = ask("commonsense_qa", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Question:  What goes? \nAnswer:", 1, " bank", " new york");
    end(&a);
}

static void test_copa(void **state)
{
    (void)state;
    const char *row =
        "{\"premise\": \"The man turned on the faucet.\", \"choice1\": \"The toilet filled "
        "with water.\", \"choice2\": \"Water flowed from the spout.\", \"question\": "
        "\"effect\", \"label\": 1, \"idx\": 0}\n";
    const char *context = "The man turned on the faucet therefore";
    const char *data    = data_with("copa", "val.jsonl", row);
    asked a             = ask("copa", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], context, 1, " the toilet filled with water.",
                 " water flowed from the spout.");
    end(&a);
    a = ask("copa", "harness", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], context, 1, "  the toilet filled with water.",
                 "  water flowed from the spout.");
    assert_int_equal(a.q.question[0].options[0].choice, 1);
    end(&a);
    a = ask("copa", "harness", "one_space", data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], context, 1, " the toilet filled with water.",
                 " water flowed from the spout.");
    end(&a);
    data = data_with(
        "copa", "copa-dev.xml",
        "<?xml version=\"1.0\"?>\n<copa-corpus>\n<item id=\"1\" asks-for=\"cause\" "
        "most-plausible-alternative=\"1\">\n<p>My body cast a shadow &amp; more. </p>"
        "<a1>The sun was rising.</a1><a2>The grass was cut.</a2></item>\n</copa-corpus>\n");
    a = ask("copa", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "My body cast a shadow & more because", 0,
                 " the sun was rising.", " the grass was cut.");
    end(&a);
}

static void test_boolq(void **state)
{
    (void)state;
    const char *titled =
        data_with("boolq", "val.jsonl",
                  "{\"question\": \"is it\", \"passage\": \"Fuel -- All -- of it.\", "
                  "\"label\": false}\n{\"question\": \"q\", \"passage\": \"none\", "
                  "\"label\": true}\n");
    const char *bare =
        data_with("boolq", "dev.jsonl",
                  "{\"question\": \"is it\", \"title\": \"Fuel\", \"answer\": false, "
                  "\"passage\": \"All -- of it.\"}\n");
    const char *without = "All -- of it.\nQuestion: is it?\nAnswer:";
    const char *with    = "Fuel -- All -- of it.\nQuestion: is it?\nAnswer:";
    asked a             = ask("boolq", "inloop", NULL, titled, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], without, 1, " yes", " no");
    CHECK_RANKED(&a.q.question[1], "none\nQuestion: q?\nAnswer:", 0, " yes", " no");
    end(&a);
    a = ask("boolq", "inloop", NULL, bare, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], without, 1, " yes", " no");
    end(&a);
    a = ask("boolq", "harness", NULL, titled, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], with, 0, " no", " yes");
    end(&a);
    a = ask("boolq", "harness", NULL, bare, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], with, 0, " no", " yes");
    end(&a);
    /* exemplars of the authors' rows have their titles too */
    char folder[128];
    snprintf(folder, sizeof folder, "%s/boolq", bare);
    write_file(folder, "train.jsonl",
               "{\"question\": \"was it\", \"title\": \"Oil\", \"answer\": true, "
               "\"passage\": \"Some.\"}\n");
    a = ask("boolq", "harness", NULL, bare, 1);
    CHECK_RANKED(&a.q.question[0],
                 "Oil -- Some.\nQuestion: was it?\nAnswer: yes\n\nFuel -- All -- of it.\nQuestion: "
                 "is it?\nAnswer:",
                 0, " no", " yes");
    end(&a);
}

static void test_hellaswag(void **state)
{
    (void)state;
    const char *data = data_with(
        "hellaswag", "hellaswag_val.jsonl",
        "{\"activity_label\": \"Pole vault\", \"ctx_a\": \"Pole vault is a sport.\", \"ctx_b\": "
        "\"a woman in "
        "a NY shirt\", \"endings\": [\"go down a rock and stop.\", \"watch.\"], \"label\": 1}\n"
        "{\"activity_label\": \"Sports\", \"ctx\": \"[header] How to bowl [title] To bowl, you "
        "grip. [step] "
        "As  you   bowl.\", \"endings\": [\"[title] If you're outside. [title] If [not\\n] "
        "closed.\", "
        "\"b\"], \"label\": \"0\"}\n"
        "{\"activity_label\": \"Walks\", \"ctx\": \"A man walks. She\", \"ctx_b\": \"She\", "
        "\"endings\": [\"a\", \"b\"], \"label\": 0}\n");
    asked a = ask("hellaswag", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Pole vault: Pole vault is a sport. A woman in a ny shirt", 1,
                 " go down a rock and stop.", " watch.");
    CHECK_RANKED(&a.q.question[1], "Sports: How to bowl. To bowl, you grip. As you  bowl.", 0,
                 "  If you're outside.. If [not\n] closed.", " b");
    CHECK_RANKED(&a.q.question[2], "Walks: A man walks. She", 0, " a", " b");
    end(&a);
    data = data_with(
        "hellaswag", "hellaswag_val.jsonl",
        "{\"activity_label\": \"A\", \"ctx\": \"One. [title][title] Two [title] Three.\", "
        "\"endings\": [\"x. [title] [title] y\", \"b\"], \"label\": 0}\n");
    a = ask("hellaswag", "olmes", "cf", data,
            0); /* what was written for one title is no other one's */
    CHECK_RANKED(&a.q.question[0], "A: One. Two. Three.", 0, " x. . y", " b");
    end(&a);
    a = ask("hellaswag", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "A: One.. Two. Three.", 0, " x.. . y", " b");
    end(&a);
}

static void test_openbookqa(void **state)
{
    (void)state;
    const char *data =
        data_with("openbookqa", "Main/test.tsv",
                  "ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key\n"
                  "8\tIt is \"known\" as\t(A) Deep (sea) (B) a (B) fish (C) Long\tx\tB\n");
    asked a = ask("openbookqa", "harness", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "It is \"known\" as", 1, " Deep (sea)", " a (B) fish", " Long");
    end(&a);
    data = data_with(
        "openbookqa", "Main/test.jsonl",
        "{\"question\": {\"stem\": \"It is\", \"choices\": [{\"text\": \"a\", \"label\": \"A\"}, "
        "{\"text\": \"b\", \"label\": \"B\"}]}, \"answerKey\": \"B\"}\n");
    a = ask("openbookqa", "harness", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "It is", 1, " a", " b");
    end(&a);
}

static void test_sciq(void **state)
{
    (void)state;
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

static void test_social_iqa(void **state)
{
    (void)state;
    const char *rows =
        "{\"context\": \"S.\", \"question\": \"Q?\", \"answerA\": \"a\", \"answerB\": \"b\", "
        "\"answerC\": \"c\"}\n\n{\"context\": \"T.\", \"question\": \"R?\", \"answerA\": "
        "\"a\", \"answerB\": \"b\", \"answerC\": \"c\"}\n";
    const char *data = data_with("social_iqa", "dev.jsonl", rows);
    add_file(data, "social_iqa", "dev-labels.lst", "3\n1\n");
    asked a = ask("social_iqa", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Question: S. Q?\nAnswer:", 2, " a", " b", " c");
    CHECK_RANKED(&a.q.question[1], "Question: T. R?\nAnswer:", 0, " a", " b", " c");
    assert_int_equal(a.q.files.count, 2);
    end(&a);
    data = data_with(
        "social_iqa", "dev.jsonl",
        "{\"context\": \"S.\", \"question\": \"Q?\", \"answerA\": \"a\", \"answerB\": \"b\", "
        "\"answerC\": \"c\", \"correct\": \"B\"}\n");
    a = ask("social_iqa", "harness", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "Q: S. Q?\nA:", 1, " a", " b", " c");
    end(&a);
}

static void test_winogrande(void **state)
{
    (void)state;
    const char *row =
        "{\"sentence\": \"Sarah was a much better surgeon than Maria so _ always got the "
        "easier cases.\", \"option1\": \"Sarah\", \"option2\": \"Maria\", \"answer\": \"2\"}\n";
    const char *data = data_with("winogrande", "winogrande_1.1/dev.jsonl", row);
    add_file(data, "winogrande", "winogrande_1.1/train_xl.jsonl", row);
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
    a = ask("mmlu", "inloop", NULL, data, 0);
    CHECK_RANKED(
        &a.q.question[0],
        "The following are multiple choice questions (with answers) about abstract algebra:\n\n"
        "Question: Which?\nAnswer:",
        1, " 0", " 4", " 2", " 6");
    end(&a);
    a = ask("mmlu", "olmes", "mcf", data, 0);
    CHECK_RANKED(
        &a.q.question[0],
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "Question: Find the degree, of \"Q\".\n\n A. 0\n B. 4\n C. 2\n D. 6\nAnswer:",
        1, " A", " B", " C", " D");
    end(&a);
}

/* The authors' files, and a hub's copy of them. */
static void test_mmlu(void **state)
{
    (void)state;
    const char *data = data_with("mmlu", "test/abstract_algebra_test.csv",
                                 "\"Find the degree, of \"\"Q\"\".\n\",0,4,2,6,B\n");
    add_file(data, "mmlu", "dev/abstract_algebra_dev.csv", "Find all c.,0,1,2,3,B\nx,1,2,3,4,A\n");
    add_file(data, "mmlu", "val/abstract_algebra_val.csv", "Which?,0,4,2,6,B\n");
    check_mmlu(data);
#define HUB "\"subject\": \"abstract_algebra\", \"choices\": [\"0\", "
    data = data_with("mmlu", "test.jsonl",
                     "{\"question\": \"Find the degree, of \\\"Q\\\".\\n\", " HUB
                     "\"4\", \"2\", \"6\"], \"answer\": 1}\n");
    add_file(data, "mmlu", "dev.jsonl",
             "{\"question\": \"Find all c.\", " HUB "\"1\", \"2\", \"3\"], \"answer\": 1}\n");
    add_file(data, "mmlu", "validation.jsonl",
             "{\"question\": \"Which?\", " HUB "\"4\", \"2\", \"6\"], \"answer\": 1}\n");
#undef HUB
    check_mmlu(data);
}

static void test_ceval(void **state)
{
    (void)state;
    const char *data = data_with("ceval", "val/computer_network_val.csv",
                                 "id,question,A,B,C,D,answer\n0,\" 问____\r\n\",一,2,3,4,C\n");
    asked a          = ask("ceval", "harness", NULL, data, 0);
    CHECK_RANKED(&a.q.question[0],
                 "以下是中国关于计算机网络的单项选择题，请选出其中的正确答案。\n\n"
                 "问____\nA. 一\nB. 2\nC. 3\nD. 4\n答案：",
                 2, " A", " B", " C", " D");
    end(&a);
    a = ask("ceval", "harness", "authors", data, 0);
    CHECK_RANKED(&a.q.question[0],
                 "以下是中国关于计算机网络考试的单项选择题，请选出其中的正确答案。\n\n"
                 "问____\nA. 一\nB. 2\nC. 3\nD. 4\n答案：",
                 2, "A", "B", "C", "D");
    assert_int_equal(a.q.question[0].options[0].choice, 0);
    end(&a);
}

static void test_mmlu_pro(void **state)
{
    (void)state;
    const char *data =
        data_with("mmlu_pro", "test.jsonl",
                  "{\"question_id\": 70, \"question\": \"Typical bodies.\", \"options\": [\" Safe "
                  "practices\", \"Fear \"], \"answer\": \"B\", \"category\": \"computer "
                  "science\", \"cot_content\": \"\"}\n");
    const char *end_of_prompt = "Question:\nTypical bodies.\nOptions:\nA. Safe practices\nB. Fear\n"
                                "Answer: Let's think step by step.";
    const char *start =
        "The following are multiple choice questions (with answers) about computer science. "
        "Think step by step and then finish your answer with \"the answer is (X)\" where X is "
        "the correct letter choice.\n";
    const char *shot =
        "Question:\nHow?\nOptions:\nA. so\nB. so\nAnswer: Let's think step by step. Thus. "
        "The answer is (A).\n\n";
    char prompt[1024];
    asked a = ask("mmlu_pro", "harness", NULL, data, 0);
    snprintf(prompt, sizeof prompt, "%s%s", start, end_of_prompt);
    assert_string_equal(a.q.question[0].prompt, prompt);
    assert_string_equal(a.q.question[0].references[0].at[0], "B");
    assert_string_equal(a.q.question[0].id, "computer_science/0");
    assert_int_equal(a.q.max_tokens, 2048);
    end(&a);
    add_file(data, "mmlu_pro", "test.jsonl", /* filled up, as old copies are */
             "{\"question\": \"Typical bodies.\", \"options\": [\"Safe practices\", \"Fear\", "
             "\"N/A\", \"N/A \"], \"answer\": \"B\", \"answer_index\": 1, \"category\": "
             "\"computer science\", \"cot_content\": \"\"}\n"
             "{\"question\": \"What is left?\", \"options\": [\"N/A\", \"a\"], \"answer\": \"B\", "
             "\"category\": \"computer science\"}\n");
    a = ask("mmlu_pro", "harness", NULL, data, 0);
    assert_string_equal(a.q.question[0].prompt, prompt);
    assert_non_null(strstr(a.q.question[1].prompt, "\nA. N/A\nB. a\nAnswer"));
    end(&a);
    snprintf(prompt, sizeof prompt, "%s%s%s", start, shot, end_of_prompt);
    add_file(data, "mmlu_pro", "validation.jsonl",
             "{\"question\": \"How?\", \"options\": [\"so\", \"so\"], \"answer\": \"A\", "
             "\"cot_content\": \"A: "
             "Let's think step by step. Thus. The answer is (A).\", \"category\": \"computer "
             "science\"}\n");
    a = ask("mmlu_pro", "harness", NULL, data, 1);
    assert_string_equal(a.q.question[0].prompt, prompt);
    end(&a);
}

static void test_agieval(void **state)
{
    (void)state;
    const char *data =
        data_with("agieval", "v1/sat-math.jsonl",
                  "{\"passage\": null, \"question\": \"If $k=3$?\", \"options\": [\"(A)2\", "
                  "\"(B)4\"], \"label\": \"B\", \"answer\": null}\n");
    add_file(data, "agieval", "v1/jec-qa-kd.jsonl",
             "{\"passage\": \"甲\", \"question\": \"乙\", \"options\": [\"(A)一\", \"(B)二\", "
             "\"(C)三\"], "
             "\"label\": [\"C\", \"A\"], \"answer\": null}\n");
    add_file(data, "agieval", "v1/math.jsonl",
             "{\"passage\": null, \"question\": \"Find it.\", \"options\": null, \"label\": null, "
             "\"answer\": "
             "\"(3,4]\"}\n");
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

static const char bbh_prompt[] =
    "canary\n-----\nEvaluate it.\n\nQ: one\nA: Let's think step by step.\nSo.\n\n"
    "More. So the answer is True.\n\nQ: two\nA: Let's think step by step. Here "
    "the answer is no, so the answer is ] ].\n";

static void test_bbh(void **state)
{
    (void)state;
    const char *data =
        data_with("bbh", "boolean_expressions.json",
                  "{\"canary\": \"c\", \"examples\": [{\"input\": \"not ( True )\", \"target\": "
                  "\"False\"}]}\n");
    add_file(data, "bbh", "cot-prompts/boolean_expressions.txt", bbh_prompt);
    asked a = ask("bbh", "harness", NULL, data, CPL_UNSET);
    assert_string_equal(
        a.q.question[0].prompt,
        "Evaluate it.\n\nQ: one\nA: Let's think step by step.\nSo.\n\nMore. So the answer is "
        "True.\n\nQ: two\nA: Let's think step by step.\nHere the answer is no, so the answer is "
        "] ].\n\nQ: not ( True )\nA: Let's think step by step.\n");
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

static void test_math(void **state)
{
    (void)state;
    const char *data =
        data_with("math", "MATH/test/x/1.json",
                  "{\"problem\": \"P?\", \"level\": \"Level 1\", \"type\": \"Counting & "
                  "Probability\", \"solution\": \"so $\\\\boxed{2}$ then "
                  "$\\\\boxed{\\\\frac{1}{2}}$.\"}\n");
    add_file(data, "math", "fewshot_minerva4.jsonl",
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

static void test_gsm8k(void **state)
{
    (void)state;
    const char *data = data_with("gsm8k", "test.jsonl",
                                 "{\"question\": \"Janet\\u2019s?\", \"answer\": \"9 * 2 = "
                                 "$<<9*2=18>>18.\\n#### 18\"}\n");
    add_file(data, "gsm8k", "fewshot_cot8.jsonl",
             "{\"question\": \"Q?\", \"target\": \"The answer is 6.\"}\n");
    add_file(data, "gsm8k", "train.jsonl",
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

/* Copies on hubs: lines of objects with names in small letters, by the published names or by theirs. */
static void test_triviaqa_lines(void **state)
{
    (void)state;
    static const char *const names[][4] = {
        {"qa/web-dev.jsonl", "qa/wikipedia-dev.jsonl", "qa/web-train.jsonl",
         "qa/wikipedia-train.jsonl"},
        {"validation.jsonl", "more.jsonl", "train.jsonl", "more.jsonl"}};
    for (int i = 0; i < 2; i++) {
        const char *data = data_with(
            "triviaqa", names[i][0],
            "{\"question\": \"Which?\", \"question_id\": \"tc_1\", \"answer\": {\"value\": "
            "\"Sunset\", \"aliases\": [\"Sunset Blvd\", \"Sunset\"], \"normalized_aliases\": "
            "[\"sunset blvd\"], \"normalized_value\": \"sunset\", \"type\": "
            "\"WikipediaEntity\"}}\n");
        add_file(data, "triviaqa", names[i][1], "");
        add_file(data, "triviaqa", names[i][3], "");
        add_file(data, "triviaqa", names[i][2],
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

static void test_triviaqa(void **state)
{
    (void)state;
    const char *data = data_with(
        "triviaqa", "qa/web-dev.json",
        "{\"Data\": [{\"Question\": \"Which?\", \"Answer\": {\"Value\": \"Sunset\", \"Aliases\": "
        "[\"Sunset Blvd\", \"Sunset\"], \"NormalizedAliases\": [\"sunset blvd\"], "
        "\"HumanAnswers\": "
        "[\"The sun\"]}, \"SearchResults\": []}], \"Version\": 1.0}\n");
    add_file(data, "triviaqa", "qa/wikipedia-dev.json",
             "{\"Data\": [{\"question\": \"Who\", \"answer\": {\"value\": \"x\", \"aliases\": "
             "[\"x\"]}}]}\n");
    add_file(
        data, "triviaqa", "qa/web-train.json",
        "{\"Data\": [{\"Question\": \"T\", \"Answer\": {\"Value\": \"v\", \"Aliases\": [\"first\", "
        "\"v\"]}}]}\n");
    add_file(data, "triviaqa", "qa/wikipedia-train.json", "{\"Data\": []}\n");
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
    a = ask("triviaqa", "inloop", NULL, data, CPL_UNSET);
    CHECK_RANKED(&a.q.question[0], "\nQuestion: Who\nAnswer:", 0, " x");
    end(&a);
}

/* ---- task files that somebody else writes ---- */

static const char mine[] =
    "task: mine\n"
    "splits: {all: q.csv}\n"
    "fields: {q: question, choices: \"answers|options\", key: right}\n"
    "gold: {value: key, among: letters}\n"
    "profiles:\n"
    "    plain:\n"
    "        split: all\n"
    "        context: \"{{{q|lower}}} {last_letter}\"\n"
    "        scores: [acc, acc_uncond]\n"
    "        unconditional: \"A\"\n"
    "        window: 64\n"
    "        beyond: error\n"
    "        delimiter: \"\\n\"\n"
    "    made:\n"
    "        split: all\n"
    "        ask: generate\n"
    "        context: \"{q}\"\n"
    "        lists: {row: {each: \"{letter}={choice}\", between: \", \"}}\n"
    "        answers: {right: {reference: [\"{gold_choice}\", \"{row}\"]}}\n";

static void test_own(void **state)
{
    (void)state;
    const char *data = data_with("mine", "q.csv", "question,answers,right\nWHO,(A) he (B) she,B\n");
    asked a          = {0};
    const cpl_questions_options options = options_of(data);
    assert_ok(cpl_task_parse(&a.task, "mine.yaml", mine, strlen(mine)));
    assert_string_equal(a.task->title, "mine");
    assert_ok(cpl_questions_read(&a.q, a.task, &a.task->profiles[0], &options));
    CHECK_RANKED(&a.q.question[0], "{who} B", 1, "\nhe", "\nshe");
    assert_string_equal(a.q.question[0].unconditional, "A");
    assert_int_equal(a.q.question[0].form->window, 64);
    assert_true(a.q.question[0].form->stop_beyond);
    assert_int_equal(a.q.profile->metrics.count, 2);
    assert_string_equal(a.q.profile->metrics.at[1], "acc_uncond");
    cpl_questions_free(&a.q);
    assert_ok(cpl_questions_read(&a.q, a.task, &a.task->profiles[1], &options));
    assert_string_equal(a.q.question[0].prompt, "WHO");
    assert_int_equal(a.q.question[0].references[0].count, 2);
    assert_string_equal(a.q.question[0].references[0].at[0], "she");
    assert_string_equal(a.q.question[0].references[0].at[1], "A=he, B=she");
    assert_string_equal(a.q.profile->metrics.at[0], "right");
    assert_int_equal(a.q.max_tokens, 256);
    end(&a);
}

/* Numbers, truths and single values become texts and lists; what is null is empty where that is said. */
static void test_values(void **state)
{
    (void)state;
    static const char task[] =
        "task: v\nsplits: {all: v.jsonl}\n"
        "fields: {a: a, b: b, c: \"c?\", d: \"d[1].x\", e: \"e[]\", f: \"f[]?\", g: g}\n"
        "profiles: {p: {split: all, ask: generate, context: \"{a} {b} {c} {d} {g}\", "
        "answers: {x: {reference: [\"{e}\", \"{f}\"]}}}}\n";
    const char *data = data_with(
        "v", "v.jsonl",
        "{\"a\": 12, \"b\": true, \"c\": null, \"d\": [{}, {\"x\": 0.1}], \"e\": \"one\", "
        "\"g\": 1e300}\n");
    asked a                             = {0};
    const cpl_questions_options options = options_of(data);
    assert_ok(cpl_task_parse(&a.task, "v.yaml", task, strlen(task)));
    assert_ok(cpl_questions_read(&a.q, a.task, &a.task->profiles[0], &options));
    assert_string_equal(a.q.question[0].prompt, "12 true  0.1 1e+300");
    assert_int_equal(a.q.question[0].references[0].count, 1);
    assert_true(a.q.question[0].listed);
    end(&a);
}

/* Offset and limit count the rows of each subject, over all files. */
static void test_limits(void **state)
{
    (void)state;
    static const char task[] =
        "task: s\nsplits: {all: {files: [a.jsonl, b.jsonl]}}\n"
        "fields: {q: q, s: s}\nsubject: \"{s|slug}\"\n"
        "profiles: {p: {split: all, ask: generate, context: \"{q}\", target: x}}\n";
    const char *data = data_with(
        "s", "a.jsonl",
        "{\"q\": 1, \"s\": \"B b\"}\n{\"q\": 2, \"s\": \"A\"}\n{\"q\": 3, \"s\": \"B b\"}\n");
    add_file(data, "s", "b.jsonl", "{\"q\": 4, \"s\": \"B b\"}\n{\"q\": 5, \"s\": \"A\"}\n");
    static const struct {
        int64_t offset, limit;
        const char *ids;
    } all[] = {{0, CPL_UNSET, "a/0=2 a/1=5 b_b/0=1 b_b/1=3 b_b/2=4 "},
               {1, 1, "a/1=5 b_b/1=3 "},
               {2, CPL_UNSET, "b_b/2=4 "},
               {0, 0, ""},
               {9, 1, ""}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        asked a                       = {0};
        cpl_text ids                  = {0};
        cpl_questions_options options = options_of(data);
        options.offset                = all[i].offset;
        options.limit                 = all[i].limit;
        assert_ok(cpl_task_parse(&a.task, "s.yaml", task, strlen(task)));
        assert_ok(cpl_questions_read(&a.q, a.task, &a.task->profiles[0], &options));
        for (int64_t k = 0; k < a.q.count; k++)
            cpl_text_printf(&ids, "%s=%s ", a.q.question[k].id, a.q.question[k].prompt);
        assert_string_equal(ids.bytes ? ids.bytes : "", all[i].ids);
        cpl_text_free(&ids);
        end(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arc),        cmocka_unit_test(test_commonsense_qa),
        cmocka_unit_test(test_copa),       cmocka_unit_test(test_boolq),
        cmocka_unit_test(test_hellaswag),  cmocka_unit_test(test_openbookqa),
        cmocka_unit_test(test_sciq),       cmocka_unit_test(test_social_iqa),
        cmocka_unit_test(test_winogrande), cmocka_unit_test(test_mmlu),
        cmocka_unit_test(test_ceval),      cmocka_unit_test(test_mmlu_pro),
        cmocka_unit_test(test_agieval),    cmocka_unit_test(test_bbh),
        cmocka_unit_test(test_math),       cmocka_unit_test(test_gsm8k),
        cmocka_unit_test(test_triviaqa),   cmocka_unit_test(test_triviaqa_lines),
        cmocka_unit_test(test_own),        cmocka_unit_test(test_values),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
