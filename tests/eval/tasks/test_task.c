/* Task files: the built-in ones, what is wrong with others, damage. */
#include <math.h>

#include "base/arena.h"
#include "eval/prompts/questions.h"
#include "eval/run/runner.h"
#include "eval/tasks/task_internal.h"
#include "fuzz.h"
#include "settings/settings.h"
#include "settings/yaml_tree.h"

/* ---- the built-in ones ---- */

static cpl_task *built_in(size_t i)
{
    cpl_task *task = NULL;
    assert_ok(cpl_task_parse(&task, cpl_task_texts[i].id, cpl_task_texts[i].bytes,
                             cpl_task_texts[i].length, cpl_request_kinds));
    return task;
}

/* The first table of the protocols: default profile of a set, split, exemplars, headline, chance. */
static const struct {
    const char *id, *set, *profile, *split, *shots, *headline;
    double chance;
} table[] = {
    {"arc_challenge", "3b", "inloop", "validation", "0", "len_norm", 25},
    {"commonsense_qa", "3b", "inloop", "validation", "0", "len_norm", 20},
    {"copa", "3b", "inloop", "validation", "0", "acc", 50},
    {"boolq", "3b", "inloop", "validation", "0", "acc", 50},
    {"hellaswag", "3b", "inloop", "validation", "0", "len_norm", 25},
    {"openbookqa", "3b", "inloop", "validation", "0", "len_norm", 25},
    {"sciq", "3b", "inloop", "validation", "0", "acc", 25},
    {"social_iqa", "3b", "inloop", "validation", "0", "len_norm", 33.3},
    {"winogrande", "3b", "inloop", "validation", "0", "acc", 50},
    {"mmlu", "3b", "inloop", "validation", "0-5", "len_norm", 25},
    {"mmlu", "15b", "harness", "test", "5", "acc", 25},
    {"ceval", "15b", "harness", "validation", "5", "acc", 25},
    {"mmlu_pro", "15b", "harness", "test", "5", "exact_match", 11.1},
    {"agieval", "15b", "harness", "test", "0", "acc", 26.3},
    {"bbh", "15b", "harness", "test", "3", "exact_match", 25.7},
    {"math", "15b", "harness", "test", "4", "exact_match", 0},
    {"gsm8k", "15b", "harness", "test", "5", "exact_match", 0},
    {"gsm8k_cot", NULL, "harness", "test", "8", "exact_match", 0},
    {"triviaqa", "15b", "harness", "validation", "5", "exact_match", 0},
};

static void test_table(void **state)
{
    (void)state;
    const char *last = "";
    size_t seen = 0, unlicensed = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].id, last) != 0) seen++;
        last           = table[i].id;
        cpl_task *task = built_in(seen - 1);
        const cpl_profile *p;
        assert_string_equal(task->id, table[i].id);
        assert_ok(cpl_task_profile(&p, task, table[i].set, NULL, NULL));
        assert_string_equal(p->name, table[i].profile);
        assert_string_equal(p->split, table[i].split);
        assert_string_equal(p->shots, table[i].shots);
        assert_string_equal(p->metrics.at[0], table[i].headline);
        assert_near(task->chance, table[i].chance, 1e-9);
        assert_non_null(task->source);
        unlicensed += task->licence == NULL; /* their rows are not shipped */
        cpl_task_free(task);
    }
    assert_int_equal(seen, cpl_n_task_texts);
    assert_int_equal(unlicensed, 3);
}

static const cpl_group *group_of(const cpl_task *task, const char *name)
{
    const cpl_profile *profile = &task->profiles[0];
    for (int64_t i = 0; i < profile->n_groups; i++)
        if (strcmp(profile->groups[i].name, name) == 0) return &profile->groups[i];
    fail_msg("%s has no group %s", task->id, name);
    return NULL;
}

