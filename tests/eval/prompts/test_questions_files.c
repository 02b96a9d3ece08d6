/* test_questions_files.c - files of rows that are missing, cut, empty or of another form; wrong
 * few-shot examples and labels; bad rows left out. */
#include "eval/prompts/questions_case.h"
#include "support/warnings.h"

/* ---- prompts ---- */

/* A damaged prompt of the user's folder is named. The program's own prompt is used only if the
 * user's folder lacks it. A prompt that both lack is missing from the user's folder. */
TEST(test_prompts)
{
    static const char *const damaged[] = {
        "",           "E.\n\nQ: a\nA: b\n", "c\n---\n", "c\n---\n\n \n", "c\n---\nE.\n\xff\xfe\n",
        "\x89PNG\r\n"};
    cpl_task *bbh    = built_in("bbh");
    const char *data = scratch_folder(), *own = scratch_folder();
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.own = own;
    put_file(data, "bbh", "navigate.json",
             "{\"canary\": \"c\", \"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}");
    expect_refusal(bbh, "harness", &options, "cot-prompts/navigate.txt");
    assert_null(strstr(cpl_last_error(), own));
    put_file(own, "bbh", "cot-prompts/navigate.txt", BBH_PROMPT);
    assert_ok(read_with(&q, bbh, "harness", &options));
    cpl_questions_free(&q);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put_file(data, "bbh", "cot-prompts/navigate.txt", damaged[i]);
        for (int skip = 0; skip < 2; skip++) {
            options.skip_bad = skip;
            expect_refusal(bbh, "harness", &options, "/bbh/cot-prompts/navigate.txt");
            assert_null(strstr(cpl_last_error(), own));
        }
    }
    cpl_task_free(bbh);
}

/* ---- files ---- */

#define MMLU_TEST  "test/anatomy_test.csv"
#define MMLU_DEV   "dev/anatomy_dev.csv"
#define MMLU_ROW   "q,1,2,3,4,A\n"
#define CEVAL_HEAD "id,question,A,B,C,D,answer\n"
#define BBH_ROW    "{\"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}"
#define BBH_FILE   "cot-prompts/navigate.txt"
#define SIQA_ROW                                                                                   \
    "{\"context\": \"c\", \"question\": \"q\", \"answerA\": \"a\", \"answerB\": \"b\", "           \
    "\"answerC\": \"c\"}\n"
#define SIQA_ROWS "dev.jsonl", SIQA_ROW SIQA_ROW
#define LABELS    "dev-labels.lst"

/* Files of a new folder of data, name and content after one another, and the sentence with the
 * reason why they give no questions. */
static const struct {
    const char *task, *profile;
    int64_t shots;
    const char *files[6], *sentence;
} refused[] = {
    /* wrong rows */
    LIST("mmlu", "harness", 0, {MMLU_TEST, MMLU_ROW "q,1,2,3,4,E\n"},
         MMLU_TEST ": line 2: the right answer \"E\" is none of its 4 options"),
    LIST("mmlu", "harness", 0, {MMLU_TEST, MMLU_ROW "q,1,2\n"}, MMLU_TEST ": line 2: "),
    LIST("mmlu", "harness", 0, {MMLU_TEST, MMLU_ROW "q,1,2,3,4,\n"},
         "the right answer \"\" is none of its 4 options"),
    LIST("ceval", "harness", 0, {"val/law_val.csv", CEVAL_HEAD "1,q,1,2,3,4,F\n"},
         "val/law_val.csv: line 2: the right answer \"F\" is none of its 4 options"),
    LIST("ceval", "harness", 0, {"val/law_val.csv", "id,question,A,B,C,answer\n1,q,1,2,3,C\n"},
         "the field d: there is no text at D; the row has id, question, A, B, C, answer"),
    LIST("ceval", "harness", 0, {"val/cooking_val.csv", CEVAL_HEAD "1,q,1,2,3,4,A\n"},
         "ceval has no subject cooking"),
    /* few-shot examples */
    LIST("mmlu", "harness", CPL_UNSET, {MMLU_TEST, MMLU_ROW},
         "mmlu: there are no rows of the split dev"),
    LIST("mmlu", "harness", CPL_UNSET, {MMLU_TEST, MMLU_ROW, MMLU_DEV, MMLU_ROW MMLU_ROW},
         "5 few-shot examples are required, and the split dev has 2 of the subject anatomy"),
    LIST("mmlu", "harness", 2, {MMLU_TEST, MMLU_ROW, MMLU_DEV, MMLU_ROW "q,1,2,3,4,G\n"},
         MMLU_DEV ": line 2: the right answer \"G\" is none of its 4 options"),
    LIST("mmlu", "harness", -5, {MMLU_TEST, MMLU_ROW},
         "has no few-shot examples, and -5 are required"),
    LIST("arc_challenge", "inloop", 1, {NULL},
         "the profile inloop has no few-shot examples, and 1 are required"),
    /* prompts that are files */
    LIST("bbh", "harness", 1, {NULL},
         "bbh: the 3 few-shot examples of harness are a file of their own and cannot be 1"),
    LIST("bbh", "harness", CPL_UNSET, {"navigate.json", BBH_ROW}, BBH_FILE),
    LIST("bbh", "harness", CPL_UNSET, {"navigate.json", BBH_ROW, BBH_FILE, "one\n"},
         BBH_FILE ": holds no prompt"),
    LIST("bbh", "harness", CPL_UNSET, {"navigate.json", BBH_ROW, BBH_FILE, "one\ntwo\nthree\n"},
         BBH_FILE ": line 2: the canary and a line of hyphens"),
    LIST("bbh", "harness", CPL_UNSET, {"navigat.json", BBH_ROW, BBH_FILE, BBH_PROMPT},
         "bbh/navigat.json: line 1: bbh has no subject navigat; did you mean navigate?"),
    /* labels in a separate file */
    LIST("social_iqa", "inloop", CPL_UNSET, {SIQA_ROWS},
         "dev.jsonl: line 1: the field key: the field raw: there is no text at correct or label"),
    LIST("social_iqa", "inloop", CPL_UNSET, {SIQA_ROWS, LABELS, "1\n"},
         "dev.jsonl: line 2: the labels end before this row"),
    LIST("social_iqa", "inloop", CPL_UNSET, {SIQA_ROWS, LABELS, "1\n2\n3\n"},
         "dev.jsonl: fewer rows than its labels have lines"),
    LIST("social_iqa", "inloop", CPL_UNSET, {SIQA_ROWS, LABELS, "1\n7\n\n"},
         "dev.jsonl: line 2: the field key: \"7\" is not in the table of key"),
};

