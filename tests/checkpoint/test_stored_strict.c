/* test_stored_strict.c - a checkpoint of one file or many, read strictly: discovery, the index,
 * links, faults.
 * Method: folders made here with the library's own writer, and folders of the reference data, which
 *         are like published ones, if they are present. */
#include "checkpoint/stored.h"
#include "support/warnings.h"

#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "check.h"
#include "checkpoint/checkpoints.h"
#include "io/file.h"
#include "io/json.h"

static cpl_stored_files *opens(const char *path)
{
    cpl_stored_files *w;
    n_warnings = 0;
    assert_ok(cpl_stored_open_strict(&w, path, &a_log));
    return w;
}

static void refuses(const char *path, cpl_status code, const char *part)
{
    cpl_stored_files *w;
    assert_fails(code, part, cpl_stored_open_strict(&w, path, NULL));
    assert_null(w);
}

static cpl_status read_f32(const cpl_stored_files *w, const char *name, float *out, int rank,
                           const int64_t *shape)
{
    const cpl_stored *tensor;
    CPL_TRY(cpl_stored_find_shaped(&tensor, w, name, rank, shape));
    return cpl_stored_read_part_f32(tensor, out, 0, tensor->n_elements);
}

/* Asserts that tensor `name` is there with the value that its file was given. */
static void assert_value(const cpl_stored_files *w, const char *name, float value)
{
    float data[2];
    assert_ok(read_f32(w, name, data, 1, (int64_t[]){2}));
    assert_true(data[0] == (float)name[0] && data[1] == value);
}

TEST(one_file)
{
    const char *folder = scratch_folder();
    char *path         = cpl_path_join(folder, "model.safetensors");
    const cpl_stored *tensor;
    float data[6];
    tensor_file(path, "yx", 1);
    const char *ways[] = {folder, path};
    for (int i = 0; i < 2; i++) {
        cpl_stored_files *w = opens(ways[i]);
        assert_string_equal(w->source, path);
        assert_int_equal(w->count, 2);
        assert_string_equal(w->tensors[0].name, "x");
        assert_string_equal(w->tensors[1].name, "y");
        assert_value(w, "x", 1);
        assert_value(w, "y", 1);
        assert_ok(cpl_stored_find_sound(&tensor, w, "z"));
        assert_null(tensor);
        assert_fails(CPL_ERR_INPUT, "has no tensor z", read_f32(w, "z", data, 1, (int64_t[]){2}));
        assert_fails(CPL_ERR_INPUT, "tensor x is [2], it should be [2,3]",
                     read_f32(w, "x", data, 2, (int64_t[]){2, 3}));
        assert_int_equal(n_warnings, 0);
        cpl_stored_close(w);
    }
    cpl_free(path);
}

TEST(many_files_and_their_index)
{
    const char *folder = scratch_folder();
    const cpl_stored *tensor;
    tensor_file(in_folder(folder, "model-00001-of-00002.safetensors"), "ab", 1);
    tensor_file(in_folder(folder, "model-00002-of-00002.safetensors"), "c", 2);
    index_file(folder, "\"c\": \"model-00002-of-00002.safetensors\","
                       "\"a\": \"model-00001-of-00002.safetensors\","
                       "\"b\": \"model-00001-of-00002.safetensors\","
                       "\"gone\": \"model-00001-of-00002.safetensors\"");
    cpl_stored_files *w = opens(folder);
    assert_int_equal(w->count, 4);
    assert_value(w, "a", 1);
    assert_value(w, "b", 1);
    assert_value(w, "c", 2);
    assert_int_equal(n_warnings, 0);
    assert_fails(CPL_ERR_INPUT, "model-00001-of-00002.safetensors: has no tensor gone, which",
                 cpl_stored_find_sound(&tensor, w, "gone"));
    assert_ok(cpl_stored_find_sound(&tensor, w, "z"));
    assert_null(tensor);
    cpl_stored_close(w);
    w = opens(in_folder(folder, "model.safetensors.index.json"));
    assert_value(w, "c", 2);
    cpl_stored_close(w);
    w = opens(in_folder(folder, "model-00002-of-00002.safetensors")); /* a shard by its name */
    assert_int_equal(w->count, 1);
    cpl_stored_close(w);
    assert_int_equal(unlink(in_folder(folder, "model.safetensors.index.json")), 0);
    refuses(folder, CPL_ERR_INPUT, "fetch the index");
}

