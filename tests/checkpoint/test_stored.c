/* test_stored.c - the tensors of any checkpoint: which files, both containers, slices, faults.
 *
 * Method: folders made here; what goes wrong with one file must stay with its tensors. The reference
 * folders are opened leniently and strictly, which must give the same bytes. */
#include "checkpoint/stored.h"

#include <sys/stat.h>
#include <time.h>

#include "base/arena.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/stored.h"
#include "io/json.h"
#include "io/paths.h"
#include "support/warnings.h"

static cpl_stored_files *opens(const char *path)
{
    cpl_stored_files *s;
    n_warnings = 0;
    assert_ok(cpl_stored_open(&s, path, &a_log));
    assert_string_equal(s->path, path);
    return s;
}

static void refuses(const char *path, cpl_status code, const char *part)
{
    cpl_stored_files *s;
    assert_fails(code, part, cpl_stored_open(&s, path, NULL));
    assert_null(s);
}

/* A tensor made by tensor_file. */
static void assert_value(const cpl_stored *t, float value)
{
    float data[2];
    assert_non_null(t);
    assert_null(t->fault);
    assert_int_equal(t->format, CPL_FORMAT_F32);
    assert_string_equal(t->type_name, "F32");
    assert_true(t->rank == 1 && t->shape[0] == 2 && t->shape[1] == 1 && t->n_elements == 2);
    assert_int_equal(t->bytes, 8);
    cpl_stored_prefetch(t, 0, 8);
    assert_ok(cpl_stored_read(t, data, 0, 8));
    assert_true(data[0] == (float)t->name[0] && data[1] == value);
    assert_ok(cpl_stored_read(t, data, 4, 4));
    assert_true(data[0] == value);
    assert_fails(CPL_ERR_INPUT, t->name, cpl_stored_read(t, data, 4, 5));
    assert_fails(CPL_ERR_INPUT, t->name, cpl_stored_read(t, data, UINT64_MAX, 2));
    cpl_stored_prefetch(t, 4, 5);
}

/* The tensor is there, with a fault that says this and that reading it says. */
static void assert_fault(const cpl_stored_files *s, const char *name, const char *says)
{
    char byte;
    const cpl_stored *t = cpl_stored_find(s, name);
    assert_non_null(t);
    assert_non_null(t->fault);
    assert_int_equal(t->n_slices, 1);
    if (!strstr(t->fault, says)) fail_msg("\"%s\" does not say \"%s\"", t->fault, says);
    assert_non_null(strstr(t->fault, name));
    assert_fails(CPL_ERR_INPUT, t->fault, cpl_stored_read(t, &byte, 0, 1));
    cpl_stored_prefetch(t, 0, 1);
}

/* Every tensor once, in order, and found by its name. */
static void assert_sorted(const cpl_stored_files *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        const cpl_stored *t = &s->tensors[i];
        assert_ptr_equal(cpl_stored_find(s, t->name), t - t->slice);
        assert_true(t->slice >= 0 && t->slice < t->n_slices);
        if (i) assert_true(strcmp(t[-1].name, t->name) < (t->slice > 0));
    }
}

/* One file --------------------------------------------------------------------------------------*/

static void one_file_and_its_settings(void **state)
{
    (void)state;
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
    text_file(at(folder, "params.json"), "{\"dim\": 3}");
    cpl_stored_files *s = opens(path);
    assert_int_equal(json_integer_value(json_object_get(s->config, "dim")), 3);
    cpl_stored_close(s);
    text_file(at(folder, "config.json"), "{\"hidden_size\": 4}");
    s = opens(folder);
    assert_int_equal(json_integer_value(json_object_get(s->config, "hidden_size")), 4);
    assert_null(json_object_get(s->config, "dim"));
    cpl_stored_close(s);
    static const char *const bad[][2] = {{"{\"a\": ", "not valid JSON"},
                                         {"[]", "should be an object"},
                                         {"", "is empty"},
                                         {"version https://git-lfs.github.com/x\n", "Git LFS"}};
    for (size_t i = 0; i < 4; i++) {
        text_file(at(folder, "config.json"), bad[i][0]);
        refuses(folder, CPL_ERR_INPUT, bad[i][1]);
        assert_non_null(strstr(cpl_last_error(), "config.json"));
    }
    cpl_free(path);
}

