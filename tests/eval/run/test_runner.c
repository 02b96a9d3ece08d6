/* test_runner.c - models of which it is known what they say: one that says nothing, one that knows
 * the answers, one that writes a given chain of tokens; windows, blocks, what cannot be asked. */
#include "eval/run/runner.h"

#include <math.h>

#include "base/arena.h"
#include "eval/answers.h"
#include "eval/grade/score.h"
#include "eval/run/kinds.h"
#include "support/tiny_world.h"

enum { VOCAB = 384, WINDOW = 40, EOS = 0, PADDING = 1 }; /* of small.json */

/* A model whose logits behind token a are column a of `next`, whatever stands before it: embeddings
 * are unit vectors, and nothing is added to them. */
typedef struct bench {
    world w;
    cpl_tokenizer *tokenizer;
    cpl_encoder *encoder;
    cpl_lm_batch batch;
    cpl_eval_runner runner;
} bench;

static void fill(cpl_tensor t, float value)
{
    for (int64_t i = 0; i < cpl_tensor_count(t); i++) cpl_f32(t)[i] = value;
}

static void open_bench(bench *b, bool chained)
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
    b->runner = (cpl_eval_runner){&b->batch, b->tokenizer, WINDOW, EOS, true, {0}};
}

static void close_bench(bench *b)
{
    cpl_lm_batch_free(&b->batch);
    cpl_encoder_free(b->encoder);
    cpl_tokenizer_free(b->tokenizer);
    close_world(&b->w);
}

/* The tokens of the texts together; static, until the next call. */
static const cpl_ids *ids_of(bench *b, const char *text, size_t length)
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

static void link_tokens(bench *b, int32_t from, int32_t to)
{
    cpl_f32(b->w.model.master.head)[to * VOCAB + from] = 1;
    cpl_model_refresh(&b->w.model);
}

/* Behind each of the ids the next one. */
static void chain(bench *b, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i + 1 < n; i++) link_tokens(b, ids[i], ids[i + 1]);
}

static void unlink_all(bench *b)
{
    fill(b->w.model.master.head, 0);
    cpl_model_refresh(&b->w.model);
}

/* ---- asking ---- */

typedef struct heard {
    json_t *samples;
    int64_t done, of, fail_at;
} heard;

static cpl_status take(void *ctx, int64_t index, json_t *sample)
{
    heard *h = ctx;
    assert_int_equal(index, json_array_size(h->samples));
    json_array_append_new(h->samples, sample);
    return index == h->fail_at ? CPL_FAIL(CPL_ERR_IO, "enough") : CPL_OK;
}

static void count(void *ctx, int64_t done, int64_t of)
{
    heard *h = ctx;
    assert_int_equal(done, h->done + 1);
    h->done = done;
    h->of   = of;
}

static cpl_status ask_all(bench *b, const cpl_question *q, int64_t n, heard *h)
{
    const cpl_eval_runner_callbacks callbacks = {take, count, h};
    *h                                        = (heard){.samples = json_array(), .fail_at = -1};
    return cpl_eval_runner_run(&b->runner, q, n, &callbacks);
}

static json_t *ask(bench *b, const cpl_question *q, int64_t n)
{
    heard h;
    assert_ok(ask_all(b, q, n, &h));
    assert_int_equal(json_array_size(h.samples), n);
    assert_int_equal(h.done, h.of);
    return h.samples;
}

/* Its failure must say `part`. */
static void ask_fails(bench *b, const cpl_question *q, const char *part)
{
    heard h;
    assert_fails(CPL_ERR_INPUT, part, ask_all(b, q, 1, &h));
    assert_int_equal(json_array_size(h.samples), 0);
    json_decref(h.samples);
}

static double number(const json_t *sample, const char *key, const char *part)
{
    const json_t *value = json_object_get(sample, key);
    if (part) value = json_object_get(value, part);
    if (!json_is_number(value)) fail_msg("there is no number %s %s", key, part ? part : "");
    return json_number_value(value);
}

static double number_in(const json_t *sample, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(sample, key), i);
    if (!json_is_number(value)) fail_msg("there is no number %zu in %s", i, key);
    return json_number_value(value);
}

/* ---- ranked ---- */

enum { N_SCORES = 3 };

static const char *const score_names[N_SCORES] = {"acc", "acc_norm", "acc_uncond"};
static const cpl_score *scores[N_SCORES];

