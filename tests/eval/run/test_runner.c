/* test_runner.c - requests to a model: windows, blocks, both kinds in one call, impossible
 * requests, a failing listener, memory that runs out. */
#include <math.h>

#include "eval/run/runner_case.h"

/* There are more questions than a block holds, with windows of their own. */
TEST(many_questions)
{
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
        q[i] = rank_question(ids[i], &forms[i % 2], two, 2, &gold);
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
    assert_int_equal(cpl_eval_runner_window(q, N, 2), 2); /* the window is at most the model's */
    forms[1].fixed = true;
    assert_int_equal(cpl_eval_runner_window(q, N, 2), 3);
    assert_int_equal(cpl_eval_runner_window(q, N, WINDOW), WINDOW);
    assert_int_equal(cpl_eval_runner_window(q, 1, 2), 2);
    json_decref(samples);
    close_bench(&b);
}

/* A task may rank the options of some of its subjects and generate texts for the others. */
TEST(both_kinds)
{
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
                          : rank_question("s/1", &ranked, two, 2, &gold);
    json_t *samples = ask(&b, q, N);
    for (size_t i = 0; i < N; i++) {
        const json_t *one = json_array_get(samples, i);
        assert_int_equal(json_object_get(one, "text") != NULL, is_text[i]);
        assert_int_equal(json_object_get(one, "loglik") != NULL, !is_text[i]);
    }
    json_decref(samples);
    close_bench(&b);
}

/* ---- impossible requests ---- */

/* Checks that asking fails with a sentence that contains `part`. */
static void ask_fails(bench *b, const cpl_question *q, const char *part)
{
    heard h;
    assert_fails(CPL_ERR_INPUT, part, ask_all(b, q, 1, &h));
    assert_int_equal(json_array_size(h.samples), 0);
    json_decref(h.samples);
}

/* Checks that asking fails with this sentence, as the check before a model is loaded does. */
static void both_fail(bench *b, const cpl_question *q, const char *part)
{
    ask_fails(b, q, part);
    assert_fails(CPL_ERR_INPUT, part, cpl_eval_runner_check(q, 1, WINDOW, b->tokenizer, NULL));
}

TEST(refusals)
{
    bench b;
    open_bench(&b, false);
    int64_t gold            = 0;
    cpl_option two[]        = {option("the stone", " a"), option("the stone", " the stone mill")};
    cpl_request_spec ranked = rank_form(), text;
    cpl_question q          = rank_question("s/7", &ranked, two, 2, &gold);
    ranked.window           = 2;
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
    ask_fails(&b, &q, "question s/7: the continuation \"\" has no token");
    two[1]       = option("", " a");
    b.runner.eos = -1;
    ask_fails(&b, &q, "question s/7: its context is empty");
    b.runner.eos = EOS;
    text         = text_form(WINDOW, NULL, 0);
    q            = text_question(&text, "the stone");
    both_fail(&b, &q,
              "question s/7: 40 generated tokens leave a window of 40 no room for the prompt");
    const cpl_eval_runner_advice advice = {.room = "make room", .beyond = "ask for less"};
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
    q      = rank_question("0", &ranked, two, 2, &gold);
    ask_fails(&b, &q, "not finite");
    close_bench(&b);
}

TEST(a_listener_that_fails)
{
    bench b;
    open_bench(&b, false);
    int64_t gold                = 0;
    cpl_option two[]            = {option("the stone", " a"), option("the stone", " the")};
    const cpl_request_spec form = rank_form();
    const cpl_question q        = rank_question("0", &form, two, 2, &gold);
    const cpl_question thrice[] = {q, q, q};
    heard h                     = {.samples = json_array(), .fail_at = 1};
    const cpl_eval_runner_callbacks listener = {take, NULL, &h};
    assert_int_equal(cpl_eval_runner_run(&b.runner, thrice, 3, &listener), CPL_ERR_IO);
    assert_int_equal(json_array_size(h.samples), 2);
    json_decref(h.samples);
    assert_ok(cpl_eval_runner_run(&b.runner, NULL, 0, &listener));
    close_bench(&b);
}

TEST(no_memory)
{
    bench b;
    open_bench(&b, false);
    int64_t gold                  = 0;
    cpl_option two[]              = {option("the stone ", "a"), option("the stone ", "the")};
    const cpl_request_spec ranked = rank_form(), text = text_form(3, NULL, 0);
    cpl_question all[]   = {rank_question("0", &ranked, two, 2, &gold),
                            text_question(&text, "the stone")};
    all[0].unconditional = "A";
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