static void test_groups(void **state)
{
    (void)state;
    static const struct {
        size_t task;
        const char *group;
        int64_t subjects;
        const char *metric;
    } all[] = {{9, "mmlu_stem", 18, NULL},
               {9, "mmlu_humanities", 13, NULL},
               {9, "mmlu_social_sciences", 12, NULL},
               {9, "mmlu_other", 14, NULL},
               {10, "ceval_hard", 8, NULL},
               {12, "agieval_en", 10, "acc"},
               {12, "agieval_cn", 11, "acc"},
               {12, "agieval_nous", 8, "acc_norm"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cpl_task *task         = built_in(all[i].task);
        const cpl_group *group = group_of(task, all[i].group);
        assert_int_equal(group->subjects.count, all[i].subjects);
        assert_int_equal(group->metrics.count, all[i].metric != NULL);
        if (all[i].metric) assert_string_equal(group->metrics.at[0], all[i].metric);
        cpl_task_free(task);
    }
}

static void test_profiles(void **state)
{
    (void)state;
    const cpl_profile *p;
    cpl_task *mmlu = built_in(9);
    assert_ok(cpl_task_profile(&p, mmlu, NULL, NULL, NULL));
    assert_string_equal(p->name, "inloop");
    assert_int_equal(p->headline, CPL_OF_GROUPS);
    assert_string_equal(p->shots, "0-5");
    assert_ok(cpl_task_profile(&p, mmlu, "15b", "inloop", "mc_5shot"));
    assert_string_equal(p->name, "inloop/mc_5shot");
    assert_int_equal(p->headline, CPL_OF_GROUPS);
    assert_ok(cpl_task_profile(&p, mmlu, NULL, "inloop", "mc_5shot_test"));
    assert_string_equal(p->split, "test");
    assert_string_equal(p->metrics.at[0], "acc");
    assert_ok(cpl_task_profile(&p, mmlu, NULL, "harness", NULL));
    assert_int_equal(p->headline, CPL_OF_QUESTIONS);
    assert_fails(CPL_ERR_INPUT, "mmlu: there is no profile harnes; did you mean harness?",
                 cpl_task_profile(&p, mmlu, NULL, "harnes", NULL));
    assert_fails(CPL_ERR_INPUT,
                 "mmlu: there is no profile inloop/seventh; there are inloop, inloop/test",
                 cpl_task_profile(&p, mmlu, NULL, "inloop", "seventh"));
    cpl_task_free(mmlu);
    cpl_task_free(NULL);
}

/* ---- what is wrong ---- */

#define HEAD          "task: t\nsplits: {a: a.jsonl, b: b.jsonl}\nfields: {q: q, l: \"l[]\", k: k}\n"
#define KNOWN         HEAD "subject: \"{q}\"\nsubjects: [law, math]\n"
#define RANK          "choices: l\ngold: {value: k, among: letters}\n"
#define PROFILE(keys) "profiles:\n    p: {split: a, context: \"{q}\"" keys "}\n"

static const struct {
    const char *file, *sentence;
} wrong[] = {
    {"", "t.yaml:1:1: a task is a mapping"},
    {"[1]", "t.yaml:1:1: a task is a mapping"},
    {"task: T\n", "t.yaml:1:1: an id is made of lower-case letters"},
    {"title: x\n", "t.yaml:1:1: task: what is its id?"},
    {"task: [a]\n", "t.yaml:1:1: task is a text"},
    {"task: t\nsplit: a\n", "t.yaml:2:1: there is no key of a task split; did you mean splits?"},
    {"task: t\n", "t.yaml:1:1: fields: what is read of a row?"},
    {"task: t\nfields: {q: q}\n", "splits: which files hold the rows?"},
    {"task: t\nchance: 101\n", "t.yaml:2:1: chance is a number of percent, not 101"},
    {"task: t\nfields: {q: q}\nsplits: {a: a.txtt}\n",
     "t.yaml:3:10: a.txtt: a file ends in .jsonl"},
    {"task: t\nfields: {q: q}\nsplits: {a: ../a.csv}\n", "files lie below the folder of the data"},
    {"task: t\nfields: {q: q}\nsplits: {a: {fils: a.csv}}\n", "did you mean files?"},
    {"task: t\nfields: {q: q}\nsplits: {a: {files: a.csv, headless: maybe}}\n",
     "there is no headless maybe"},
    {"task: t\nfields: {q: q}\nsplits: {a: {files: a.xml}}\n",
     "member: which elements of the XML file"},
    {"task: t\nfields: {q: q}\nsplits: {a: []}\n", "the split a has no file"},
    {"task: t\nfields: {q: q}\nsubject: file\nsplits: {a: a.csv}\n", "subject: file needs one *"},
    {"task: t\nfields: {q: q}\nsubject: file\nsplits: {a: \"*/a.csv\"}\n",
     "subject: file needs one *"},
    {"task: t\nfields: {q: q}\ngroups: {x: [y]}\n",
     "subjects and groups need to know what a subject is"},
    {"task: t\nfields: {q: q}\nsubject: \"{q}\"\nsubjects: {x: {a: b}, y: {c: d}}\n",
     "y has no text a"},
    {HEAD, "profiles: missing"},
    {HEAD "profiles: {p: 3}\n", "t.yaml:4:12: a profile is a mapping"},
    {HEAD "profiles: {p: {contxt: x}}\n", "did you mean context?"},
    {HEAD "profiles: {p: {context: x}}\n",
     "t.yaml:4:12: split: missing; it names the split with the questions"},
    {HEAD "profiles: {p: {split: c, context: x}}\n", "t.yaml:4:16: there is no split c"},
    {HEAD "profiles: {p: {split: a}}\n", "context: what is the model given?"},
    {HEAD "profiles: {\"x/y\": {split: a}}\n", "there is no profile x, from which x/y takes"},
    {HEAD "profiles: {p: {like: r}, r: {like: p}}\n", "p is like itself"},
    {HEAD PROFILE(""), "t.yaml:5:5: choices: what are the options of a question?"},
    {HEAD "choices: l\n" PROFILE(""), "gold: which option is the right one?"},
    {HEAD "choices: q\ngold: 1\n" PROFILE(""), "t.yaml:4:1: q is a text, and a list is needed"},
    {HEAD "choices: q\ngold: 1\n" PROFILE(""), "its path ends in []: q: \"q[]\""},
    {"task: t\nsplits: {a: a.csv}\nfields:\n  q: q\n  choices: opts\ngold: 1\n" PROFILE(""),
     "t.yaml:5:3: choices is a text, and a list is needed; where opts is a list in the rows, its "
     "path ends in []: choices: \"opts[]\""},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: q}\ngold: 1\nprofiles:\n  p:\n    split: a\n"
     "    context: x\n    fields: {choices: opts}\n",
     "t.yaml:9:14: choices is a text"},
    {HEAD "choices: m\ngold: 1\n" PROFILE(""), "t.yaml:4:1: there is no field m"},
    {HEAD "choices: l\ngold: 26\n" PROFILE(""), "gold is a whole number from 0 to 25, not 26"},
    {HEAD "choices: l\ngold: -1\n" PROFILE(""),
     "t.yaml:5:1: gold is a whole number from 0 to 25, not -1"},
    {HEAD "choices: l\ngold: {value: k}\n" PROFILE(""),
     "gold is a place, or {value: FIELD, among: LIST}"},
    {HEAD "choices: l\ngold: {value: x, among: l}\n" PROFILE(""),
     "t.yaml:5:1: there is no field x"},
    {HEAD "choices: l\ngold: {value: k, among: q}\n" PROFILE(""),
     "q is a text, and a list is needed"},
    {HEAD RANK PROFILE(", shots: 2"), "the 2 few-shot examples need exemplars: a split"},
    {HEAD RANK PROFILE(", shots: many"), "shots are none or a number up to 64, not many"},
    {HEAD RANK PROFILE(", exemplars: a"), "a question would be among its own few-shot examples"},
    {HEAD RANK PROFILE(", ask: rang"), "there is no ask rang; did you mean rank?"},
    {HEAD RANK PROFILE(", scores: [acc, ac_norm]"),
     "there is no score ac_norm; did you mean acc_norm?"},
    {HEAD RANK PROFILE(", scores: [bpb]"), "bpb is of the right option alone"},
    {HEAD RANK PROFILE(", metrics: [acc, exact]"), "there is no metric exact"},
    {HEAD RANK PROFILE(", metrics: [soft]"), "t.yaml:7:35: soft is made of the headline's scores, "
                                             "and soft, which is first, is no score "
                                             "of the profile"},
    {HEAD RANK PROFILE(", metrics: [bpb, soft]"), "and bpb, which is first"},
    {HEAD RANK PROFILE(", scores: [acc], metrics: [acc, acc_norm]"),
     "acc_norm is not among the scores of the profile"},
    {KNOWN RANK "groups: {x: [maths]}\n" PROFILE(""),
     "t.yaml:8:14: t has no subject maths; did you mean math?"},
    {KNOWN RANK PROFILE(", cases: [{subjects: [law, mats]}]"),
     "t has no subject mats; did you mean math?"},
    {KNOWN RANK PROFILE(", cases: [{subjects: lav}]"), "t has no subject lav; did you mean law?"},
    {KNOWN RANK PROFILE(", cases: [{subjects: law, ask: generate, target: \"{q}\"}]"),
     "the case of law generates text, and none of its answers is called acc: write answers: {acc:"},
    {KNOWN RANK PROFILE(", cases: [{subjects: law, scores: [acc_bytes]}]"),
     "acc is not among the scores of the case of law"},
    {KNOWN
     "profiles: {p: {split: a, ask: generate, context: x, target: y, metrics: filters, answers: "
     "{m: {}}, cases: [{subjects: law, answers: {n: {}}}]}}\n",
     "metrics: filters: the case of law has other answers than the profile"},
    {"task: t\nfields: {q: q}\nsubject: \"{q}\"\nsubjects: 3\n",
     "subjects is a list, or a mapping from a subject to values"},
    {HEAD RANK PROFILE(", window: -1"), "window is a whole number from 1 to 16777216, not -1"},
    {HEAD RANK PROFILE(", window: 12x"), "window is a whole number"},
    {HEAD RANK PROFILE(", tokens: join"), "did you mean joint?"},
    {HEAD RANK PROFILE(", option: \"{p}\""), "there is no field p"},
    {HEAD RANK PROFILE(", option: \"{l}\""), "{l} is a list, and a text is needed"},
    {HEAD RANK PROFILE(", description: \"{choice}\""), "there is no field choice"},
    {HEAD RANK PROFILE(", option: \"{q|upper}\""),
     "there is no transformation upper; there are strip, lstrip"},
    {HEAD RANK PROFILE(", option: \"{q|before}\""), "before needs a text after it"},
    {HEAD RANK PROFILE(", option: \"{q|strip:x}\""), "strip takes nothing after it"},
    {HEAD RANK PROFILE(", option: \"{q|replace:x}\""),
     "replace needs a text after it: \":TEXT=WITH\""},
    {HEAD RANK PROFILE(", option: \"{q|lines}\""), "makes a list, and a text is needed"},
    {HEAD RANK PROFILE(", option: \"{q\""), "is not closed"},
    {HEAD RANK PROFILE(", option: \"q}\""), "closes nothing"},
    {HEAD RANK PROFILE(", option: \"{}\""), "holds no name"},
    {HEAD RANK PROFILE(", lists: {q: x}, option: \"{q}\""), "lists: q is a field already"},
    {HEAD RANK PROFILE(", lists: {m: {every: x}}"), "there is no key of a list of options every"},
    {HEAD RANK PROFILE(", lists: {m: \"{x}\"}, option: \"{m}\""), "there is no field x"},
    {HEAD RANK PROFILE(", context_as: options"), "a context is a text, not a list"},
    {HEAD RANK PROFILE(", forms: [cf]"), "t: there is no profile p/cf"},
    {HEAD RANK PROFILE(", headline: groups"), "the task has no groups"},
    {HEAD RANK PROFILE(", cases: [{subjects: x}]"), "cases are of subjects, and the task has none"},
    {HEAD RANK PROFILE(", prompt: {file: p.txt, as: bb}"), "did you mean bbh?"},
    {HEAD RANK "default: q\n" PROFILE(""), "t.yaml:6:1: t: there is no profile q"},
    {HEAD RANK "default: {3b: p}\n" PROFILE(""), "3b is not among its sets"},
    {HEAD RANK "sets: [3b, 4b]\n" PROFILE(""),
     "t.yaml:6:12: there is no set of the paper 4b; did you mean 3b?"},
    {HEAD RANK "sets: paper\n" PROFILE(""),
     "there is no set of the paper paper; there are 3b, 15b"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x}}\n",
     "an answer needs a reference, or the profile a target"},
    {HEAD "profiles: {p: {split: a, ask: [x], context: \"{choice}\", target: x}}\n",
     "ask is a text"},
    {"task: t\nsplits: {a: {files: a.csv, subject: [x]}}\nfields: {q: q}\n" PROFILE(""),
     "subject is file, none or a text"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: \"{choice}\", target: x}}\n",
     "{choice} is of options, and text is generated"},
    {HEAD
     "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {a_stderr: {}}}}\n",
     "answers: \"a_stderr\" is no name"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {<b>: {}}}}\n",
     "answers: \"<b>\" is no name"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filtr: "
          "none}}}}\n",
     "there is no key of a answer filtr; did you mean filter?"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "P1}}}}\n",
     "there is no filter P1"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "{regex_pattern: '(a'}}}}}\n",
     "t.yaml:4:87: the pattern (a is wrong at its byte 3: "},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "{regex: a}}}}}\n",
     "there is no key of a filter regex; there are regex_pattern"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "{group_select: 0}}}}}\n",
     "a filter is a name, or {regex_pattern: PATTERN}"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "[]}}}}\n",
     "a filter has 1 to 4 patterns"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "[{regex_pattern: a, group_select: 1}]}}}}\n",
     "group_select is a whole number from -1 to 0, not 1"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, until: [\"\"]}}\n",
     "an empty stop string"},
    {"task: t\nsplits: {a: a.csv}\nfields: {choice: q}\n" PROFILE(""), "that name is the engine's"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: {text: \"{r}\"}, r: {text: \"{q}\"}}\n" PROFILE(""),
     "is made of itself, or of one that is"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: {text: \"{r}\"}}\n" PROFILE(""),
     "t.yaml:3:10: there is no field r"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: [a, \"b[]\"]}\n" PROFILE(""), "are lists in part"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: \"a[].b[]\"}\n" PROFILE(""), "[] is there twice"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: \"a..b\"}\n" PROFILE(""), "a member without a name"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: \"a[x]\"}\n" PROFILE(""), "after a name comes []"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: {look_up: a, in: {}}}\n" PROFILE(""),
     "look_up needs a table"},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: {tekst: a}}\n" PROFILE(""), "did you mean text?"},
    {"task: t\nsplits: {a: {files: a.csv, fields: 3}}\nfields: {q: q}\n" PROFILE(""),
     "fields is a mapping"},
};

