/* golden_case.h - the model, tokenizer and reference results of golden/eval, from the checkout or
 * from the larger reference data, and questions made of the references' texts. */
#ifndef CPL_TESTS_EVAL_GOLDEN_CASE_H
#define CPL_TESTS_EVAL_GOLDEN_CASE_H

#include "eval/run/runner.h"

#include "base/arena.h"
#include "eval/answers.h"
#include "eval/grade/score.h"
#include "eval/grade/words.h"
#include "store/hf.h"
#include "support/files.h"

static const char *const golden_ranked[] =
    LIST("harness/agieval", "harness/arc_challenge", "harness/boolq", "harness/ceval",
         "harness/commonsense_qa", "harness/copa", "harness/hellaswag", "harness/mmlu",
         "harness/openbookqa", "harness/sciq", "harness/social_iqa", "harness/winogrande",
         "inloop/arc_challenge", "inloop/boolq", "inloop/commonsense_qa", "inloop/copa",
         "inloop/hellaswag", "inloop/mmlu", "inloop/mmlu.mc_5shot", "inloop/openbookqa",
         "inloop/sciq", "inloop/social_iqa", "inloop/winogrande");
static const char *const golden_generated[] = {
    "harness/bbh",      "harness/gsm8k",    "harness/gsm8k_cot",      "harness/math",
    "harness/mmlu_pro", "harness/triviaqa", "harness/triviaqa.0shot",
};
enum {
    N_RANKED    = sizeof golden_ranked / sizeof *golden_ranked,
    N_GENERATED = sizeof golden_generated / sizeof *golden_generated,
};

/* ---- files ---- */

/* Returns the reference of a name such as "harness/copa", which the caller gives back, and sets
 * `result` to the object of its task. */
__attribute__((unused)) static json_t *golden_file(const char *name, json_t **result)
{
    char relative[128];
    snprintf(relative, sizeof relative, "eval/%s.json.gz", name);
    json_t *file = load_plain(reference_path(relative));
    *result      = json_object_iter_value(json_object_iter(json_object_get(file, "results")));
    assert_non_null(*result);
    return file;
}

/* ---- the model ---- */

typedef struct golden {
    cpl_backend be;
    cpl_hf *hf;
    cpl_model model;
    cpl_tokenizer *tokenizer;
    cpl_lm_batch batch;
    cpl_eval_runner runner;
} golden;

/* Opens the model for sequences of `window` tokens. */
__attribute__((unused)) static void open_golden(golden *g, int64_t window)
{
    const char *path = reference_path("eval/model");
    memset(g, 0, sizeof *g);
    assert_ok(cpl_backend_open(&g->be, "cpu", CPL_F32, 2));
    assert_ok(cpl_hf_open(&g->hf, path, NULL));
    assert_ok(cpl_model_init(&g->model, &g->be, cpl_hf_config(g->hf), window));
    assert_ok(cpl_hf_load(g->hf, &g->model));
    assert_ok(cpl_tokenizer_load(&g->tokenizer, path));
    assert_ok(cpl_lm_batch_init(&g->batch, &g->model, &(cpl_lm_batch_settings){.window = window}));
    g->runner = (cpl_eval_runner){.batch     = &g->batch,
                                  .tokenizer = g->tokenizer,
                                  .window    = window,
                                  .eos       = cpl_tokenizer_eos(g->tokenizer),
                                  .texts     = true};
}

__attribute__((unused)) static void close_golden(golden *g)
{
    cpl_lm_batch_free(&g->batch);
    cpl_tokenizer_free(g->tokenizer);
    cpl_model_free(&g->model);
    cpl_hf_close(g->hf);
    cpl_backend_free(&g->be);
}

/* ---- asking ---- */

/* Puts a sample at the place of its question. Each place is filled once. */
static inline cpl_status golden_take(void *ctx, int64_t index, json_t *sample)
{
    while ((int64_t)json_array_size(ctx) <= index)
        assert_int_equal(json_array_append_new(ctx, json_null()), 0);
    assert_true(json_is_null(json_array_get(ctx, (size_t)index)));
    assert_int_equal(json_array_set_new(ctx, (size_t)index, sample), 0);
    return CPL_OK;
}

