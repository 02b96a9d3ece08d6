/* test_stored_whole.c - whole checkpoints. A reader must give equal bytes in lenient and strict
 * use. There may be as many tensors as the largest has, and every allocation fails in turn. */
#include <time.h>

#include "checkpoint/stored_case.h"
#include "io/paths.h"
#include "support/scarce.h"

/* Whole folders ---------------------------------------------------------------------------------*/

/* Each tensor has the bytes that a strict reader finds. */
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
        assert_true(s->count == w->count && s->count > 10);
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
            const cpl_stored *found;
            float *numbers = malloc((size_t)e->n_elements * sizeof *numbers + 1);
            char *got = malloc(t->bytes + 1), *want = malloc(t->bytes + 1);
            assert_true(numbers && got && want);
            assert_ok(cpl_stored_read(t, got, 0, t->bytes));
            assert_ok(cpl_stored_read(weight, want, 0, t->bytes));
            assert_memory_equal(got, want, t->bytes);
            assert_ok(cpl_stored_find_sound(&found, w, e->name));
            assert_ptr_equal(found, weight);
            if (e->dtype == CPL_SAFETENSORS_F32 || e->dtype == CPL_SAFETENSORS_BF16)
                assert_ok(cpl_stored_read_part_f32(weight, numbers, 0, e->n_elements));
            free(numbers);
            free(got);
            free(want);
        }
        cpl_stored_close(w);
        cpl_stored_close(s);
    }
}

/* Time is not quadratic for the shards and tensors of the largest published checkpoint. */
TEST(a_very_large_checkpoint)
{
    enum { SHARDS = 163, EACH = 552 };
    const double limit = 10; /* seconds of processor time, with sanitizers; a tenth is needed */
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
        write_bytes(in_folder(folder, name), shard.bytes, shard.length);
    }
    cpl_text_printf(&index, "}}");
    write_string(in_folder(folder, "model.safetensors.index.json"), index.bytes);
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
    for (int f = 1; f <= SHARDS; f += 2) { /* half of the shards are absent */
        snprintf(name, sizeof name, "model-%05d-of-00163.safetensors", f);
        assert_int_equal(unlink(in_folder(folder, name)), 0);
    }
    began = clock();
    s     = opens(folder);
    assert_true((double)(clock() - began) / CLOCKS_PER_SEC < limit);
    assert_non_null(strstr(warned, "tensors at fault: 45264 of 89976"));
    cpl_stored_close(s);
    cpl_text_free(&index);
    cpl_text_free(&shard);
}

static cpl_status use(const char *path)
{
    cpl_stored_files *s;
    char bytes[8];
    CPL_TRY(cpl_stored_open(&s, NULL, path, (double)INFINITY, NULL));
    cpl_status status = cpl_stored_read(&s->tensors[0], bytes, 0, 8);
    cpl_stored_close(s);
    return status;
}

static cpl_status use_strictly(const char *path)
{
    cpl_stored_files *s;
    const cpl_stored *c;
    float data[2];
    CPL_TRY(cpl_stored_open_strict(&s, path, NULL));
    cpl_status status = cpl_stored_find_shaped(&c, s, "c", 1, (int64_t[]){2});
    if (status == CPL_OK) status = cpl_stored_read_part_f32(c, data, 0, 2);
    cpl_stored_close(s);
    return status;
}

TEST(failing_allocations)
{
    const char *folders[] = {three_shards(), three_slices(true), three_slices(false),
                             three_shards(), golden_path("gguf/split-00002-of-00003.gguf")};
    scarce strict         = {0};
    while (scarce_begin(&strict)) scarce_end(&strict, use_strictly(folders[0]));
    assert_true(strict.nth > 15);
    assert_int_equal(unlink(in_folder(folders[3], "two")), 0);
    for (int which = 0; which < 5; which++) {
        scarce s = {0};
        while (scarce_begin(&s)) scarce_end(&s, use(folders[which]));
        assert_true(s.nth > 20);
    }
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