/* Patterns of the built-in tasks are those of named filters: the hashes of their questions stay. */
static void built_in_patterns_have_names(void **state)
{
    (void)state;
    int generated = 0;
    for (size_t i = 0; i < cpl_n_task_texts; i++) {
        cpl_task *task = built_in(i);
        for (int64_t p = 0; p < task->n_profiles; p++) {
            const cpl_resolved_profile *resolved = &task->parts->resolved[p];
            for (int64_t k = 0; k < resolved->n_specs; k++)
                for (int64_t a = 0; a < resolved->specs[k].form.n_answers; a++) {
                    const cpl_filter *filter = resolved->specs[k].form.answers[a].grading.filter;
                    assert_true(filter >= cpl_filters && filter < cpl_filters + cpl_n_filters);
                    generated++;
                }
        }
        cpl_task_free(task);
    }
    assert_true(generated > 20);
}

/* lm-evaluation-harness's words for `ask` are taken too. */
static void kinds_of_requests(void **state)
{
    (void)state;
    static const struct {
        const char *ask;
        const cpl_request_kind *kind;
    } cases[] = {{"rank", &cpl_request_kind_multiple_choice},
                 {"multiple_choice", &cpl_request_kind_multiple_choice},
                 {"generate", &cpl_request_kind_generate_until},
                 {"generate_until", &cpl_request_kind_generate_until}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[512];
        cpl_task *task = NULL;
        snprintf(file, sizeof file,
                 HEAD RANK "profiles: {p: {split: a, ask: %s, context: x, target: y}}\n",
                 cases[i].ask);
        assert_ok(cpl_task_parse(&task, "t.yaml", file, strlen(file), cpl_request_kinds));
        assert_ptr_equal(task->parts->resolved[0].specs[0].form.kind, cases[i].kind);
        cpl_task_free(task);
    }
}

