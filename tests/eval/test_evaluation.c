/* test_evaluation.c - tasks evaluated on a model: results, resuming from a journal, forms,
 * averages; failures before the model runs, and the task that they name. */
#include "eval/evaluation.h"

#include <math.h>
#include <pthread.h>

#include "eval/evaluation_case.h"
#include "parallel/threads.h"
#include "support/warnings.h"

/* ---- watching ---- */

typedef struct seen {
    int64_t began, recorded, finished;
    double questions;
} seen;

static void hear_begun(void *ctx, const cpl_task_evaluation *one, int64_t recorded)
{
    seen *s = ctx;
    assert_true(one->n > 0);
    s->began++;
    s->recorded += recorded;
    s->questions = 0;
}

static void hear_advanced(void *ctx, double questions)
{
    seen *s = ctx;
    assert_true(questions > s->questions);
    s->questions = questions;
}

static void hear_finished(void *ctx, const cpl_task_evaluation *one)
{
    seen *s = ctx;
    assert_non_null(one->result);
    s->finished++;
}

static cpl_status run(evaluation_case *c, cpl_eval_journal *record, bool samples, seen *s)
{
    *s                                       = (seen){0};
    const cpl_evaluation_callbacks callbacks = {s, hear_begun, hear_advanced, hear_finished};
    return cpl_evaluation_run(&c->evaluation, &c->runner, record, samples, &callbacks);
}

static const json_t *result_of(const evaluation_case *c, const char *key)
{
    for (int64_t i = 0; i < c->evaluation.count; i++)
        if (strcmp(c->evaluation.at[i].what->key, key) == 0) return c->evaluation.at[i].result;
    fail_msg("there is no result %s", key);
    return NULL;
}

static int64_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* ---- results ---- */

TEST(what_comes_out)
{
    evaluation_case c;
    seen s;
    double value, error;
    case_open_both(&c);
    assert_ok(case_look(&c));
    assert_int_equal(c.evaluation.n_questions, 5);
    assert_int_equal(c.evaluation.window, CASE_WINDOW);
    assert_ok(run(&c, NULL, false, &s));
    assert_int_equal(s.began, 2);
    assert_int_equal(s.finished, 2);
    assert_int_equal(s.recorded, 0);
    const json_t *ranked = result_of(&c, "ranked"), *written = result_of(&c, "written");
    assert_int_equal(whole(ranked, "n"), 3);
    assert_string_equal(json_string_value(json_object_get(ranked, "profile")), "p");
    assert_string_equal(cpl_evaluation_headline(ranked, &value, &error), "acc");
    assert_near(value * 3, round(value * 3), 1e-9);
    assert_true(isfinite(error));
    assert_null(json_object_get(ranked, "samples"));
    assert_int_equal(whole(written, "max_gen_toks"), 4);
    assert_string_equal(cpl_evaluation_headline(written, &value, &error), "exact_match");
    json_t *settings = json_pack("{s:s}", "model", "m");
    json_t *all      = cpl_evaluation_json(&c.evaluation, settings, 1);
    assert_int_equal(json_object_size(json_object_get(all, "results")), 2);
    assert_true(json_equal(json_object_get(all, "settings"), settings));
    assert_int_equal(json_object_size(json_object_get(all, "averages")), 0);
    json_decref(all);
    json_decref(settings);
    assert_ok(run(&c, NULL, true, &s)); /* as a training run evaluates, several times */
    assert_int_equal(json_array_size(json_object_get(result_of(&c, "ranked"), "samples")), 3);
    case_close(&c);
}

static const char with_exemplars[] =
    "task: ranked\nsplits: {a: a.jsonl, e: e.jsonl}\nfields: {q: q, o: \"o[]\", g: g}\n"
    "choices: o\ngold: {value: g, among: numbers}\nprofiles: {p: {split: a, context: \"{q}\", "
    "exemplars: e, shots: [none, 0, 1, 2]}}\n";