static cpl_request_spec rank_form(void)
{
    for (int i = 0; i < N_SCORES; i++) assert_ok(cpl_score_find(&scores[i], score_names[i]));
    return (cpl_request_spec){
        .kind = &cpl_request_kind_multiple_choice, .scores = scores, .n_scores = 2};
}

static cpl_option option(const char *context, const char *continuation)
{
    return (cpl_option){context, continuation, continuation[0] == ' '};
}

/* Every token is equally likely: the option with the fewest wins, the first of equal ones. */
static void a_model_that_says_nothing(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, true);
    int64_t gold[]       = {1, 3};
    cpl_option options[] = {option("Q", " stone water"), option("Q", " a"), option("Q", " the"),
                            option("Q", " he")};
    const cpl_request_spec form = rank_form();
    cpl_question q              = {
                     .id = "3", .form = &form, .options = options, .n_options = 4, .gold = gold, .n_gold = 2};
    json_t *samples = ask(&b, &q, 1), *one = json_array_get(samples, 0);
    for (size_t i = 0; i < 4; i++)
        assert_near(number_in(one, "loglik", i), -number_in(one, "tokens", i) * log(VOCAB), 1e-4);
    assert_near(number_in(one, "tokens", 1), 1, 0);
    assert_near(number_in(one, "tokens", 2), 1, 0);
    assert_near(number(one, "pred", "acc"), 1, 0);
    assert_near(number(one, "correct", "acc"), 1, 0);
    assert_int_equal(json_integer_value(json_object_get(one, "id")), 3);
    assert_near(number_in(one, "gold", 1), 3, 0);
    json_decref(samples);
    q.n_gold = 1, q.gold = gold + 1, q.id = "s/03", q.several = true, b.runner.texts = false;
    samples = ask(&b, &q, 1), one = json_array_get(samples, 0);
    assert_near(number(one, "correct", "acc"), 0, 0);
    assert_string_equal(member(one, "id"), "s/03");
    assert_int_equal(json_array_size(json_object_get(one, "gold")), 1);
    assert_null(json_object_get(one, "contexts"));
    assert_null(json_object_get(one, "continuations"));
    json_decref(samples);
    close_bench(&b);
}

/* One whose logits favour the right options' tokens is always right. */
static void a_model_that_knows_the_answers(void **state)
{
    (void)state;
    static const char *const texts[][3] = {
        {" stone", " a", " mill"}, {"h", "he", "hat"}, {" the stone", " the a", " his"}};
    bench b;
    open_bench(&b, true);
    const cpl_request_spec form = rank_form();
    for (int64_t gold = 0; gold < 3; gold++)
        for (int t = 0; t < 3; t++) {
            cpl_option options[3];
            char whole[80];
            snprintf(whole, sizeof whole, "Q:%s", texts[t][gold]);
            for (int i = 0; i < 3; i++) options[i] = option("Q:", texts[t][i]);
            const cpl_question q = {.id        = "0",
                                    .form      = &form,
                                    .options   = options,
                                    .n_options = 3,
                                    .gold      = &gold,
                                    .n_gold    = 1};
            unlink_all(&b);
            const cpl_ids *ids = ids_of(&b, whole, strlen(whole));
            chain(&b, ids->at, ids->count);
            json_t *samples = ask(&b, &q, 1), *one = json_array_get(samples, 0);
            assert_near(number(one, "correct", "acc"), 1, 0);
            assert_near(number(one, "correct", "acc_norm"), 1, 0);
            assert_near(number(one, "soft", "acc"), 1, 1e-3);
            assert_near(number(one, "loss", "bpb_v2"), 0, 1e-3);
            json_decref(samples);
        }
    close_bench(&b);
}