TEST(refusals)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cpl_task *task                = built_in(refused[i].task);
        cpl_questions_options options = options_of(scratch_folder());
        options.shots                 = refused[i].shots;
        for (int k = 0; k < 6 && refused[i].files[k]; k += 2)
            put_file(options.data, refused[i].task, refused[i].files[k], refused[i].files[k + 1]);
        expect_refusal(task, refused[i].profile, &options, refused[i].sentence);
        cpl_task_free(task);
    }
}

/* A bad row is no few-shot example: it is counted, and the next good row is shown in its place. */
TEST(test_bad_exemplars)
{
    cpl_task *mmlu = built_in("mmlu"), *gsm8k = built_in("gsm8k");
    const char *data              = scratch_folder();
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.skip_bad = true;
    options.shots    = 2;
    put_file(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    put_file(data, "mmlu", "test/virology_test.csv", "q,1,2,3,4,A\n");
    put_file(data, "mmlu", "dev/anatomy_dev.csv",
             "x1,1,2,3,4,A\nx2,1,2,3,4,G\nx3,1,2\nx4,1,2,3,4,B\nx5,1\n");
    put_file(data, "mmlu", "dev/virology_dev.csv", "y1,1,2,3,4,A\ny2,1,2,3,4,B\n");
    assert_ok(read_with(&q, mmlu, "harness", &options));
    assert_int_equal(q.skipped, 2); /* the members of x5 are not needed */
    assert_non_null(strstr(q.question[0].options[0].context, "\n\nx1\nA. 1"));
    assert_null(strstr(q.question[0].options[0].context, "x2"));
    assert_non_null(strstr(q.question[0].options[0].context, "\n\nx4\nA. 1"));
    assert_non_null(strstr(q.question[1].options[0].context, "\n\ny2\nA. 1"));
    cpl_questions_free(&q);
    options.shots = 3;
    expect_refusal(
        mmlu, "harness", &options,
        "3 few-shot examples are required, and the split dev has 2 of the subject anatomy");
    options.shots = 2;
    put_file(data, "gsm8k", "test.jsonl", "{\"question\": \"q\", \"answer\": \"#### 1\"}\n");
    put_file(
        data, "gsm8k", "train.jsonl",
        "{\"question\": \n{\"question\": \"r\"}\n{\"question\": \"s\", \"answer\": \"#### 1\"}\n"
        "{\"question\": \"t\", \"answer\": \"#### 1\"}\n{\"question\": \"u\", \"answer\": "
        "\"1\"}\n");
    assert_ok(read_with(&q, gsm8k, "harness", &options));
    assert_int_equal(q.skipped, 2);
    assert_non_null(strstr(q.question[0].prompt, "Question: s\nAnswer:"));
    assert_non_null(strstr(q.question[0].prompt, "Question: t\nAnswer:"));
    assert_null(strstr(q.question[0].prompt, "Question: r\n"));
    cpl_questions_free(&q);
    cpl_task_free(mmlu);
    cpl_task_free(gsm8k);
}

/* Names of files and folders are bytes. Only names that become a subject must be UTF-8. */
TEST(test_names_of_files)
{
    cpl_task *mmlu   = built_in("mmlu");
    const char *data = in_folder(scratch_folder(), "Fr\xFChling");
    assert_int_equal(mkdir(data, 0777), 0);
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.shots = 1;
    put_file(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    put_file(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\n");
    assert_ok(read_with(&q, mmlu, "harness", &options));
    assert_int_equal(q.count, 1);
    cpl_questions_free(&q);
    put_file(data, "mmlu", "test/\xFC_test.csv", "q,1,2,3,4,A\n");
    expect_refusal(mmlu, "harness", &options,
                   "_test.csv: a subject is called as its file, and this name is not UTF-8");
    cpl_task_free(mmlu);
}

/* ---- bad rows in the log ---- */

TEST(test_log)
{
    cpl_task *task                = built_in("gsm8k");
    const char *data              = scratch_folder();
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.skip_bad = true;
    options.log      = &a_log;
    options.shots    = 0;
    put_file(data, "gsm8k", "test.jsonl",
             "{\"question\": \"q\", \"answer\": \"#### 1\"}\n{\"question\": \"q\"}\n"
             "{\"question\": \"r\", \"answer\": \"#### 1\"}\n");
    assert_ok(read_with(&q, task, "harness", &options));
    assert_non_null(
        strstr(warned, "test.jsonl: line 2: the field answer: there is no text at answer"));
    assert_non_null(strstr(warned, "; the row is left out"));
    assert_string_equal(q.question[1].id, "2"); /* the bad row keeps its place */
    cpl_questions_free(&q);
    cpl_task_free(task);
}
