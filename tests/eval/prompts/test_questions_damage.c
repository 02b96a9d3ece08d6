/* test_questions_damage.c - rows of every task without a member or with a member of another kind,
 * and the place that the sentence names; files that are missing, cut, empty or damaged; every
 * allocation failing. */
#include "base/arena.h"
#include "eval/prompts/questions_case.h"
#include "fuzz.h"

/* ---- rows with a wrong member ---- */

#define MMLU_PRO_ROW                                                                               \
    "{\"question\": \"q\", \"options\": [\"a\", \"b\"], \"answer\": \"A\", "                       \
    "\"answer_index\": 0, \"category\": \"law\"}"

typedef struct kind_of_row {
    const char *task, *profile, *file;
    const char *before, *behind; /* text around the rows of a JSON file; NULL: JSON lines */
    const char *row;             /* a good row */
    const char *members;         /* members that a row must have, with blanks between */
    const char *wrong[5];        /* members and values for which there is no option */
    const char *others[4];       /* further files that are needed, with their content */
} kind_of_row;

#define NESTED                                                                                     \
    "{\"question\": {\"stem\": \"Q\", \"choices\": [{\"text\": \"a\", \"label\": \"A\"}, "         \
    "{\"text\": "                                                                                  \
    "\"b\", \"label\": \"B\"}]}, \"answerKey\": \"A\"}"

static const kind_of_row kinds[] = {
    LIST("arc_challenge", "harness", "ARC-Challenge-Test.jsonl", NULL, NULL, NESTED,
         "question answerKey", {"\"answerKey\": \"E\""}, {0}),
    LIST("arc_challenge", "harness", "ARC-Challenge-Test.jsonl", NULL, NULL,
         "{\"question\": \"Q\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", "
         "\"B\"]}, \"answerKey\": \"A\"}",
         "choices", {"\"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\"]}"}, {0}),
    LIST("commonsense_qa", "inloop", "dev_rand_split.jsonl", NULL, NULL, NESTED,
         "question answerKey", {"\"answerKey\": \"a\""}, {0}),
    LIST("copa", "inloop", "val.jsonl", NULL, NULL,
         "{\"premise\": \"P.\", \"choice1\": \"A\", \"choice2\": \"B\", \"question\": \"cause\", "
         "\"label\": 0}",
         "premise choice1 choice2 question label", {"\"label\": 2", "\"question\": \"why\""}, {0}),
    LIST("boolq", "harness", "val.jsonl", NULL, NULL,
         "{\"question\": \"q\", \"passage\": \"P\", \"label\": true}", "question passage label",
         {"\"label\": \"maybe\""}, {0}),
    LIST("hellaswag", "inloop", "hellaswag_val.jsonl", NULL, NULL,
         "{\"activity_label\": \"A\", \"ctx_a\": \"B\", \"endings\": [\"a\", \"b\"], \"label\": 0}",
         "activity_label ctx_a endings label", {"\"label\": 2"}, {0}),
    LIST("openbookqa", "harness", "Main/test.jsonl", NULL, NULL, NESTED, "question answerKey",
         {"\"answerKey\": \"F\""}, {0}),
    LIST("sciq", "inloop", "valid.json", "[", "]",
         "{\"question\": \"q\", \"distractor1\": \"a\", \"distractor2\": \"b\", \"distractor3\": "
         "\"c\", \"correct_answer\": \"d\", \"support\": \"s\"}",
         "question distractor1 distractor2 distractor3 correct_answer", {0}, {0}),
    LIST("social_iqa", "inloop", "dev.jsonl", NULL, NULL,
         "{\"context\": \"c\", \"question\": \"q\", \"answerA\": \"a\", \"answerB\": \"b\", "
         "\"answerC\": \"c\", \"label\": \"1\"}",
         "context question answerA answerB answerC label", {"\"label\": \"4\""}, {0}),
    LIST("winogrande", "inloop", "dev.jsonl", NULL, NULL,
         "{\"sentence\": \"a _ b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"1\"}",
         "sentence option1 option2 answer", {"\"answer\": \"3\"", "\"sentence\": \"no gap\""}, {0}),
    LIST("mmlu_pro", "harness", "test.jsonl", NULL, NULL, MMLU_PRO_ROW,
         "question options category answer",
         {"\"options\": [\"a\"]", "\"answer\": \"D\"", "\"answer\": \"K\"", "\"answer_index\": 1",
          "\"answer\": \"\""},
         {0}),
    LIST("agieval", "harness", "v1/sat-en.jsonl", NULL, NULL,
         "{\"passage\": null, \"question\": \"q\", \"options\": [\"(A)x\", \"(B)y\"], \"label\": "
         "\"A\"}",
         "question options label", {"\"label\": [\"A\", \"C\"]"}, {0}),
    LIST("agieval", "harness", "v1/math.jsonl", NULL, NULL,
         "{\"passage\": null, \"question\": \"q\", \"options\": null, \"answer\": \"1\"}",
         "question answer", {"\"answer\": \" \""}, {0}),
    LIST("bbh", "harness", "navigate.json", "{\"canary\": \"c\", \"examples\": [", "]}",
         "{\"input\": \"i\", \"target\": \"t\"}", "input target", {"\"target\": \"\""},
         {"cot-prompts/navigate.txt", BBH_PROMPT}),
    LIST("math", "harness", "test.jsonl", NULL, NULL,
         "{\"problem\": \"p\", \"type\": \"Algebra\", \"solution\": \"\\\\boxed{1}\"}",
         "problem type solution", {"\"solution\": \"1\"", "\"solution\": \"so $\\\\boxed{}$\""},
         {0}),
    LIST("gsm8k", "harness", "test.jsonl", NULL, NULL,
         "{\"question\": \"q\", \"answer\": \"#### 1\"}", "question answer",
         {"\"answer\": \"1\"", "\"answer\": \"so\\n#### \""}, {0}),
    LIST("gsm8k_cot", "harness", "test.jsonl", NULL, NULL,
         "{\"question\": \"q\", \"answer\": \"#### 1\"}", "question answer",
         {"\"answer\": \"1\"", "\"answer\": \"so\\n#### \""}, {0}),
    LIST("triviaqa", "harness", "qa/web-dev.json", "{\"Data\": [", "]}",
         "{\"Question\": \"q\", \"Answer\": {\"Value\": \"v\", \"Aliases\": [\"v\"]}}",
         "Question Answer", {"\"Answer\": {\"Aliases\": []}"},
         {"qa/wikipedia-dev.json", "{\"Data\": []}"}),
};