/* The unconditional request is the option behind the bare context. */
static void bare_contexts(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, false);
    int64_t gold          = 0;
    cpl_option full[]     = {option("the stone mill\nA:", " a"),
                             option("the stone mill\nA:", " stone")};
    cpl_option bare[]     = {option("A:", " a"), option("A:", " stone")};
    cpl_request_spec form = rank_form();
    form.n_scores         = 3;
    form.joining          = CPL_JOIN_SEPARATE;
    cpl_question q[]      = {
             {.id            = "0",
              .form          = &form,
              .options       = full,
              .n_options     = 2,
              .gold          = &gold,
              .n_gold        = 1,
              .unconditional = "A:"},
             {.id = "1", .form = &form, .options = full, .n_options = 2, .gold = &gold, .n_gold = 1},
             {.id = "2", .form = &form, .options = bare, .n_options = 2, .gold = &gold, .n_gold = 1},
    };
    heard h;
    assert_ok(ask_all(&b, q, 3, &h));
    assert_int_equal(h.of, 8);
    json_t *with = json_array_get(h.samples, 0), *alone = json_array_get(h.samples, 2);
    double best[2];
    for (size_t i = 0; i < 2; i++) {
        assert_near(number_in(with, "unconditional", i), number_in(alone, "loglik", i), 1e-5);
        best[i] = number_in(with, "loglik", i) - number_in(with, "unconditional", i);
    }
    assert_true(fabs(number_in(with, "loglik", 0) - number_in(alone, "loglik", 0)) > 1e-3);
    assert_near(number(with, "pred", "acc_uncond"), best[1] > best[0], 0);
    assert_near(number_in(with, "loglik", 0), number_in(json_array_get(h.samples, 1), "loglik", 0),
                1e-5);
    assert_null(json_object_get(alone, "unconditional"));
    json_decref(h.samples);
    close_bench(&b);
}

/* The characters are those by which a score divides: of the choice if any does. */
static void characters(void **state)
{
    (void)state;
    static const struct {
        const char *names[2];
        int64_t chars; /* of " stone"; -1: not told */
    } cases[] = {
        {{"acc", "acc_per_token"}, -1},
        {{"acc", "len_norm"}, 6},
        {{"len_norm", "acc_norm"}, 5},
        {{"acc_bytes", "acc_per_char"}, 5},
    };
    bench b;
    open_bench(&b, true);
    int64_t gold     = 0;
    cpl_option two[] = {option("Q", " stone"), option("Q", " a")};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cpl_score *both[2];
        const cpl_request_spec form = {
            .kind = &cpl_request_kind_multiple_choice, .scores = both, .n_scores = 2};
        for (int k = 0; k < 2; k++) assert_ok(cpl_score_find(&both[k], cases[i].names[k]));
        const cpl_question q = {
            .id = "0", .form = &form, .options = two, .n_options = 2, .gold = &gold, .n_gold = 1};
        json_t *samples = ask(&b, &q, 1), *one = json_array_get(samples, 0);
        if (cases[i].chars < 0)
            assert_null(json_object_get(one, "chars"));
        else
            assert_near(number_in(one, "chars", 0), cases[i].chars, 0);
        json_decref(samples);
    }
    close_bench(&b);
}

/* More questions than a block holds, and windows of their own. */
static void many_questions(void **state)
{
    (void)state;
    enum { N = 700 };
    bench b;
    open_bench(&b, false);
    static cpl_question q[N];
    static char ids[N][16];
    int64_t gold     = 1;
    cpl_option two[] = {option("the stone mill", " a"), option("the stone mill", " the stone")};
    cpl_request_spec forms[2] = {rank_form(), rank_form()};
    forms[1].window           = 3;
    for (int i = 0; i < N; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        q[i] = (cpl_question){.id        = ids[i],
                              .form      = &forms[i % 2],
                              .options   = two,
                              .n_options = 2,
                              .gold      = &gold,
                              .n_gold    = 1};
    }
    json_t *samples     = ask(&b, q, N);
    const json_t *first = json_array_get(samples, 0), *second = json_array_get(samples, 1);
    for (size_t i = 0; i < N; i++) {
        const json_t *one = json_array_get(samples, i), *like = i % 2 ? second : first;
        assert_int_equal(json_integer_value(json_object_get(one, "id")), i);
        for (size_t k = 0; k < 2; k++)
            assert_near(number_in(one, "loglik", k), number_in(like, "loglik", k), 1e-5);
    }
    assert_near(number(first, "cut", NULL), 0, 0);
    assert_near(number(second, "cut", NULL),
                number_in(second, "ctx_tokens", 1) + number_in(second, "tokens", 1) - 4, 0);
    assert_near(number_in(second, "ctx_tokens", 1), number_in(first, "ctx_tokens", 1), 0);
    assert_int_equal(cpl_eval_runner_window(q, N, 2), 2); /* no longer than the model's */
    forms[1].fixed = true;
    assert_int_equal(cpl_eval_runner_window(q, N, 2), 3);
    assert_int_equal(cpl_eval_runner_window(q, N, WINDOW), WINDOW);
    assert_int_equal(cpl_eval_runner_window(q, 1, 2), 2);
    json_decref(samples);
    close_bench(&b);
}