/* Each question is asked with several numbers of few-shot examples, which the table names. */
TEST(numbers_of_exemplars)
{
    evaluation_case c;
    seen s;
    cpl_text text = {0};
    case_open(&c);
    case_select(&c, "n.yaml", with_exemplars, NULL);
    case_put(&c, "ranked", "e.jsonl", ranked_rows);
    assert_ok(case_look(&c));
    assert_ok(run(&c, NULL, false, &s));
    const json_t *result = result_of(&c, "ranked");
    assert_int_equal(whole(result, "n"), 12);
    assert_int_equal(whole(result, "num_fewshot"), 2);
    assert_string_equal(json_string_value(json_object_get(result, "shots")), "0-2");
    assert_ok(cpl_evaluation_text(&text, &c.evaluation));
    assert_non_null(strstr(text.bytes, "      p      a    0-2  "));
    cpl_text_free(&text);
    cpl_evaluation_close(&c.evaluation);
    c.options.shots = 1;
    assert_ok(case_look(&c));
    assert_ok(run(&c, NULL, false, &s));
    assert_null(json_object_get(result_of(&c, "ranked"), "shots"));
    assert_int_equal(whole(result_of(&c, "ranked"), "num_fewshot"), 1);
    case_close(&c);
}

/* A user's task that claims to be in a set is not part of the set's average. */
TEST(averages)
{
    evaluation_case c;
    seen s;
    case_open(&c);
    case_select(&c, "r.yaml", ranked_task, NULL);
    assert_ok(case_look(&c));
    assert_ok(run(&c, NULL, false, &s));
    for (int64_t i = 0; i < c.selection.n_built_in; i++) c.selection.tasks[i]->sets.count = 0;
    assert_true(isnan(cpl_evaluation_average(&c.evaluation, "3b")));
    case_close(&c);
}

/* The result of a task is that of its best form. */
TEST(forms)
{
    evaluation_case c;
    seen s;
    double value[3], error;
    case_open(&c);
    case_select(&c, "r.yaml", ranked_task, "both");
    assert_ok(case_look(&c));
    assert_int_equal(c.evaluation.count, 3);
    assert_int_equal(c.evaluation.n_questions, 6);
    assert_ok(run(&c, NULL, false, &s));
    cpl_evaluation_headline(result_of(&c, "ranked/both/one"), &value[0], &error);
    cpl_evaluation_headline(result_of(&c, "ranked/both/two"), &value[1], &error);
    cpl_evaluation_headline(result_of(&c, "ranked"), &value[2], &error);
    assert_near(value[2], fmax(value[0], value[1]), 0);
    assert_string_equal(json_string_value(json_object_get(result_of(&c, "ranked"), "best_of")),
                        value[1] > value[0] ? "ranked/both/two" : "ranked/both/one");
    case_close(&c);
}

/* ---- going on ---- */

TEST(going_on)
{
    evaluation_case c;
    seen s;
    cpl_eval_journal record;
    json_t *settings = json_pack("{s:s}", "model", "m");
    case_open_both(&c);
    const char *path = in_folder(c.folder, "out.partial");
    assert_ok(case_look(&c));
    assert_ok(cpl_eval_journal_open(&record, path, settings, false));
    assert_ok(run(&c, &record, true, &s));
    json_t *first = json_deep_copy(result_of(&c, "ranked"));
    cpl_eval_journal_close(&record);
    assert_ok(cpl_eval_journal_open(&record, path, settings, false));
    assert_ok(run(&c, &record, true, &s));
    assert_int_equal(s.recorded, 5);
    assert_near(s.questions, 0, 0); /* no question is asked again */
    assert_true(json_equal(first, result_of(&c, "ranked")));
    cpl_eval_journal_close(&record);
    case_put(&c, "ranked", "a.jsonl", written_rows);
    case_put(&c, "ranked", "a.jsonl", "{\"q\": \"x\", \"o\": [\"a\", \"b\"], \"g\": \"0\"}\n");
    assert_ok(cpl_eval_journal_open(&record, path, settings, false));
    assert_fails(CPL_ERR_INPUT, "ranked, question 0, had another prompt, or another scoring",
                 run(&c, &record, true, &s));
    cpl_eval_journal_close(&record);
    json_decref(first);
    json_decref(settings);
    case_close(&c);
}

