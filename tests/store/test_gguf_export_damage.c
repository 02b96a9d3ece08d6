/* test_gguf_export_damage.c - GGUF files that are not written: models that llama.cpp does not
 * compute, numbers that a type cannot hold, tokenizers without a form there, no memory. */
#include "store/gguf_export_case.h"
#include "support/scarce.h"
#include "support/warnings.h"

/* ---- refusals and warnings ---- */

static void refuses(cpl_model_settings c, const char *says)
{
    model_case *m      = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    assert_fails(CPL_ERR_INPUT, says, export_to(path, folder, CPL_FORMAT_F32, NULL));
    assert_false(cpl_path_exists(path));
    model_gone(m);
}

TEST(what_llama_cpp_does_not_compute)
{
    cpl_model_settings c = config_of(&variants[0]);
    c.clip_qkv           = 2;
    refuses(c, "clip_qkv");
    c          = config_of(&variants[0]);
    c.n_shared = 1;
    refuses(c, "n_shared_experts");
    c        = config_of(&variants[0]);
    c.router = CPL_ROUTER_SIGMOID;
    refuses(c, "norm_topk_prob");
    c        = config_of(&variants[0]);
    c.router = CPL_ROUTER_AOE, c.aoe_rank = 5;
    refuses(c, "Autonomy-of-Experts");
}

/* An old file stays unchanged. */
TEST(numbers_that_a_type_cannot_hold)
{
    model_case *m = variant_filled(0);
    m->be.ops->fill(&m->be, cpl_tensor_numbers(m->model.master.layer[1].w_down, 77, 1), 1e5f);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    write_string(path, "old");
    assert_fails(CPL_ERR_INPUT, "blk.1.ffn_down_exps.weight has a number that F16 cannot hold",
                 export_to(path, folder, CPL_FORMAT_F16, NULL));
    cpl_text old = {0};
    assert_ok(cpl_file_read(&old, path, 100));
    assert_string_equal(old.bytes, "old");
    cpl_text_free(&old);
    assert_ok(export_to(path, folder, CPL_FORMAT_BF16, NULL));
    model_gone(m);
}

/* A NaN or an infinite number is refused, also for types that could hold it. */
TEST(numbers_that_are_none)
{
    static const cpl_format types[] = {CPL_FORMAT_F32, CPL_FORMAT_BF16, CPL_FORMAT_F16,
                                       CPL_FORMAT_Q8_0};
    for (int k = 0; k < 8; k++) {
        model_case *m = variant_filled(0);
        m->be.ops->fill(&m->be, cpl_tensor_numbers(m->model.master.layer[1].w_down, 77, 1),
                        k % 2 ? (float)NAN : -(float)INFINITY);
        const char *folder = saved(m);
        assert_fails(CPL_ERR_INPUT, "blk.1.ffn_down_exps.weight has a NaN or an infinite number",
                     export_to(in_folder(folder, "m.gguf"), folder, types[k / 2], NULL));
        model_gone(m);
    }
}

/* Replaces a part of the text of a file. */
static void change_text(const char *folder, const char *name, const char *from, const char *to)
{
    cpl_text text    = {0};
    const char *file = in_folder(folder, name);
    assert_ok(cpl_file_read(&text, file, 1 << 20));
    char *at = strstr(text.bytes, from);
    if (!at) fail_msg("%s has no %s", name, from);
    char *changed = malloc(text.length + strlen(to) + 1);
    snprintf(changed, text.length + strlen(to) + 1, "%.*s%s%s", (int)(at - text.bytes), text.bytes,
             to, at + strlen(from));
    write_string(file, changed);
    free(changed);
    cpl_text_free(&text);
}

static cpl_status with_tokenizer(const char *from, const char *to, const cpl_log *log)
{
    model_case *m      = variant_filled(0);
    const char *folder = saved(m);
    change_text(folder, "tokenizer.json", from, to);
    cpl_status status = export_to(in_folder(folder, "m.gguf"), folder, CPL_FORMAT_F32, log);
    model_gone(m);
    return status;
}

TEST(tokenizers)
{
    assert_fails(CPL_ERR_INPUT, "add_prefix_space",
                 with_tokenizer("\"add_prefix_space\": false", "\"add_prefix_space\": true", NULL));
    assert_ok(with_tokenizer("\"NFC\"", "\"NFC\"", &a_log));
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "converts texts to NFC"));
    assert_ok(with_tokenizer("{\"type\": \"NFC\"}", "null", &a_log));
    assert_int_equal(n_warnings, 1);
}