/* ---- generated ---- */

static cpl_answer answers[1];

static cpl_request_spec text_form(int64_t tokens, const char *const *until, int64_t n_until)
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

static cpl_question text_question(const cpl_request_spec *form, const char *prompt)
{
    return (cpl_question){
        .id = "s/7", .form = form, .prompt = prompt, .references = (cpl_references *)references};
}

/* Behind the prompt "Q" the given ids; what is told of the text and of the number of tokens. */
static void check_text(bench *b, const int32_t *ids, int64_t n, int64_t tokens,
                       const char *const *until, int64_t n_until, const char *text, int64_t told)
{
    int32_t all[64];
    const cpl_request_spec form = text_form(tokens, until, n_until);
    const cpl_question q        = text_question(&form, "Q");
    all[0]                      = ids_of(b, "Q", 1)->at[0];
    memcpy(all + 1, ids, (size_t)n * sizeof *ids);
    unlink_all(b);
    chain(b, all, n + 1);
    json_t *samples = ask(b, &q, 1), *one = json_array_get(samples, 0);
    assert_string_equal(member(one, "text"), text);
    assert_near(number(one, "gen_tokens", NULL), told, 0);
    assert_near(number(one, "prompt_tokens", NULL), 1, 0);
    assert_near(number(one, "cut", NULL), 0, 0);
    assert_near(number(one, "correct", NULL),
                strcmp(text, wanted[0]) == 0 || strcmp(text, wanted[1]) == 0, 0);
    assert_string_equal(member(json_array_get(json_object_get(one, "target"), 1), NULL), wanted[1]);
    json_decref(samples);
}

static void texts_and_where_they_end(void **state)
{
    (void)state;
    static const char *const inside[] = {"ton"}, *const across[] = {"ea"},
                             *const special[] = {"<|padding|>"}, *const order[] = {"ne", "st"},
                             *const none[] = {"zzz", ""};
    bench b;
    int32_t stone[2], letters[3];
    open_bench(&b, true);
    assert_int_equal(ids_of(&b, "stone", 5)->count, 1);
    stone[0] = ids_of(&b, "stone", 5)->at[0], stone[1] = EOS;
    letters[0] = stone[0], letters[1] = ids_of(&b, "a", 1)->at[0], letters[2] = EOS;
    check_text(&b, stone, 2, 5, NULL, 0, "stone", 2);
    check_text(&b, stone, 2, 1, NULL, 0, "stone", 1);
    check_text(&b, stone, 2, 5, none, 2, "stone", 2);
    check_text(&b, stone + 1, 1, 5, NULL, 0, "", 1); /* eos at once */
    check_text(&b, stone, 2, 5, inside, 1, "s", 1);
    check_text(&b, stone, 2, 5, order, 2, "", 1);
    check_text(&b, letters, 3, 5, across, 1, "ston", 2);
    check_text(&b, (int32_t[]){stone[0], stone[0]}, 2, 3, NULL, 0, "stonestonestone", 3);
    /* special tokens are no part of the text, but a stop string may be one */
    check_text(&b, (int32_t[]){stone[0], PADDING, EOS}, 3, 5, NULL, 0, "stone", 3);
    check_text(&b, (int32_t[]){stone[0], PADDING, EOS}, 3, 5, special, 1, "stone", 2);
    /* bytes that are no text, and a NUL */
    cpl_ids raw = *ids_of(&b, "\xE3\x81\x82", 3);
    assert_true(raw.count > 1);
    check_text(&b, (int32_t[]){raw.at[0], EOS}, 2, 5, NULL, 0, "\xEF\xBF\xBD", 2);
    raw = *ids_of(&b, "\0", 1);
    check_text(&b, (int32_t[]){raw.at[0], stone[0], EOS}, 3, 5, NULL, 0, "\xEF\xBF\xBDstone", 3);
    close_bench(&b);
}