/* Evaluates a task, and resumes with another file and other rows. */
static cpl_status go_on(const char *task, const char *now, const char *rows)
{
    evaluation_case c;
    seen s;
    cpl_eval_journal record;
    json_t *settings = json_object();
    const bool other = strstr(now, "task: written") != NULL;
    case_open(&c);
    case_select(&c, "a.yaml", task, NULL);
    const char *path = in_folder(c.folder, "out.partial");
    assert_ok(case_look(&c));
    assert_ok(cpl_eval_journal_open(&record, path, settings, false));
    assert_ok(run(&c, &record, false, &s));
    cpl_eval_journal_close(&record);
    cpl_evaluation_close(&c.evaluation);
    case_deselect(&c);
    case_select(&c, "a.yaml", now, NULL);
    case_put(&c, other ? "written" : "ranked", other ? "b.jsonl" : "a.jsonl", rows);
    assert_ok(case_look(&c));
    assert_ok(cpl_eval_journal_open(&record, path, settings, false));
    cpl_status status = run(&c, &record, false, &s);
    cpl_eval_journal_close(&record);
    json_decref(settings);
    case_close(&c);
    return status;
}

/* Returns a task text with `from` replaced. */
static const char *with(const char *text, const char *from, const char *to)
{
    static char made[2048];
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(made, sizeof made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return made;
}

/* An answer is not resumed if the right answer or the grading differs. */
TEST(marked_otherwise)
{
    static const struct {
        const char *task, *rows, *from, *to;
    } others[] = {
        {ranked_task, ranked_rows, "scores: [acc, acc_norm]", "scores: [acc, acc_bytes]"},
        {ranked_task, ranked_rows, "context: \"{q}\"", "tokens: separate, context: \"{q}\""},
        {ranked_task, ranked_rows, "context: \"{q}\"", "window: 30, context: \"{q}\""},
        {written_task, written_rows, "max_gen_toks: 4", "max_gen_toks: 5"},
        {written_task, written_rows, "max_gen_toks: 4", "until: [\"x\"], max_gen_toks: 4"},
        {written_task, written_rows, "max_gen_toks: 4",
         "answers: {exact_match: {filter: last_number}}, max_gen_toks: 4"},
        {written_task, written_rows, "max_gen_toks: 4",
         "answers: {exact_match: {reference: \"{q}\"}}, max_gen_toks: 4"},
    };
    static const char told[] = "question 0, had another prompt, or another scoring";
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_fails(CPL_ERR_INPUT, told,
                     go_on(others[i].task, with(others[i].task, others[i].from, others[i].to),
                           others[i].rows));
    assert_fails(
        CPL_ERR_INPUT, told,
        go_on(ranked_task, ranked_task, with(ranked_rows, "\"g\": \"0\"", "\"g\": \"1\"")));
    assert_fails(CPL_ERR_INPUT, told,
                 go_on(written_task, written_task, with(written_rows, "mill", "dam")));
    assert_ok(go_on(ranked_task, with(ranked_task, "chance: 50", "chance: 25"), ranked_rows));
    assert_ok(go_on(written_task, written_task, written_rows));
}

/* ---- impossible requests ---- */

/* Tasks without rows are named, a line each, and the others are evaluated. The advice names no
 * folder of the program. */
TEST(missing_rows)
{
    static const char *const words[]    = {"openbookqa", "sciq", "social_iqa"};
    const cpl_selection_options options = {.words = words, .n_words = 3};
    cpl_text heard                      = {0};
    const cpl_log log                   = log_into(&heard);
    evaluation_case c;
    seen s;
    case_open(&c);
    case_select(&c, "r.yaml", ranked_task, NULL);
    assert_ok(cpl_selection_add(&c.selection, &options));
    assert_ok(case_look(&c));
    assert_ok(run(&c, NULL, false, &s));
    assert_int_equal(whole(result_of(&c, "ranked"), "n"), 3);
    assert_null(result_of(&c, "sciq"));
    assert_fails(CPL_ERR_INPUT, "no rows of openbookqa, sciq, social_iqa in ",
                 cpl_evaluation_missing(&c.evaluation));
    cpl_evaluation_close(&c.evaluation);
    c.options.own = c.folder;
    c.options.log = &log;
    assert_ok(case_look(&c));
    assert_null(strstr(heard.bytes, c.folder));
    assert_non_null(strstr(heard.bytes, "put into DIR/openbookqa/ the file Main/dev.tsv, or "
                                        "Main/dev.jsonl, published at https://allenai.org"));
    assert_non_null(strstr(heard.bytes, "\nwarn: sciq: there are no rows of the split "));
    assert_non_null(strstr(heard.bytes, "(licence not stated)"));
    cpl_evaluation_close(&c.evaluation);
    c.options.of_run = true;
    assert_fails(CPL_ERR_INPUT,
                 "no rows of openbookqa, sciq, social_iqa; eval.tasks_data: DIR names",
                 case_look(&c));
    assert_null(strstr(cpl_last_error(), "--data"));
    c.options.of_run = false;
    c.options.log    = NULL;
    cpl_text_free(&heard);
    case_deselect(&c);
    const cpl_selection_options one = {.words = words, .n_words = 1};
    assert_ok(cpl_selection_add(&c.selection, &one));
    assert_fails(CPL_ERR_INPUT, "put into DIR/openbookqa/ the file Main/dev.tsv, or",
                 case_look(&c)); /* there is no other task */
    assert_null(strstr(cpl_last_error(), c.folder));
    case_close(&c);
}

/* A failure names the task and the question, both before and while the model runs. */
TEST(whose_it_is)
{
    evaluation_case c;
    seen s;
    case_open_both(&c);
    c.options.max_tokens = CASE_WINDOW;
    assert_fails(CPL_ERR_INPUT,
                 "/written/b.jsonl, line 1): 40 generated tokens leave a window of 40 no room for "
                 "the prompt; evaluate written in a run of its own, where --max-gen-toks below 40 "
                 "makes room and changes no other task",
                 case_look(&c));
    assert_non_null(strstr(cpl_last_error(), "written, profile w: question 0 ("));
    c.options.max_tokens = CPL_UNSET;
    char row[200];
    snprintf(row, sizeof row, "{\"q\": \"x\", \"o\": [\"a\", \"%082d\"], \"g\": \"0\"}\n", 0);
    case_put(&c, "ranked", "a.jsonl", row);
    assert_fails(CPL_ERR_INPUT, "/ranked/a.jsonl, line 1): a continuation of it has ",
                 case_look(&c));
    case_put(&c, "ranked", "a.jsonl", ranked_rows);
    assert_ok(case_look(&c));
    cpl_f32(c.w.model.master.layer[1].w_q)[5] = NAN;
    cpl_model_refresh(&c.w.model);
    assert_fails(CPL_ERR_INPUT, "ranked, profile p: ", run(&c, NULL, false, &s));
    assert_non_null(strstr(cpl_last_error(), "not finite"));
    case_close(&c);
}

/* The advice for one task alone names flags. The advice of a training run names settings. */
TEST(advice)
{
    evaluation_case c;
    case_open(&c);
    case_select(&c, "w.yaml", written_task, NULL);
    c.options.max_tokens = CASE_WINDOW;
    assert_fails(CPL_ERR_INPUT, "prompt; --max-gen-toks below 40 makes room", case_look(&c));
    c.options.of_run = true;
    assert_fails(
        CPL_ERR_INPUT,
        "prompt; take written out of eval.tasks, or make model.max_position_embeddings larger",
        case_look(&c));
    assert_null(strstr(cpl_last_error(), "--"));
    c.options = options_of(c.folder);
    case_deselect(&c);
    case_select(&c, "r.yaml", with(ranked_task, "context", "window: 2, beyond: error, context"),
                NULL);
    assert_fails(CPL_ERR_INPUT, "be cut; a model of a longer context has room for it",
                 case_look(&c));
    assert_null(strstr(cpl_last_error(), "--num-fewshot"));
    case_deselect(&c);
    case_put(&c, "ranked", "e.jsonl", ranked_rows);
    case_select(&c, "r.yaml", with(with_exemplars, "context", "window: 4, beyond: error, context"),
                NULL);
    assert_fails(CPL_ERR_INPUT, "be cut; --num-fewshot with a smaller number makes room",
                 case_look(&c));
    case_close(&c);
}

/* A task whose subjects are asked in two ways, and counted in a group. */
static const char mixed_task[] =
    "task: mixed\nsplits: {a: \"*.jsonl\"}\nfields: {q: q, o: \"o[]\", g: g}\nchoices: o\n"
    "gold: {value: g, among: numbers}\nsubject: file\ngroups: {left: [law]}\n"
    "profiles:\n"
    "  p: {split: a, context: \"{q}\", metrics: [acc, acc_norm], cases: [{subjects: [sums], ask: "
    "generate, max_gen_toks: 4, answers: {acc: {reference: \"{g}\"}}}]}\n"
    "  g: {split: a, context: \"{q}\", headline: groups}\n";

/* A failure that all questions would have comes before the first question. */
TEST(of_no_use)
{
    evaluation_case c;
    case_open(&c);
    c.options.log = &a_log;
    case_select(&c, "m.yaml", mixed_task, NULL);
    case_put(&c, "mixed", "sums.jsonl", ranked_rows);
    assert_fails(CPL_ERR_INPUT,
                 "mixed, profile p: no question counts for the metric acc_norm: all that are there "
                 "are answered in writing",
                 case_look(&c));
    case_put(&c, "mixed", "low.jsonl", ranked_rows);
    c.options.log = &a_log;
    assert_ok(case_look(&c));
    assert_non_null(
        strstr(warned, "mixed: left names the subject law, of which there are no rows"));
    cpl_evaluation_close(&c.evaluation);
    case_deselect(&c);
    case_select(&c, "m.yaml", mixed_task, "g");
    assert_fails(CPL_ERR_INPUT, "mixed, profile g: the subject low is in no group", case_look(&c));
    case_close(&c);
}

TEST(no_questions)
{
    evaluation_case c;
    case_open(&c);
    case_select(&c, "r.yaml", ranked_task, NULL);
    c.options.offset = 7;
    assert_fails(CPL_ERR_INPUT, "a.jsonl has no rows after --offset 7", case_look(&c));
    c.options.offset   = 0;
    c.options.skip_bad = true;
    case_put(&c, "ranked", "a.jsonl", "{}\n");
    assert_fails(CPL_ERR_INPUT, "a.jsonl has no rows that can be used", case_look(&c));
    c.options.limit = 1;
    assert_fails(CPL_ERR_INPUT, "none of the first 1 rows of ", case_look(&c));
    case_close(&c);
}

/* A task whose rows are all bad is left out. If there is no other task, that is an error. */
TEST(no_questions_of_one)
{
    evaluation_case c;
    seen s;
    case_open_both(&c);
    c.options.skip_bad = true;
    case_put(&c, "ranked", "a.jsonl", "{}\n");
    assert_ok(case_look(&c));
    assert_ok(run(&c, NULL, false, &s));
    assert_null(result_of(&c, "ranked"));
    assert_non_null(result_of(&c, "written"));
    assert_fails(CPL_ERR_INPUT,
                 "and the other tasks were evaluated; --data DIR names a folder of yours",
                 cpl_evaluation_missing(&c.evaluation));
    cpl_evaluation_close(&c.evaluation);
    c.options.of_run = true;
    assert_fails(CPL_ERR_INPUT, "a.jsonl has no rows that can be used", case_look(&c));
    c.options.of_run = false;
    case_put(&c, "written", "b.jsonl", "{}\n");
    assert_fails(CPL_ERR_INPUT, "there are no rows of ranked, written", case_look(&c));
    case_close(&c);
}

static const char joined_task[] =
    "task: joined\nsplits: {a: a.jsonl}\nfields: {q: q, o: \"o[]\", g: g}\nchoices: o\n"
    "gold: {value: g, among: numbers}\n"
    "profiles:\n"
    "  p: {split: a, context: \"{q}\", delimiter: \"\", scores: [acc]}\n"
    "  apart: {like: p, tokens: separate}\n";

/* "ing" is one token, so "g" has no token after "in". */
TEST(options_without_tokens)
{
    static const char rows[] = "{\"q\": \"the\", \"o\": [\" a\", \" mill\"], \"g\": \"0\"}\n"
                               "{\"q\": \"in\", \"o\": [\"h\", \"g\"], \"g\": \"0\"}\n";
    evaluation_case c;
    seen s;
    case_open(&c);
    case_put(&c, "joined", "a.jsonl", rows);
    case_select(&c, "j.yaml", joined_task, "p");
    assert_fails(CPL_ERR_INPUT, "/joined/a.jsonl, line 2): the continuation \"g\" has no token",
                 case_look(&c));
    assert_non_null(strstr(cpl_last_error(), "`tokens: separate`"));
    assert_non_null(strstr(cpl_last_error(), "; --skip-bad leaves such rows out"));
    c.options.of_run = true; /* a training run has no such flag */
    assert_fails(CPL_ERR_INPUT, "`tokens: separate`", case_look(&c));
    assert_null(strstr(cpl_last_error(), "--skip-bad"));
    c.options.skip_bad = true;
    assert_ok(case_look(&c));
    assert_int_equal(c.evaluation.n_questions, 1);
    assert_ok(run(&c, NULL, false, &s));
    assert_int_equal(whole(result_of(&c, "joined"), "n"), 1);
    assert_int_equal(whole(result_of(&c, "joined"), "skipped"), 1);
    case_close(&c);
    case_open(&c);
    case_put(&c, "joined", "a.jsonl", rows);
    case_select(&c, "j.yaml", joined_task, "apart");
    assert_ok(case_look(&c));
    assert_int_equal(c.evaluation.n_questions, 2);
    case_close(&c);
}

/* ---- several ranks ---- */

enum { MANY = 300, MOST_RANKS = 4 }; /* three blocks of each kind */

/* A rank, run as a thread. */
typedef struct rank {
    evaluation_case c;
    cpl_thread_ranks *whole;
    int number;
    cpl_eval_journal *journal;
    json_t *results;
    cpl_status status;
    char sentence[300];
} rank;

/* Opens both tasks with many rows. Those of rank `number` may differ. */
static void open_many(rank *r, const char *first)
{
    cpl_text ranked = {0}, written = {0};
    case_open(&r->c);
    r->c.w.be.n_threads = 1;
    cpl_text_printf(&ranked, "%s", first);
    for (int i = 0; i < MANY; i++) {
        cpl_text_printf(&ranked, "{\"q\": \"the %d\", \"o\": [\"a\", \"mill\"], \"g\": \"0\"}\n",
                        i);
        cpl_text_printf(&written, "{\"q\": \"a %d\", \"t\": \"mill\"}\n", i);
    }
    case_put(&r->c, "ranked", "a.jsonl", ranked.bytes);
    case_put(&r->c, "written", "b.jsonl", written.bytes);
    cpl_text_free(&ranked);
    cpl_text_free(&written);
    case_select(&r->c, "r.yaml", ranked_task, NULL);
    case_select(&r->c, "w.yaml", written_task, NULL);
    assert_ok(case_look(&r->c));
}

/* Returns the results without the names of files, which differ between ranks. */
static json_t *results_of(const cpl_evaluation *e)
{
    json_t *settings = json_object(), *all = cpl_evaluation_json(e, settings, 1), *one;
    const char *key;
    json_decref(settings);
    json_object_foreach(json_object_get(all, "results"), key, one) json_object_del(one, "files");
    return all;
}

static void *run_rank(void *context)
{
    rank *r                                  = context;
    cpl_ranks ranks                          = {0};
    cpl_group g                              = cpl_group_self();
    const cpl_evaluation_callbacks callbacks = {0};
    if (r->whole && cpl_group_of(&g, cpl_thread_ranks_at(r->whole, r->number), &ranks) != CPL_OK)
        return NULL;
    r->c.runner.group = &g;
    r->status = cpl_evaluation_run(&r->c.evaluation, &r->c.runner, r->journal, true, &callbacks);
    if (r->status != CPL_OK) snprintf(r->sentence, sizeof r->sentence, "%s", cpl_last_error());
    if (r->status == CPL_OK) r->results = results_of(&r->c.evaluation);
    cpl_group_close(&g);
    cpl_ranks_free(&ranks);
    return NULL;
}

static void run_ranks(rank *r, int size, cpl_eval_journal *journal)
{
    pthread_t threads[MOST_RANKS];
    cpl_thread_ranks *whole = NULL;
    if (size > 1) assert_ok(cpl_thread_ranks_init(&whole, size));
    for (int i = 0; i < size; i++) {
        r[i].whole   = whole;
        r[i].number  = i;
        r[i].journal = i == 0 ? journal : NULL;
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &r[i]), 0);
    }
    for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
    cpl_thread_ranks_free(whole);
}

