/* test_totals.c - the totals of reference samples against the references' own, and cases that no
 * reference has: several metrics of a text, groups with own metrics, samples without values. */
#include "eval/totals.h"

#include <math.h>

#include "eval/golden_case.h"
#include "eval/prompts/questions_case.h"

static const double SLACK = 1e-6;

/* Returns the names between spaces. */
static cpl_string_list split(cpl_pool *pool, const char *words)
{
    const char **at       = cpl_pool_take(pool, 64 * sizeof *at);
    cpl_string_list names = {at, 0};
    while (*words) {
        const size_t length = strcspn(words, " ");
        at[names.count++]   = cpl_pool_copy(pool, words, length);
        words += length + (words[length] == ' ');
    }
    return names;
}

/* ---- metrics ---- */

/* Returns a profile with the names of the reference's metrics, without errors, aggregates and
 * filters, the headline first. math_verify is left out, because Couplet does not compute it. */
static cpl_profile profile_of(cpl_pool *pool, json_t *result, const json_t *settings)
{
    const char *headline = json_string_value(json_object_get(settings, "headline"));
    const char **at      = cpl_pool_take(pool, 16 * sizeof *at);
    cpl_profile profile  = {.metrics = {at, 0}};
    const char *key;
    json_t *value, *metrics = json_object_get(result, "metrics");
    if (headline) at[profile.metrics.count++] = headline;
    json_object_foreach(metrics, key, value)
    {
        const char *comma = strchr(key, ',');
        if (strstr(key, "_stderr") || strstr(key, "_macro") || strstr(key, "_micro")) continue;
        if (strcmp(key, "math_verify") == 0 || (headline && strcmp(key, headline) == 0)) continue;
        key = comma ? cpl_pool_copy(pool, key, (size_t)(comma - key)) : key;
        if (profile.metrics.count && strcmp(at[profile.metrics.count - 1], key) == 0) continue;
        at[profile.metrics.count++] = key;
    }
    return profile;
}

/* Adds the members that our samples have and the reference's samples lack. If the reference has no
 * texts, characters are used for bytes. */
static void add_losses(json_t *sample, const char *headline)
{
    cpl_option_facts facts[16] = {{0}};
    const cpl_score *score;
    const json_t *ll = json_object_get(sample, "loglik"), *chars = json_object_get(sample, "chars");
    const json_t *texts = json_object_get(sample, "continuations");
    const int64_t n     = (int64_t)json_array_size(ll);
    const int64_t gold  = json_integer_value(json_object_get(sample, "gold"));
    json_t *loss        = json_object();
    assert_true(n > 1 && n <= 16);
    for (size_t i = 0; i < (size_t)n; i++) {
        facts[i].loglik = json_number_value(json_array_get(ll, i));
        facts[i].chars  = json_integer_value(json_array_get(chars, i));
        facts[i].bytes =
            texts ? (int64_t)json_string_length(json_array_get(texts, i)) : facts[i].chars;
    }
    for (size_t i = 0; i < cpl_n_scores; i++)
        if (cpl_scores[i].loss)
            json_object_set_new(loss, cpl_scores[i].name,
                                json_real(cpl_scores[i].of(&facts[gold])));
    json_object_set_new(sample, "loss", loss);
    assert_ok(cpl_score_find(&score, headline));
    json_object_set_new(sample, "soft",
                        json_pack("{s:f}", headline, cpl_score_soft(score, facts, n, &gold, 1)));
    for (size_t i = 0; i < 3; i++) { /* the reference has these scores, but not for every task */
        const char *const name = ((const char *const[]){"acc", "len_norm", "len_norm_v2"})[i];
        json_t *correct        = json_object_get(sample, "correct");
        if (json_object_get(correct, name)) continue;
        assert_ok(cpl_score_find(&score, name));
        json_object_set_new(correct, name, json_integer(cpl_score_best(score, facts, n) == gold));
    }
}

static bool is_of_another(const char *key)
{
    return strncmp(key, "math_verify", 11) == 0;
}

/* Checks that every number of the reference except math_verify equals our number of that name. */
static void check_numbers(const char *file, const char *where, json_t *got, json_t *want)
{
    const char *key;
    json_t *value;
    json_object_foreach(want, key, value)
    {
        if (is_of_another(key)) continue;
        const json_t *own = json_object_get(got, key);
        if (!own) fail_msg("%s: %s has no %s", file, where, key);
        const double a = json_number_value(own), b = json_number_value(value);
        /* not all of MMLU is ASCII, and the references do not have the numbers of bytes */
        const double slack = strncmp(key, "bpb", 3) == 0 ? 1e-3 : SLACK;
        if (fabs(a - b) > slack * (1 + fabs(b)))
            fail_msg("%s: %s of %s is %.9g, wanted %.9g", file, key, where, a, b);
    }
}