/* More texts than a block holds, of two lengths, whose prompts are cut. */
static void many_texts(void **state)
{
    (void)state;
    enum { N = 150 };
    bench b;
    static cpl_question q[N];
    open_bench(&b, true);
    const int32_t a           = ids_of(&b, "a", 1)->at[0];
    cpl_request_spec forms[2] = {text_form(4, NULL, 0), text_form(WINDOW - 3, NULL, 0)};
    const char *prompt        = "stone stone stone a";
    const int64_t n           = ids_of(&b, prompt, strlen(prompt))->count;
    const int32_t final       = ids_of(&b, prompt, strlen(prompt))->at[n - 1];
    link_tokens(&b, final, a);
    link_tokens(&b, a, a);
    for (int i = 0; i < N; i++) q[i] = text_question(&forms[i >= 140], prompt);
    json_t *samples = ask(&b, q, N);
    for (size_t i = 0; i < N; i++) {
        const json_t *one  = json_array_get(samples, i);
        const int64_t more = i >= 140 ? WINDOW - 3 : 4;
        assert_int_equal(strlen(member(one, "text")), more);
        assert_near(number(one, "gen_tokens", NULL), more, 0);
        assert_near(number(one, "prompt_tokens", NULL), n, 0);
        assert_near(number(one, "cut", NULL), i >= 140 ? n - 3 : 0, 0);
    }
    json_decref(samples);
    close_bench(&b);
}

/* A task may rank some of its subjects' options and generate the others' texts. */
static void both_kinds(void **state)
{
    (void)state;
    static const bool is_text[] = {1, 0, 0, 1, 1, 0};
    enum { N = sizeof is_text };
    bench b;
    open_bench(&b, false);
    int64_t gold                  = 0;
    cpl_option two[]              = {option("the stone", " a"), option("the stone", " the")};
    const cpl_request_spec ranked = rank_form(), text = text_form(3, NULL, 0);
    cpl_question q[N];
    for (int i = 0; i < N; i++)
        q[i] = is_text[i] ? text_question(&text, "the stone")
                          : (cpl_question){.id        = "s/1",
                                           .form      = &ranked,
                                           .options   = two,
                                           .n_options = 2,
                                           .gold      = &gold,
                                           .n_gold    = 1};
    json_t *samples = ask(&b, q, N);
    for (size_t i = 0; i < N; i++) {
        const json_t *one = json_array_get(samples, i);
        assert_int_equal(json_object_get(one, "text") != NULL, is_text[i]);
        assert_int_equal(json_object_get(one, "loglik") != NULL, !is_text[i]);
    }
    json_decref(samples);
    close_bench(&b);
}

/* ---- what cannot be asked ---- */

/* The same is told before a model is there. */
static void both_fail(bench *b, const cpl_question *q, const char *part)
{
    ask_fails(b, q, part);
    assert_fails(CPL_ERR_INPUT, part, cpl_eval_runner_check(q, 1, WINDOW, b->tokenizer, NULL));
}

static void refusals(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, false);
    int64_t gold            = 0;
    cpl_option two[]        = {option("the stone", " a"), option("the stone", " the stone mill")};
    cpl_request_spec ranked = rank_form(), text;
    cpl_question q          = {
                 .id = "s/7", .form = &ranked, .options = two, .n_options = 2, .gold = &gold, .n_gold = 1};
    ranked.window = 2;
    both_fail(&b, &q,
              "question s/7: a continuation of it has 3 tokens, but the window is 2; take its row "
              "out of the file");
    ranked.window      = 4;
    ranked.stop_beyond = true;
    both_fail(&b, &q, "question s/7: it has 1 token more than fits into the window");
    ranked.window = 5;
    assert_fails(CPL_ERR_INPUT,
                 "question s/7: ", cpl_eval_runner_check(&q, 1, 1, b.tokenizer, NULL));
    ranked.fixed = true;
    assert_ok(cpl_eval_runner_check(&q, 1, 1, b.tokenizer, NULL));
    ranked.window       = 0;
    two[1].continuation = "";
    ask_fails(&b, &q, "question s/7: a continuation of it has no tokens");
    two[1]       = option("", " a");
    b.runner.eos = -1;
    ask_fails(&b, &q, "question s/7: its context is empty");
    b.runner.eos = EOS;
    text         = text_form(WINDOW, NULL, 0);
    q            = text_question(&text, "the stone");
    both_fail(&b, &q,
              "question s/7: 40 generated tokens leave a window of 40 no room for the prompt");
    const cpl_eval_runner_advice advice = {"make room", "ask for less"};
    assert_fails(CPL_ERR_INPUT, "no room for the prompt; make room",
                 cpl_eval_runner_check(&q, 1, WINDOW, b.tokenizer, &advice));
    text.max_gen_toks = WINDOW - 1;
    text.stop_beyond  = true;
    both_fail(&b, &q, "question s/7: it has 2 tokens more");
    assert_fails(CPL_ERR_INPUT, "let it be cut; ask for less",
                 cpl_eval_runner_check(&q, 1, WINDOW, b.tokenizer, &advice));
    text.max_gen_toks = WINDOW - 3;
    assert_ok(cpl_eval_runner_check(&q, 1, WINDOW, b.tokenizer, NULL));
    text.stop_beyond  = false;
    text.max_gen_toks = WINDOW - 1;
    assert_ok(cpl_eval_runner_check(&q, 1, WINDOW, b.tokenizer, NULL));
    cpl_f32(b.w.model.master.layer[1].w_q)[5] = NAN;
    cpl_model_refresh(&b.w.model);
    ask_fails(&b, &q, "not finite");
    two[1] = option("the stone", " b");
    q      = (cpl_question){
             .id = "0", .form = &ranked, .options = two, .n_options = 2, .gold = &gold, .n_gold = 1};
    ask_fails(&b, &q, "not finite");
    close_bench(&b);
}