static void test_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cpl_task *task    = NULL;
        cpl_status status = cpl_task_parse(&task, "t.yaml", wrong[i].file, strlen(wrong[i].file),
                                           cpl_request_kinds);
        if (status != CPL_ERR_INPUT || !strstr(cpl_last_error(), wrong[i].sentence))
            fail_msg("%s\n... says \"%s\", not \"%s\"", wrong[i].file,
                     status ? cpl_last_error() : "nothing", wrong[i].sentence);
        const char *place = strstr(cpl_last_error(), "t.yaml:");
        int line, column;
        assert_non_null(place);
        if (sscanf(place, "t.yaml:%d:%d: ", &line, &column) != 2)
            fail_msg("%s\n... has no line and column: %s", wrong[i].file, cpl_last_error());
        assert_null(strstr(place + 1, "t.yaml:")); /* it is told once */
        assert_null(task);
    }
    cpl_task *task;
    assert_int_not_equal(cpl_task_read(&task, "tests/no-such-task.yaml", cpl_request_kinds),
                         CPL_OK);
    assert_null(task);
    assert_ok(cpl_task_read(&task, "data/eval/tasks/boolq.yaml", cpl_request_kinds));
    assert_string_equal(task->id, "boolq");
    cpl_task_free(task);
}

static void test_shots(void **state)
{
    (void)state;
    static const struct {
        int64_t n, shots[7];
        const char *words;
    } lists[]     = {{1, {5}, "5"},
                     {1, {-1}, "0"},
                     {2, {0, 1}, "0,1"},
                     {3, {5, 0, 1}, "0,1,5"},
                     {3, {2, 3, 4}, "2-4"},
                     {2, {-1, 0}, "0"},
                     {7, {-1, 0, 1, 2, 3, 4, 5}, "0-5"}};
    cpl_pool pool = {0};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        assert_string_equal(cpl_task_shots_words(&pool, lists[i].shots, lists[i].n),
                            lists[i].words);
    assert_ok(cpl_pool_status(&pool));
    cpl_pool_free(&pool);
}

