/* test_questions.c - questions of task files that users write. */
#include "eval/prompts/asked.h"

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

TEST(test_own)
{
    const char *data = data_with("mine", "q.csv", "question,answers,right\nWHO,(A) he (B) she,B\n");
    const cpl_questions_options options = options_of(data);
    asked a                             = ask_own(mine, "plain", &options);
    assert_string_equal(a.task->title, "mine");
    CHECK_RANKED(&a.q.question[0], "{who} B", 1, "\nhe", "\nshe");
    assert_string_equal(a.q.question[0].unconditional, "A");
    assert_int_equal(a.q.question[0].form->window, 64);
    assert_true(a.q.question[0].form->stop_beyond);
    assert_int_equal(a.q.profile->metrics.count, 2);
    assert_string_equal(a.q.profile->metrics.at[1], "acc_uncond");
    end(&a);
    a = ask_own(mine, "made", &options);
    assert_string_equal(a.q.question[0].prompt, "WHO");
    assert_int_equal(a.q.question[0].references[0].count, 2);
    assert_string_equal(a.q.question[0].references[0].at[0], "she");
    assert_string_equal(a.q.question[0].references[0].at[1], "A=he, B=she");
    assert_string_equal(a.q.profile->metrics.at[0], "right");
    assert_int_equal(a.q.max_tokens, 256);
    end(&a);
}

/* Numbers, booleans and single values become texts and lists. A null is empty after a `?`. */
TEST(test_values)
{
    static const char task[] =
        "task: v\nsplits: {all: v.jsonl}\n"
        "fields: {a: a, b: b, c: \"c?\", d: \"d[1].x\", e: \"e[]\", f: \"f[]?\", g: g}\n"
        "profiles: {p: {split: all, ask: generate, context: \"{a} {b} {c} {d} {g}\", "
        "answers: {x: {reference: [\"{e}\", \"{f}\"]}}}}\n";
    const char *data = data_with(
        "v", "v.jsonl",
        "{\"a\":12,\"b\":true,\"c\":null,\"d\":[{},{\"x\":0.1}],\"e\":\"one\",\"g\":1e300}\n");
    const cpl_questions_options options = options_of(data);
    asked a                             = ask_own(task, "p", &options);
    assert_string_equal(a.q.question[0].prompt, "12 true  0.1 1e+300");
    assert_int_equal(a.q.question[0].references[0].count, 1);
    assert_true(a.q.question[0].listed);
    end(&a);
}

/* Offset and limit count the rows of each subject, over all files. */
TEST(test_limits)
{
    static const char task[] =
        "task: s\nsplits: {all: {files: [a.jsonl, b.jsonl]}}\n"
        "fields: {q: q, s: s}\nsubject: \"{s|slug}\"\n"
        "profiles: {p: {split: all, ask: generate, context: \"{q}\", target: x}}\n";
    const char *data = data_with(
        "s", "a.jsonl",
        "{\"q\": 1, \"s\": \"B b\"}\n{\"q\": 2, \"s\": \"A\"}\n{\"q\": 3, \"s\": \"B b\"}\n");
    put_file(data, "s", "b.jsonl", "{\"q\": 4, \"s\": \"B b\"}\n{\"q\": 5, \"s\": \"A\"}\n");
    static const struct {
        int64_t offset, limit;
        const char *ids;
    } all[] = {{0, CPL_UNSET, "a/0=2 a/1=5 b_b/0=1 b_b/1=3 b_b/2=4 "},
               {1, 1, "a/1=5 b_b/1=3 "},
               {2, CPL_UNSET, "b_b/2=4 "},
               {0, 0, ""},
               {9, 1, ""}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cpl_text ids                  = {0};
        cpl_questions_options options = options_of(data);
        options.offset                = all[i].offset;
        options.limit                 = all[i].limit;
        asked a                       = ask_own(task, "p", &options);
        for (int64_t k = 0; k < a.q.count; k++)
            cpl_text_printf(&ids, "%s=%s ", a.q.question[k].id, a.q.question[k].prompt);
        assert_string_equal(ids.bytes ? ids.bytes : "", all[i].ids);
        cpl_text_free(&ids);
        end(&a);
    }
}
