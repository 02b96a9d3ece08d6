/* test_questions_files.c - files of rows that are not there, cut, empty or of another form;
 * few-shot examples that are wrong; bad rows left out. */
#include "eval/prompts/questions_read.h"
#include "support/warnings.h"

/* ---- prompts ---- */

/* A prompt that is there and none is told by its name; only where there is none the program's own
 * is taken. What no folder has is missing from the user's. */
TEST(test_prompts)
{
    static const char rows[] =
        "{\"canary\": \"c\", \"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}";
    static const char *const damaged[] = {
        "",           "E.\n\nQ: a\nA: b\n", "c\n---\n", "c\n---\n\n \n", "c\n---\nE.\n\xff\xfe\n",
        "\x89PNG\r\n"};
    cpl_task *bbh = built_in("bbh");
    char data[256];
    snprintf(data, sizeof data, "%s", new_data("bbh"));
    put_file(data, "bbh", "navigate.json", rows);
    char own[300];
    snprintf(own, sizeof own, "%s/ours", data);
    assert_int_equal(mkdir(own, 0777), 0);
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.own       = own;
    cpl_status status = read_with(&q, bbh, "harness", &options);
    assert_int_equal(status, CPL_ERR_INPUT);
    assert_non_null(strstr(cpl_last_error(), "cot-prompts/navigate.txt"));
    assert_null(strstr(cpl_last_error(), own));
    snprintf(own, sizeof own, "%s/ours/bbh", data);
    assert_int_equal(mkdir(own, 0777), 0);
    snprintf(own, sizeof own, "%s/ours", data);
    put_file(own, "bbh", "cot-prompts/navigate.txt", CANARY);
    assert_ok(read_with(&q, bbh, "harness", &options));
    cpl_questions_free(&q);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put_file(data, "bbh", "cot-prompts/navigate.txt", damaged[i]);
        for (int skip = 0; skip < 2; skip++) {
            options.skip_bad = skip;
            status           = read_with(&q, bbh, "harness", &options);
            if (status != CPL_ERR_INPUT ||
                !strstr(cpl_last_error(), "/bbh/cot-prompts/navigate.txt") ||
                strstr(cpl_last_error(), own))
                fail_msg("prompt %zu says \"%s\"", i, status ? cpl_last_error() : "nothing");
        }
    }
    cpl_task_free(bbh);
}

/* ---- files ---- */