static void close_ranks(rank *r, int size)
{
    for (int i = 0; i < size; i++) {
        json_decref(r[i].results);
        case_close(&r[i].c);
    }
}

/* Cuts the journal to the first block of the first task, as if the evaluation had ended there. */
static void cut_journal(cpl_eval_journal *journal, const char *folder)
{
    int lines        = 0;
    size_t end       = 0;
    cpl_text text    = read_bytes(in_folder(folder, "record"));
    json_t *settings = json_object();
    while (lines < 140) lines += text.bytes[end++] == '\n';
    write_bytes(in_folder(folder, "cut"), text.bytes, end);
    assert_ok(cpl_eval_journal_open(journal, in_folder(folder, "cut"), settings, false));
    assert_int_equal(journal->count, 139);
    json_decref(settings);
    cpl_text_free(&text);
}

TEST(over_ranks)
{
    static const int sizes[] = {2, 4};
    rank one                 = {0}, r[MOST_RANKS];
    cpl_eval_journal journal;
    open_many(&one, "");
    json_t *settings = json_object();
    assert_ok(cpl_eval_journal_open(&journal, in_folder(one.c.folder, "record"), settings, false));
    json_decref(settings);
    run_ranks(&one, 1, &journal);
    assert_int_equal(one.status, CPL_OK);
    cpl_eval_journal_close(&journal);
    for (int s = 0; s < 4; s++) { /* from the beginning, then resumed */
        const int size = sizes[s % 2];
        memset(r, 0, sizeof r);
        for (int i = 0; i < size; i++) open_many(&r[i], "");
        if (s > 1) cut_journal(&journal, one.c.folder);
        run_ranks(r, size, s > 1 ? &journal : NULL);
        if (s > 1) assert_ok(cpl_eval_journal_remove(&journal));
        for (int i = 0; i < size; i++) {
            if (r[i].status != CPL_OK) fail_msg("rank %d: %s", i, r[i].sentence);
            assert_true(json_equal(r[i].results, one.results));
        }
        close_ranks(r, size);
    }
    close_ranks(&one, 1);
}

/* Rank 1 has read a different row. */
TEST(ranks_with_other_questions)
{
    static const char row[] = "{\"q\": \"stone\", \"o\": [\"a\", \"b\"], \"g\": \"0\"}\n";
    rank r[2]               = {{.number = 0}};
    open_many(&r[0], "");
    open_many(&r[1], row);
    run_ranks(r, 2, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].status, CPL_ERR_INPUT);
        assert_non_null(strstr(r[i].sentence, "the questions of ranked"));
    }
    assert_non_null(strstr(r[0].sentence, "rank 1: "));
    close_ranks(r, 2);
}