/* The smallest that is right: what is left out is as it is told. */
static void test_least(void **state)
{
    (void)state;
    static const char file[] = HEAD RANK PROFILE("");
    cpl_task *task;
    assert_ok(cpl_task_parse(&task, "t.yaml", file, strlen(file), cpl_request_kinds));
    assert_string_equal(task->title, "t");
    assert_true(isnan(task->chance));
    assert_null(task->source);
    assert_int_equal(task->sets.count, 0);
    assert_int_equal(task->profiles[0].metrics.count, 3);
    assert_string_equal(task->profiles[0].metrics.at[2], "acc_bytes");
    assert_string_equal(task->profiles[0].shots, "0");
    cpl_task_free(task);
}

/* The example of docs/tasks.md is a task file. */
static void test_documented(void **state)
{
    (void)state;
    char page[65536];
    FILE *in      = fopen("docs/tasks.md", "rb");
    size_t length = fread(page, 1, sizeof page - 1, in);
    fclose(in);
    page[length] = '\0';
    char *begin = strstr(page, "```yaml\n") + 8, *end = strstr(begin, "```");
    cpl_task *task;
    assert_ok(
        cpl_task_parse(&task, "docs/tasks.md", begin, (size_t)(end - begin), cpl_request_kinds));
    assert_int_equal(task->n_profiles, 2);
    cpl_task_free(task);
}