/* Returns all answered questions as an array. */
__attribute__((unused)) static json_t *golden_ask(const golden *g, const cpl_question *questions,
                                                  int64_t n)
{
    json_t *samples                         = json_array();
    const cpl_eval_runner_callbacks listens = {.take = golden_take, .ctx = samples};
    assert_ok(cpl_eval_runner_run(&g->runner, questions, n, &listens));
    assert_int_equal(json_array_size(samples), n);
    for (size_t i = 0; i < (size_t)n; i++) assert_true(json_is_object(json_array_get(samples, i)));
    return samples;
}

/* ---- ranked questions ---- */

static inline const char *pooled(cpl_pool *pool, const json_t *string)
{
    return cpl_pool_copy(pool, member(string, NULL), json_string_length(string));
}

static inline const char *golden_id(cpl_pool *pool, const json_t *sample)
{
    const json_t *id = json_object_get(sample, "id");
    return json_is_integer(id) ? cpl_pool_printf(pool, "%lld", (long long)json_integer_value(id))
                               : pooled(pool, id);
}

/* Returns the form by which a reference was made. Its scores are the members of `pred`. */
__attribute__((unused)) static const cpl_request_spec *
golden_rank_form(cpl_pool *pool, const json_t *sample, bool inloop)
{
    cpl_request_spec *form   = cpl_pool_take(pool, sizeof *form);
    const cpl_score **scores = cpl_pool_take(pool, 8 * sizeof *scores);
    const char *name;
    json_t *value, *pred = json_object_get(sample, "pred");
    *form = (cpl_request_spec){.kind    = &cpl_request_kind_multiple_choice,
                               .joining = inloop ? CPL_JOIN_SEPARATE : CPL_JOIN_JOINT,
                               .window  = inloop ? 2048 : 0,
                               .scores  = scores};
    json_object_foreach(pred, name, value)
        assert_ok(cpl_score_find(&scores[form->n_scores++], name));
    return form;
}

/* Returns the byte at which the last `chars` characters of a text begin. */
static inline size_t last_chars(const char *text, int64_t chars)
{
    const cpl_span span = cpl_span_of(text);
    size_t at           = span.length;
    uint32_t point;
    while (chars-- > 0) at -= cpl_words_previous(&point, span, at);
    return at;
}

static inline void golden_gold(cpl_pool *pool, cpl_question *q, const json_t *gold)
{
    q->several = json_is_array(gold);
    q->n_gold  = q->several ? (int64_t)json_array_size(gold) : 1;
    q->gold    = cpl_pool_take(pool, (size_t)q->n_gold * sizeof *q->gold);
    for (int64_t i = 0; i < q->n_gold; i++)
        q->gold[i] = json_integer_value(q->several ? json_array_get(gold, (size_t)i) : gold);
}

/* Returns the question of a reference that holds its texts. */
__attribute__((unused)) static cpl_question golden_rank(cpl_pool *pool, const json_t *sample,
                                                        bool inloop)
{
    const json_t *contexts = json_object_get(sample, "contexts");
    const json_t *texts    = json_object_get(sample, "continuations");
    const json_t *chars    = json_object_get(sample, "chars");
    cpl_question q         = {.id        = golden_id(pool, sample),
                              .form      = golden_rank_form(pool, sample, inloop),
                              .n_options = (int64_t)json_array_size(texts)};
    q.options              = cpl_pool_take(pool, (size_t)q.n_options * sizeof *q.options);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const size_t of  = json_array_size(contexts) > 1 ? i : 0;
        const char *text = pooled(pool, json_array_get(texts, i));
        q.options[i]     = (cpl_option){
                .context      = pooled(pool, json_array_get(contexts, of)),
                .continuation = text,
                .choice       = inloop || !chars
                                    ? 1
                                    : last_chars(text, json_integer_value(json_array_get(chars, i))),
        };
    }
    golden_gold(pool, &q, json_object_get(sample, "gold"));
    return q;
}

/* ---- generated texts ---- */

typedef struct golden_answer {
    const char *task, *name;
    bool filters;
    const char *filter, *reference, *normal, *comparison, *invalid;
    bool show_normal;
} golden_answer;

