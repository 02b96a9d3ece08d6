/* test_gguf_export_damage.c - GGUF files that are not written: models that llama.cpp does not compute,
 * numbers that a type cannot hold, tokenizers without a form there, memory that runs out. */
#include "store/gguf_export_case.h"
#include "support/warnings.h"

/* ---- what is refused, what is said ---- */

static void refuses(cpl_model_settings c, const char *says)
{
    cpl_gguf_export done;
    model_case *m      = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    assert_fails(CPL_ERR_INPUT, says, export_to(path, folder, CPL_FORMAT_F32, &done, NULL));
    assert_false(cpl_path_exists(path));
    model_gone(m);
}

static void what_llama_cpp_does_not_compute(void **state)
{
    (void)state;
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

/* An old file stays as it was. */
static void numbers_that_a_type_cannot_hold(void **state)
{
    (void)state;
    cpl_gguf_export done;
    const cpl_model_settings c                   = config_of(&variants[0]);
    model_case *m                                = model_filled(&c);
    cpl_f32(m->model.master.layer[1].w_down)[77] = 1e5f;
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    write_text(path, "old");
    assert_fails(CPL_ERR_INPUT, "blk.1.ffn_down_exps.weight has a number that F16 cannot hold",
                 export_to(path, folder, CPL_FORMAT_F16, &done, NULL));
    cpl_text old = {0};
    assert_ok(cpl_file_read(&old, path, 100));
    assert_string_equal(old.bytes, "old");
    cpl_text_free(&old);
    assert_ok(export_to(path, folder, CPL_FORMAT_BF16, &done, NULL));
    model_gone(m);
}

/* With `change` made to the text of tokenizer.json. */
static cpl_status with_tokenizer(const char *from, const char *to, const cpl_log *log)
{
    cpl_gguf_export done;
    cpl_text text              = {0};
    const cpl_model_settings c = config_of(&variants[0]);
    model_case *m              = model_filled(&c);
    const char *folder = saved(m), *file = in_folder(folder, "tokenizer.json");
    assert_ok(cpl_file_read(&text, file, 1 << 20));
    char *at = strstr(text.bytes, from);
    if (!at) fail_msg("tokenizer.json has no %s", from);
    char *changed = malloc(text.length + strlen(to) + 1);
    snprintf(changed, text.length + strlen(to) + 1, "%.*s%s%s", (int)(at - text.bytes), text.bytes,
             to, at + strlen(from));
    write_text(file, changed);
    cpl_status status = export_to(in_folder(folder, "m.gguf"), folder, CPL_FORMAT_F32, &done, log);
    free(changed);
    cpl_text_free(&text);
    model_gone(m);
    return status;
}

static void tokenizers(void **state)
{
    (void)state;
    assert_fails(CPL_ERR_INPUT, "add_prefix_space",
                 with_tokenizer("\"add_prefix_space\": false", "\"add_prefix_space\": true", NULL));
    assert_ok(with_tokenizer("\"NFC\"", "\"NFC\"", &a_log));
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "converts texts to NFC"));
    assert_ok(with_tokenizer("{\"type\": \"NFC\"}", "null", &a_log));
    assert_int_equal(n_warnings, 1);
}

/* Whatever allocation fails: an error, nothing lost, and no file or, where the last one fails, after
 * the file has its name, a whole one. */
static void memory_that_runs_out(void **state)
{
    (void)state;
    cpl_gguf_export done;
    const cpl_model_settings c = config_of(&variants[2]);
    model_case *m              = model_filled(&c);
    const char *folder = saved(m), *path = in_folder(folder, "m.gguf");
    const int64_t before = cpl_alloc_in_use();
    int64_t n            = 1;
    cpl_gguf *g;
    for (;; n++) {
        cpl_alloc_fail_at(n);
        const cpl_status status = export_to(path, folder, CPL_FORMAT_F32, &done, NULL);
        cpl_alloc_fail_at(0);
        assert_int_equal(cpl_alloc_in_use(), before);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
        if (!cpl_path_exists(path)) continue;
        assert_ok(cpl_gguf_open(&g, path));
        assert_int_equal(g->count, done.n_tensors);
        cpl_gguf_close(g);
        assert_int_equal(unlink(path), 0);
    }
    assert_true(n > 20);
    model_gone(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_llama_cpp_does_not_compute),
        cmocka_unit_test(numbers_that_a_type_cannot_hold),
        cmocka_unit_test(tokenizers),
        cmocka_unit_test(memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
