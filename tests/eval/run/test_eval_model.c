/* test_eval_model.c - models and tokenizers that fit, and errors of opening other pairs. */
#include "eval/run/eval_model.h"

#include "store/model_case.h"
#include "support/plain_pass.h"

enum { IDS = 384 }; /* the size of small.json, whose end-of-text id is 0 */

/* Draws a model of `rows` rows. */
static model_case *drawn(int64_t rows)
{
    cpl_model_settings c = small_config();
    c.vocab_size         = rows;
    return model_drawn(&c, 3);
}

/* Saves a model in a new folder, with the tokenizer. */
static const char *save(int64_t rows, int64_t bos, int64_t eos)
{
    const char *folder         = scratch_folder();
    const cpl_hf_tokens tokens = {.pad = -1, .bos = bos, .eos = eos};
    model_case *m              = drawn(rows);
    assert_ok(cpl_hf_save(folder, &m->model, &tokens, golden_path("tokenizers/small.json")));
    model_gone(m);
    return folder;
}

/* Checks that the log-likelihood of the loaded model is that of the saved model. */
static void check_score(cpl_eval_model *e, model_case *saved)
{
    static const int32_t ids[] = {5, 300, 17, 383, 64, 2, 99, 150, 31};
    const int64_t length       = sizeof ids / sizeof *ids;
    for (int64_t scored = 1; scored < length; scored++) {
        cpl_lm_request one = {ids, length, scored, NAN};
        assert_ok(cpl_lm_batch_score(&e->batch, &one, 1, NULL, NULL));
        const double want = plain_score(&saved->model, &one);
        assert_true(want < -0.1 * (double)scored);
        assert_near(one.log_prob, want, 1e-4 * fabs(want));
    }
}

static void fails(const char *folder, const char *tokenizer, const char *part)
{
    cpl_eval_model e;
    assert_fails(CPL_ERR_INPUT, part, cpl_eval_model_open(&e, folder, tokenizer, NULL));
    assert_non_null(strstr(cpl_last_error(), folder));
    assert_null(e.hf);
}

TEST(that_fit)
{
    cpl_eval_model e;
    const char *folder = save(IDS, -1, 7);
    assert_ok(cpl_eval_model_open(&e, folder, NULL, NULL));
    assert_int_equal(e.runner.eos, 7);
    assert_int_equal(e.runner.extra_stop_ids.count, 0);
    assert_int_equal(cpl_eval_model_window(&e), 64);
    assert_ok(cpl_eval_model_load(&e, "auto", CPL_F32, 1, 64));
    model_case *saved = drawn(IDS);
    check_score(&e, saved);
    model_gone(saved);
    cpl_eval_model_close(&e);
    assert_ok(cpl_eval_model_open(&e, save(IDS + 16, -1, -1), NULL, NULL)); /* padded rows */
    assert_int_equal(e.runner.eos, 0);
    cpl_eval_model_close(&e);
}

TEST(several_ends)
{
    char path[128];
    cpl_eval_model e;
    const char *folder = save(IDS + 16, -1, 0), *good = "{\"eos_token_id\": [0, 7]}",
               *bad = "{\"eos_token_id\": [0, 390]}";
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    assert_ok(cpl_file_write_atomic(path, good, strlen(good)));
    assert_ok(cpl_eval_model_open(&e, folder, NULL, NULL));
    assert_int_equal(e.runner.eos, 0);
    assert_int_equal(e.runner.extra_stop_ids.count, 1);
    assert_true(cpl_stop_ids_hold(&e.runner.extra_stop_ids, 7));
    cpl_eval_model_close(&e);
    assert_ok(cpl_file_write_atomic(path, bad, strlen(bad)));
    fails(folder, NULL, "eos_token_id is 390, but");
}

TEST(that_do_not)
{
    const char *folder = save(300, -1, 0);
    fails(folder, NULL, "/tokenizer.json has ids up to 383, but the vocabulary of ");
    fails(folder, NULL, " has 300 rows: it is another model's");
    fails(folder, golden_path("tokenizers/small.json"),
          "tests/golden/tokenizers/small.json has ids up to 383");
    fails(save(IDS + 16, -1, 390), NULL, "eos_token_id is 390, but ");
    fails(save(IDS + 16, IDS, 0), NULL, "bos_token_id is 384, but ");
    fails(save(IDS + 16, IDS, 0), NULL, "/tokenizer.json has the ids 0 to 383");
    folder = save(IDS, -1, 0);
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(unlink(path), 0);
    fails(folder, NULL, "has no tokenizer.json: name one with --tokenizer");
}
