/* test_questions_olmes.c - questions of the profile olmes against the published requests, byte for
 * byte.
 *
 * Not reproduced: sciq's letters (the published order of the options is shuffled, and not
 *                 recorded), minerva_math_algebra (its exemplars are worded otherwise in four
 *                 places), and continuations of gold_bpb, which are answers rewritten.
 *
 * The rows of BoolQ, HellaSwag, Social IQa and WinoGrande, and SciQ's exemplars, are not among the
 * samples. These rows are made of the requests themselves. HellaSwag's texts are clean already.
 *
 * The checkout's requests have rows of our own in place of those of OpenBookQA, SciQ and Social IQa
 * (tests/golden/eval/make_requests.py). */
#include <sys/stat.h>

#include "eval/answers.h"
#include "eval/prompts/questions_case.h"

typedef struct published {
    const char *file, *task, *variant;
    int64_t shots;
    const char *from, *to; /* a sample, and the name under which it is requested; NULL: documents */
} published;

static const published all[] = {
    {"arc_challenge.rc_0shot", "arc_challenge", "cf", 0, "arc_challenge/ARC-Challenge-Dev.jsonl",
     "ARC-Challenge-Test.jsonl"},
    {"arc_challenge.rc_5shot", "arc_challenge", "cf", 5, "arc_challenge/ARC-Challenge-Dev.jsonl",
     "ARC-Challenge-Test.jsonl"},
    {"arc_challenge.mc_5shot", "arc_challenge", "mcf", 5, "arc_challenge/ARC-Challenge-Dev.jsonl",
     "ARC-Challenge-Test.jsonl"},
    {"boolq.rc_0shot", "boolq", "cf", 0, NULL, "val.jsonl"},
    {"boolq.rc_5shot", "boolq", "cf", 5, NULL, "val.jsonl"},
    {"boolq.mc_5shot", "boolq", "mcf", 5, NULL, "val.jsonl"},
    {"csqa.rc_0shot", "commonsense_qa", "cf", 0, "commonsense_qa/dev_rand_split.jsonl",
     "dev_rand_split.jsonl"},
    {"csqa.rc_5shot", "commonsense_qa", "cf", 5, "commonsense_qa/dev_rand_split.jsonl",
     "dev_rand_split.jsonl"},
    {"csqa.mc_5shot", "commonsense_qa", "mcf", 5, "commonsense_qa/dev_rand_split.jsonl",
     "dev_rand_split.jsonl"},
    {"hellaswag.rc_5shot", "hellaswag", "cf", 5, NULL, "hellaswag_val.jsonl"},
    {"hellaswag.mc_5shot", "hellaswag", "mcf", 5, NULL, "hellaswag_val.jsonl"},
    {"openbookqa.rc_0shot", "openbookqa", "cf", 0, "openbookqa/Main/dev.tsv", "Main/test.tsv"},
    {"openbookqa.rc_5shot", "openbookqa", "cf", 5, "openbookqa/Main/dev.tsv", "Main/test.tsv"},
    {"openbookqa.mc_5shot", "openbookqa", "mcf", 5, "openbookqa/Main/dev.tsv", "Main/test.tsv"},
    {"sciq.rc_0shot", "sciq", "cf_text", 0, "sciq/valid.json", "valid.json"},
    {"sciq.rc_5shot", "sciq", "cf", 5, "sciq/valid.json", "valid.json"},
    {"socialiqa.rc_0shot", "social_iqa", "cf", 0, NULL, "dev.jsonl"},
    {"socialiqa.rc_5shot", "social_iqa", "cf", 5, NULL, "dev.jsonl"},
    {"socialiqa.mc_5shot", "social_iqa", "mcf", 5, NULL, "dev.jsonl"},
    {"winogrande.rc_0shot", "winogrande", "cf", 0, NULL, "dev.jsonl"},
    {"winogrande.rc_5shot", "winogrande", "cf", 5, NULL, "dev.jsonl"},
    {"winogrande.mc_5shot", "winogrande", "mcf", 5, NULL, "dev.jsonl"},
};

enum { N_ALL = sizeof all / sizeof *all, UNCONDITIONAL = 1000000 };

static json_t *load_requests(const char *file)
{
    char path[600];
    snprintf(path, sizeof path, further ? "%s/olmes/requests/%s.jsonl" : "%s/olmes/%s.jsonl.gz",
             further ? shared_path("data/eval") : golden_path("eval"), file);
    return load_lines(path);
}