TEST(the_order_of_discovery)
{
    const char *folder = scratch_folder();
    refuses(folder, CPL_ERR_INPUT, "no weights found: expected model.safetensors");
    assert_null(strstr(cpl_last_error(), "gguf")); /* GGUF is not read here */
    tensor_file(in_folder(folder, "adapter_model.safetensors"), "x", 4);
    refuses(folder, CPL_ERR_INPUT,
            "has an adapter of PEFT (adapter_model.safetensors) and no model");
    assert_int_equal(unlink(in_folder(folder, "adapter_model.safetensors")), 0);
    tensor_file(in_folder(folder, "s4"), "x", 4);
    tensor_file(in_folder(folder, "s2"), "x", 2);
    write_string(in_folder(folder, "consolidated.safetensors.index.json"),
                 "{\"weight_map\": {\"x\": \"s4\"}}");
    for (float step = 4; step >= 1; step--) {
        if (step == 3) tensor_file(in_folder(folder, "consolidated.safetensors"), "x", 3);
        if (step == 2) index_file(folder, "\"x\": \"s2\"");
        if (step == 1) tensor_file(in_folder(folder, "model.safetensors"), "x", 1);
        cpl_stored_files *w = opens(folder);
        assert_value(w, "x", step);
        cpl_stored_close(w);
    }
}

TEST(links_as_in_a_cache)
{
    const char *root = scratch_folder();
    char *folder     = cpl_path_join(root, "snapshot");
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(mkdir(in_folder(root, "blobs"), 0777), 0);
    tensor_file(in_folder(root, "blobs/0a1b"), "x", 1);
    write_string(in_folder(root, "blobs/2c"), "{\"weight_map\": {\"x\": \"model-1.safetensors\"}}");
    assert_int_equal(symlink("../blobs/0a1b", in_folder(folder, "model-1.safetensors")), 0);
    assert_int_equal(symlink("../blobs/2c", in_folder(folder, "model.safetensors.index.json")), 0);
    cpl_stored_files *w = opens(folder);
    assert_value(w, "x", 1);
    cpl_stored_close(w);
    assert_int_equal(unlink(in_folder(root, "blobs/0a1b")), 0);
    refuses(folder, CPL_ERR_IO, "symbolic link");
    assert_int_equal(unlink(in_folder(root, "blobs/2c")), 0);
    refuses(folder, CPL_ERR_IO, "symbolic link");
    cpl_free(folder);
}

/* Every index is refused strictly. An index that is wrong in itself is also refused leniently. */
TEST(an_index_that_is_wrong)
{
    static const struct {
        const char *index, *says;
        cpl_status code;
        bool strictly; /* refused only strictly */
    } cases[] = {
#define ELSEWHERE(name)                                                                            \
    {"{\"weight_map\": {\"x\": \"x\", \"y\": \"" name "\"}}",                                      \
     "not the name of a file in the folder of the index", CPL_ERR_INPUT, false}
        ELSEWHERE("../x"),
        ELSEWHERE("/etc/passwd"),
        ELSEWHERE("sub/x"),
        ELSEWHERE("sub\\\\x"),
        ELSEWHERE(".."),
        ELSEWHERE("."),
        ELSEWHERE(""),
        ELSEWHERE("./x"),
        {"{\"weight_map\": {\"x\": \"sub\"}}", "not a regular file", CPL_ERR_INPUT, true},
        {"{\"weight_map\": {\"x\": \"none\"}}", "none: ", CPL_ERR_IO, true},
        {"{\"weight_map\": {\"x\": 1}}", "must be a string", CPL_ERR_INPUT, false},
        {"{\"weight_map\": []}", "`weight_map` is an array", CPL_ERR_INPUT, false},
        {"{}", "is not an index of a checkpoint (`weight_map` is missing): name the folder",
         CPL_ERR_INPUT, false},
        {"{", "not valid JSON", CPL_ERR_INPUT, false},
        {"version https://git-lfs.github.com/x\n", "Git LFS", CPL_ERR_INPUT, false},
    };
    const char *folder = scratch_folder();
    cpl_stored_files *w;
    assert_int_equal(mkdir(in_folder(folder, "sub"), 0777), 0);
    tensor_file(in_folder(folder, "x"), "x", 1);
    tensor_file(in_folder(folder, "sub/x"), "x", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_string(in_folder(folder, "model.safetensors.index.json"), cases[i].index);
        refuses(folder, cases[i].code, cases[i].says);
        assert_non_null(strstr(cpl_last_error(), "index.json"));
        if (!cases[i].strictly)
            assert_fails(cases[i].code, cases[i].says,
                         cpl_stored_open(&w, NULL, folder, (double)INFINITY, NULL));
    }
    index_file(folder, "");
    assert_fails(CPL_ERR_INPUT, "names no file",
                 cpl_stored_open(&w, NULL, folder, (double)INFINITY, NULL));
}

