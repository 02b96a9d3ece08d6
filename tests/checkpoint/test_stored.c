/* test_stored.c - the tensors of any checkpoint: which files it has, and their faults.
 *
 * Method: folders made here. A fault of one file must stay with its tensors. */
#include "checkpoint/stored.h"

#include <sys/stat.h>

#include "base/arena.h"
#include "checkpoint/stored_case.h"

/* One file --------------------------------------------------------------------------------------*/

TEST(one_file_and_its_settings)
{
    const char *folder = scratch_folder();
    char *path         = cpl_path_join(folder, "model.safetensors");
    tensor_file(path, "yx", 1);
    for (int i = 0; i < 2; i++) {
        cpl_stored_files *s = opens(i ? path : folder);
        assert_int_equal(s->count, 2);
        assert_int_equal(s->n_parts, 1);
        assert_false(s->is_gguf);
        assert_sorted(s);
        assert_value(cpl_stored_find(s, "x"), 1);
        assert_value(cpl_stored_find(s, "y"), 1);
        assert_string_equal(s->tensors[0].path, path);
        assert_null(cpl_stored_find(s, "z"));
        assert_null(cpl_stored_find(s, "a"));
        assert_int_equal(json_object_size(s->config), 0);
        assert_int_equal(n_warnings, 0);
        cpl_stored_close(s);
    }
    write_string(in_folder(folder, "params.json"), "{\"dim\": 3}");
    cpl_stored_files *s = opens(path);
    assert_int_equal(json_integer_value(json_object_get(s->config, "dim")), 3);
    cpl_stored_close(s);
    write_string(in_folder(folder, "config.json"), "{\"hidden_size\": 4}");
    s = opens(folder);
    assert_int_equal(json_integer_value(json_object_get(s->config, "hidden_size")), 4);
    assert_null(json_object_get(s->config, "dim"));
    cpl_stored_close(s);
    static const char *const bad[][2] = {{"{\"a\": ", "not valid JSON"},
                                         {"[]", "should be an object"},
                                         {"", "is empty"},
                                         {"version https://git-lfs.github.com/x\n", "Git LFS"}};
    for (size_t i = 0; i < 4; i++) {
        write_string(in_folder(folder, "config.json"), bad[i][0]);
        refuses(folder, CPL_ERR_INPUT, bad[i][1]);
        assert_non_null(strstr(cpl_last_error(), "config.json"));
    }
    cpl_free(path);
}

TEST(every_type_has_its_format)
{
    static const cpl_format formats[CPL_SAFETENSORS_N_DTYPES] = LIST(
        [CPL_SAFETENSORS_F64] = CPL_FORMAT_F64 + 1, [CPL_SAFETENSORS_F32] = CPL_FORMAT_F32 + 1,
        [CPL_SAFETENSORS_F16] = CPL_FORMAT_F16 + 1, [CPL_SAFETENSORS_BF16] = CPL_FORMAT_BF16 + 1,
        [CPL_SAFETENSORS_F8_E4M3] = CPL_FORMAT_F8_E4M3 + 1,
        [CPL_SAFETENSORS_F8_E5M2] = CPL_FORMAT_F8_E5M2 + 1,
        [CPL_SAFETENSORS_F8_E8M0] = CPL_FORMAT_F8_E8M0 + 1,
        [CPL_SAFETENSORS_F4]      = CPL_FORMAT_F4_PAIR + 1);
    char *path              = cpl_path_join(scratch_folder(), "model.safetensors");
    unsigned char zeros[64] = {0};
    cpl_safetensors_tensor tensors[CPL_SAFETENSORS_N_DTYPES + 1];
    const int64_t shape[] = {2, 4};
    for (int i = 0; i < CPL_SAFETENSORS_N_DTYPES; i++)
        tensors[i] = (cpl_safetensors_tensor){cpl_safetensors_dtype_name((cpl_safetensors_dtype)i),
                                              (cpl_safetensors_dtype)i, 2, shape, zeros};
    tensors[CPL_SAFETENSORS_N_DTYPES] = (cpl_safetensors_tensor){
        "deep", CPL_SAFETENSORS_U8, 7, (int64_t[]){1, 1, 1, 1, 1, 1, 2}, zeros};
    assert_ok(write_tensors(path, tensors, CPL_SAFETENSORS_N_DTYPES + 1, NULL));
    cpl_stored_files *s = opens(path);
    assert_int_equal(n_warnings, 1);
    for (int i = 0; i < CPL_SAFETENSORS_N_DTYPES; i++) {
        const char *name    = cpl_safetensors_dtype_name((cpl_safetensors_dtype)i);
        const cpl_stored *t = cpl_stored_find(s, name);
        assert_non_null(t);
        assert_string_equal(t->type_name, name);
        assert_int_equal(t->format, formats[i] ? formats[i] - 1 : CPL_FORMAT_OTHER);
        assert_true(t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 4);
        assert_int_equal(t->bytes, cpl_safetensors_dtype_bits((cpl_safetensors_dtype)i));
        assert_ok(cpl_stored_read(t, zeros, 0, t->bytes));
    }
    assert_fault(s, "deep", "has the shape [1,1,1,1,1,1,2]");
    assert_int_equal(cpl_stored_find(s, "deep")->rank, -1);
    cpl_stored_close(s);
    cpl_free(path);
}

