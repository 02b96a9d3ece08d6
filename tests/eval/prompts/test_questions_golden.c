/* test_questions_golden.c - questions against those of the reference programs: every prompt of
 * lm-eval 0.4.13 and of ai2-olmo's in-loop evaluation in the reference data, by its hash. */
#include <glob.h>

#include "eval/answers.h"
#include "eval/grade/words.h"
#include "eval/prompts/questions_case.h"

static int64_t number_or(const json_t *object, const char *key, int64_t absent)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : absent;
}

static void check_ids(const cpl_question *q, const json_t *sample)
{
    char id[64];
    const json_t *want = json_object_get(sample, "id");
    snprintf(id, sizeof id, "%lld", (long long)json_integer_value(want));
    assert_string_equal(q->id, json_is_string(want) ? json_string_value(want) : id);
}

static void check_gold(const cpl_question *q, const json_t *gold)
{
    assert_int_equal(q->several, json_is_array(gold));
    assert_int_equal(q->n_gold, json_is_array(gold) ? json_array_size(gold) : 1);
    for (int64_t i = 0; i < q->n_gold; i++)
        assert_int_equal(
            q->gold[i],
            json_integer_value(json_is_array(gold) ? json_array_get(gold, (size_t)i) : gold));
}

static void check_ranked(const cpl_question *q, const json_t *sample, bool harness)
{
    const json_t *sums  = json_object_get(sample, "sha256"),
                 *chars = json_object_get(sample, "chars");
    assert_int_equal(q->n_options, json_array_size(sums));
    for (int64_t i = 0; i < q->n_options; i++) {
        const cpl_option *o = &q->options[i];
        const char *sum     = sum_of(o->context, o->continuation);
        if (strcmp(sum, json_string_value(json_array_get(sums, (size_t)i))) != 0)
            fail_msg("question %s, option %d: context \"%s\" continuation \"%s\"", q->id, (int)i,
                     o->context, o->continuation);
        cpl_span counted = cpl_span_of(o->continuation + (harness ? o->choice : 0));
        if (chars)
            assert_int_equal(cpl_words_count(counted),
                             json_integer_value(json_array_get(chars, (size_t)i)));
    }
    check_gold(q, json_object_get(sample, "gold"));
}

/* Checks the references of the first answer. */
static void check_target(const cpl_question *q, const json_t *target)
{
    const cpl_references *r = &q->references[0];
    assert_int_equal(q->listed, json_is_array(target));
    assert_int_equal(r->count, json_is_array(target) ? json_array_size(target) : 1);
    for (int64_t i = 0; i < r->count; i++) {
        const json_t *want = json_is_array(target) ? json_array_get(target, (size_t)i) : target;
        assert_string_equal(r->at[i], json_string_value(want));
    }
}

/* Checks a reference whose normal form the sample has. */
static void check_normal_target(const cpl_question *q, const char *target)
{
    const cpl_answer *answer = &q->form->answers[0];
    cpl_span found           = cpl_span_of(q->references[0].at[0]);
    cpl_text normal = {0}, spare = {0};
    if (answer->grading.reference) answer->grading.reference->find(&found, found);
    if (!answer->grading.normal->make(&normal, found, &spare))
        fail_msg("%s: no normal form", q->id);
    assert_string_equal(normal.bytes, target);
    cpl_text_free(&normal);
    cpl_text_free(&spare);
}

static void check_generated(const cpl_question *q, const json_t *sample, const json_t *settings)
{
    const json_t *until = json_object_get(settings, "until");
    if (strcmp(sum_of(q->prompt, NULL),
               json_string_value(json_object_get(sample, "prompt_sha256"))))
        fail_msg("question %s: prompt \"%s\"", q->id, q->prompt);
    assert_int_equal(cpl_words_count(cpl_span_of(q->prompt)),
                     json_integer_value(json_object_get(sample, "prompt_chars")));
    assert_int_equal(q->form->n_until + 1, json_array_size(until)); /* 1: the end-of-text token */
    for (int64_t i = 0; i < q->form->n_until; i++)
        assert_string_equal(q->form->until[i], json_string_value(json_array_get(until, (size_t)i)));
    assert_int_equal(q->form->max_gen_toks, number_or(settings, "max_gen_toks", -1));
    const char *reference = json_string_value(json_object_get(sample, "reference"));
    const json_t *target  = json_object_get(sample, "target");
    if (reference)
        assert_string_equal(q->references[0].at[0], reference);
    else if (json_object_get(sample, "math_verify"))
        check_normal_target(q, json_string_value(target));
    else
        check_target(q, target);
}

static void check_samples(const cpl_questions *q, const json_t *samples, const json_t *settings)
{
    bool harness = strcmp(json_string_value(json_object_get(settings, "profile")), "harness") == 0;
    assert_int_equal(q->count, json_array_size(samples));
    for (int64_t i = 0; i < q->count; i++) {
        const json_t *sample     = json_array_get(samples, (size_t)i);
        const cpl_question *mine = &q->question[i];
        check_ids(mine, sample);
        if (json_object_get(sample, "sha256"))
            check_ranked(mine, sample, harness);
        else
            check_generated(mine, sample, settings);
    }
}

static void check_file(const char *path)
{
    json_t *whole          = load_plain(path);
    const json_t *settings = json_object_get(whole, "settings");
    const json_t *given    = json_object_get(settings, "options");
    const json_t *results  = json_object_get(whole, "results");
    const char *name       = json_string_value(json_object_get(settings, "task"));
    cpl_task *task         = built_in(name);
    cpl_questions q;
    cpl_questions_options options = options_of(reference_path("eval/data"));
    options.offset                = number_or(settings, "offset", 0);
    options.limit                 = number_or(settings, "limit", CPL_UNSET);
    options.max_tokens            = number_or(given, "max_gen_toks", CPL_UNSET);
    options.shots                 = number_or(given, "num_fewshot", CPL_UNSET);
    const cpl_profile *profile =
        profile_of_task(task, json_string_value(json_object_get(settings, "profile")),
                        json_string_value(json_object_get(given, "variant")));
    assert_ok(cpl_questions_read(&q, task, profile, &options));
    if (options.shots == CPL_UNSET && json_object_get(settings, "num_fewshot"))
        assert_int_equal(q.shots, number_or(settings, "num_fewshot", -1));
    check_samples(&q, json_object_get(json_object_get(results, name), "samples"), settings);
    assert_int_equal(q.max_tokens, number_or(settings, "max_gen_toks", 0));
    assert_int_equal(q.skipped, 0);
    cpl_questions_free(&q);
    cpl_task_free(task);
    json_decref(whole);
}

static void check_folder(const char *folder, size_t n_files)
{
    char pattern[600];
    glob_t hits;
    snprintf(pattern, sizeof pattern, "%s/*.json.gz", reference_path(folder));
    assert_int_equal(glob(pattern, 0, NULL, &hits), 0);
    assert_int_equal(hits.gl_pathc, n_files);
    for (size_t i = 0; i < hits.gl_pathc; i++) check_file(hits.gl_pathv[i]);
    globfree(&hits);
}

TEST_ANY(test_harness)
{
    check_folder("eval/harness", 19);
}

TEST_ANY(test_inloop)
{
    check_folder("eval/inloop", 11);
}