static void check_each(const char *file, json_t *got, json_t *want)
{
    const char *key;
    json_t *value;
    json_object_foreach(want, key, value)
        check_numbers(file, key, json_object_get(got, key), value);
}

static void check_file(const char *file)
{
    cpl_pool pool = {0};
    size_t i;
    json_t *result, *sample, *root = golden_file(file, &result), *own = json_object();
    const json_t *settings   = json_object_get(root, "settings");
    const json_t *options    = json_object_get(settings, "options");
    const json_t *samples    = json_object_get(result, "samples");
    cpl_task *task           = built_in(member(settings, "task"));
    const cpl_profile *whole = profile_of_task(
        task, member(settings, "profile"), json_string_value(json_object_get(options, "variant")));
    cpl_profile profile = profile_of(&pool, result, settings);
    profile.groups      = whole->groups;
    profile.n_groups    = whole->n_groups;
    profile.headline    = whole->headline;
    assert_string_equal(profile.metrics.at[0], whole->metrics.at[0]);
    if (json_object_get(settings, "headline"))
        json_array_foreach(samples, i, sample) add_losses(sample, profile.metrics.at[0]);
    assert_ok(cpl_pool_status(&pool));
    assert_ok(cpl_totals_add(own, task, &profile, samples));
    check_numbers(file, "metrics", json_object_get(own, "metrics"),
                  json_object_get(result, "metrics"));
    check_each(file, json_object_get(own, "subjects"), json_object_get(result, "subjects"));
    check_each(file, json_object_get(own, "groups"), json_object_get(result, "groups"));
    const char *headline = json_object_iter_key(json_object_iter(json_object_get(own, "metrics")));
    assert_int_equal(strncmp(headline, profile.metrics.at[0], strlen(profile.metrics.at[0])), 0);
    cpl_task_free(task);
    json_decref(own);
    json_decref(root);
    cpl_pool_free(&pool);
}

TEST_ANY(references)
{
    for (int i = 0; i < N_RANKED; i++) check_file(golden_ranked[i]);
    for (int i = 0; i < N_GENERATED; i++) check_file(golden_generated[i]);
}

/* ---- made up ---- */

/* Adds up samples given as JSON. Metrics, and the subjects of the group `left`, are between
 * spaces. */
static cpl_status add(json_t **result, const char *metrics, const char *group,
                      cpl_headline_of headline, const char *samples)
{
    cpl_pool pool          = {0};
    json_t *list           = json_loads(samples, 0, NULL);
    cpl_task_group both[2] = {{"left", split(&pool, group ? group : ""), {0}},
                              {"right", split(&pool, "c"), split(&pool, "acc bpb")}};
    cpl_task task          = {.id = "made"};
    cpl_profile profile    = {.metrics  = split(&pool, metrics),
                              .headline = headline,
                              .groups   = both,
                              .n_groups = group ? 2 : 0};
    assert_non_null(list);
    *result                 = json_object();
    const cpl_status status = cpl_totals_add(*result, &task, &profile, list);
    json_decref(list);
    cpl_pool_free(&pool);
    return status;
}

static double at(const json_t *result, const char *where, const char *part, const char *key)
{
    const json_t *object = json_object_get(result, where);
    if (part) object = json_object_get(object, part);
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s has no %s", part ? part : where, key);
    return json_number_value(value);
}

static const char *const ranked =
    "[{\"id\": \"b/0\", \"loglik\": [], \"correct\": {\"acc\": 1}, \"soft\": {\"acc\": 0.5},  "
    "\"loss\": {\"bpb\": 2}}, {\"id\": \"a/0#1\", \"loglik\": [], \"correct\": {\"acc\": 0}, "
    "\"soft\": {\"acc\": 0.25},  \"loss\": {\"bpb\": 3}}, {\"id\": \"c/x/0\", \"loglik\": [], "
    "\"correct\": {\"acc\": 1}, \"soft\": {\"acc\": 1},  \"loss\": {\"bpb\": 1}}, {\"id\": "
    "\"b/1\", \"loglik\": [], \"correct\": {\"acc\": 0}, \"soft\": {\"acc\": 0},  \"loss\": "
    "{\"bpb\": 6}}]";

