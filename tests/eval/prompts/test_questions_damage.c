/* test_questions_damage.c - rows with a member that lacks or is of another kind, in every task,
 * with the place that is told; files that are not there, cut or empty; damaged files; every
 * allocation failing. */
#include "base/arena.h"
#include "eval/prompts/questions_read.h"
#include "fuzz.h"

/* ---- a member that lacks, or is of another kind ---- */

#define MMLU_PRO_ROW                                                                               \
    "{\"question\": \"q\", \"options\": [\"a\", \"b\"], \"answer\": \"A\", "                       \
    "\"answer_index\": 0, \"category\": \"law\"}"

typedef struct kind_of_row {
    const char *task, *profile, *file;
    const char *before, *behind; /* what stands around the rows of a JSON file; NULL: lines */
    const char *row;             /* a good one */
    const char *members;         /* that it must have, with blanks between */
    const char *wrong[5];        /* members and values for which there is no option */
    const char *others[4];       /* files that are wanted besides, and their content */
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
         {"cot-prompts/navigate.txt", CANARY}),
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

/* Good rows on lines 1 and 3, and `second` on line 2. */
static void put_rows(const char *data, const kind_of_row *k, const char *second)
{
    cpl_text text     = {0};
    const char *comma = k->before ? "," : "";
    cpl_text_printf(&text, "%s%s%s\n%s%s\n%s%s\n", k->before ? k->before : "", k->row, comma,
                    second, comma, k->row, k->behind ? k->behind : "");
    put_file(data, k->task, k->file, text.bytes);
    cpl_text_free(&text);
}

/* The second row is bad: it is told with its line, counted, and can be left out. */
static void check_bad(const cpl_task *task, const kind_of_row *k, const char *data,
                      const char *second)
{
    cpl_questions q;
    char place[256];
    int64_t rows, bad;
    const cpl_profile *profile;
    cpl_questions_options options = options_of(data);
    if (strcmp(k->task, "bbh") != 0) options.shots = 0;
    put_rows(data, k, second);
    snprintf(place, sizeof place, "/%s/%s: line 2", k->task, k->file);
    cpl_status status = read_with(&q, task, k->profile, &options);
    if (status != CPL_ERR_INPUT || !strstr(cpl_last_error(), place))
        fail_msg("%s: %s\n... says \"%s\"", k->task, second, status ? cpl_last_error() : "nothing");
    assert_null(strchr(cpl_last_error(), '|')); /* no transformations */
    options.skip_bad = true;
    assert_ok(read_with(&q, task, k->profile, &options));
    assert_int_equal(q.count, 2);
    assert_int_equal(q.skipped, 1);
    cpl_questions_free(&q);
    assert_ok(cpl_task_profile(&profile, task, NULL, k->profile, NULL));
    assert_ok(cpl_questions_count(&rows, &bad, task, profile, data));
    assert_int_equal(rows, 3);
    assert_int_equal(bad, 1);
}

/* The row without a member, with null, an object and a number in its place. */
static void check_member(const cpl_task *task, const kind_of_row *k, const char *data,
                         const char *name)
{
    static const char *const values[] = {NULL, "null", "{}", "[[]]"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        json_t *row = json_loads(k->row, 0, NULL);
        assert_non_null(json_object_get(row, name));
        if (values[i])
            json_object_set_new(row, name, json_loads(values[i], JSON_DECODE_ANY, NULL));
        else
            json_object_del(row, name);
        char *text = json_dumps(row, 0);
        check_bad(task, k, data, text);
        free(text);
        json_decref(row);
    }
}

static void check_wrong(const cpl_task *task, const kind_of_row *k, const char *data,
                        const char *wrong)
{
    char member[256];
    json_t *row = json_loads(k->row, 0, NULL);
    snprintf(member, sizeof member, "{%s}", wrong);
    json_t *other = json_loads(member, 0, NULL);
    assert_int_equal(json_object_update(row, other), 0);
    char *text = json_dumps(row, 0);
    check_bad(task, k, data, text);
    free(text);
    json_decref(other);
    json_decref(row);
}

TEST(test_members)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const kind_of_row *k = &kinds[i];
        cpl_task *task       = built_in(k->task);
        const char *data     = new_data(k->task);
        char members[128];
        if (k->others[0]) put_file(data, k->task, k->others[0], k->others[1]);
        snprintf(members, sizeof members, "%s", k->members);
        for (char *name = strtok(members, " "); name; name = strtok(NULL, " "))
            check_member(task, k, data, name);
        for (int w = 0; w < 5 && k->wrong[w]; w++) check_wrong(task, k, data, k->wrong[w]);
        if (!k->before) check_bad(task, k, data, "{\"cut\": ");
        if (!k->before) check_bad(task, k, data, "[]");
        cpl_task_free(task);
    }
}

/* ---- files ---- */

/* All tasks: no file, an empty one, one of another form. */
TEST(test_files)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const kind_of_row *k          = &kinds[i];
        cpl_task *task                = built_in(k->task);
        const char *data              = new_data(k->task);
        cpl_questions_options options = options_of(data);
        cpl_questions q;
        char sentence[256];
        if (strcmp(k->task, "bbh") != 0) options.shots = 0;
        snprintf(sentence, sizeof sentence, "%s: there are no rows of the split", k->task);
        expect(task, k->profile, &options, sentence);
        snprintf(sentence, sizeof sentence, "%s/%s/", data, k->task);
        expect(task, k->profile, &options, sentence);
        if (k->others[0]) put_file(data, k->task, k->others[0], k->others[1]);
        put_file(data, k->task, k->file, "");
        cpl_status status = read_with(&q, task, k->profile, &options);
        if (k->before) assert_non_null(strstr(cpl_last_error(), k->file));
        if (!k->before) assert_true(status == CPL_OK && q.count == 0);
        cpl_questions_free(&q);
        put_file(data, k->task, k->file, "\x89PNG\r\n\x1a\n\x01\x02\x03");
        expect(task, k->profile, &options, k->file);
        cpl_task_free(task);
    }
}

/* ---- damage ---- */

/* Any bytes are questions or a sentence with the file's name. */
TEST(test_fuzz)
{
    enum { N = sizeof kinds / sizeof *kinds };
    cpl_text whole = {0}, file = {0};
    int64_t good = 0, bad = 0;
    cpl_task *tasks[N];
    const char *data = scratch_folder();
    char path[512];
    for (size_t i = 0; i < N; i++) {
        const kind_of_row *k = &kinds[i];
        tasks[i]             = built_in(k->task);
        snprintf(path, sizeof path, "%s/%s", data, k->task);
        mkdir(path, 0777);
        if (k->others[0]) put_file(data, k->task, k->others[0], k->others[1]);
    }
    for (fuzz f = fuzz_start(13, 1500); fuzz_next(&f);) {
        size_t i                      = fuzz_below(&f, N);
        const kind_of_row *k          = &kinds[i];
        cpl_questions_options options = options_of(data);
        cpl_questions q;
        options.skip_bad = fuzz_below(&f, 2);
        if (strcmp(k->task, "bbh") != 0) options.shots = 0;
        cpl_text_clear(&whole);
        cpl_text_printf(&whole, "%s%s%s\n%s%s\n", k->before ? k->before : "", k->row,
                        k->before ? "," : "", k->row, k->behind ? k->behind : "");
        fuzz_damage(&f, &file, &whole);
        put_file(data, k->task, k->file, "");
        snprintf(path, sizeof path, "%s/%s/%s", data, k->task, k->file);
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

/* The n-th allocation of ours fails: a sentence, and nothing is leaked. */
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