#define ADDED(id, text)                                                                            \
    "{\"id\": " #id ", \"content\": \"" text "\", \"single_word\": false, \"lstrip\": false, "     \
    "\"rstrip\": false, \"normalized\": false, \"special\": false}, "

/* The model has 386 rows, and the tokenizer 384 tokens. */
TEST(texts_of_tokens)
{
    cpl_model_settings c = config_of(&variants[0]);
    c.vocab_size         = ROWS + 2;
    model_case *m        = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    change_text(folder, "tokenizer.json", "\"added_tokens\": [",
                "\"added_tokens\": [" ADDED(384, "[PAD385]"));
    assert_fails(CPL_ERR_INPUT, "two tokens of the tokenizer have the text \"[PAD385]\"",
                 export_to(path, folder, CPL_FORMAT_F32, NULL));
    assert_non_null(strstr(cpl_last_error(), folder));
    change_text(folder, "tokenizer.json", ADDED(384, "[PAD385]"),
                ADDED(384, "a b") ADDED(385, "a bc"));
    change_text(folder, "tokenizer.json", "\"vocab\": {",
                "\"vocab\": {\"a b\": 384, \"a bc\": 385, ");
    assert_ok(export_to(path, folder, CPL_FORMAT_F32, NULL));
    change_text(folder, "tokenizer.json", "\"merges\": [", "\"merges\": [[\"a b\", \"c\"], ");
    assert_fails(CPL_ERR_INPUT, "\"a b c\", joins a token with a space in its text",
                 export_to(path, folder, CPL_FORMAT_F32, NULL));
    assert_non_null(strstr(cpl_last_error(), folder));
    model_gone(m);
}

/* Exports a model. `ends`: eos_token_id. `says`: part of the only warning, or NULL. */
static void warns(cpl_model_settings c, const char *ends, const char *says)
{
    char generation[100];
    model_case *m      = model_filled(&c);
    const char *folder = saved(m);
    snprintf(generation, sizeof generation, "{\"eos_token_id\": %s}", ends);
    change_text(folder, "config.json", "\"eos_token_id\": 0", "\"eos_token_id\": null");
    write_string(in_folder(folder, "generation_config.json"), generation);
    change_text(folder, "tokenizer.json", "{\"type\": \"NFC\"}", "null");
    n_warnings = 0;
    assert_ok(export_to(in_folder(folder, "m.gguf"), folder, CPL_FORMAT_F32, &a_log));
    assert_int_equal(n_warnings, says ? 1 : 0);
    if (says) assert_non_null(strstr(warned, says));
    model_gone(m);
}

TEST(what_llama_cpp_does_otherwise)
{
    cpl_model_settings c = config_of(&variants[0]);
    warns(c, "384", "no end-of-text id of the model is among its 384 rows");
    warns(c, "[2, 3, 4]", "names 3 end-of-text ids");
    warns(c, "[2, 3]", NULL);
    c.n_experts = 1024;
    warns(c, "0", NULL);
    c.n_experts = 1025;
    warns(c, "0", "1025 experts");
    c          = config_of(&variants[0]);
    c.n_layers = 513, c.n_experts = 2, c.top_k = 1, c.d_model = 16, c.d_expert = 4;
    warns(c, "0", "513 layers");
}

/* Every allocation fails in turn. The call returns an error and leaks no memory. There is no file,
 * or a whole file if the last allocation fails, after the file has its name. */
TEST(memory_that_runs_out)
{
    cpl_gguf_export done;
    model_case *m      = variant_filled(2);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    const int64_t before = cpl_alloc_in_use();
    scarce s             = {0};
    cpl_gguf *g;
    while (scarce_begin(&s)) {
        scarce_end(&s, export_into(&done, path, folder, CPL_FORMAT_F32, NULL));
        assert_int_equal(cpl_alloc_in_use(), before);
        if (!cpl_path_exists(path)) continue;
        assert_ok(cpl_gguf_open(&g, NULL, path, (double)INFINITY));
        assert_int_equal(g->count, done.n_tensors);
        cpl_gguf_close(g);
        assert_int_equal(unlink(path), 0);
    }
    assert_true(s.nth > 20);
    model_gone(m);
}