/* Writes good rows on lines 1 and 3, and `second` on line 2. */
static void put_rows(const char *data, const kind_of_row *k, const char *second)
{
    cpl_text text     = {0};
    const char *comma = k->before ? "," : "";
    cpl_text_printf(&text, "%s%s%s\n%s%s\n%s%s\n", k->before ? k->before : "", k->row, comma,
                    second, comma, k->row, k->behind ? k->behind : "");
    put_file(data, k->task, k->file, text.bytes);
    cpl_text_free(&text);
}

/* Returns options without few-shot examples. The examples of bbh are a file. */
static cpl_questions_options plain_options(const kind_of_row *k, const char *data)
{
    cpl_questions_options options = options_of(data);
    if (strcmp(k->task, "bbh") != 0) options.shots = 0;
    return options;
}

/* Returns a new folder of data with the further files. */
static const char *new_data(const kind_of_row *k)
{
    const char *data = scratch_folder();
    if (k->others[0]) put_file(data, k->task, k->others[0], k->others[1]);
    return data;
}

/* Checks that a bad second row is named with its line, counted, and can be left out. */
static void check_bad(const cpl_task *task, const kind_of_row *k, const char *data,
                      const char *second)
{
    cpl_questions q;
    char place[256];
    int64_t rows, bad;
    cpl_questions_options options = plain_options(k, data);
    put_rows(data, k, second);
    snprintf(place, sizeof place, "/%s/%s: line 2", k->task, k->file);
    cpl_status status = read_with(&q, task, k->profile, &options);
    if (status != CPL_ERR_INPUT || !strstr(cpl_last_error(), place))
        fail_msg("%s: %s\n... says \"%s\"", k->task, second, status ? cpl_last_error() : "nothing");
    assert_null(strchr(cpl_last_error(), '|')); /* the sentence has no transformations */
    options.skip_bad = true;
    assert_ok(read_with(&q, task, k->profile, &options));
    assert_int_equal(q.count, 2);
    assert_int_equal(q.skipped, 1);
    cpl_questions_free(&q);
    assert_ok(
        cpl_questions_count(&rows, &bad, task, profile_of_task(task, k->profile, NULL), data));
    assert_int_equal(rows, 3);
    assert_int_equal(bad, 1);
}

/* Checks the row with the members of `changes`, "NAME": VALUE, and without the member `removed`. */
static void check_changed(const cpl_task *task, const kind_of_row *k, const char *data,
                          const char *changes, const char *removed)
{
    char members[256];
    json_t *row = json_loads(k->row, 0, NULL);
    snprintf(members, sizeof members, "{%s}", changes);
    json_t *other = json_loads(members, 0, NULL);
    assert_int_equal(json_object_update(row, other), 0);
    if (removed) assert_int_equal(json_object_del(row, removed), 0);
    char *text = json_dumps(row, 0);
    check_bad(task, k, data, text);
    free(text);
    json_decref(other);
    json_decref(row);
}