/* Parses "PASSAGE\nQuestion: QUESTION?...". */
static json_t *boolq_row(const json_t *doc)
{
    const char *query = member(doc, "query"), *mark = "\nQuestion: ", *question = query;
    for (const char *at; (at = strstr(question + 1, mark));) question = at;
    const char *end = strstr(question, "?\n");
    const char *key = json_integer_value(json_object_get(doc, "gold")) == 0 ? "true" : "false";
    size_t passage  = (size_t)(question - query);
    question += strlen(mark);
    return json_pack("{s:s#,s:s#,s:s}", "passage", query, (int)passage, "question", question,
                     (int)(end - question), "label", key);
}

/* Parses "ACTIVITY: TEXT", which may stand before options. A text with a second part, the beginning
 * of a sentence, has no space before the options. */
static json_t *hellaswag_row(const json_t *doc, const json_t *texts)
{
    const char *query = member(doc, "query"), *first = strstr(query, ": ") + 2, *second = NULL;
    const char *end = strstr(query, "\nChoose the best");
    if (!end) end = query + strlen(query);
    if (end[-1] != ' ' && end[-1] != '.')
        for (const char *at = first; at < end; at++)
            if (strncmp(at, ". ", 2) == 0) second = at + 2;
    if (end[-1] == ' ') end--;
    const char *first_end = second ? second - 1 : end;
    if (!second) second = end;
    return json_pack("{s:s#,s:s#,s:s#,s:O,s:O}", "activity_label", query, (int)(first - query - 2),
                     "ctx_a", first, (int)(first_end - first), "ctx_b", second, (int)(end - second),
                     "endings", texts, "label", json_object_get(doc, "gold"));
}

/* Returns the options " A. ...\n B. ..." of a prompt. */
static json_t *listed_options(const char *query)
{
    json_t *list = json_array();
    char mark[]  = "\n A. ";
    for (const char *at; (at = strstr(query, mark)); mark[2]++) {
        char following[] = {'\n', ' ', (char)(mark[2] + 1), '.', ' ', '\0'};
        const char *end  = strstr(at + 1, following);
        if (!end) end = strstr(at + 1, "\nAnswer:");
        json_array_append_new(list, json_stringn(at + 5, (size_t)(end - at - 5)));
        query = at + 1;
    }
    return list;
}

static json_t *row_of(const published *p, const json_t *doc)
{
    if (strcmp(p->task, "boolq") == 0) return boolq_row(doc);
    if (strcmp(p->task, "hellaswag") != 0) return json_incref((json_t *)(uintptr_t)doc);
    json_t *listed = strcmp(p->variant, "mcf") == 0 ? listed_options(member(doc, "query"))
                                                    : json_incref(json_object_get(doc, "choices"));
    json_t *row    = hellaswag_row(doc, listed);
    json_decref(listed);
    return row;
}

static void write_rows(const published *p, const json_t *requests, const char *path)
{
    FILE *out = fopen(path, "wb");
    size_t i;
    json_t *request;
    json_array_foreach(requests, i, request)
    {
        if (json_integer_value(json_object_get(request, "idx")) != 0) continue;
        if (json_integer_value(json_object_get(request, "doc_id")) >= UNCONDITIONAL) continue;
        json_t *row = row_of(p, json_object_get(request, "doc"));
        json_dumpf(row, out, JSON_COMPACT);
        fputc('\n', out);
        json_decref(row);
    }
    fclose(out);
}

/* Writes the rows of five few-shot examples "Question: ...?\nAnswer: ...\n\n". */
static void write_sciq_train(const json_t *requests, const char *path)
{
    const char *at = member(json_object_get(json_array_get(requests, 0), "request"), "context");
    json_t *rows   = json_array();
    for (const char *end; (end = strstr(at, "\n\n")); at = end + 2) {
        const char *answer = strstr(at, "\nAnswer: ");
        at += strlen("Question: ");
        json_t *row =
            json_pack("{s:s#,s:s#,s:s,s:s,s:s,s:s}", "question", at, (int)(answer - at),
                      "correct_answer", answer + 9, (int)(end - answer - 9), "distractor1", "1",
                      "distractor2", "2", "distractor3", "3", "support", "");
        json_array_append_new(rows, row);
    }
    json_dump_file(rows, path, 0);
    json_decref(rows);
}