TEST(nothing_to_read)
{
    const char *folder = scratch_folder();
    refuses("/no/such/place", CPL_ERR_IO, "/no/such/place");
    refuses("/no/such/place.gguf", CPL_ERR_IO, "/no/such/place.gguf");
    refuses(folder, CPL_ERR_INPUT, "expected model.safetensors, ");
    assert_non_null(strstr(cpl_last_error(), ".gguf"));
    write_string(in_folder(folder, "pytorch_model.bin"), "PK\x03\x04\x01\x01\x01\x01\x01");
    refuses(folder, CPL_ERR_INPUT, "PyTorch");
    tensor_file(in_folder(folder, "model-00001-of-00002.safetensors"), "a", 1);
    refuses(folder, CPL_ERR_INPUT, "fetch the index");
    write_string(in_folder(folder, "adapter_model.bin"), "x");
    refuses(folder, CPL_ERR_INPUT, "has an adapter of PEFT (adapter_model.bin) and no model");
    write_string(in_folder(folder, "model.safetensors"),
                 "version https://git-lfs.github.com/spec/v1\n");
    refuses(folder, CPL_ERR_INPUT, "Git LFS");
    write_string(in_folder(folder, "readme.md"), "# A model\n");
    refuses(in_folder(folder, "readme.md"), CPL_ERR_INPUT, "readme.md");
    assert_int_equal(mkfifo(in_folder(folder, "pipe.gguf"), 0600), 0);
    refuses(in_folder(folder, "pipe.gguf"), CPL_ERR_INPUT, "not a regular file");
    assert_int_equal(mkfifo(in_folder(folder, "pipe"), 0600), 0);
    refuses(in_folder(folder, "pipe"), CPL_ERR_INPUT, "not a regular file");
}

/* An index --------------------------------------------------------------------------------------*/

/* model.safetensors lies beside the index of another model, of itself, or a damaged index. The file
 * is read, and a warning names both where they differ. The shards may be absent. */
TEST(a_file_beside_an_index)
{
    static const struct {
        const char *index, *told; /* told: the file in the warning, or NULL without a warning */
    } cases[] = {
        {"{\"weight_map\": {\"x\": \"model.safetensors\"}}", NULL},
        {"{\"weight_map\": {\"x\": \"model.safetensors\", \"y\": \"gone.safetensors\"}}",
         "which names gone.safetensors: remove"},
        {"{\"weight_map\": {\"x\": 1}}", "which is no index that can be read: remove"},
        {"{\"weight_map\": []}", "which is no index that can be read: remove"},
        {"{", "which is no index that can be read: remove"},
    };
    const char *folder = scratch_folder();
    tensor_file(in_folder(folder, "model.safetensors"), "x", 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_string(in_folder(folder, "model.safetensors.index.json"), cases[i].index);
        cpl_stored_files *s = opens(folder);
        assert_value(cpl_stored_find(s, "x"), 2);
        assert_int_equal(n_warnings, cases[i].told != NULL);
        if (cases[i].told) {
            assert_non_null(strstr(warned, "/model.safetensors is read"));
            assert_non_null(strstr(warned, cases[i].told));
        }
        cpl_stored_close(s);
    }
    cpl_stored_close(
        opens(in_folder(folder, "model.safetensors"))); /* opened by its name: no warning */
    assert_int_equal(n_warnings, 0);
}