TEST(test_members)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        static const char *const values[] = {"null", "{}", "[[]]"};
        const kind_of_row *k              = &kinds[i];
        cpl_task *task                    = built_in(k->task);
        const char *data                  = new_data(k);
        char members[128], change[128];
        snprintf(members, sizeof members, "%s", k->members);
        for (char *name = strtok(members, " "); name; name = strtok(NULL, " ")) {
            check_changed(task, k, data, "", name);
            for (int v = 0; v < 3; v++) {
                snprintf(change, sizeof change, "\"%s\": %s", name, values[v]);
                check_changed(task, k, data, change, NULL);
            }
        }
        for (int w = 0; w < 5 && k->wrong[w]; w++) check_changed(task, k, data, k->wrong[w], NULL);
        if (!k->before) check_bad(task, k, data, "{\"cut\": ");
        if (!k->before) check_bad(task, k, data, "[]");
        cpl_task_free(task);
    }
}

/* ---- files ---- */

/* Checks every task without a file, with an empty file, and with a file of another form. */
TEST(test_files)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const kind_of_row *k          = &kinds[i];
        cpl_task *task                = built_in(k->task);
        const char *data              = scratch_folder();
        cpl_questions_options options = plain_options(k, data);
        cpl_questions q;
        char sentence[256];
        snprintf(sentence, sizeof sentence, "%s: there are no rows of the split", k->task);
        expect_refusal(task, k->profile, &options, sentence);
        snprintf(sentence, sizeof sentence, "%s/%s/", data, k->task);
        expect_refusal(task, k->profile, &options, sentence);
        if (k->others[0]) put_file(data, k->task, k->others[0], k->others[1]);
        put_file(data, k->task, k->file, "");
        cpl_status status = read_with(&q, task, k->profile, &options);
        if (k->before) assert_non_null(strstr(cpl_last_error(), k->file));
        if (!k->before) assert_true(status == CPL_OK && q.count == 0);
        cpl_questions_free(&q);
        put_file(data, k->task, k->file, "\x89PNG\r\n\x1a\n\x01\x02\x03");
        expect_refusal(task, k->profile, &options, k->file);
        cpl_task_free(task);
    }
}

/* ---- damage ---- */

/* Any bytes give questions or a sentence with the file's name. */
TEST(test_fuzz)
{
    enum { N = sizeof kinds / sizeof *kinds };
    cpl_text whole = {0}, file = {0};
    int64_t good = 0, bad = 0;
    cpl_task *tasks[N];
    const char *data[N];
    char path[512], folders[N][64];
    for (size_t i = 0; i < N; i++) {
        tasks[i] = built_in(kinds[i].task);
        data[i]  = strcpy(folders[i], new_data(&kinds[i]));
    }
    for (fuzz f = fuzz_start(13, 1500); fuzz_next(&f);) {
        size_t i                      = fuzz_below(&f, N);
        const kind_of_row *k          = &kinds[i];
        cpl_questions_options options = plain_options(k, data[i]);
        cpl_questions q;
        options.skip_bad = fuzz_below(&f, 2);
        cpl_text_clear(&whole);
        cpl_text_printf(&whole, "%s%s%s\n%s%s\n", k->before ? k->before : "", k->row,
                        k->before ? "," : "", k->row, k->behind ? k->behind : "");
        fuzz_damage(&f, &file, &whole);
        put_file(data[i], k->task, k->file, "");
        snprintf(path, sizeof path, "%s/%s/%s", data[i], k->task, k->file);
        fuzz_write(path, &file);
        cpl_status status = read_with(&q, tasks[i], k->profile, &options);
        if (status != CPL_OK && !strstr(cpl_last_error(), k->file))
            fail_msg("round %lld: %s", (long long)f.round, cpl_last_error());
        good += status == CPL_OK;
        bad += status != CPL_OK;
        if (status == CPL_OK) cpl_questions_free(&q);
        assert_int_equal(unlink(path), 0);
    }
    if (!fuzz_is_alone()) assert_true(good > 0 && bad > 0);
    for (size_t i = 0; i < N; i++) cpl_task_free(tasks[i]);
    cpl_text_free(&whole);
    cpl_text_free(&file);
}

/* Each allocation of the library fails in turn: a status is returned, and no memory is leaked. */
TEST(test_memory)
{
    cpl_task *task                      = built_in("mmlu_pro");
    const cpl_questions_options options = options_of("data/eval");
    cpl_questions q;
    for (int64_t n = 1;; n += 1 + n / 40) {
        cpl_alloc_fail_at(n);
        cpl_status status = read_with(&q, task, "harness", &options);
        cpl_alloc_fail_at(0);
        cpl_questions_free(&q);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
    cpl_task_free(task);
}
