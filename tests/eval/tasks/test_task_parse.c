/* test_task_parse.c - small task files: their faults, and members that are left out. */
#include <math.h>

#include "check.h"
#include "eval/run/runner.h"
#include "eval/tasks/task_parts.h"

#define HEAD          "task: t\nsplits: {a: a.jsonl, b: b.jsonl}\nfields: {q: q, l: \"l[]\", k: k}\n"
#define KNOWN         HEAD "subject: \"{q}\"\nsubjects: [law, math]\n"
#define RANK          "choices: l\ngold: {value: k, among: letters}\n"
#define NO_GOLD       "gold is the place of the right option, counted from 0, or {value: FIELD"
#define PROFILE(keys) "profiles:\n    p: {split: a, context: \"{q}\"" keys "}\n"

static const struct {
    const char *file, *sentence;
} wrong[] = {
    {"", "t.yaml:1:1: a task must be a mapping"},
    {"[1]", "t.yaml:1:1: a task must be a mapping"},
    {"task: T\n", "t.yaml:1:1: an id is made of lower-case letters"},
    {"title: x\n", "t.yaml:1:1: the task has no id: task: my_task"},
    {"task: [a]\n", "t.yaml:1:1: task must be a text, and here is a list"},
    {"task: t\nsplit: a\n", "t.yaml:2:1: there is no key of a task split; did you mean splits?"},
    {"task: t\n", "t.yaml:1:1: the task reads nothing of its rows: fields:"},
    {"task: t\nfields: {q: q}\n", "the task names no rows: splits: {test: FILE}"},
    {"task: t\nchance: 101\n", "t.yaml:2:1: chance is a number of percent, not 101"},
    {"task: t\nfields: {q: q}\nsplits: {a: a.txtt}\n",
     "t.yaml:3:10: a.txtt: rows are read from files that end in .jsonl"},
    {"task: t\nfields: {q: q}\nsplits: {a: ../a.csv}\n", "files lie below the folder of the data"},
    {"task: t\nfields: {q: q}\nsplits: {a: {fils: a.csv}}\n", "did you mean files?"},
    {"task: t\nfields: {q: q}\nsplits: {a: {files: a.csv, headless: maybe}}\n",
     "there is no headless maybe"},
    {"task: t\nfields: {q: q}\nsplits: {a: {files: a.xml}}\n",
     "a.xml: rows are read from files that end in .jsonl"},
    {"task: t\nfields: {q: q}\nsplits: {a: []}\n", "the split a has no file"},
    {"task: t\nfields: {q: q}\nsubject: file\nsplits: {a: a.csv}\n", "subject: file needs one *"},
    {"task: t\nfields: {q: q}\nsubject: file\nsplits: {a: \"*/a.csv\"}\n",
     "subject: file needs one *"},
    {"task: t\nfields: {q: q}\ngroups: {x: [y]}\n",
     "subjects and groups need to know what a subject is"},
    {"task: t\nfields: {q: q}\nsubject: \"{q}\"\nsubjects: {x: {a: b}, y: {c: d}}\n",
     "y has no text a"},
    {HEAD, "a task needs a profile: profiles: {NAME: {split: SPLIT, context: TEXT}}"},
    {HEAD "profiles: [mine]\n", "t.yaml:4:1: a task needs a profile"},
    {HEAD "profiles: {}\n", "t.yaml:4:1: a task needs a profile"},
    {HEAD "profiles: {p: 3}\n", "t.yaml:4:12: a profile must be a mapping"},
    {HEAD "profiles: {p: {contxt: x}}\n", "did you mean context?"},
    {HEAD "profiles: {p: {context: x}}\n",
     "t.yaml:4:12: split: missing; it names the split with the questions"},
    {HEAD "profiles: {p: {split: c, context: x}}\n", "t.yaml:4:16: there is no split c"},
    {HEAD "profiles: {p: {split: a}}\n", "the profile has no text for the model: context:"},
    {HEAD "profiles: {\"x/y\": {split: a}}\n", "there is no profile x, the base of profile x/y: "},
    {HEAD "profiles: {p: {like: r}, r: {like: p}}\n", "the bases of the profile p form a cycle"},
    {HEAD PROFILE(""), "t.yaml:5:5: the task has no options of a question: choices: FIELD"},
    {HEAD "choices: l\n" PROFILE(""), "t.yaml:6:5: " NO_GOLD},
    {HEAD "choices: l\ngold:\n" PROFILE(""), NO_GOLD},
    {HEAD "choices: l\ngold: \"\"\n" PROFILE(""), NO_GOLD},
    {HEAD "choices: l\ngold: [k]\n" PROFILE(""), NO_GOLD},
    {HEAD "choices: l\ngold: {k: numbers}\n" PROFILE(""), NO_GOLD},
    {HEAD "choices: l\ngold: {value: k, among: }\n" PROFILE(""), NO_GOLD},
    {HEAD "choices: q\ngold: 1\n" PROFILE(""), "t.yaml:4:1: q is a text, and a list is needed"},
    {HEAD "choices: q\ngold: 1\n" PROFILE(""), "its path ends in []: q: \"q[]\""},
    {"task: t\nsplits: {a: a.csv}\nfields:\n  q: q\n  choices: opts\ngold: 1\n" PROFILE(""),
     "t.yaml:5:3: choices is a text, and a list is needed; where opts is a list in the rows, its "
     "path ends in []: choices: \"opts[]\""},
    {"task: t\nsplits: {a: a.csv}\nfields: {q: q}\ngold: 1\nprofiles:\n  p:\n    split: a\n"
     "    context: x\n    fields: {choices: opts}\n",
     "t.yaml:9:14: choices is a text"},
    {HEAD "choices: m\ngold: 1\n" PROFILE(""), "t.yaml:4:1: there is no field m"},
    {HEAD "choices: l\ngold: 26\n" PROFILE(""), "gold must be a whole number from 0 to 25, not 26"},
    {HEAD "choices: l\ngold: -1\n" PROFILE(""),
     "t.yaml:5:1: gold must be a whole number from 0 to 25, not -1"},
    {HEAD "choices: l\ngold: {value: k}\n" PROFILE(""),
     "gold: {value: k, among: numbers} if k holds its place, among: letters if A, B, C"},
    {HEAD "choices: l\ngold: f\n" PROFILE(""),
     "t.yaml:5:1: gold is the place of the right option, counted from 0, or {value: FIELD, among: "
     "LIST}: gold: {value: f, among: numbers} if f holds"},
    {HEAD "choices: l\ngold: {value: x, among: l}\n" PROFILE(""),
     "t.yaml:5:1: there is no field x"},
    {HEAD "choices: l\ngold: {value: k, among: q}\n" PROFILE(""),
     "q is a text, and a list is needed"},
    {HEAD RANK PROFILE(", shots: 2"), "the 2 few-shot examples need a split: write exemplars"},
    {HEAD RANK PROFILE(", shots: many"), "`shots` must be none or a number up to 64, not many"},
    {HEAD RANK PROFILE(", exemplars: a"), "a question would be among its own few-shot examples"},
    {HEAD RANK PROFILE(", ask: rang"), "there is no ask rang; did you mean rank?"},
    {HEAD RANK PROFILE(", scores: [acc, ac_norm]"),
     "there is no score ac_norm; did you mean acc_norm?"},
    {HEAD RANK PROFILE(", scores: [bpb]"), "bpb is of the right option alone"},
    {HEAD RANK PROFILE(", metrics: [acc, exact]"),
     "there is no score or answer exact; there are acc, acc_norm, acc_bytes"},
    {HEAD RANK PROFILE(", metrics: [soft]"),
     "t.yaml:7:35: soft is made of the headline's scores, and soft, which is first, is no score of "
     "the profile"},
    {HEAD RANK PROFILE(", metrics: [bpb, soft]"), "and bpb, which is first"},
    {HEAD RANK PROFILE(", scores: [acc], metrics: [acc, acc_norm]"),
     "the metric acc_norm needs a score of the same name: add it to the scores of the profile"},
    {KNOWN RANK "groups: {x: [maths]}\n" PROFILE(""),
     "t.yaml:8:14: t has no subject maths; did you mean math?"},
    {KNOWN RANK PROFILE(", cases: [{subjects: [law, mats]}]"),
     "t has no subject mats; did you mean math?"},
    {KNOWN RANK PROFILE(", cases: [{subjects: lav}]"), "t has no subject lav; did you mean law?"},
    {KNOWN RANK PROFILE(", cases: [{subjects: law, ask: generate, target: \"{q}\"}]"),
     "the case of law generates text, and none of its answers is called acc: write answers: {acc:"},
    {KNOWN RANK PROFILE(", cases: [{subjects: law, scores: [acc_bytes]}]"),
     "the metric acc needs a score of the same name: add it to the scores of the case of law"},
    {KNOWN "profiles: {p: {split: a, ask: generate, context: x, target: y, metrics: filters, "
           "answers: {m: {}}, cases: [{subjects: law, answers: {n: {}}}]}}\n",
     "metrics: filters: the case of law has other answers than the profile"},
    {"task: t\nfields: {q: q}\nsubject: \"{q}\"\nsubjects: 3\n",
     "subjects is a list, or a mapping from a subject to values"},
    {HEAD RANK PROFILE(", window: -1"), "window must be a whole number from 1 to 16777216, not -1"},
    {HEAD RANK PROFILE(", window: 12x"), "window must be a whole number"},
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
    {HEAD RANK PROFILE(", headline: groups"), "the task has no groups: write groups: "},
    {HEAD RANK PROFILE(", cases: [{subjects: x}]"),
     "`cases` need subjects, and the task has none: write subject: file"},
    {HEAD RANK PROFILE(", prompt: {file: p.txt, as: bb}"), "did you mean bbh?"},
    {HEAD RANK "default: q\n" PROFILE(""), "t.yaml:6:1: t: there is no profile q"},
    {HEAD RANK "default: {3b: p}\n" PROFILE(""), "3b is not among its sets"},
    {HEAD RANK "sets: [3b, 4b]\n" PROFILE(""),
     "t.yaml:6:12: the sets of the paper are 3b and 15b, not 4b"},
    {HEAD RANK "sets: paper\n" PROFILE(""), "the sets of the paper are 3b and 15b, not paper"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x}}\n",
     "an answer needs a reference, or the profile a target"},
    {HEAD "profiles: {p: {split: a, ask: [x], context: \"{choice}\", target: x}}\n",
     "ask must be a text, and here is a list"},
    {HEAD RANK "profiles: {p: {split: a, context: {q}}}\n",
     "t.yaml:6:26: context must be a text, and here is a mapping: quote a text that begins with {"},
    {HEAD RANK PROFILE(", window: [1]"), "window must be a number, and here is a list"},
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
     "there is no filter P1; there are none"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "'is (.*)'}}}}\n",
     "is (.*) is no name of a filter; a pattern is written {regex_pattern: 'PATTERN'}"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "{regex_pattern: '(a'}}}}}\n",
     "t.yaml:4:87: the pattern (a is wrong at its byte 3: "},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "{regex: a}}}}}\n",
     "there is no key of a filter regex; there are regex_pattern"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "{group_select: 0}}}}}\n",
     "the filter has no pattern: write {regex_pattern: '[0-9]+'}, or the name of a filter"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "[]}}}}\n",
     "a filter has 1 to 4 patterns"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: {filter: "
          "[{regex_pattern: a, group_select: 1}]}}}}\n",
     "group_select must be a whole number from -1 to 0, not 1"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, answers: {m: "
          "{filter_name: \"a,b\"}}}}\n",
     "filter_name is made of letters, digits, _ and -"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, metrics: filters, "
          "answers: {m: {filter_name: a}}}}\n",
     "with metrics: filters the name of the answer is that of the filter"},
    {HEAD "profiles: {p: {split: a, ask: generate, context: x, target: y, until: [\"\"]}}\n",
     "a stop string is empty"},
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
     "`fields` must be a mapping: fields: {question: question.stem}"},
};

TEST(test_wrong)
{
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
        assert_null(strstr(place + 1, "t.yaml:")); /* the fault is reported once */
        assert_null(task);
    }
    cpl_task *task;
    assert_int_not_equal(cpl_task_read(&task, "tests/no-such-task.yaml", cpl_request_kinds),
                         CPL_OK);
    assert_null(task);
    assert_fails(CPL_ERR_INPUT, "rows.jsonl: is a file of rows, and a task file is YAML",
                 cpl_task_read(&task, "rows.jsonl", cpl_request_kinds));
    assert_ok(cpl_task_read(&task, "data/eval/tasks/boolq.yaml", cpl_request_kinds));
    assert_string_equal(task->id, "boolq");
    cpl_task_free(task);
}

/* lm-evaluation-harness's words for `ask` are accepted too. */
TEST(kinds_of_requests)
{
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

/* The smallest valid file: members that are left out have their documented values. */
TEST(test_least)
{
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
