/* test_evaluation_page.c - results as a page: whole in one file, every figure, escaped names. */

#include "eval/evaluation.h"
#include "eval/evaluation_case.h"
#include "report/page_check.h"

static void evaluate(evaluation_case *c, const char *profile)
{
    const cpl_evaluation_callbacks callbacks = {0};
    case_open(c);
    case_select(c, "r.yaml", ranked_task, profile);
    case_select(c, "w.yaml", written_task, NULL);
    case_put(c, "ranked", "a.jsonl",
             "{\"q\": \"the stone\", \"o\": [\"a\", \"mill\"], \"g\": \"0\"}\n{}\n");
    c->options.skip_bad = true;
    assert_ok(case_look(c));
    assert_ok(cpl_evaluation_run(&c->evaluation, &c->runner, NULL, true, &callbacks));
}

static void holds(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("there is no \"%s\" in %s", part, text);
}

static json_t *data_of(const evaluation_case *c)
{
    json_t *settings = json_object(), *data = cpl_evaluation_json(&c->evaluation, settings, -1);
    json_decref(settings);
    assert_non_null(data);
    return data;
}

TEST(a_page)
{
    static const char *const parts[] =
        LIST("Evaluation of a &lt;model&gt;", "ranked", "written", "exact_match",
             "ranked: 1 bad row was left out", "\"title\":\"Ranked ones\"",
             "\"source\":\"example.org\"");
    evaluation_case c;
    cpl_text page = {0};
    evaluate(&c, NULL);
    json_t *data = data_of(&c);
    assert_ok(cpl_evaluation_page(&page, &c.evaluation, "a <model>", data, NULL));
    check_page(&page);
    assert_null(strstr(page.bytes, "<model>"));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) holds(page.bytes, parts[i]);
    json_t *summary = json_object_get(data, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "tasks")), 2);
    assert_int_equal(json_array_size(json_object_get(data, "warnings")), 1);
    assert_int_equal(json_array_size(json_object_get(data, "conclusion")), 1);
    json_decref(data);
    cpl_text_free(&page);
    case_close(&c);
}

TEST(forms)
{
    evaluation_case c;
    cpl_text page = {0};
    evaluate(&c, "both");
    json_t *data = data_of(&c);
    assert_ok(cpl_evaluation_page(&page, &c.evaluation, "m", data, NULL));
    json_decref(data);
    check_page(&page);
    holds(page.bytes, "ranked/both/two");
    cpl_text_free(&page);
    case_close(&c);
}

/* Returns the line that holds `word`, with one space between words. */
static const char *line_of(const char *text, const char *word)
{
    static char line[256];
    const char *at = strstr(text, word);
    size_t length  = 0;
    if (!at) fail_msg("there is no %s in %s", word, text);
    while (at > text && at[-1] != '\n') at--;
    for (at += strspn(at, " "); *at && *at != '\n' && length + 1 < sizeof line; at++)
        if (*at != ' ' || (at[1] != ' ' && at[1] != '\n')) line[length++] = *at;
    line[length] = '\0';
    return line;
}

TEST(a_table)
{
    evaluation_case c;
    cpl_text text = {0};
    evaluate(&c, NULL);
    json_t *metrics = json_object_get(c.evaluation.at[0].result, "metrics");
    json_object_set_new(metrics, "acc", json_real(0.375)); /* not a figure of one question */
    json_object_set_new(metrics, "acc_norm", json_real(0.0625));
    json_object_set_new(metrics, "acc_stderr", json_real(0.125));
    assert_ok(cpl_evaluation_text(&text, &c.evaluation));
    assert_string_equal(line_of(text.bytes, "value"),
                        "task profile split shots metric value +- chance questions");
    assert_string_equal(line_of(text.bytes, "50.00"), "ranked p a 0 acc 37.50 12.50 50.00 1");
    assert_string_equal(line_of(text.bytes, "acc_norm"), "acc_norm 6.25 -");
    holds(text.bytes, "ranked: 1 bad row was left out\n");
    json_object_set_new(c.evaluation.at[0].result, "skipped", json_integer(2));
    json_object_set_new(c.evaluation.at[0].result, "cut", json_integer(1));
    cpl_text_clear(&text);
    cpl_evaluation_remarks(&text, &c.evaluation);
    assert_string_equal(text.bytes,
                        "ranked: 1 question was longer than the window and lost its beginning\n"
                        "ranked: 2 bad rows were left out\n");
    cpl_text_free(&text);
    case_close(&c);
}

/* Writes the page for check_view.py. */
static int write_page(const char *folder)
{
    evaluation_case c;
    cpl_text page = {0};
    char path[600];
    evaluate(&c, NULL);
    json_t *data = data_of(&c);
    snprintf(path, sizeof path, "%s/eval.html", folder);
    assert_ok(cpl_evaluation_page(&page, &c.evaluation, "a <b>model</b>", data, NULL));
    assert_ok(cpl_file_write_atomic(path, page.bytes, page.length));
    json_decref(data);
    cpl_text_free(&page);
    case_close(&c);
    return 0;
}

TESTS_DO(with_argument, write_page);
