/* test_runner_golden.c - answers of the reference model to the questions of the reference results
 * whose texts are available. Log-likelihoods, tokens, predictions and texts are within the
 * tolerances of tests/golden/eval/README.md, whether questions are asked in one call or alone. */
#include <math.h>

#include "eval/golden_case.h"
#include "eval/run/kinds.h"

enum { WINDOW = 2048, MOST = 100 };

/* Questions, and the samples of which they are made. */
typedef struct asked {
    cpl_pool pool;
    cpl_question question[MOST];
    const json_t *want[MOST];
    json_t *file[N_RANKED];
    int64_t n, n_files;
} asked;

static void add_ranked(asked *a, const char *name)
{
    json_t *result, *sample;
    size_t i;
    a->file[a->n_files++] = golden_file(name, &result);
    json_array_foreach(json_object_get(result, "samples"), i, sample)
    {
        if (!json_object_get(sample, "contexts")) continue;
        a->want[a->n]       = sample;
        a->question[a->n++] = golden_rank(&a->pool, sample, strncmp(name, "inloop", 6) == 0);
    }
}

static void add_generated(asked *a, const char *name)
{
    json_t *result, *sample;
    size_t i;
    json_t *file           = golden_file(name, &result);
    const json_t *settings = json_object_get(file, "settings");
    cpl_request_spec *form = golden_text_form(
        &a->pool, strstr(name, "gsm8k_cot") ? "gsm8k_cot" : member(settings, "task"));
    golden_limits(&a->pool, form, settings);
    a->file[a->n_files++] = file;
    json_array_foreach(json_object_get(result, "samples"), i, sample)
    {
        if (!json_object_get(sample, "prompt")) continue;
        a->want[a->n]       = sample;
        a->question[a->n++] = golden_text(&a->pool, sample, form);
    }
}

static void drop(asked *a)
{
    for (int64_t i = 0; i < a->n_files; i++) json_decref(a->file[i]);
    cpl_pool_free(&a->pool);
}

/* ---- ranked ---- */

static double number_at(const json_t *sample, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(sample, key), i);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* Checks the members that must be equal. */
static void check_same(const json_t *got, const json_t *want, const char *key)
{
    const json_t *a = json_object_get(got, key), *b = json_object_get(want, key);
    if (a && b && json_equal(a, b)) return;
    if (!a && !b) return;
    char *one = json_dumps(a, JSON_ENCODE_ANY), *two = json_dumps(b, JSON_ENCODE_ANY);
    fail_msg("%s of %s: %s, wanted %s", key,
             json_dumps(json_object_get(want, "id"), JSON_ENCODE_ANY), one ? one : "nothing",
             two ? two : "nothing");
}

/* Returns whether the two best options of a score are nearly equal, per unit of length. */
static bool is_near_tie(const json_t *want, const char *score, int64_t got, int64_t wanted)
{
    double value[2];
    const int64_t of[2] = {got, wanted};
    for (int i = 0; i < 2; i++) {
        double length = 1;
        if (strcmp(score, "len_norm") == 0)
            length = number_at(want, "chars", (size_t)of[i]) - 1;
        else if (strcmp(score, "acc") != 0)
            length = number_at(want, "chars", (size_t)of[i]);
        value[i] = number_at(want, "loglik", (size_t)of[i]) / length;
    }
    return fabs(value[0] - value[1]) < 5e-3;
}

static void check_predictions(const json_t *got, const json_t *want)
{
    const char *score;
    json_t *value, *pred = json_object_get(want, "pred");
    assert_int_equal(json_object_size(json_object_get(got, "pred")), json_object_size(pred));
    json_object_foreach(pred, score, value)
    {
        const json_t *own    = json_object_get(json_object_get(got, "pred"), score);
        const json_t *marked = json_object_get(json_object_get(got, "correct"), score);
        assert_true(json_is_integer(own) && json_is_integer(marked));
        if (json_equal(own, value))
            assert_true(
                json_equal(marked, json_object_get(json_object_get(want, "correct"), score)));
        else
            assert_true(
                is_near_tie(want, score, json_integer_value(own), json_integer_value(value)));
    }
}