static void link_to(const char *from, const char *to)
{
    char real[4096];
    assert_non_null(realpath(from, real));
    assert_int_equal(symlink(real, to), 0);
}

/* Returns the folder of the rows that the requests are made of. */
static const char *rows_at(void)
{
    return further ? shared_path("data/eval") : golden_path("eval/data");
}

/* Returns a folder of data with the rows and the few-shot examples. */
static const char *data_of(const published *p, const json_t *requests)
{
    const char *folder = scratch_folder();
    char path[256], from[600];
    snprintf(path, sizeof path, "%s/olmes", folder);
    snprintf(from, sizeof from, "%s/olmes", rows_at());
    link_to(from, path);
    snprintf(path, sizeof path, "%s/%s", folder, p->task);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/%s/Main", folder, p->task);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/%s/train.json", folder, p->task);
    if (strcmp(p->task, "sciq") == 0 && p->shots) write_sciq_train(requests, path);
    snprintf(path, sizeof path, "%s/%s/%s", folder, p->task, p->to);
    snprintf(from, sizeof from, "%s/%s", rows_at(), p->from ? p->from : "");
    if (p->from)
        link_to(from, path);
    else
        write_rows(p, requests, path);
    return folder;
}

static void check_request(const cpl_questions *q, const json_t *request)
{
    int64_t doc           = json_integer_value(json_object_get(request, "doc_id"));
    int64_t index         = json_integer_value(json_object_get(request, "idx"));
    const json_t *asked   = json_object_get(request, "request");
    bool bare             = doc >= UNCONDITIONAL;
    const cpl_question *m = &q->question[doc % UNCONDITIONAL];
    assert_true(index < m->n_options);
    assert_string_equal(m->options[index].continuation, member(asked, "continuation"));
    assert_string_equal(bare ? m->unconditional : m->options[index].context,
                        member(asked, "context"));
    assert_int_equal(m->gold[0], json_integer_value(json_object_get(request, "label")));
    assert_int_equal(m->form->joining, CPL_JOIN_SEPARATE);
}

static void check_file(const published *p)
{
    json_t *requests = load_requests(p->file), *request;
    cpl_task *task   = built_in(p->task);
    cpl_questions q;
    size_t i;
    cpl_questions_options options = options_of(data_of(p, requests));
    options.limit                 = 4;
    options.shots                 = p->shots;
    assert_ok(cpl_questions_read(&q, task, profile_of_task(task, "olmes", p->variant), &options));
    assert_int_equal(q.count, 4);
    json_array_foreach(requests, i, request) check_request(&q, request);
    cpl_questions_free(&q);
    cpl_task_free(task);
    json_decref(requests);
}

TEST_ANY(test_requests)
{
    for (size_t i = 0; i < N_ALL; i++) check_file(&all[i]);
}

/* The few-shot examples of gold_bpb are those of the chain of thought, with "So" before the
 * answer. */
static const char gsm8k[] = "task: gsm8k\nsplits: {test: test.jsonl, shown: fewshot_cot8.jsonl}\n"
                            "fields: {question: question, solution: [target, answer]}\n"
                            "profiles:\n"
                            "    bpb:\n"
                            "        split: test\n"
                            "        ask: generate\n"
                            "        context: \"Question: {question}\\nAnswer:\"\n"
                            "        target: \"{solution|replace:The answer=So the answer}\"\n"
                            "        exemplars: shown\n"
                            "        shots: 8\n";

TEST_ANY(test_contexts)
{
    cpl_questions q;
    size_t i;
    json_t *request;
    cpl_task *task                = task_of(gsm8k);
    json_t *requests              = load_requests("gsm8k.gold_bpb_5shot");
    cpl_questions_options options = options_of(rows_at());
    assert_ok(read_with(&q, task, "bpb", &options));
    json_array_foreach(requests, i, request) assert_string_equal(
        q.question[i].prompt, member(json_object_get(request, "request"), "context"));
    cpl_questions_free(&q);
    cpl_task_free(task);
    json_decref(requests);
}

TEST(test_forms)
{
    cpl_task *task             = built_in("boolq");
    const cpl_profile *profile = profile_of_task(task, "olmes", NULL);
    assert_int_equal(profile->forms.count, 2);
    assert_string_equal(profile->forms.at[0], "cf");
    assert_string_equal(profile->forms.at[1], "mcf");
    assert_string_equal(profile->metrics.at[0], "acc");
    cpl_task_free(task);
}
