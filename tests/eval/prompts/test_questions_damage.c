/* Rows that are wrong: each task's, with the place that is told; files that are not there, cut or
 * empty; bad rows left out; damaged files. */
#include <sys/stat.h>

#include "base/arena.h"
#include "eval/prompts/questions_case.h"
#include "fuzz.h"

static const char *new_data(const char *task)
{
    const char *folder = scratch_folder();
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, task);
    assert_int_equal(mkdir(path, 0777), 0);
    return folder;
}

/* Writes DATA/task/name, where name may lie in one more folder. */
static void put(const char *data, const char *task, const char *name, const char *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", data, task, name);
    for (char *slash = path + strlen(data) + strlen(task) + 2; (slash = strchr(slash, '/'));
         slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    snprintf(path, sizeof path, "%s/%s", data, task);
    write_file(path, name, bytes);
}

static cpl_status read_with(cpl_questions *q, const cpl_task *task, const char *profile,
                            const cpl_questions_options *options)
{
    const cpl_profile *chosen;
    assert_ok(cpl_task_profile(&chosen, task, NULL, profile, NULL));
    return cpl_questions_read(q, task, chosen, options);
}

/* ---- a member that lacks, or is of another kind ---- */

#define MMLU_PRO_ROW                                                                               \
    "{\"question\": \"q\", \"options\": [\"a\", \"b\"], \"answer\": \"A\", "                       \
    "\"answer_index\": 0, \"category\": \"law\"}"

typedef struct kind_of_row {
    const char *task, *profile, *file;
    const char *before, *behind; /* what stands around the rows of a JSON file; NULL: lines */
    const char *row;             /* a good one */
    const char *members;         /* that it must have, with blanks between */
    const char *wrong;           /* a member and a value for which there is no option; NULL */
    const char *others[4];       /* files that are wanted besides, and their content */
} kind_of_row;

#define NESTED                                                                                     \
    "{\"question\": {\"stem\": \"Q\", \"choices\": [{\"text\": \"a\", \"label\": \"A\"}, "         \
    "{\"text\": "                                                                                  \
    "\"b\", \"label\": \"B\"}]}, \"answerKey\": \"A\"}"
#define CANARY "c\n---\nE.\n\nQ: a\nA: Let's think step by step.\nSo the answer is b.\n"

static const kind_of_row kinds[] = {
    {"arc_challenge",
     "harness",
     "ARC-Challenge-Test.jsonl",
     NULL,
     NULL,
     NESTED,
     "question answerKey",
     "\"answerKey\": \"E\"",
     {0}},
    {"arc_challenge",
     "harness",
     "ARC-Challenge-Test.jsonl",
     NULL,
     NULL,
     "{\"question\": \"Q\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", \"B\"]}, "
     "\"answerKey\": \"A\"}",
     "choices",
     "\"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\"]}",
     {0}},
    {"commonsense_qa",
     "inloop",
     "dev_rand_split.jsonl",
     NULL,
     NULL,
     NESTED,
     "question answerKey",
     "\"answerKey\": \"a\"",
     {0}},
    {"copa",
     "inloop",
     "val.jsonl",
     NULL,
     NULL,
     "{\"premise\": \"P.\", \"choice1\": \"A\", \"choice2\": \"B\", \"question\": \"cause\", "
     "\"label\": 0}",
     "premise choice1 choice2 question label",
     "\"label\": 2",
     {0}},
    {"copa",
     "inloop",
     "val.jsonl",
     NULL,
     NULL,
     "{\"premise\": \"P.\", \"choice1\": \"A\", \"choice2\": \"B\", \"question\": \"cause\", "
     "\"label\": 0}",
     "",
     "\"question\": \"why\"",
     {0}},
    {"boolq",
     "harness",
     "val.jsonl",
     NULL,
     NULL,
     "{\"question\": \"q\", \"passage\": \"P\", \"label\": true}",
     "question passage label",
     "\"label\": \"maybe\"",
     {0}},
    {"hellaswag",
     "inloop",
     "hellaswag_val.jsonl",
     NULL,
     NULL,
     "{\"activity_label\": \"A\", \"ctx_a\": \"B\", \"endings\": [\"a\", \"b\"], \"label\": 0}",
     "activity_label ctx_a endings label",
     "\"label\": 2",
     {0}},
    {"openbookqa",
     "harness",
     "Main/test.jsonl",
     NULL,
     NULL,
     NESTED,
     "question answerKey",
     "\"answerKey\": \"F\"",
     {0}},
    {"sciq",
     "inloop",
     "valid.json",
     "[",
     "]",
     "{\"question\": \"q\", \"distractor1\": \"a\", \"distractor2\": \"b\", \"distractor3\": "
     "\"c\", "
     "\"correct_answer\": \"d\", \"support\": \"s\"}",
     "question distractor1 distractor2 distractor3 correct_answer",
     NULL,
     {0}},
    {"social_iqa",
     "inloop",
     "dev.jsonl",
     NULL,
     NULL,
     "{\"context\": \"c\", \"question\": \"q\", \"answerA\": \"a\", \"answerB\": \"b\", "
     "\"answerC\": \"c\", "
     "\"label\": \"1\"}",
     "context question answerA answerB answerC label",
     "\"label\": \"4\"",
     {0}},
    {"winogrande",
     "inloop",
     "dev.jsonl",
     NULL,
     NULL,
     "{\"sentence\": \"a _ b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"1\"}",
     "sentence option1 option2 answer",
     "\"answer\": \"3\"",
     {0}},
    {"winogrande",
     "inloop",
     "dev.jsonl",
     NULL,
     NULL,
     "{\"sentence\": \"a _ b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"1\"}",
     "",
     "\"sentence\": \"no gap\"",
     {0}},
    {"mmlu_pro",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     MMLU_PRO_ROW,
     "question options category answer",
     "\"options\": [\"a\"]",
     {0}},
    {"mmlu_pro", "harness", "test.jsonl", NULL, NULL, MMLU_PRO_ROW, "", "\"answer\": \"D\"", {0}},
    {"mmlu_pro", "harness", "test.jsonl", NULL, NULL, MMLU_PRO_ROW, "", "\"answer\": \"K\"", {0}},
    {"mmlu_pro", "harness", "test.jsonl", NULL, NULL, MMLU_PRO_ROW, "", "\"answer_index\": 1", {0}},
    {"mmlu_pro", "harness", "test.jsonl", NULL, NULL, MMLU_PRO_ROW, "", "\"answer\": \"\"", {0}},
    {"agieval",
     "harness",
     "v1/sat-en.jsonl",
     NULL,
     NULL,
     "{\"passage\": null, \"question\": \"q\", \"options\": [\"(A)x\", \"(B)y\"], \"label\": "
     "\"A\"}",
     "question options label",
     "\"label\": [\"A\", \"C\"]",
     {0}},
    {"agieval",
     "harness",
     "v1/math.jsonl",
     NULL,
     NULL,
     "{\"passage\": null, \"question\": \"q\", \"options\": null, \"answer\": \"1\"}",
     "question answer",
     NULL,
     {0}},
    {"bbh",
     "harness",
     "navigate.json",
     "{\"canary\": \"c\", \"examples\": [",
     "]}",
     "{\"input\": \"i\", \"target\": \"t\"}",
     "input target",
     NULL,
     {"cot-prompts/navigate.txt", CANARY}},
    {"math",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"problem\": \"p\", \"type\": \"Algebra\", \"solution\": \"\\\\boxed{1}\"}",
     "problem type solution",
     "\"solution\": \"1\"",
     {0}},
    {"gsm8k",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"question\": \"q\", \"answer\": \"#### 1\"}",
     "question answer",
     NULL,
     {0}},
    {"gsm8k_cot",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"question\": \"q\", \"answer\": \"#### 1\"}",
     "question answer",
     "\"answer\": \"1\"",
     {0}},
    {"gsm8k",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"question\": \"q\", \"answer\": \"#### 1\"}",
     "",
     "\"answer\": \"1\"",
     {0}},
    {"gsm8k",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"question\": \"q\", \"answer\": \"#### 1\"}",
     "",
     "\"answer\": \"so\\n#### \"",
     {0}},
    {"gsm8k_cot",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"question\": \"q\", \"answer\": \"#### 1\"}",
     "",
     "\"answer\": \"so\\n#### \"",
     {0}},
    {"math",
     "harness",
     "test.jsonl",
     NULL,
     NULL,
     "{\"problem\": \"p\", \"type\": \"Algebra\", \"solution\": \"\\\\boxed{1}\"}",
     "",
     "\"solution\": \"so $\\\\boxed{}$\"",
     {0}},
    {"agieval",
     "harness",
     "v1/math.jsonl",
     NULL,
     NULL,
     "{\"passage\": null, \"question\": \"q\", \"options\": null, \"answer\": \"1\"}",
     "",
     "\"answer\": \" \"",
     {0}},
    {"bbh",
     "harness",
     "navigate.json",
     "{\"canary\": \"c\", \"examples\": [",
     "]}",
     "{\"input\": \"i\", \"target\": \"t\"}",
     "",
     "\"target\": \"\"",
     {"cot-prompts/navigate.txt", CANARY}},
    {"triviaqa",
     "harness",
     "qa/web-dev.json",
     "{\"Data\": [",
     "]}",
     "{\"Question\": \"q\", \"Answer\": {\"Value\": \"v\", \"Aliases\": [\"v\"]}}",
     "Question Answer",
     "\"Answer\": {\"Aliases\": []}",
     {"qa/wikipedia-dev.json", "{\"Data\": []}"}},
};

/* Good rows on lines 1 and 3, and `second` on line 2. */
static void put_rows(const char *data, const kind_of_row *k, const char *second)
{
    cpl_text text     = {0};
    const char *comma = k->before ? "," : "";
    cpl_text_printf(&text, "%s%s%s\n%s%s\n%s%s\n", k->before ? k->before : "", k->row, comma,
                    second, comma, k->row, k->behind ? k->behind : "");
    put(data, k->task, k->file, text.bytes);
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

static void check_wrong(const cpl_task *task, const kind_of_row *k, const char *data)
{
    char member[256];
    json_t *row = json_loads(k->row, 0, NULL);
    snprintf(member, sizeof member, "{%s}", k->wrong);
    json_t *other = json_loads(member, 0, NULL);
    assert_int_equal(json_object_update(row, other), 0);
    char *text = json_dumps(row, 0);
    check_bad(task, k, data, text);
    free(text);
    json_decref(other);
    json_decref(row);
}

static void test_members(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const kind_of_row *k = &kinds[i];
        cpl_task *task       = built_in(k->task);
        const char *data     = new_data(k->task);
        char members[128];
        if (k->others[0]) put(data, k->task, k->others[0], k->others[1]);
        snprintf(members, sizeof members, "%s", k->members);
        for (char *name = strtok(members, " "); name; name = strtok(NULL, " "))
            check_member(task, k, data, name);
        if (k->wrong) check_wrong(task, k, data);
        if (!k->before) check_bad(task, k, data, "{\"cut\": ");
        if (!k->before) check_bad(task, k, data, "[]");
        cpl_task_free(task);
    }
}

/* ---- prompts ---- */

/* A prompt that is there and none is told by its name; only where there is none the program's own is
 * taken. What no folder has is missing from the user's. */
static void test_prompts(void **state)
{
    (void)state;
    static const char rows[] =
        "{\"canary\": \"c\", \"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}";
    static const char *const damaged[] = {
        "",           "E.\n\nQ: a\nA: b\n", "c\n---\n", "c\n---\n\n \n", "c\n---\nE.\n\xff\xfe\n",
        "\x89PNG\r\n"};
    cpl_task *bbh = built_in("bbh");
    char data[256];
    snprintf(data, sizeof data, "%s", new_data("bbh"));
    put(data, "bbh", "navigate.json", rows);
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
    put(own, "bbh", "cot-prompts/navigate.txt", CANARY);
    assert_ok(read_with(&q, bbh, "harness", &options));
    cpl_questions_free(&q);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put(data, "bbh", "cot-prompts/navigate.txt", damaged[i]);
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

static void expect(const cpl_task *task, const char *profile, const cpl_questions_options *options,
                   const char *sentence)
{
    cpl_questions q;
    cpl_status status = read_with(&q, task, profile, options);
    if (status == CPL_OK || !strstr(cpl_last_error(), sentence))
        fail_msg("says \"%s\", not \"%s\"", status ? cpl_last_error() : "nothing", sentence);
    assert_null(q.store);
}

/* All tasks: no file, an empty one, one of another form. */
static void test_files(void **state)
{
    (void)state;
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
        if (k->others[0]) put(data, k->task, k->others[0], k->others[1]);
        put(data, k->task, k->file, "");
        cpl_status status = read_with(&q, task, k->profile, &options);
        if (k->before) assert_non_null(strstr(cpl_last_error(), k->file));
        if (!k->before) assert_true(status == CPL_OK && q.count == 0);
        cpl_questions_free(&q);
        put(data, k->task, k->file, "\x89PNG\r\n\x1a\n\x01\x02\x03");
        expect(task, k->profile, &options, k->file);
        cpl_task_free(task);
    }
}

static void test_csv(void **state)
{
    (void)state;
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
         "1,q,1,2,3,C\n", "the field d: there is no text at D"},
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
        put(data, all[i].task, all[i].test, text);
        expect(task, "harness", &options, all[i].sentence);
        cpl_task_free(task);
    }
}