static void a_listener_that_fails(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, false);
    int64_t gold                = 0;
    cpl_option two[]            = {option("the stone", " a"), option("the stone", " the")};
    const cpl_request_spec form = rank_form();
    const cpl_question q        = {
               .id = "0", .form = &form, .options = two, .n_options = 2, .gold = &gold, .n_gold = 1};
    const cpl_question twice[]                = {q, q, q};
    heard h                                   = {.samples = json_array(), .fail_at = 1};
    const cpl_eval_runner_callbacks callbacks = {take, NULL, &h};
    assert_int_equal(cpl_eval_runner_run(&b.runner, twice, 3, &callbacks), CPL_ERR_IO);
    assert_int_equal(json_array_size(h.samples), 2);
    json_decref(h.samples);
    assert_ok(cpl_eval_runner_run(&b.runner, NULL, 0, &callbacks));
    close_bench(&b);
}

static void no_memory(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, false);
    int64_t gold                  = 0;
    cpl_option two[]              = {option("the stone ", "a"), option("the stone ", "the")};
    const cpl_request_spec ranked = rank_form(), text = text_form(3, NULL, 0);
    const cpl_question all[] = {
        {.id            = "0",
         .form          = &ranked,
         .options       = two,
         .n_options     = 2,
         .gold          = &gold,
         .n_gold        = 1,
         .unconditional = "A"},
        text_question(&text, "the stone"),
    };
    for (int i = 0; i < 2; i++) {
        int64_t failures = 0;
        for (int64_t nth = 1;; nth++, failures++) {
            heard h;
            cpl_alloc_fail_at(nth);
            const cpl_status status = ask_all(&b, &all[i], 1, &h);
            cpl_alloc_fail_at(0);
            json_decref(h.samples);
            if (status == CPL_OK) break;
            assert_int_equal(status, CPL_ERR_MEMORY);
        }
        assert_true(failures >= 10);
    }
    close_bench(&b);
}

/* A pattern that takes too many steps is an error that names the question. */
static void a_slow_pattern_names_its_question(void **state)
{
    (void)state;
    static const cpl_filter slow = {"slow", "", NULL, {{"(a|aa)+$", false, false}}};
    const cpl_request_spec form  = text_form(3, NULL, 0);
    answers[0].grading.filter    = &slow;
    cpl_question q               = text_question(&form, "x");
    cpl_grading_scratch room     = {0};
    json_t *sample               = NULL;
    q.id                         = "law/7";
    const cpl_generated text     = {
            .text = cpl_span_of("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")};
    assert_fails(CPL_ERR_INPUT, "question law/7: the pattern (a|aa)+$ takes more than",
                 cpl_sample_generated(&sample, &q, &text, &room, false));
    assert_null(sample);
    cpl_grading_scratch_free(&room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_pattern_names_its_question),
        cmocka_unit_test(a_model_that_says_nothing),
        cmocka_unit_test(a_model_that_knows_the_answers),
        cmocka_unit_test(bare_contexts),
        cmocka_unit_test(characters),
        cmocka_unit_test(many_questions),
        cmocka_unit_test(texts_and_where_they_end),
        cmocka_unit_test(many_texts),
        cmocka_unit_test(both_kinds),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_listener_that_fails),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