static void every_type_has_its_format(void **state)
{
    (void)state;
    static const cpl_format formats[CPL_SAFETENSORS_N_DTYPES] = {
        [CPL_SAFETENSORS_F64]     = CPL_FORMAT_F64 + 1,
        [CPL_SAFETENSORS_F32]     = CPL_FORMAT_F32 + 1,
        [CPL_SAFETENSORS_F16]     = CPL_FORMAT_F16 + 1,
        [CPL_SAFETENSORS_BF16]    = CPL_FORMAT_BF16 + 1,
        [CPL_SAFETENSORS_F8_E4M3] = CPL_FORMAT_F8_E4M3 + 1,
        [CPL_SAFETENSORS_F8_E5M2] = CPL_FORMAT_F8_E5M2 + 1,
        [CPL_SAFETENSORS_F8_E8M0] = CPL_FORMAT_F8_E8M0 + 1,
        [CPL_SAFETENSORS_F4]      = CPL_FORMAT_F4_PAIR + 1,
    };
    char *path              = cpl_path_join(scratch_folder(), "model.safetensors");
    unsigned char zeros[64] = {0};
    cpl_safetensors_tensor tensors[CPL_SAFETENSORS_N_DTYPES + 1];
    const int64_t shape[] = {2, 4};
    for (int i = 0; i < CPL_SAFETENSORS_N_DTYPES; i++)
        tensors[i] = (cpl_safetensors_tensor){cpl_safetensors_dtype_name((cpl_safetensors_dtype)i),
                                              (cpl_safetensors_dtype)i, 2, shape, zeros};
    tensors[CPL_SAFETENSORS_N_DTYPES] = (cpl_safetensors_tensor){
        "deep", CPL_SAFETENSORS_U8, 7, (int64_t[]){1, 1, 1, 1, 1, 1, 2}, zeros};
    assert_ok(cpl_safetensors_write(path, tensors, CPL_SAFETENSORS_N_DTYPES + 1, NULL));
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

static void nothing_to_read(void **state)
{
    (void)state;
    const char *folder = scratch_folder();
    refuses("/no/such/place", CPL_ERR_IO, "/no/such/place");
    refuses("/no/such/place.gguf", CPL_ERR_IO, "/no/such/place.gguf");
    refuses(folder, CPL_ERR_INPUT, "looked for model.safetensors.index.json");
    assert_non_null(strstr(cpl_last_error(), "GGUF"));
    text_file(at(folder, "pytorch_model.bin"), "PK\x03\x04\x01\x01\x01\x01\x01");
    refuses(folder, CPL_ERR_INPUT, "PyTorch");
    tensor_file(at(folder, "model-00001-of-00002.safetensors"), "a", 1);
    refuses(folder, CPL_ERR_INPUT, "fetch the index");
    text_file(at(folder, "model.safetensors"), "version https://git-lfs.github.com/spec/v1\n");
    refuses(folder, CPL_ERR_INPUT, "Git LFS");
    text_file(at(folder, "readme.md"), "# A model\n");
    refuses(at(folder, "readme.md"), CPL_ERR_INPUT, "readme.md");
    assert_int_equal(mkfifo(at(folder, "pipe.gguf"), 0600), 0);
    refuses(at(folder, "pipe.gguf"), CPL_ERR_INPUT, "not a regular file");
    assert_int_equal(mkfifo(at(folder, "pipe"), 0600), 0);
    refuses(at(folder, "pipe"), CPL_ERR_INPUT, "not a regular file");
}

/* An index --------------------------------------------------------------------------------------*/

static const char *three_shards(void)
{
    const char *folder = scratch_folder();
    tensor_file(at(folder, "one"), "ab", 1);
    tensor_file(at(folder, "two"), "cd", 2);
    tensor_file(at(folder, "three"), "e", 3);
    index_file(folder, "\"a\": \"one\", \"b\": \"one\", \"c\": \"two\", \"d\": \"two\","
                       "\"e\": \"three\"");
    return folder;
}

static void an_index(void **state)
{
    (void)state;
    const char *folder  = three_shards();
    cpl_stored_files *s = opens(folder);
    assert_int_equal(s->count, 5);
    assert_int_equal(s->n_parts, 3);
    assert_sorted(s);
    assert_value(cpl_stored_find(s, "a"), 1);
    assert_value(cpl_stored_find(s, "d"), 2);
    assert_value(cpl_stored_find(s, "e"), 3);
    assert_string_equal(cpl_stored_find(s, "c")->path, at(folder, "two"));
    assert_int_equal(n_warnings, 0);
    cpl_stored_close(s);
    s = opens(at(folder, "model.safetensors.index.json"));
    assert_int_equal(s->count, 5);
    cpl_stored_close(s);
}

/* What is wrong with one shard is told of its tensors; the others are read. */
static void a_shard_that_cannot_be_read(void **state)
{
    (void)state;
    static const char *const ways[] = {"No such file", "Git LFS", "cut short", "header too small",
                                       "not a regular file"};
    for (int way = 0; way < 5; way++) {
        const char *folder = three_shards(), *two = at(folder, "two");
        struct stat info;
        assert_int_equal(stat(two, &info), 0);
        if (way == 2)
            assert_int_equal(truncate(two, info.st_size - 1), 0);
        else
            assert_int_equal(unlink(two), 0);
        if (way == 1) text_file(two, "version https://git-lfs.github.com/spec/v1\n");
        if (way == 3) text_file(two, "");
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
    assert_int_equal(unlink(at(folder, "one")) | unlink(at(folder, "two")), 0);
    text_file(at(folder, "three"), "version https://git-lfs.github.com/spec/v1\n");
    refuses(folder, CPL_ERR_IO, "nor can any other of the 3 files");
}

static void tensors_that_the_index_has_wrong(void **state)
{
    (void)state;
    const char *folder = scratch_folder();
    tensor_file(at(folder, "one"), "atm", 1);
    tensor_file(at(folder, "two"), "btn", 2);
    index_file(folder, "\"a\": \"one\", \"b\": \"two\", \"t\": \"one\", \"m\": \"two\","
                       "\"gone\": \"two\"");
    cpl_stored_files *s = opens(folder);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "tensors at fault: 4 of 6"));
    assert_int_equal(s->count, 6);
    assert_sorted(s);
    assert_value(cpl_stored_find(s, "a"), 1);
    assert_value(cpl_stored_find(s, "b"), 2);
    assert_fault(s, "t", "tensor t is in two too");
    assert_fault(s, "m", "is not in the file that the index names, two");
    assert_fault(s, "n", "is not in the index");
    assert_fault(s, "gone", "has no tensor gone, which");
    cpl_stored_close(s);
}