/* ---- damage ---- */

static void test_fuzz(void **state)
{
    (void)state;
    cpl_text file = {0};
    int64_t good = 0, bad = 0;
    for (fuzz f = fuzz_start(12, 3000); fuzz_next(&f);) {
        const cpl_task_text *text = &cpl_task_texts[f.round % cpl_n_task_texts];
        const cpl_text whole = {.bytes = (char *)(uintptr_t)text->bytes, .length = text->length};
        cpl_task *task;
        fuzz_damage(&f, &file, &whole);
        cpl_status status =
            cpl_task_parse(&task, "t.yaml", file.bytes, file.length, cpl_request_kinds);
        if (status != CPL_OK) assert_non_null(strstr(cpl_last_error(), "t.yaml"));
        good += status == CPL_OK;
        bad += status != CPL_OK;
        cpl_task_free(task);
    }
    if (!fuzz_is_alone()) assert_true(good > 0 && bad > 0);
    cpl_text_free(&file);
}

/* Another value in the place of one: of another kind, or one of another place. */
static json_t *other_value(fuzz *f, json_t *root)
{
    static const char *const values[] = {"[]",          "{}",   "\"x\"",   "[[\"x\"]]",
                                         "{\"x\": []}", "\"\"", "\"file\""};
    size_t i                          = fuzz_below(f, 9);
    if (i < 7) return json_loads(values[i], JSON_DECODE_ANY, NULL);
    const char *key;
    json_t *value;
    size_t wanted = fuzz_below(f, json_object_size(root));
    json_object_foreach(root, key, value) if (wanted-- == 0) return json_deep_copy(value);
    return json_array();
}

