/* test_multiple_choice.c - options ranked by models with known logits: a model that prefers no
 * token, and a model that prefers the answers. */
#include <math.h>

#include "eval/run/runner_case.h"

/* Every token has equal probability: the option with the fewest tokens wins, or the first. */
TEST(a_model_that_says_nothing)
{
    bench b;
    open_bench(&b, true);
    int64_t gold[]       = {1, 3};
    cpl_option options[] = {option("Q", " stone water"), option("Q", " a"), option("Q", " the"),
                            option("Q", " he")};
    const cpl_request_spec form = rank_form();
    cpl_question q              = rank_question("3", &form, options, 4, gold);
    q.n_gold                    = 2;
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

/* A model whose logits favour the right options' tokens is always right. */
TEST(a_model_that_knows_the_answers)
{
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
            const cpl_question q = rank_question("0", &form, options, 3, &gold);
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

/* The unconditional request is the option after the bare context. */
TEST(bare_contexts)
{
    bench b;
    open_bench(&b, false);
    int64_t gold          = 0;
    cpl_option full[]     = {option("the stone mill\nA:", " a"),
                             option("the stone mill\nA:", " stone")};
    cpl_option bare[]     = {option("A:", " a"), option("A:", " stone")};
    cpl_request_spec form = rank_form();
    form.n_scores         = 3;
    form.joining          = CPL_JOIN_SEPARATE;
    cpl_question q[]      = {rank_question("0", &form, full, 2, &gold),
                             rank_question("1", &form, full, 2, &gold),
                             rank_question("2", &form, bare, 2, &gold)};
    q[0].unconditional    = "A:";
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

/* A score divides by the number of characters: by that of the choice if any score does so. */
TEST(characters)
{
    static const struct {
        const char *names[2];
        int64_t chars; /* characters of " stone"; -1: not given */
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
        const cpl_question q = rank_question("0", &form, two, 2, &gold);
        json_t *samples = ask(&b, &q, 1), *one = json_array_get(samples, 0);
        if (cases[i].chars < 0)
            assert_null(json_object_get(one, "chars"));
        else
            assert_near(number_in(one, "chars", 0), cases[i].chars, 0);
        json_decref(samples);
    }
    close_bench(&b);
}