static void an_index_that_is_none(void **state)
{
    (void)state;
    const char *folder               = scratch_folder();
    static const char *const names[] = {"../x", "/etc/passwd", "sub/x", "sub\\\\x",
                                        "..",   ".",           "",      "./x"};
    tensor_file(at(folder, "x"), "x", 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char map[256];
        snprintf(map, sizeof map, "\"x\": \"x\", \"y\": \"%s\"", names[i]);
        index_file(folder, map);
        refuses(folder, CPL_ERR_INPUT, "not the name of a file beside the index");
    }
    index_file(folder, "");
    refuses(folder, CPL_ERR_INPUT, "names no file");
    text_file(at(folder, "model.safetensors.index.json"), "{\"weight_map\": []}");
    refuses(folder, CPL_ERR_INPUT, "`weight_map` is an array");
    text_file(at(folder, "model.safetensors.index.json"), "{");
    refuses(folder, CPL_ERR_INPUT, "not valid JSON");
}

/* Slices ----------------------------------------------------------------------------------------*/

static const char *const slice_names[] = {"m-1-TP-000.safetensors", "m-1-TP-001.safetensors",
                                          "m-1-TP-002.safetensors"};

static const char *three_slices(bool with_index)
{
    const char *folder = scratch_folder();
    for (int i = 0; i < 3; i++) tensor_file(at(folder, slice_names[i]), "ab", (float)i);
    tensor_file(at(folder, "m-0-TP-common.safetensors"), "r", 9);
    if (with_index)
        index_file(folder, "\"a\": \"m-1-TP-000.safetensors\", \"b\": \"m-1-TP-002.safetensors\","
                           "\"r\": \"m-0-TP-common.safetensors\"");
    return folder;
}

