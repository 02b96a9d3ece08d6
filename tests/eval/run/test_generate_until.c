/* test_generate_until.c - texts of a model that writes a given chain of tokens, and their ends. */
#include "eval/run/runner_case.h"

/* Makes the model write the given ids after the prompt "Q". Checks the text and the token count. */
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

TEST(texts_and_where_they_end)
{
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
    /* bytes that are not text, and a NUL */
    cpl_ids raw = *ids_of(&b, "\xE3\x81\x82", 3);
    assert_true(raw.count > 1);
    check_text(&b, (int32_t[]){raw.at[0], EOS}, 2, 5, NULL, 0, "\xEF\xBF\xBD", 2);
    raw = *ids_of(&b, "\0", 1);
    check_text(&b, (int32_t[]){raw.at[0], stone[0], EOS}, 3, 5, NULL, 0, "\xEF\xBF\xBDstone", 3);
    close_bench(&b);
}

/* Generates more texts than a block holds, of two lengths, with cut prompts. */
TEST(many_texts)
{
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

/* A pattern that takes too many steps is an error that names the question. */
TEST(a_slow_pattern_names_its_question)
{
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
