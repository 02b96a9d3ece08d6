/* test_stored_parts.c - tensors in slices over several files, and the parts of a GGUF file. */
#include "base/arena.h"
#include "checkpoint/stored_case.h"
#include "io/json.h"

/* Slices ----------------------------------------------------------------------------------------*/

TEST(slices_of_a_tensor)
{
    for (int with_index = 0; with_index < 2; with_index++) {
        cpl_stored_files *s = opens(three_slices(with_index));
        assert_int_equal(s->n_parts, 4);
        assert_int_equal(s->count, 7);
        assert_int_equal(n_warnings, 0);
        assert_sorted(s);
        for (int name = 0; name < 2; name++) {
            const cpl_stored *t = cpl_stored_find(s, name ? "b" : "a");
            for (int i = 0; i < 3; i++) {
                assert_value(&t[i], (float)i);
                assert_true(t[i].slice == i && t[i].n_slices == 3);
            }
        }
        assert_value(cpl_stored_find(s, "r"), 9);
        assert_int_equal(cpl_stored_find(s, "r")->n_slices, 1);
        cpl_stored_close(s);
    }
}

/* Slices have the order of their numbers, not of their names. */
TEST(slices_in_files_of_other_names)
{
    const char *folder = scratch_folder();
    tensor_file(in_folder(folder, "b-TP-0.safetensors"), "a", 0);
    tensor_file(in_folder(folder, "c-TP-001.safetensors"), "a", 1);
    tensor_file(in_folder(folder, "a-TP-02.safetensors"), "a", 2);
    cpl_stored_files *s = opens(folder);
    assert_int_equal(s->count, 3);
    assert_sorted(s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s->tensors[i].slice, i);
        assert_value(&s->tensors[i], (float)i);
    }
    cpl_stored_close(s);
    tensor_file(in_folder(folder, "d-TP-1.safetensors"), "a", 1); /* the second slice twice */
    s = opens(folder);
    assert_fault(s, "a", "is in 4 files");
    assert_int_equal(s->count, 1);
    cpl_stored_close(s);
}

TEST(slices_that_are_missing)
{
    const char *folder = three_slices(true);
    tensor_file(in_folder(folder, "m-2-TP-000.safetensors"), "x",
                0); /* the other files have no slice of it */
    tensor_file(in_folder(folder, "m-2-TP-001.safetensors"), "xz", 0);
    tensor_file(in_folder(folder, "m-3-TP-001.safetensors"), "z", 0);
    cpl_stored_files *s = opens(folder);
    assert_fault(s, "x", "not in one for each of the 3 slices");
    assert_fault(s, "z", "not in one for each of the 3 slices");
    assert_null(cpl_stored_find(s, "a")->fault);
    cpl_stored_close(s);
    folder = three_slices(true);
    write_string(in_folder(folder, slice_names[1]), "version https://git-lfs.github.com/spec/v1\n");
    s = opens(folder);
    assert_fault(s, "a", "Git LFS");
    assert_non_null(strstr(cpl_stored_find(s, "b")->fault, slice_names[1]));
    assert_value(cpl_stored_find(s, "r"), 9);
    assert_sorted(s);
    cpl_stored_close(s);
    folder = three_slices(false); /* the contents of a damaged file are unknown */
    write_string(in_folder(folder, "m-0-TP-common.safetensors"), "");
    refuses(folder, CPL_ERR_INPUT, "file 1 of 4 of one checkpoint");
    folder = three_slices(true);
    tensor_file(in_folder(folder, "plain"), "a", 5);
    index_file(folder, "\"a\": \"plain\", \"b\": \"m-1-TP-000.safetensors\"");
    s = opens(folder);
    assert_fault(s, "a", "too");
    cpl_stored_close(s);
}

/* GGUF ------------------------------------------------------------------------------------------*/

static void copy(const char *to, const char *from)
{
    cpl_text text = {0};
    assert_ok(cpl_file_read(&text, from, 1 << 20));
    assert_ok(cpl_file_write_atomic(to, text.bytes, text.length));
    cpl_text_free(&text);
}