static void slices_of_a_tensor(void **state)
{
    (void)state;
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

/* Their order is that of the numbers, not of the names. */
static void slices_in_files_of_other_names(void **state)
{
    (void)state;
    const char *folder = scratch_folder();
    tensor_file(at(folder, "b-TP-0.safetensors"), "a", 0);
    tensor_file(at(folder, "c-TP-001.safetensors"), "a", 1);
    tensor_file(at(folder, "a-TP-02.safetensors"), "a", 2);
    cpl_stored_files *s = opens(folder);
    assert_int_equal(s->count, 3);
    assert_sorted(s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s->tensors[i].slice, i);
        assert_value(&s->tensors[i], (float)i);
    }
    cpl_stored_close(s);
    tensor_file(at(folder, "d-TP-1.safetensors"), "a", 1); /* the second one twice */
    s = opens(folder);
    assert_fault(s, "a", "is in 4 files");
    assert_int_equal(s->count, 1);
    cpl_stored_close(s);
}

static void slices_that_are_missing(void **state)
{
    (void)state;
    const char *folder = three_slices(true);
    tensor_file(at(folder, "m-2-TP-000.safetensors"), "x", 0); /* the others have none of it */
    tensor_file(at(folder, "m-2-TP-001.safetensors"), "xz", 0);
    tensor_file(at(folder, "m-3-TP-001.safetensors"), "z", 0);
    cpl_stored_files *s = opens(folder);
    assert_fault(s, "x", "not in one for each of the 3 slices");
    assert_fault(s, "z", "not in one for each of the 3 slices");
    assert_null(cpl_stored_find(s, "a")->fault);
    cpl_stored_close(s);
    folder = three_slices(true);
    text_file(at(folder, slice_names[1]), "version https://git-lfs.github.com/spec/v1\n");
    s = opens(folder);
    assert_fault(s, "a", "Git LFS");
    assert_non_null(strstr(cpl_stored_find(s, "b")->fault, slice_names[1]));
    assert_value(cpl_stored_find(s, "r"), 9);
    assert_sorted(s);
    cpl_stored_close(s);
    folder = three_slices(false); /* nothing says what would be in a damaged file */
    text_file(at(folder, "m-0-TP-common.safetensors"), "");
    refuses(folder, CPL_ERR_INPUT, "file 1 of 4 of one checkpoint");
    folder = three_slices(true);
    tensor_file(at(folder, "plain"), "a", 5);
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

static void a_gguf_file(void **state)
{
    (void)state;
    json_t *wanted;
    const char *folder = scratch_folder(), *name;
    copy(at(folder, "small.gguf"), golden_path("gguf/small.gguf"));
    copy(at(folder, "0a1b2c"), golden_path("gguf/small.gguf"));
    text_file(at(folder, "config.json"), "{\"hidden_size\": 4}");
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
    copy(at(folder, "mmproj.gguf"), golden_path("gguf/aligned.gguf"));
    refuses(folder, CPL_ERR_INPUT, "several GGUF files (mmproj.gguf and small.gguf)");
    tensor_file(at(folder, "model.safetensors"), "a", 1);
    cpl_stored_files *s = opens(folder); /* safetensors come first */
    assert_false(s->is_gguf);
    cpl_stored_close(s);
    text_file(at(folder, "pointer.gguf"), "version https://git-lfs.github.com/spec/v1\n");
    refuses(at(folder, "pointer.gguf"), CPL_ERR_INPUT, "Git LFS");
}

static void a_gguf_file_in_parts(void **state)
{
    (void)state;
    char name[64], part[64];
    const char *folder = scratch_folder();
    for (int i = 1; i <= 3; i++) {
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        snprintf(part, sizeof part, "gguf/split-%05d-of-00003.gguf", i);
        copy(at(folder, name), golden_path(part));
    }
    for (int i = 0; i <= 3; i++) { /* the folder, or any part */
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        cpl_stored_files *s = opens(i ? at(folder, name) : folder);
        assert_int_equal(s->count, 5);
        assert_int_equal(s->n_parts, 3);
        assert_sorted(s);
        assert_int_equal(cpl_stored_find(s, "double")->bytes, 480);
        assert_non_null(strstr(cpl_stored_find(s, "double")->path, "m-00002-of"));
        const json_t *count = json_object_get(s->config, "olmoe.expert_count");
        assert_int_equal(json_integer_value(count), 4);
        cpl_stored_close(s);
    }
    copy(at(folder, "alone.gguf"), at(folder, "m-00002-of-00003.gguf"));
    refuses(at(folder, "alone.gguf"), CPL_ERR_INPUT, "is part 2 of 3 of a split file");
    copy(at(folder, "m-00003-of-00003.gguf"), at(folder, "m-00001-of-00003.gguf"));
    refuses(at(folder, "m-00001-of-00003.gguf"), CPL_ERR_INPUT, "named as part 3 of 3");
    copy(at(folder, "m-00003-of-00003.gguf"), golden_path("gguf/aligned.gguf"));
    refuses(at(folder, "m-00001-of-00003.gguf"), CPL_ERR_INPUT, "named as part 3 of 3");
    assert_int_equal(unlink(at(folder, "m-00003-of-00003.gguf")), 0);
    refuses(at(folder, "m-00001-of-00003.gguf"), CPL_ERR_IO, "m-00003-of-00003.gguf");
    copy(at(folder, "one-00001-of-00001.gguf"), golden_path("gguf/aligned.gguf"));
    cpl_stored_files *s = opens(at(folder, "one-00001-of-00001.gguf"));
    assert_int_equal(s->count, 2);
    cpl_stored_close(s);
}

/* All of it -------------------------------------------------------------------------------------*/

/* Each tensor has the bytes that the strict way in finds. */
static void reference_folders(void **state)
{
    (void)state;
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
static void a_very_large_checkpoint(void **state)
{
    (void)state;
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
    CPL_TRY(cpl_stored_open(&s, folders[which], NULL));
    cpl_status status = cpl_stored_read(&s->tensors[0], bytes, 0, 8);
    cpl_stored_close(s);
    return status;
}

static void failing_allocations(void **state)
{
    (void)state;
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

static void nothing_is_written(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_and_its_settings),
        cmocka_unit_test(every_type_has_its_format),
        cmocka_unit_test(nothing_to_read),
        cmocka_unit_test(an_index),
        cmocka_unit_test(a_shard_that_cannot_be_read),
        cmocka_unit_test(tensors_that_the_index_has_wrong),
        cmocka_unit_test(an_index_that_is_none),
        cmocka_unit_test(slices_of_a_tensor),
        cmocka_unit_test(slices_in_files_of_other_names),
        cmocka_unit_test(slices_that_are_missing),
        cmocka_unit_test(a_gguf_file),
        cmocka_unit_test(a_gguf_file_in_parts),
        cmocka_unit_test(reference_folders),
        cmocka_unit_test(a_very_large_checkpoint),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(nothing_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