TEST(tensors_at_fault)
{
    const char *folder = scratch_folder();
    const cpl_stored *tensor;
    tensor_file(in_folder(folder, "one"), "atm", 1);
    tensor_file(in_folder(folder, "two"), "btn", 2);
    index_file(folder, "\"a\": \"one\", \"b\": \"two\", \"t\": \"one\", \"m\": \"two\"");
    cpl_stored_files *w = opens(folder);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "tensors at fault: 1"));
    assert_int_equal(w->count, 5);
    assert_value(w, "a", 1);
    assert_value(w, "b", 2);
    assert_fails(CPL_ERR_INPUT, "one: tensor t is in two too",
                 cpl_stored_find_sound(&tensor, w, "t"));
    assert_null(tensor);
    assert_value(w, "m", 1); /* the index names another file */
    assert_value(w, "n", 2); /* the index lacks n */
    cpl_stored_close(w);
}

TEST(foreign_forms)
{
    const char *names[] = {"pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"};
    for (int i = 0; i < 4; i++) {
        const char *folder = scratch_folder();
        write_string(in_folder(folder, names[i]), "PK\x03\x04\x01\x01\x01\x01\x01");
        write_string(in_folder(folder, "config.json"), "{}");
        refuses(folder, CPL_ERR_INPUT, names[i]);
        assert_non_null(strstr(cpl_last_error(), "safetensors"));
        refuses(in_folder(folder, names[i]), CPL_ERR_INPUT, "PyTorch");
    }
    refuses("/no/such/place", CPL_ERR_IO, "/no/such/place");
}

/* ---- comparing checkpoints ---- */

static uint64_t hash_of(const char *path)
{
    cpl_stored_files *w = opens(path);
    uint64_t hash, bytes;
    assert_ok(cpl_stored_sampled_hash(&hash, &bytes, w));
    assert_int_equal(bytes, (uint64_t)w->count * 8);
    cpl_stored_close(w);
    return hash;
}

/* Names and numbers make a difference. Files and their names make no difference. */
TEST(told_apart)
{
    const char *folder = scratch_folder();
    char *path         = cpl_path_join(folder, "model.safetensors");
    tensor_file(in_folder(folder, "one"), "ab", 1);
    tensor_file(in_folder(folder, "two"), "c", 1);
    index_file(folder, "\"a\": \"one\", \"b\": \"one\", \"c\": \"two\"");
    const uint64_t hash = hash_of(folder);
    tensor_file(path, "cba", 1);
    assert_true(hash_of(path) == hash);
    tensor_file(path, "abd", 1);
    assert_true(hash_of(path) != hash);
    tensor_file(path, "abc", 2);
    assert_true(hash_of(path) != hash);
    cpl_free(path);
}

/* A changed byte at the beginning, middle or end of a large tensor makes a difference. */
TEST(large_tensors)
{
    enum { BYTES = 100000 };
    static const int64_t places[] = {0, BYTES / 2, BYTES - 1};
    static const char header[] =
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[100000],\"data_offsets\":[0,100000]}}";
    const uint64_t length = sizeof header - 1;
    const char *path      = in_folder(scratch_folder(), "model.safetensors");
    uint64_t seen[4], bytes;
    static unsigned char file[8 + sizeof header - 1 + BYTES];
    memcpy(file, &length, 8);
    memcpy(file + 8, header, (size_t)length);
    for (int i = 0; i < 4; i++) {
        if (i) file[8 + (int64_t)length + places[i - 1]]++;
        assert_ok(cpl_file_write_atomic(path, file, sizeof file));
        cpl_stored_files *w = opens(path);
        assert_ok(cpl_stored_sampled_hash(&seen[i], &bytes, w));
        cpl_stored_close(w);
        for (int k = 0; k < i; k++) assert_true(seen[i] != seen[k]);
    }
    assert_int_equal(bytes, BYTES);
}