/* Checks the members that only our samples have, computed anew from the reference. */
static void check_own(const json_t *got, const json_t *want, const cpl_question *q)
{
    const int64_t gold  = q->gold[0];
    const cpl_span text = cpl_span_of(q->options[gold].continuation);
    const double ll     = number_at(want, "loglik", (size_t)gold);
    const json_t *loss = json_object_get(got, "loss"), *soft = json_object_get(got, "soft");
    const double chars = (double)cpl_words_count(text), bytes = (double)text.length;
    const double wants[] = {-ll / log(2) / (bytes - 1), -ll / log(2) / bytes, -ll / (chars - 1)};
    static const char *const names[] = {"bpb", "bpb_v2", "ce_loss"};
    assert_int_equal(json_object_size(loss), 3);
    for (int i = 0; i < 3; i++)
        assert_near(json_number_value(json_object_get(loss, names[i])), wants[i],
                    2e-3 * wants[i] + 1e-9);
    double all = 0, right = 0;
    for (int64_t i = 0; i < q->n_options; i++)
        all += exp(number_at(want, "loglik", (size_t)i) - ll);
    for (int64_t i = 0; i < q->n_gold; i++)
        right += exp(number_at(want, "loglik", (size_t)q->gold[i]) - ll);
    assert_near(json_number_value(json_object_get(soft, "acc")), right / all, 2e-2);
}

static void check_ranked(const json_t *got, const json_t *want, const cpl_question *q)
{
    static const char *const same[] = {"id",  "tokens", "ctx_tokens", "gold",         "chars",
                                       "cut", "sha256", "contexts",   "continuations"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) check_same(got, want, same[i]);
    for (size_t i = 0; i < json_array_size(json_object_get(want, "loglik")); i++) {
        const double ll = number_at(want, "loglik", i);
        assert_near(number_at(got, "loglik", i), ll, fmax(2e-2, 1e-3 * fabs(ll)));
    }
    assert_null(json_object_get(got, "unconditional"));
    assert_int_equal(json_object_size(got), json_object_size(want) + 2);
    check_predictions(got, want);
    check_own(got, want, q);
}

TEST_ANY(ranked_as_the_references)
{
    static asked a;
    static golden g;
    open_golden(&g, WINDOW);
    for (int i = 0; i < N_RANKED; i++) add_ranked(&a, golden_ranked[i]);
    assert_int_equal(a.n, 3 * N_RANKED);
    json_t *together = golden_ask(&g, a.question, a.n);
    double worst     = 0;
    for (int64_t i = 0; i < a.n; i++) {
        const json_t *sample = json_array_get(together, (size_t)i);
        check_ranked(sample, a.want[i], &a.question[i]);
        json_t *alone = golden_ask(&g, &a.question[i], 1);
        for (int64_t k = 0; k < a.question[i].n_options; k++) {
            const double ll = number_at(json_array_get(alone, 0), "loglik", (size_t)k);
            const double by = fabs(ll - number_at(sample, "loglik", (size_t)k));
            if (by > worst) worst = by;
        }
        json_decref(alone);
    }
    assert_near(worst, 0, 1e-4);
    json_decref(together);
    drop(&a);
    close_golden(&g);
}

/* ---- generated ---- */

static void check_text(const json_t *got, const json_t *want)
{
    static const char *const same[]   = {"id",           "target",       "prompt_sha256",
                                         "prompt_chars", "prompt_bytes", "prompt_tokens",
                                         "cut",          "prompt"};
    static const char *const answer[] = {"text",      "answer",       "correct",   "robust",
                                         "extracted", "correct_norm", "gen_tokens"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) check_same(got, want, same[i]);
    const cpl_span text = cpl_span_of(member(want, "text"));
    const int64_t sure  = json_integer_value(json_object_get(want, "sure_chars"));
    size_t bytes        = 0;
    uint32_t point;
    for (int64_t i = 0; i < sure; i++) bytes += cpl_words_next(&point, text, bytes);
    if (strncmp(member(got, "text"), member(want, "text"), bytes) != 0)
        fail_msg("the text is \"%s\", wanted \"%s\"", member(got, "text"), member(want, "text"));
    if (bytes < text.length) return;
    for (size_t i = 0; i < sizeof answer / sizeof *answer; i++) check_same(got, want, answer[i]);
}

TEST_ANY(generated_as_the_references)
{
    static asked a;
    static golden g;
    open_golden(&g, WINDOW);
    for (int i = 0; i < N_GENERATED; i++) add_generated(&a, golden_generated[i]);
    assert_int_equal(a.n, 3 * N_GENERATED);
    json_t *together = golden_ask(&g, a.question, a.n);
    for (int64_t i = 0; i < a.n; i++) check_text(json_array_get(together, (size_t)i), a.want[i]);
    for (int64_t i = 0; i < a.n; i += 4) {
        json_t *alone = golden_ask(&g, &a.question[i], 1);
        check_text(json_array_get(alone, 0), a.want[i]);
        json_decref(alone);
    }
    json_decref(together);
    drop(&a);
    close_golden(&g);
}

/* ---- given texts ---- */

