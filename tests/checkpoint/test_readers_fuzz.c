/* test_readers_fuzz.c - damaged checkpoints: headers of safetensors files, indices, configurations,
 * GGUF files. The reader returns a status with a sentence, or a checkpoint all of whose tensors can
 * be asked and read. It never crashes, leaks, or takes more memory than the file is long.
 *
 * Method: each round damages one file of a good folder and opens the folder, with sanitizers. */
#include <math.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/stored.h"
#include "fuzz.h"

enum { ROUNDS = 3000, ROOM = 1 << 16 };

/* A file that is damaged, and the path by which its checkpoint is opened. */
typedef struct target {
    const char *what;
    char file[128], opened[128];
    cpl_text whole;
    int64_t accepted, refused;
} target;

static void copy(const char *to, const char *from)
{
    cpl_text text = {0};
    assert_ok(cpl_file_read(&text, from, 1 << 20));
    fuzz_write(to, &text);
    cpl_text_free(&text);
}

static void set(target *t, const char *what, const char *folder, const char *file,
                const char *opened)
{
    t->what = what;
    snprintf(t->file, sizeof t->file, "%s/%s", folder, file);
    snprintf(t->opened, sizeof t->opened, "%s/%s", folder, opened);
    assert_ok(cpl_file_read(&t->whole, t->file, 1 << 20));
}

/* Makes a folder with settings, an index, two shards and a slice, and a folder with a GGUF file
 * whole and in parts. */
static const char *good_folder(void)
{
    const char *folder = scratch_folder();
    tensor_file(in_folder(folder, "one.safetensors"), "abcdef", 1);
    tensor_file(in_folder(folder, "two.safetensors"), "ghi", 2);
    tensor_file(in_folder(folder, "m-TP-000.safetensors"), "st", 3);
    tensor_file(in_folder(folder, "m-TP-001.safetensors"), "st", 4);
    index_file(folder, "\"a\": \"one.safetensors\", \"b\": \"one.safetensors\", "
                       "\"c\": \"one.safetensors\", \"d\": \"one.safetensors\", "
                       "\"e\": \"one.safetensors\", \"f\": \"one.safetensors\", "
                       "\"g\": \"two.safetensors\", \"h\": \"two.safetensors\", "
                       "\"i\": \"two.safetensors\", \"s\": \"m-TP-000.safetensors\", "
                       "\"t\": \"m-TP-001.safetensors\"");
    write_string(
        in_folder(folder, "config.json"),
        "{\"model_type\": \"olmoe\", \"num_experts\": 64, \"text_config\": {\"list\": [1, 2, "
        "{\"deep\": null}], \"rope_theta\": 1e6}, \"tie\": false}\n");
    copy(in_folder(folder, "small.gguf"), golden_path("gguf/small.gguf"));
    copy(in_folder(folder, "aligned.gguf"), golden_path("gguf/aligned.gguf"));
    for (int i = 1; i <= 3; i++) {
        char name[64], from[100];
        snprintf(name, sizeof name, "split-%05d-of-00003.gguf", i);
        snprintf(from, sizeof from, "gguf/%s", name);
        copy(in_folder(folder, name), golden_path(from));
    }
    return folder;
}

/* Reads the beginning and the end of a tensor. */
static cpl_status read_ends(const cpl_stored *t)
{
    static char bytes[ROOM];
    size_t some = t->bytes < ROOM ? (size_t)t->bytes : ROOM;
    CPL_TRY(cpl_stored_read(t, bytes, 0, some));
    return cpl_stored_read(t, bytes, t->bytes - some, some);
}

/* Asserts that all facts of a checkpoint fit together. */
static void check(const cpl_stored_files *s)
{
    assert_true(json_is_object(s->config));
    for (int64_t i = 0; i < s->count; i++) {
        const cpl_stored *t = &s->tensors[i];
        assert_ptr_equal(cpl_stored_find(s, t->name), t - t->slice);
        assert_true(t->slice >= 0 && t->slice < t->n_slices && t->type_name);
        if (t->fault) {
            assert_int_equal(read_ends(t), CPL_ERR_INPUT);
            continue;
        }
        int64_t product = 1;
        for (int k = 0; k < CPL_STORED_MAX_RANK; k++) product *= t->shape[k];
        assert_true(t->rank >= 0 && t->rank <= CPL_STORED_MAX_RANK && product == t->n_elements);
        assert_ok(read_ends(t));
    }
}

static void try(target *t)
{
    cpl_stored_files *s;
    if (cpl_stored_open(&s, NULL, t->opened, (double)INFINITY, NULL) != CPL_OK) {
        assert_null(s);
        assert_true(strlen(cpl_last_error()) > 0);
        t->refused++;
        return;
    }
    check(s);
    cpl_stored_close(s);
    t->accepted++;
}

TEST(damaged_checkpoints)
{
    enum { TARGETS = 9 };
    target targets[TARGETS] = {0};
    const char *folder      = good_folder();
    cpl_text file           = {0};
    set(&targets[0], "safetensors", folder, "one.safetensors", "one.safetensors");
    set(&targets[1], "GGUF", folder, "small.gguf", "small.gguf");
    set(&targets[2], "GGUF", folder, "aligned.gguf", "aligned.gguf");
    set(&targets[3], "index", folder, "model.safetensors.index.json", "");
    set(&targets[4], "a shard", folder, "two.safetensors", "");
    set(&targets[5], "config", folder, "config.json", "two.safetensors");
    set(&targets[6], "a part", folder, "split-00001-of-00003.gguf", "split-00001-of-00003.gguf");
    set(&targets[7], "a part", folder, "split-00002-of-00003.gguf", "split-00001-of-00003.gguf");
    set(&targets[8], "a slice", folder, "m-TP-001.safetensors", "");
    print_message("the damaged files are in %s\n", folder);
    for (fuzz f = fuzz_start(52, ROUNDS); fuzz_next(&f);) {
        target *t = &targets[f.round % TARGETS];
        fuzz_damage(&f, &file, &t->whole);
        fuzz_write(t->file, &file);
        try(t);
        fuzz_write(t->file, &t->whole);
    }
    for (int i = 0; i < TARGETS; i++) {
        target *t = &targets[i];
        print_message("%-12s %lld read, %lld refused\n", t->what, (long long)t->accepted,
                      (long long)t->refused);
        if (!fuzz_is_alone()) /* damage may have no effect */
            assert_true(t->accepted && (t->refused || i == 4 || i == 8));
        cpl_text_free(&t->whole);
    }
    cpl_text_free(&file);
    cpl_folder_remove(folder);
}