/* Goes down by chance, and puts another value there, or takes one away. */
static void change_shape(fuzz *f, json_t *root)
{
    json_t *at = root;
    for (;;) {
        size_t size = json_is_array(at) ? json_array_size(at) : json_object_size(at);
        if (!size) return;
        size_t i       = fuzz_below(f, size);
        void *iterator = json_is_object(at) ? json_object_iter(at) : NULL;
        for (size_t k = 0; iterator && k < i; k++) iterator = json_object_iter_next(at, iterator);
        json_t *below = iterator ? json_object_iter_value(iterator) : json_array_get(at, i);
        size_t inside = json_is_array(below) ? json_array_size(below) : json_object_size(below);
        if (inside && fuzz_below(f, 4)) {
            at = below;
            continue;
        }
        if (!iterator)
            json_array_set_new(at, i, other_value(f, root));
        else if (fuzz_below(f, 3))
            json_object_iter_set_new(at, iterator, other_value(f, root));
        else
            json_object_del(at, json_object_iter_key(iterator));
        return;
    }
}

/* What was read can be asked, or says why not. */
static void ask_all(const cpl_task *task)
{
    const cpl_questions_options options = {
        .data = "data/eval", .limit = 1, .shots = CPL_UNSET, .max_tokens = CPL_UNSET};
    for (int64_t i = 0; task && i < task->n_profiles; i++) {
        cpl_questions q;
        if (task->profiles[i].forms.count) continue;
        if (cpl_questions_read(&q, task, &task->profiles[i], &options) == CPL_OK)
            cpl_questions_free(&q);
        else
            assert_true(*cpl_last_error());
    }
}

/* Files of another shape, written as JSON, which is YAML too. */
static void test_shapes(void **state)
{
    (void)state;
    int64_t good = 0, bad = 0;
    for (fuzz f = fuzz_start(14, 1200); fuzz_next(&f);) {
        const cpl_task_text *text = &cpl_task_texts[f.round % cpl_n_task_texts];
        cpl_yaml_tree tree;
        cpl_task *task;
        assert_ok(cpl_yaml_tree_parse(&tree, "t", text->bytes, text->length));
        for (size_t n = 1 + fuzz_below(&f, 2); n; n--) change_shape(&f, tree.root);
        char *file        = json_dumps(tree.root, JSON_INDENT(1));
        cpl_status status = cpl_task_parse(&task, "t.yaml", file, strlen(file), cpl_request_kinds);
        if (status != CPL_OK && !strstr(cpl_last_error(), "t.yaml:"))
            fail_msg("round %lld: %s", (long long)f.round, cpl_last_error());
        good += status == CPL_OK;
        bad += status != CPL_OK;
        ask_all(task);
        cpl_task_free(task);
        free(file);
        cpl_yaml_tree_free(&tree);
    }
    if (!fuzz_is_alone()) assert_true(good > 0 && bad > 0);
}

static void test_memory(void **state)
{
    (void)state;
    for (int64_t n = 1;; n++) {
        cpl_task *task;
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_task_parse(&task, "t", cpl_task_texts[9].bytes,
                                           cpl_task_texts[9].length, cpl_request_kinds);
        cpl_alloc_fail_at(0);
        cpl_task_free(task);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_profiles),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(built_in_patterns_have_names),
        cmocka_unit_test(kinds_of_requests),
        cmocka_unit_test(test_least),
        cmocka_unit_test(test_shots),
        cmocka_unit_test(test_documented),
        cmocka_unit_test(test_fuzz),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