TEST(a_gguf_file)
{
    json_t *wanted;
    const char *folder = scratch_folder(), *name;
    copy(in_folder(folder, "small.gguf"), golden_path("gguf/small.gguf"));
    copy(in_folder(folder, "0a1b2c"), golden_path("gguf/small.gguf"));
    write_string(in_folder(folder, "config.json"), "{\"hidden_size\": 4}");
    char *paths[] = {cpl_path_join(folder, ""), cpl_path_join(folder, "small.gguf"),
                     cpl_path_join(folder, "0a1b2c")};
    assert_ok(cpl_json_load(&wanted, golden_path("gguf/small.json")));
    for (int i = 0; i < 3; i++) {
        cpl_stored_files *s = opens(paths[i]);
        assert_true(s->is_gguf);
        assert_int_equal(s->count, 11);
        assert_sorted(s);
        json_t *row;
        json_object_foreach(json_object_get(wanted, "tensors"), name, row)
        {
            const cpl_stored *t = cpl_stored_find(s, name);
            assert_non_null(t);
            assert_string_equal(t->type_name, json_string_value(json_object_get(row, "type")));
            assert_int_equal(t->bytes, json_integer_value(json_object_get(row, "bytes")));
            assert_int_equal(t->rank, json_array_size(json_object_get(row, "shape")));
        }
        assert_int_equal(cpl_stored_find(s, "k4")->format, CPL_FORMAT_Q4_K);
        int32_t last;
        assert_ok(cpl_stored_read(cpl_stored_find(s, "whole"), &last, 24, 4));
        assert_int_equal(last, 3);
        const json_t *config = s->config;
        assert_string_equal(json_string_value(json_object_get(config, "general.architecture")),
                            "olmoe");
        cpl_stored_close(s);
        cpl_free(paths[i]);
    }
    json_decref(wanted);
    copy(in_folder(folder, "mmproj.gguf"), golden_path("gguf/aligned.gguf"));
    refuses(folder, CPL_ERR_INPUT, "several GGUF files (mmproj.gguf and small.gguf)");
    tensor_file(in_folder(folder, "model.safetensors"), "a", 1);
    cpl_stored_files *s = opens(folder); /* safetensors come first */
    assert_false(s->is_gguf);
    cpl_stored_close(s);
    write_string(in_folder(folder, "pointer.gguf"), "version https://git-lfs.github.com/spec/v1\n");
    refuses(in_folder(folder, "pointer.gguf"), CPL_ERR_INPUT, "Git LFS");
}

TEST(a_gguf_file_in_parts)
{
    char name[64], part[64];
    const char *folder = scratch_folder();
    for (int i = 1; i <= 3; i++) {
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        snprintf(part, sizeof part, "gguf/split-%05d-of-00003.gguf", i);
        copy(in_folder(folder, name), golden_path(part));
    }
    for (int i = 0; i <= 3; i++) { /* the folder, or any part */
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        cpl_stored_files *s = opens(i ? in_folder(folder, name) : folder);
        assert_int_equal(s->count, 5);
        assert_int_equal(s->n_parts, 3);
        assert_sorted(s);
        assert_int_equal(cpl_stored_find(s, "double")->bytes, 480);
        assert_non_null(strstr(cpl_stored_find(s, "double")->path, "m-00002-of"));
        const json_t *count = json_object_get(s->config, "olmoe.expert_count");
        assert_int_equal(json_integer_value(count), 4);
        cpl_stored_close(s);
    }
    copy(in_folder(folder, "alone.gguf"), in_folder(folder, "m-00002-of-00003.gguf"));
    refuses(in_folder(folder, "alone.gguf"), CPL_ERR_INPUT, "is part 2 of 3 of a split file");
    copy(in_folder(folder, "m-00003-of-00003.gguf"), in_folder(folder, "m-00001-of-00003.gguf"));
    refuses(in_folder(folder, "m-00001-of-00003.gguf"), CPL_ERR_INPUT, "named as part 3 of 3");
    copy(in_folder(folder, "m-00003-of-00003.gguf"), golden_path("gguf/aligned.gguf"));
    refuses(in_folder(folder, "m-00001-of-00003.gguf"), CPL_ERR_INPUT, "named as part 3 of 3");
    assert_int_equal(unlink(in_folder(folder, "m-00003-of-00003.gguf")), 0);
    refuses(in_folder(folder, "m-00001-of-00003.gguf"), CPL_ERR_IO, "m-00003-of-00003.gguf");
    copy(in_folder(folder, "one-00001-of-00001.gguf"), golden_path("gguf/aligned.gguf"));
    cpl_stored_files *s = opens(in_folder(folder, "one-00001-of-00001.gguf"));
    assert_int_equal(s->count, 2);
    cpl_stored_close(s);
}