/* Texts of MATH that lm-eval's computer algebra system accepts and cpl_latex_equal does not, with
 * the answer found in them. In two texts the algebra system takes letters for variables (neither is
 * n e i t h e r). In seven texts the algebra system reads the first expression and ignores the ".0"
 * after the expression. */
static const char *const algebra[][2] = {
    {"intermediate_algebra/1", "\\left(neither\\right)"},
    {"intermediate_algebra/1", "2\\cdot\\frac{neither}{2}"},
    {"counting_and_probability/0", "\\frac{10}{11}.0"},
    {"geometry/0", "\\frac{3}{4}.0"},
    {"geometry/1", "\\frac{4}{5}.0"},
    {"intermediate_algebra/0", "\\sqrt{74}.0"},
    {"intermediate_algebra/1", "neither.0"},
    {"number_theory/0", "\\frac{1}{11}.0"},
    {"precalculus/1", "\\frac{1}{4}.0"},
};
enum { N_ALGEBRA = sizeof algebra / sizeof *algebra };

static bool needs_algebra(const json_t *sample, bool seen[N_ALGEBRA])
{
    const char *id     = json_string_value(json_object_get(sample, "id"));
    const char *answer = json_string_value(json_object_get(sample, "answer"));
    for (int i = 0; id && answer && i < N_ALGEBRA; i++)
        if (strcmp(algebra[i][0], id) == 0 && strcmp(algebra[i][1], answer) == 0)
            return seen[i] = true;
    return false;
}

static json_t *graded(const cpl_question *q, const char *text)
{
    cpl_grading_scratch room      = {0};
    const cpl_generated generated = {.text = cpl_span_of(text)};
    json_t *sample                = NULL;
    assert_ok(cpl_sample_generated(&sample, q, &generated, &room, false));
    cpl_grading_scratch_free(&room);
    return sample;
}

/* Grades the text of a reference as its task does, and compares all members that are reported. */
static void check_given(const json_t *c, const char *task, bool seen[N_ALGEBRA])
{
    static const char *const same[] = {"answer", "target", "extracted", "correct_norm", "robust"};
    cpl_pool pool                   = {0};
    const cpl_question q            = golden_text(&pool, c, golden_text_form(&pool, task));
    json_t *sample                  = graded(&q, member(c, "text"));
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        if (k == 0 || json_object_get(c, same[k])) check_same(sample, c, same[k]);
    if (needs_algebra(sample, seen)) {
        assert_int_equal(json_integer_value(json_object_get(c, "correct")), 1);
        assert_int_equal(json_integer_value(json_object_get(sample, "correct")), 0);
    } else {
        check_same(sample, c, "correct");
    }
    json_decref(sample);
    cpl_pool_free(&pool);
}

TEST_ANY(given_texts_as_the_references)
{
    bool seen[N_ALGEBRA] = {false};
    json_t *file         = load_plain(reference_path("eval/scoring.json.gz")), *c;
    size_t i;
    json_array_foreach(json_object_get(file, "cases"), i, c)
        check_given(c, member(c, "task"), seen);
    assert_int_equal(i, 1196);
    for (i = 0; i < N_ALGEBRA; i++)
        if (!seen[i])
            fail_msg("no text has the id %s and the answer %s", algebra[i][0], algebra[i][1]);
    json_decref(file);
}

/* Grades every generated text of the references, even where the model's own text may differ. */
TEST_ANY(reference_texts_as_the_references)
{
    static const struct {
        const char *task, *file;
        int64_t texts[2]; /* number of texts in the checkout, and in the larger data */
    } files[]            = {{"gsm8k", "gsm8k", {3, 10}},        {"gsm8k_cot", "gsm8k_cot", {3, 10}},
                            {"bbh", "bbh", {27, 27}},           {"math", "math", {7, 14}},
                            {"mmlu_pro", "mmlu_pro", {14, 14}}, {"triviaqa", "triviaqa", {4, 20}},
                            {"agieval", "agieval", {4, 4}},     {"triviaqa", "triviaqa.0shot", {4, 10}}};
    bool seen[N_ALGEBRA] = {false};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        json_t *result, *sample;
        int64_t texts = 0;
        size_t k;
        snprintf(name, sizeof name, "harness/%s", files[i].file);
        json_t *file = golden_file(name, &result);
        json_array_foreach(json_object_get(result, "samples"), k, sample)
        {
            if (!json_object_get(sample, "text")) continue; /* a ranked question */
            check_given(sample, files[i].task, seen);
            texts++;
        }
        assert_int_equal(texts, files[i].texts[further]);
        json_decref(file);
    }
}