TEST(an_index)
{
    const char *folder  = three_shards();
    cpl_stored_files *s = opens(folder);
    assert_int_equal(s->count, 5);
    assert_int_equal(s->n_parts, 3);
    assert_sorted(s);
    assert_value(cpl_stored_find(s, "a"), 1);
    assert_value(cpl_stored_find(s, "d"), 2);
    assert_value(cpl_stored_find(s, "e"), 3);
    assert_string_equal(cpl_stored_find(s, "c")->path, in_folder(folder, "two"));
    assert_int_equal(n_warnings, 0);
    cpl_stored_close(s);
    s = opens(in_folder(folder, "model.safetensors.index.json"));
    assert_int_equal(s->count, 5);
    cpl_stored_close(s);
}

/* The tensors of a bad shard have its fault. The other tensors are read. */
TEST(a_shard_that_cannot_be_read)
{
    static const char *const ways[] = {"No such file", "Git LFS", "cut short", "header too small",
                                       "not a regular file"};
    for (int way = 0; way < 5; way++) {
        const char *folder = three_shards(), *two = in_folder(folder, "two");
        struct stat info;
        assert_int_equal(stat(two, &info), 0);
        if (way == 2)
            assert_int_equal(truncate(two, info.st_size - 1), 0);
        else
            assert_int_equal(unlink(two), 0);
        if (way == 1) write_string(two, "version https://git-lfs.github.com/spec/v1\n");
        if (way == 3) write_string(two, "");
        if (way == 4) assert_int_equal(mkdir(two, 0777), 0);
        cpl_stored_files *s = opens(folder);
        assert_int_equal(s->count, 5);
        assert_sorted(s);
        assert_value(cpl_stored_find(s, "a"), 1);
        assert_value(cpl_stored_find(s, "e"), 3);
        assert_fault(s, "c", ways[way]);
        assert_fault(s, "d", two);
        assert_int_equal(cpl_stored_find(s, "c")->rank, -1);
        assert_string_equal(cpl_stored_find(s, "c")->path, two);
        assert_int_equal(n_warnings, 1);
        assert_non_null(strstr(warned, "tensors at fault: 2 of 5"));
        cpl_stored_close(s);
    }
    const char *folder = three_shards();
    assert_int_equal(unlink(in_folder(folder, "one")) | unlink(in_folder(folder, "two")), 0);
    write_string(in_folder(folder, "three"), "version https://git-lfs.github.com/spec/v1\n");
    refuses(folder, CPL_ERR_IO, "nor can any other of the 3 files");
}

TEST(tensors_that_the_index_has_wrong)
{
    const char *folder = scratch_folder();
    tensor_file(in_folder(folder, "one"), "atm", 1);
    tensor_file(in_folder(folder, "two"), "btn", 2);
    index_file(folder, "\"a\": \"one\", \"b\": \"two\", \"t\": \"one\", \"m\": \"two\","
                       "\"gone\": \"two\"");
    cpl_stored_files *s = opens(folder);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "tensors at fault: 2 of 6"));
    assert_int_equal(s->count, 6);
    assert_sorted(s);
    assert_value(cpl_stored_find(s, "a"), 1);
    assert_value(cpl_stored_find(s, "b"), 2);
    assert_fault(s, "t", "tensor t is in two too");
    assert_value(cpl_stored_find(s, "m"), 1); /* the index names another file */
    assert_value(cpl_stored_find(s, "n"), 2); /* the index lacks n */
    assert_fault(s, "gone", "has no tensor gone, which");
    cpl_stored_close(s);
}