TEST(subjects_and_groups)
{
    json_t *r;
    assert_ok(add(&r, "acc soft", "a b", CPL_OF_QUESTIONS, ranked));
    assert_near(at(r, "metrics", NULL, "acc"), 0.5, 0);
    assert_near(at(r, "metrics", NULL, "acc_macro"), (0 + 0.5 + 1) / 3, 1e-15);
    assert_near(at(r, "metrics", NULL, "soft"), 1.75 / 4, 1e-15);
    /* only subject b has two questions, with variance 1/2 */
    assert_near(at(r, "metrics", NULL, "acc_stderr"), sqrt(0.5 / 4), 1e-15);
    assert_near(at(r, "subjects", "b", "acc_stderr"), sqrt(0.25 / 1), 1e-15);
    assert_null(
        json_object_get(json_object_get(json_object_get(r, "subjects"), "a"), "acc_stderr"));
    assert_near(at(r, "subjects", "b", "n"), 2, 0);
    assert_near(at(r, "subjects", "c/x", "soft"), 1, 0);
    assert_near(at(r, "groups", "left", "acc"), 1.0 / 3, 1e-15);
    assert_near(at(r, "groups", "left", "n"), 3, 0);
    assert_null(json_object_get(json_object_get(r, "groups"), "right")); /* c is not c/x */
    json_decref(r);
    assert_ok(add(&r, "acc bpb", "c/x", CPL_OF_GROUPS, ranked));
    assert_near(at(r, "metrics", NULL, "acc"), 1, 0);
    assert_near(at(r, "metrics", NULL, "acc_micro"), 0.5, 0);
    assert_near(at(r, "metrics", NULL, "bpb_micro"), 3, 1e-15);
    assert_null(json_object_get(json_object_get(r, "metrics"), "acc_stderr"));
    json_decref(r);
}

/* Rows are asked three times each, in any order: two observations a subject. */
TEST(repeated_questions)
{
    static const struct {
        const char *id;
        int right;
    } asked[]           = {{"b/1#0", 1}, {"a/0#2", 1}, {"a/1#0", 0}, {"a/0#0", 1},
                           {"a/1#1", 0}, {"b/0#1", 1}, {"a/0#1", 0}, {"b/0#0", CPL_OF_QUESTIONS},
                           {"a/1#2", 0}, {"b/0#2", 0}, {"b/1#1", 1}, {"b/1#2", 1}};
    const char *name    = "acc";
    cpl_task task       = {.id = "made"};
    cpl_profile profile = {.metrics = {&name, 1}};
    json_t *list = json_array(), *r = json_object();
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        json_array_append_new(list, json_pack("{s:s,s:[],s:{s:i}}", "id", asked[i].id, "loglik",
                                              "correct", "acc", asked[i].right));
    assert_ok(cpl_totals_add(r, &task, &profile, list));
    assert_near(at(r, "metrics", NULL, "acc"), 0.5, 1e-15);
    assert_near(at(r, "metrics", NULL, "acc_macro"), 0.5, 1e-15);
    assert_near(at(r, "subjects", "a", "n"), 6, 0);
    assert_near(at(r, "subjects", "a", "acc"), 1.0 / 3, 1e-15);
    /* The questions of a have means 2/3 and 0, with deviation (2/3) / sqrt 2. The questions of b
     * have means 1/3 and 1, with the same deviation. */
    assert_near(at(r, "subjects", "a", "acc_stderr"), 1.0 / 3, 1e-15);
    assert_near(at(r, "subjects", "b", "acc_stderr"), 1.0 / 3, 1e-15);
    assert_near(at(r, "metrics", NULL, "acc_stderr"), sqrt(2.0 / 9 / 4), 1e-15);
    json_decref(list);
    json_decref(r);
    /* the subject is called c# */
    assert_ok(add(&r, "acc", NULL, CPL_OF_QUESTIONS,
                  "[{\"id\": \"c#/4\", \"loglik\": [], \"correct\": {\"acc\": 1}}, {\"id\": "
                  "\"c#/5\", \"loglik\": [], \"correct\": {\"acc\": 0}}]"));
    assert_near(at(r, "metrics", NULL, "acc_stderr"), 0.5, 1e-15);
    json_decref(r);
}

TEST(mean_of_subjects)
{
    json_t *r;
    assert_ok(add(&r, "acc", NULL, CPL_OF_SUBJECTS, ranked));
    assert_near(at(r, "metrics", NULL, "acc"), (0 + 0.5 + 1) / 3, 1e-15);
    assert_near(at(r, "metrics", NULL, "acc_macro"), (0 + 0.5 + 1) / 3, 1e-15);
    assert_near(at(r, "metrics", NULL, "acc_micro"), 0.5, 1e-15);
    json_decref(r);
}

