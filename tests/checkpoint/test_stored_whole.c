/* test_stored_whole.c - whole checkpoints: the reference folders opened leniently and strictly,
 * which must give the same bytes; as many tensors as the largest has; every allocation failing. */
#include <time.h>

#include "base/arena.h"
#include "checkpoint/stored_case.h"
#include "io/paths.h"

/* All of it -------------------------------------------------------------------------------------*/

/* Each tensor has the bytes that the strict way in finds. */
TEST(reference_folders)
{
    static const char *const families[] = {"olmoe",   "sharded_olmoe", "qwen3_moe",  "mixtral",
                                           "gpt_oss", "granitemoe",    "deepseek_v3"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char relative[128];
        cpl_stored_files *w;
        snprintf(relative, sizeof relative, "families/%s", families[f]);
        const char *folder  = golden_path(relative);
        cpl_stored_files *s = opens(folder);
        assert_ok(cpl_stored_open_strict(&w, folder, NULL));
        assert_int_equal(n_warnings, 0);
        assert_int_equal(s->count, w->count);
        assert_string_equal(json_string_value(json_object_get(s->config, "model_type")),
                            f == 1 ? "olmoe" : families[f]);
        assert_sorted(s);
        for (int64_t i = 0; i < s->count; i++) {
            const cpl_stored *t            = &s->tensors[i];
            const cpl_stored *weight       = &w->tensors[i];
            const cpl_safetensors_entry *e = weight->entry;
            assert_string_equal(t->name, e->name);
            assert_true(cpl_safetensors_has_shape(e, t->rank, t->shape));
            assert_int_equal(t->bytes, e->end - e->begin);
            char *got = malloc(t->bytes + 1), *want = malloc(t->bytes + 1);
            assert_true(got && want);
            assert_ok(cpl_stored_read(t, got, 0, t->bytes));
            assert_ok(cpl_stored_read(weight, want, 0, t->bytes));
            assert_memory_equal(got, want, t->bytes);
            free(got);
            free(want);
        }
        cpl_stored_close(w);
        cpl_stored_close(s);
    }
}

/* As many shards and tensors as the largest published checkpoint: not their square. */
TEST(a_very_large_checkpoint)
{
    enum { SHARDS = 163, EACH = 552 };
    const double limit =
        10; /* seconds of processor time, with sanitizers; it takes a tenth of it */
    const char *folder = scratch_folder();
    cpl_text index = {0}, shard = {0};
    char name[100];
    cpl_text_printf(&index, "{\"weight_map\": {");
    for (int f = 0; f < SHARDS; f++) {
        cpl_text_clear(&shard);
        cpl_text_append(&shard, "\0\0\0\0\0\0\0\0{", 9);
        for (int i = 0; i < EACH; i++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i, f);
            cpl_text_printf(&shard,
                            "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1],"
                            "\"data_offsets\":[%d,%d]}",
                            i ? "," : "", name, i, i + 1);
            cpl_text_printf(&index, "%s\"%s\": \"model-%05d-of-00163.safetensors\"",
                            f || i ? "," : "", name, f + 1);
        }
        cpl_text_char(&shard, '}');
        uint64_t header = shard.length - 8;
        memcpy(shard.bytes, &header, 8);
        for (int i = 0; i < EACH; i++) cpl_text_char(&shard, (char)(f + i));
        snprintf(name, sizeof name, "model-%05d-of-00163.safetensors", f + 1);
        FILE *file = fopen(at(folder, name), "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(shard.bytes, 1, shard.length, file), shard.length);
        fclose(file);
    }
    cpl_text_printf(&index, "}}");
    text_file(at(folder, "model.safetensors.index.json"), index.bytes);
    clock_t began       = clock();
    cpl_stored_files *s = opens(folder);
    double seconds      = (double)(clock() - began) / CLOCKS_PER_SEC;
    print_message("%d tensors in %d files: %.2f s\n", SHARDS * EACH, SHARDS, seconds);
    assert_true(seconds < limit);
    assert_int_equal(s->count, SHARDS * EACH);
    assert_int_equal(n_warnings, 0);
    assert_sorted(s);
    unsigned char byte;
    const cpl_stored *t = cpl_stored_find(s, "model.layers.500.mlp.experts.161.gate_proj.weight");
    assert_ok(cpl_stored_read(t, &byte, 0, 1));
    assert_int_equal(byte, (unsigned char)(500 + 161));
    cpl_stored_close(s);
    for (int f = 1; f <= SHARDS; f += 2) { /* half of the shards are missing */
        snprintf(name, sizeof name, "model-%05d-of-00163.safetensors", f);
        assert_int_equal(unlink(at(folder, name)), 0);
    }
    began = clock();
    s     = opens(folder);
    assert_true((double)(clock() - began) / CLOCKS_PER_SEC < limit);
    assert_non_null(strstr(warned, "tensors at fault: 45264 of 89976"));
    cpl_stored_close(s);
    cpl_text_free(&index);
    cpl_text_free(&shard);
    cpl_folder_remove(folder);
}

static const char *folders[5];

static cpl_status use(int which)
{
    cpl_stored_files *s;
    char bytes[8];
    CPL_TRY(cpl_stored_open(&s, NULL, folders[which], (double)INFINITY, NULL));
    cpl_status status = cpl_stored_read(&s->tensors[0], bytes, 0, 8);
    cpl_stored_close(s);
    return status;
}

TEST(failing_allocations)
{
    char damaged[64], gguf[64];
    folders[0] = strdup(three_shards());
    folders[1] = strdup(three_slices(true));
    folders[2] = strdup(three_slices(false));
    snprintf(damaged, sizeof damaged, "%s", three_shards());
    folders[3] = damaged;
    assert_int_equal(unlink(at(damaged, "two")), 0);
    snprintf(gguf, sizeof gguf, "%s", "tests/golden/gguf/split-00002-of-00003.gguf");
    folders[4] = gguf;
    for (int which = 0; which < 5; which++) {
        cpl_status status = CPL_ERR_MEMORY;
        int64_t nth       = 0;
        while (status != CPL_OK && nth < 400) {
            cpl_alloc_fail_at(++nth);
            status = use(which);
            cpl_alloc_fail_at(0);
            if (status != CPL_OK && status != CPL_ERR_MEMORY) fail_msg("%s", cpl_last_error());
        }
        assert_ok(status);
        assert_true(nth > 20);
    }
    for (int i = 0; i < 3; i++) free((void *)(uintptr_t)folders[i]);
}

TEST(nothing_is_written)
{
    cpl_strings before, after;
    const char *folder = three_shards();
    assert_ok(cpl_folder_list(&before, folder));
    cpl_stored_close(opens(folder));
    assert_ok(cpl_folder_list(&after, folder));
    assert_int_equal(before.count, after.count);
    for (int64_t i = 0; i < after.count; i++) assert_string_equal(before.at[i], after.at[i]);
    cpl_paths_free(&before);
    cpl_paths_free(&after);
}
