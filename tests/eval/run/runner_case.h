/* runner_case.h - a model with known logits, and questions to the model. */
#ifndef CPL_TESTS_EVAL_RUN_RUNNER_CASE_H
#define CPL_TESTS_EVAL_RUN_RUNNER_CASE_H

#include "base/arena.h"
#include "eval/answers.h"
#include "eval/grade/score.h"
#include "eval/run/kinds.h"
#include "eval/run/runner.h"
#include "support/tiny_world.h"

enum { VOCAB = 384, WINDOW = 40, EOS = 0, PADDING = 1 }; /* sizes and ids of small.json */

/* A model whose logits after a token depend on that token alone, as link_tokens sets them: its
 * embeddings are unit vectors, and its layers add nothing to them. */
typedef struct bench {
    world w;
    cpl_tokenizer *tokenizer;
    cpl_encoder *encoder;
    cpl_lm_batch batch;
    cpl_eval_runner runner;
} bench;

static inline void fill(cpl_tensor t, float value)
{
    for (int64_t i = 0; i < cpl_tensor_count(t); i++) cpl_f32(t)[i] = value;
}

static inline void open_bench(bench *b, bool chained)
{
    cpl_model_settings c = tiny();
    memset(b, 0, sizeof *b);
    c.vocab_size    = VOCAB;
    c.max_positions = WINDOW + 8;
    if (chained) c.d_model = VOCAB;
    open_world(&b->w, c, CPL_F32);
    cpl_params *p = &b->w.model.master;
    for (int64_t l = 0; chained && l < c.n_layers; l++) {
        fill(p->layer[l].w_o, 0);
        fill(p->layer[l].w_down, 0);
    }
    if (chained) {
        fill(p->embed, 0);
        fill(p->head, 0);
        for (int64_t i = 0; i < VOCAB; i++) cpl_f32(p->embed)[i * VOCAB + i] = 1;
    }
    cpl_model_refresh(&b->w.model);
    assert_ok(cpl_tokenizer_load(&b->tokenizer, golden_path("tokenizers/small.json")));
    assert_ok(cpl_encoder_init(&b->encoder, b->tokenizer, false));
    assert_ok(
        cpl_lm_batch_init(&b->batch, &b->w.model, &(cpl_lm_batch_settings){WINDOW + 8, 0, 0}));
    b->runner = (cpl_eval_runner){&b->batch, b->tokenizer, WINDOW, EOS, true, {0}, NULL};
}

static inline void close_bench(bench *b)
{
    cpl_lm_batch_free(&b->batch);
    cpl_encoder_free(b->encoder);
    cpl_tokenizer_free(b->tokenizer);
    close_world(&b->w);
}

/* Returns the tokens of a text, which are valid until the next call. */
static inline const cpl_ids *ids_of(bench *b, const char *text, size_t length)
{
    static int32_t at[200];
    static cpl_ids out;
    cpl_ids ids = {0};
    assert_ok(cpl_encoder_append(b->encoder, &ids, text, length));
    assert_true(ids.count <= 200);
    memcpy(at, ids.at, (size_t)ids.count * sizeof *at);
    out = (cpl_ids){at, ids.count, 200};
    cpl_ids_free(&ids);
    return &out;
}

static inline void link_tokens(bench *b, int32_t from, int32_t to)
{
    cpl_f32(b->w.model.master.head)[to * VOCAB + from] = 1;
    cpl_model_refresh(&b->w.model);
}

/* Makes the model write each id after the one before it. */
static inline void chain(bench *b, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i + 1 < n; i++) link_tokens(b, ids[i], ids[i + 1]);
}

static inline void unlink_all(bench *b)
{
    fill(b->w.model.master.head, 0);
    cpl_model_refresh(&b->w.model);
}

/* ---- asking ---- */

typedef struct heard {
    json_t *samples;
    int64_t done, of, fail_at;
} heard;

static inline cpl_status take(void *ctx, int64_t index, json_t *sample)
{
    heard *h = ctx;
    assert_int_equal(index, json_array_size(h->samples));
    json_array_append_new(h->samples, sample);
    return index == h->fail_at ? CPL_FAIL(CPL_ERR_IO, "enough") : CPL_OK;
}

static inline void count(void *ctx, int64_t done, int64_t of)
{
    heard *h = ctx;
    assert_int_equal(done, h->done + 1);
    h->done = done;
    h->of   = of;
}

static inline cpl_status ask_all(bench *b, const cpl_question *q, int64_t n, heard *h)
{
    const cpl_eval_runner_callbacks listener = {take, count, h};
    *h                                       = (heard){.samples = json_array(), .fail_at = -1};
    return cpl_eval_runner_run(&b->runner, q, n, &listener);
}

static inline json_t *ask(bench *b, const cpl_question *q, int64_t n)
{
    heard h;
    assert_ok(ask_all(b, q, n, &h));
    assert_int_equal(json_array_size(h.samples), n);
    assert_int_equal(h.done, h.of);
    return h.samples;
}

static inline double number(const json_t *sample, const char *key, const char *part)
{
    const json_t *value = json_object_get(sample, key);
    if (part) value = json_object_get(value, part);
    if (!json_is_number(value)) fail_msg("there is no number %s %s", key, part ? part : "");
    return json_number_value(value);
}

static inline double number_in(const json_t *sample, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(sample, key), i);
    if (!json_is_number(value)) fail_msg("there is no number %zu in %s", i, key);
    return json_number_value(value);
}

/* ---- questions ---- */

enum { N_SCORES = 3 };

static const char *const score_names[N_SCORES] = {"acc", "acc_norm", "acc_uncond"};
static const cpl_score *scores[N_SCORES];

static inline cpl_request_spec rank_form(void)
{
    for (int i = 0; i < N_SCORES; i++) assert_ok(cpl_score_find(&scores[i], score_names[i]));
    return (cpl_request_spec){
        .kind = &cpl_request_kind_multiple_choice, .scores = scores, .n_scores = 2};
}

static inline cpl_option option(const char *context, const char *continuation)
{
    return (cpl_option){context, continuation, continuation[0] == ' '};
}

/* Returns a question whose `n` options are ranked. Option *gold is right. */
static inline cpl_question rank_question(const char *id, const cpl_request_spec *form,
                                         cpl_option *options, int64_t n, int64_t *gold)
{
    return (cpl_question){
        .id = id, .form = form, .options = options, .n_options = n, .gold = gold, .n_gold = 1};
}

static cpl_answer answers[1];

static inline cpl_request_spec text_form(int64_t tokens, const char *const *until, int64_t n_until)
{
    answers[0] = (cpl_answer){.name = "exact_match"};
    assert_ok(cpl_filter_find(&answers[0].grading.filter, "none"));
    assert_ok(cpl_normal_find(&answers[0].grading.normal, "none"));
    assert_ok(cpl_comparison_find(&answers[0].grading.comparison, "exact"));
    return (cpl_request_spec){.kind         = &cpl_request_kind_generate_until,
                              .until        = until,
                              .n_until      = n_until,
                              .max_gen_toks = tokens,
                              .answers      = answers,
                              .n_answers    = 1};
}

static const char *const wanted[]        = {"stone", "\xEF\xBF\xBD"};
static const cpl_references references[] = {{wanted, 2}};

static inline cpl_question text_question(const cpl_request_spec *form, const char *prompt)
{
    return (cpl_question){
        .id = "s/7", .form = form, .prompt = prompt, .references = (cpl_references *)references};
}

#endif /* CPL_TESTS_EVAL_RUN_RUNNER_CASE_H */