static void test_exemplars(void **state)
{
    (void)state;
    cpl_task *mmlu                = built_in("mmlu");
    const char *data              = new_data("mmlu");
    cpl_questions_options options = options_of(data);
    put(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    expect(mmlu, "harness", &options, "mmlu: there are no rows of the split dev");
    put(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\nq,1,2,3,4,B\n");
    expect(mmlu, "harness", &options,
           "5 few-shot examples are wanted, and the split dev has 2 of the subject anatomy");
    put(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\nq,1,2,3,4,G\n");
    options.shots = 2;
    expect(mmlu, "harness", &options,
           "dev/anatomy_dev.csv: line 2: the right answer \"G\" is none of its 4 options");
    options.shots = -5;
    expect(mmlu, "harness", &options, "has no few-shot examples, and -5 are wanted");
    cpl_task_free(mmlu);
    cpl_task *arc = built_in("arc_challenge");
    options.shots = 1;
    expect(arc, "inloop", &options,
           "the profile inloop has no few-shot examples, and 1 are wanted");
    cpl_task_free(arc);
    cpl_task *bbh = built_in("bbh");
    expect(bbh, "harness", &options,
           "bbh: the 3 few-shot examples of harness are a file of their own and cannot be 1");
    data = new_data("bbh");
    put(data, "bbh", "navigate.json", "{\"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}");
    options = options_of(data);
    expect(bbh, "harness", &options, "cot-prompts/navigate.txt");
    put(data, "bbh", "cot-prompts/navigate.txt", "one\n");
    expect(bbh, "harness", &options, "cot-prompts/navigate.txt: holds no prompt");
    put(data, "bbh", "cot-prompts/navigate.txt", "one\ntwo\nthree\n");
    expect(bbh, "harness", &options,
           "cot-prompts/navigate.txt: line 2: the canary and a line of hyphens");
    put(data, "bbh", "navigat.json", "{\"examples\": [{\"input\": \"i\", \"target\": \"t\"}]}");
    expect(bbh, "harness", &options,
           "bbh/navigat.json: line 1: bbh has no subject navigat; did you mean navigate?");
    cpl_task_free(bbh);
}

/* A bad row is no exemplar: it is counted, and the next good one is shown in its place. */
static void test_bad_exemplars(void **state)
{
    (void)state;
    cpl_task *mmlu = built_in("mmlu"), *gsm8k = built_in("gsm8k");
    const char *data              = new_data("mmlu");
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.skip_bad = true;
    options.shots    = 2;
    put(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    put(data, "mmlu", "test/virology_test.csv", "q,1,2,3,4,A\n");
    put(data, "mmlu", "dev/anatomy_dev.csv",
        "x1,1,2,3,4,A\nx2,1,2,3,4,G\nx3,1,2\nx4,1,2,3,4,B\nx5,1\n");
    put(data, "mmlu", "dev/virology_dev.csv", "y1,1,2,3,4,A\ny2,1,2,3,4,B\n");
    assert_ok(read_with(&q, mmlu, "harness", &options));
    assert_int_equal(q.skipped, 2); /* of x5 nothing has to be known */
    assert_non_null(strstr(q.question[0].options[0].context, "\n\nx1\nA. 1"));
    assert_null(strstr(q.question[0].options[0].context, "x2"));
    assert_non_null(strstr(q.question[0].options[0].context, "\n\nx4\nA. 1"));
    assert_non_null(strstr(q.question[1].options[0].context, "\n\ny2\nA. 1"));
    cpl_questions_free(&q);
    options.shots = 3;
    expect(mmlu, "harness", &options,
           "3 few-shot examples are wanted, and the split dev has 2 of the subject anatomy");
    data         = new_data("gsm8k");
    options.data = data;
    put(data, "gsm8k", "test.jsonl", "{\"question\": \"q\", \"answer\": \"#### 1\"}\n");
    put(data, "gsm8k", "train.jsonl",
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
static void test_names_of_files(void **state)
{
    (void)state;
    cpl_task *mmlu = built_in("mmlu");
    char data[256], path[300];
    snprintf(data, sizeof data, "%s/Fr\xFChling", scratch_folder());
    assert_int_equal(mkdir(data, 0777), 0);
    snprintf(path, sizeof path, "%s/mmlu", data);
    assert_int_equal(mkdir(path, 0777), 0);
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.shots = 1;
    put(data, "mmlu", "test/anatomy_test.csv", "q,1,2,3,4,A\n");
    put(data, "mmlu", "dev/anatomy_dev.csv", "q,1,2,3,4,A\n");
    assert_ok(read_with(&q, mmlu, "harness", &options));
    assert_int_equal(q.count, 1);
    cpl_questions_free(&q);
    put(data, "mmlu", "test/\xFC_test.csv", "q,1,2,3,4,A\n");
    expect(mmlu, "harness", &options,
           "_test.csv: a subject is called as its file, and this name is not UTF-8");
    cpl_task_free(mmlu);
}

static void test_labels(void **state)
{
    (void)state;
    static const char row[] =
        "{\"context\": \"c\", \"question\": \"q\", \"answerA\": \"a\", \"answerB\": "
        "\"b\", \"answerC\": \"c\"}\n";
    cpl_task *task                      = built_in("social_iqa");
    const char *data                    = new_data("social_iqa");
    const cpl_questions_options options = options_of(data);
    char rows[512];
    snprintf(rows, sizeof rows, "%s%s", row, row);
    put(data, "social_iqa", "dev.jsonl", rows);
    expect(task, "inloop", &options,
           "dev.jsonl: line 1: the field key: the field raw: there is no text at correct or label");
    put(data, "social_iqa", "dev-labels.lst", "1\n");
    expect(task, "inloop", &options, "dev.jsonl: line 2: the labels end before this row");
    put(data, "social_iqa", "dev-labels.lst", "1\n2\n3\n");
    expect(task, "inloop", &options, "dev.jsonl: fewer rows than its labels have lines");
    put(data, "social_iqa", "dev-labels.lst", "1\n7\n\n");
    expect(task, "inloop", &options,
           "dev.jsonl: line 2: the field key: \"7\" is not in the table of key");
    cpl_task_free(task);
}

/* ---- what is left out is told ---- */

static char heard[1024];

static void hear(void *ctx, cpl_log_level level, const char *sentence)
{
    (void)ctx;
    assert_int_equal(level, CPL_LOG_WARN);
    snprintf(heard, sizeof heard, "%s", sentence);
}

static void test_log(void **state)
{
    (void)state;
    cpl_task *task                = built_in("gsm8k");
    const char *data              = new_data("gsm8k");
    const cpl_log log             = {.say = hear};
    cpl_questions_options options = options_of(data);
    cpl_questions q;
    options.skip_bad = true;
    options.log      = &log;
    options.shots    = 0;
    put(data, "gsm8k", "test.jsonl",
        "{\"question\": \"q\", \"answer\": \"#### 1\"}\n{\"question\": \"q\"}\n"
        "{\"question\": \"r\", \"answer\": \"#### 1\"}\n");
    assert_ok(read_with(&q, task, "harness", &options));
    assert_non_null(
        strstr(heard, "test.jsonl: line 2: the field answer: there is no text at answer"));
    assert_non_null(strstr(heard, "; the row is left out"));
    assert_string_equal(q.question[1].id, "2"); /* the bad row keeps its place */
    cpl_questions_free(&q);
    cpl_task_free(task);
}

/* ---- damage ---- */

/* Any bytes are questions or a sentence with the file's name. */
static void test_fuzz(void **state)
{
    (void)state;
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
        if (k->others[0]) put(data, k->task, k->others[0], k->others[1]);
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
        put(data, k->task, k->file, "");
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
static void test_memory(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),       cmocka_unit_test(test_members),
        cmocka_unit_test(test_files),         cmocka_unit_test(test_csv),
        cmocka_unit_test(test_labels),        cmocka_unit_test(test_exemplars),
        cmocka_unit_test(test_bad_exemplars), cmocka_unit_test(test_names_of_files),
        cmocka_unit_test(test_log),           cmocka_unit_test(test_fuzz),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