TEST(test_csv)
{
    static const struct {
        const char *task, *dev, *test, *good, *bad, *sentence;
    } all[] = {
        {"mmlu", "dev/anatomy_dev.csv", "test/anatomy_test.csv", "q,1,2,3,4,A\n", "q,1,2,3,4,E\n",
         "test/anatomy_test.csv: line 2: the right answer \"E\" is none of its 4 options"},
        {"mmlu", "dev/anatomy_dev.csv", "test/anatomy_test.csv", "q,1,2,3,4,A\n", "q,1,2\n",
         "test/anatomy_test.csv: line 2: "},
        {"mmlu", "dev/anatomy_dev.csv", "test/anatomy_test.csv", "q,1,2,3,4,A\n", "q,1,2,3,4,\n",
         "the right answer \"\" is none of its 4 options"},
        {"ceval", "dev/law_dev.csv", "val/law_val.csv", "id,question,A,B,C,D,answer\n",
         "1,q,1,2,3,4,F\n",
         "val/law_val.csv: line 2: the right answer \"F\" is none of its 4 options"},
        {"ceval", "dev/law_dev.csv", "val/law_val.csv", "id,question,A,B,C,answer\n",
         "1,q,1,2,3,C\n",
         "the field d: there is no text at D; the row has id, question, A, B, C, answer"},
        {"ceval", "dev/cooking_dev.csv", "val/cooking_val.csv", "id,question,A,B,C,D,answer\n",
         "1,q,1,2,3,4,A\n", "ceval has no subject cooking"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cpl_task *task                = built_in(all[i].task);
        const char *data              = new_data(all[i].task);
        cpl_questions_options options = options_of(data);
        char text[256];
        options.shots = 0;
        snprintf(text, sizeof text, "%s%s", all[i].good, all[i].bad);
        put_file(data, all[i].task, all[i].test, text);
        expect(task, "harness", &options, all[i].sentence);
        cpl_task_free(task);
    }
}

TEST(test_exemplars)
{
    cpl_task *mmlu                = built_in("mmlu");
    const char *data              = new_data("mmlu");
    cpl_questions_options options = options_of(data);
    put_file(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    expect(mmlu, "harness", &options, "mmlu: there are no rows of the split dev");
    put_file(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\nq,1,2,3,4,B\n");
    expect(mmlu, "harness", &options,
           "5 few-shot examples are required, and the split dev has 2 of the subject anatomy");
    put_file(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\nq,1,2,3,4,G\n");
    options.shots = 2;
    expect(mmlu, "harness", &options,
           "dev/anatomy_dev.csv: line 2: the right answer \"G\" is none of its 4 options");
    options.shots = -5;
    expect(mmlu, "harness", &options, "has no few-shot examples, and -5 are required");
    cpl_task_free(mmlu);
    cpl_task *arc = built_in("arc_challenge");
    options.shots = 1;
    expect(arc, "inloop", &options,
           "the profile inloop has no few-shot examples, and 1 are required");
    cpl_task_free(arc);
    cpl_task *bbh = built_in("bbh");
    expect(bbh, "harness", &options,
           "bbh: the 3 few-shot examples of harness are a file of their own and cannot be 1");
    data = new_data("bbh");
    put_file(data, "bbh", "navigate.json",
             "{\"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}");
    options = options_of(data);
    expect(bbh, "harness", &options, "cot-prompts/navigate.txt");
    put_file(data, "bbh", "cot-prompts/navigate.txt", "one\n");
    expect(bbh, "harness", &options, "cot-prompts/navigate.txt: holds no prompt");
    put_file(data, "bbh", "cot-prompts/navigate.txt", "one\ntwo\nthree\n");
    expect(bbh, "harness", &options,
           "cot-prompts/navigate.txt: line 2: the canary and a line of hyphens");
    put_file(data, "bbh", "navigat.json",
             "{\"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}");
    expect(bbh, "harness", &options,
           "bbh/navigat.json: line 1: bbh has no subject navigat; did you mean navigate?");
    cpl_task_free(bbh);
}

/* A bad row is no exemplar: it is counted, and the next good one is shown in its place. */
TEST(test_bad_exemplars)
{
    cpl_task *mmlu = built_in("mmlu"), *gsm8k = built_in("gsm8k");
    const char *data              = new_data("mmlu");
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
    assert_int_equal(q.skipped, 2); /* of x5 nothing has to be known */
    assert_non_null(strstr(q.question[0].options[0].context, "\n\nx1\nA. 1"));
    assert_null(strstr(q.question[0].options[0].context, "x2"));
    assert_non_null(strstr(q.question[0].options[0].context, "\n\nx4\nA. 1"));
    assert_non_null(strstr(q.question[1].options[0].context, "\n\ny2\nA. 1"));
    cpl_questions_free(&q);
    options.shots = 3;
    expect(mmlu, "harness", &options,
           "3 few-shot examples are required, and the split dev has 2 of the subject anatomy");
    data         = new_data("gsm8k");
    options.data = data;
    put_file(data, "gsm8k", "test.jsonl", "{\"question\": \"q\", \"answer\": \"#### 1\"}\n");
    put_file(
        data, "gsm8k", "train.jsonl",
        "{\"question\": \n{\"question\": \"r\"}\n{\"question\": \"s\", \"answer\": \"#### 1\"}\n"
        "{\"question\": \"t\", \"answer\": \"#### 1\"}\n{\"question\": \"u\", \"answer\": "
        "\"1\"}\n");
    assert_ok(read_with(&q, gsm8k, "harness",
                        &(cpl_questions_options){.data       = data,
                                                 .limit      = CPL_UNSET,
                                                 .shots      = 2,
                                                 .max_tokens = CPL_UNSET,
                                                 .skip_bad   = true}));
    assert_int_equal(q.skipped, 2);
    assert_non_null(strstr(q.question[0].prompt, "Question: s\nAnswer:"));
    assert_non_null(strstr(q.question[0].prompt, "Question: t\nAnswer:"));
    assert_null(strstr(q.question[0].prompt, "Question: r\n"));
    cpl_questions_free(&q);
    cpl_task_free(mmlu);
    cpl_task_free(gsm8k);
}

/* Names of files and folders are bytes: only what becomes a subject must be UTF-8. */
TEST(test_names_of_files)
{
    cpl_task *mmlu = built_in("mmlu");
    char data[256], path[300];
    snprintf(data, sizeof data, "%s/Fr\xFChling", scratch_folder());
    assert_int_equal(mkdir(data, 0777), 0);
    snprintf(path, sizeof path, "%s/mmlu", data);
    assert_int_equal(mkdir(path, 0777), 0);
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.shots = 1;
    put_file(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    put_file(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\n");
    assert_ok(read_with(&q, mmlu, "harness", &options));
    assert_int_equal(q.count, 1);
    cpl_questions_free(&q);
    put_file(data, "mmlu", "test/\xFC_test.csv", "q,1,2,3,4,A\n");
    expect(mmlu, "harness", &options,
           "_test.csv: a subject is called as its file, and this name is not UTF-8");
    cpl_task_free(mmlu);
}

TEST(test_labels)
{
    static const char row[] = "{\"context\": \"c\", \"question\": \"q\", \"answerA\": \"a\", "
                              "\"answerB\": \"b\", \"answerC\": \"c\"}\n";
    cpl_task *task          = built_in("social_iqa");
    const char *data        = new_data("social_iqa");
    const cpl_questions_options options = options_of(data);
    char rows[512];
    snprintf(rows, sizeof rows, "%s%s", row, row);
    put_file(data, "social_iqa", "dev.jsonl", rows);
    expect(task, "inloop", &options,
           "dev.jsonl: line 1: the field key: the field raw: there is no text at correct or label");
    put_file(data, "social_iqa", "dev-labels.lst", "1\n");
    expect(task, "inloop", &options, "dev.jsonl: line 2: the labels end before this row");
    put_file(data, "social_iqa", "dev-labels.lst", "1\n2\n3\n");
    expect(task, "inloop", &options, "dev.jsonl: fewer rows than its labels have lines");
    put_file(data, "social_iqa", "dev-labels.lst", "1\n7\n\n");
    expect(task, "inloop", &options,
           "dev.jsonl: line 2: the field key: \"7\" is not in the table of key");
    cpl_task_free(task);
}

/* ---- what is left out is told ---- */

TEST(test_log)
{
    cpl_task *task                = built_in("gsm8k");
    const char *data              = new_data("gsm8k");
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