/* The answers of each task, the headline first, as data/eval/tasks has them. */
static const golden_answer golden_answers[] = {
    {"gsm8k", "strict-match", 1, "gsm8k_strict", NULL, "gsm8k", "exact", "[invalid]", 0},
    {"gsm8k", "flexible-extract", 1, "last_number", NULL, "gsm8k", "exact", "[invalid]", 0},
    {"gsm8k_cot", "strict-match", 1, "answer_is_number", NULL, "gsm8k", "exact", "[invalid]", 0},
    {"gsm8k_cot", "flexible-extract", 1, "last_number", NULL, "gsm8k", "exact", "[invalid]", 0},
    {"bbh", "exact_match", 0, "the_answer_is", NULL, "none", "exact", "[invalid]", 0},
    {"bbh", "robust", 0, "the_answer_is_robust", NULL, "none", "exact", "[invalid]", 0},
    {"math", "exact_match", 0, "minerva", NULL, "minerva", "number", "[invalidanswer]", 1},
    {"math", "norm", 0, "minerva", NULL, "minerva", "exact", "[invalidanswer]", 1},
    {"mmlu_pro", "exact_match", 0, "answer_letter", NULL, "lower_unpunctuated", "exact",
     "[invalid]", 0},
    {"triviaqa", "exact_match", 0, "none", NULL, "lower_unpunctuated", "exact", "[invalid]", 0},
    {"agieval", "acc", 0, "agieval", "agieval", "agieval", "exact_or_none", NULL, 0},
};

/* Returns the form of a task's generated texts, without stop strings and lengths. */
__attribute__((unused)) static cpl_request_spec *golden_text_form(cpl_pool *pool, const char *task)
{
    cpl_request_spec *form = cpl_pool_take(pool, sizeof *form);
    cpl_answer *answers    = cpl_pool_take(pool, 4 * sizeof *answers);
    *form = (cpl_request_spec){.kind = &cpl_request_kind_generate_until, .answers = answers};
    for (size_t i = 0; i < sizeof golden_answers / sizeof *golden_answers; i++) {
        const golden_answer *g = &golden_answers[i];
        if (strcmp(g->task, task) != 0) continue;
        cpl_answer *one = &answers[form->n_answers++];
        form->filters   = g->filters;
        *one =
            (cpl_answer){.name    = g->name,
                         .grading = grading_of(g->filter, g->reference, g->normal, g->comparison),
                         .invalid = g->invalid,
                         .show_normal = g->show_normal};
    }
    assert_true(form->n_answers > 0);
    return form;
}

/* Sets the lengths and the stop strings, except the last one, which is the end of text. */
__attribute__((unused)) static void golden_limits(cpl_pool *pool, cpl_request_spec *form,
                                                  const json_t *settings)
{
    const json_t *until = json_object_get(settings, "until");
    const size_t n      = json_array_size(until) - 1;
    const char **stops  = cpl_pool_take(pool, (n + 1) * sizeof *stops);
    for (size_t i = 0; i < n; i++) stops[i] = pooled(pool, json_array_get(until, i));
    form->until        = stops;
    form->n_until      = (int64_t)n;
    form->max_gen_toks = json_integer_value(json_object_get(settings, "max_gen_toks"));
}

/* Returns the question of a reference with its prompt, or of a text that is only graded. Every
 * answer has the same references. */
__attribute__((unused)) static cpl_question golden_text(cpl_pool *pool, const json_t *sample,
                                                        const cpl_request_spec *form)
{
    const json_t *prompt = json_object_get(sample, "prompt");
    const json_t *target = json_object_get(sample, "reference");
    if (!target) target = json_object_get(sample, "target");
    cpl_question q  = {.id     = golden_id(pool, sample),
                       .form   = form,
                       .prompt = prompt ? pooled(pool, prompt) : "",
                       .listed = json_is_array(target)};
    const size_t n  = q.listed ? json_array_size(target) : 1;
    const char **at = cpl_pool_take(pool, n * sizeof *at);
    for (size_t i = 0; i < n; i++)
        at[i] = pooled(pool, q.listed ? json_array_get(target, i) : target);
    q.references = cpl_pool_take(pool, (size_t)form->n_answers * sizeof *q.references);
    for (int64_t i = 0; i < form->n_answers; i++)
        q.references[i] = (cpl_references){at, (int64_t)n};
    return q;
}

#endif /* CPL_TESTS_EVAL_GOLDEN_CASE_H */