TEST(spread_of_any_values)
{
    json_t *r;
    assert_ok(add(&r, "f1", NULL, CPL_OF_QUESTIONS,
                  "[{\"id\": 0, \"text\": \"\", \"correct\": 0.5}, {\"id\": 1, \"text\": \"\", "
                  "\"correct\": true}, {\"id\": 2, \"text\": \"\", \"correct\": 0}]"));
    assert_near(at(r, "metrics", NULL, "f1"), 0.5, 1e-15);
    assert_near(at(r, "metrics", NULL, "f1_stderr"), 0.5 / sqrt(3), 1e-15);
    assert_int_equal(json_object_size(r), 1);
    json_decref(r);
}

TEST(further_answers)
{
    json_t *r;
    assert_ok(add(&r, "robust exact_match", NULL, CPL_OF_QUESTIONS,
                  "[{\"id\": 0, \"text\": \"\", \"correct\": 0, \"correct_robust\": 1}]"));
    assert_near(at(r, "metrics", NULL, "robust"), 1, 0);
    assert_near(at(r, "metrics", NULL, "exact_match"), 0, 0);
    json_decref(r);
    /* the answers are filters of one metric */
    assert_ok(add(&r, "exact_match", NULL, CPL_OF_QUESTIONS,
                  "[{\"id\": 0, \"text\": \"\", \"correct\": {\"a\": 0, \"b\": 1}}, {\"id\": 1, "
                  "\"text\": \"\", \"correct\": {\"a\": 1, \"b\": 1}}]"));
    assert_near(at(r, "metrics", NULL, "exact_match,a"), 0.5, 0);
    assert_near(at(r, "metrics", NULL, "exact_match,b"), 1, 0);
    assert_near(at(r, "metrics", NULL, "exact_match_stderr,a"), 0.5, 1e-15);
    json_decref(r);
}

TEST(refusals)
{
    json_t *r;
    static const struct {
        const char *metrics, *samples, *part;
        cpl_headline_of headline;
    } bad[] = {
        {"acc", "[]", "no answered questions of made", CPL_OF_QUESTIONS},
        {"acc", "[{\"loglik\": []}]", "question without an id has no number for the metric acc",
         CPL_OF_QUESTIONS},
        {"acc", "[{\"id\": 3, \"loglik\": [], \"correct\": {}}]", "question 3 has no number",
         CPL_OF_QUESTIONS},
        {"acc", "[{\"id\": 3, \"loglik\": [], \"correct\": {\"acc\": \"1\"}}]", "question 3",
         CPL_OF_QUESTIONS},
        {"acc", "[{\"id\": 3, \"text\": \"\"}]", "metric acc", CPL_OF_QUESTIONS},
        {"acc", "[7]", "metric acc", CPL_OF_QUESTIONS},
        {"exact_match",
         "[{\"id\": 1, \"text\": \"\", \"correct\": {\"a\": 0, \"b\": 1}}, {\"id\": 2, \"text\": "
         "\"\", \"correct\": {\"a\": 0}}]",
         "question 2 has no number for the metric exact_match,b", CPL_OF_QUESTIONS},
        {"acc",
         "[{\"id\": \"a/1\", \"loglik\": [], \"correct\": {\"acc\": 1}}, {\"id\": 2, \"loglik\": "
         "[], \"correct\": {\"acc\": 1}}]",
         "no subject, but others have one", CPL_OF_QUESTIONS},
        {"acc acc_norm", "[{\"id\": 3, \"text\": \"\", \"correct\": 0}]",
         "no question has the metric acc_norm", CPL_OF_QUESTIONS},
        {"acc",
         "[{\"id\": \"z/1\", \"loglik\": [], \"correct\": {\"acc\": 1}, \"loss\": {\"bpb\": 1}}]",
         "no question is of a group of made", CPL_OF_GROUPS},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(CPL_ERR_INPUT, bad[i].part,
                     add(&r, bad[i].metrics, bad[i].headline == CPL_OF_GROUPS ? "a" : NULL,
                         bad[i].headline, bad[i].samples));
        json_decref(r);
    }
}

TEST(no_memory)
{
    const char *const metric = "acc";
    cpl_task task            = {.id = "made"};
    cpl_profile profile      = {.metrics = {&metric, 1}};
    json_t *list             = json_loads(ranked, 0, NULL);
    for (int64_t nth = 1;; nth++) {
        json_t *result = json_object();
        cpl_alloc_fail_at(nth);
        const cpl_status status = cpl_totals_add(result, &task, &profile, list);
        cpl_alloc_fail_at(0);
        json_decref(result);
        if (status == CPL_OK) {
            assert_true(nth > 1);
            break;
        }
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
    json_decref(list);
}
