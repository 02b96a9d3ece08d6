/* test_safetensors_writer.c - the writer: byte for byte, in the canonical order, whole or not at
 * all. Our reader reads its files.
 *
 * Method: files written out by hand for small cases. Random sets of tensors, written in two
 *         different orders, must give equal bytes and come back. The disk is full after each of
 *         many lengths, and each allocation fails in turn. */
#include "checkpoint/safetensors_writer.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "check.h"
#include "io/file.h"
#include "io/paths.h"
#include "support/scarce.h"
#include "support/tensors.h"

static char *fresh_path(void)
{
    char *path = cpl_path_join(scratch_folder(), "t.safetensors");
    assert_non_null(path);
    return path;
}

static void assert_file(const char *path, const void *want, size_t length)
{
    cpl_text text = {0};
    assert_ok(cpl_file_read(&text, path, 1u << 30));
    assert_int_equal(text.length, length);
    assert_memory_equal(text.bytes, want, length);
    cpl_text_free(&text);
}

static void assert_alone(const char *path, int64_t wanted)
{
    cpl_strings names;
    char *folder = cpl_path_folder(path);
    assert_ok(cpl_folder_list(&names, folder));
    assert_int_equal(names.count, wanted);
    cpl_paths_free(&names);
    cpl_free(folder);
}

TEST(the_example_byte_for_byte)
{
    static const char want[]       = "\x40\0\0\0\0\0\0\0"
                                     "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}"
                                     "       \0\0\x80?\0\0\0@\0\0@@\0\0\x80@";
    const float data[4]            = {1, 2, 3, 4};
    const cpl_safetensors_tensor a = {"a", CPL_SAFETENSORS_F32, 2, (int64_t[]){2, 2}, data};
    char *path                     = fresh_path();
    assert_ok(write_tensors(path, &a, 1, NULL));
    assert_int_equal(sizeof want - 1, 88);
    assert_file(path, want, 88);
    cpl_free(path);
}

TEST(no_tensors_at_all)
{
    char *path = fresh_path();
    assert_ok(write_tensors(path, NULL, 0, NULL));
    assert_file(path, "\x08\0\0\0\0\0\0\0{}      ", 16);
    cpl_free(path);
}

TEST(order_metadata_and_escapes)
{
    static const char want[] =
        "{\"__metadata__\":{\"format\":\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\xC3\xA9/\x7F\"},"
        "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
        "\"Z\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[8,10]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[10,12]},"
        "\"a\\n\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[12,15]}}";
    const int64_t one = 1, three = 3, none[2] = {0, 3};
    const cpl_safetensors_tensor tensors[] = {{"a\n", CPL_SAFETENSORS_U8, 1, &three, "345"},
                                              {"a", CPL_SAFETENSORS_BF16, 1, &one, "12"},
                                              {"c", CPL_SAFETENSORS_F32, 2, none, NULL},
                                              {"Z", CPL_SAFETENSORS_BF16, 1, &one, "90"},
                                              {"b", CPL_SAFETENSORS_I64, 0, NULL, "12345678"}};
    char *path                             = fresh_path();
    cpl_text text                          = {0};
    assert_ok(write_tensors(path, tensors, 5, "\"\\\b\f\n\r\t\x01\xC3\xA9/\x7F"));
    assert_ok(cpl_file_read(&text, path, 10000));
    uint64_t n;
    memcpy(&n, text.bytes, 8);
    assert_int_equal(n % 8, 0);
    assert_in_range(n, sizeof want - 1, sizeof want + 6);
    assert_memory_equal(text.bytes + 8, want, sizeof want - 1);
    for (size_t i = sizeof want - 1; i < n; i++) assert_int_equal(text.bytes[8 + i], ' ');
    assert_string_equal(text.bytes + 8 + n, "123456789012345");
    cpl_text_free(&text);
    cpl_free(path);
}

TEST(refuses_what_cannot_be_written)
{
    char *path        = fresh_path();
    const int64_t one = 1, huge[2] = {INT64_MAX, 2}, minus = -1, half = INT64_MAX / 8;
    const struct {
        const char *words;
        cpl_safetensors_tensor tensor;
    } cases[] = {
        {"tensor \xff: its name is not UTF-8", {"\xff", CPL_SAFETENSORS_U8, 1, &one, NULL}},
        {"rename the tensor __metadata__", {"__metadata__", CPL_SAFETENSORS_U8, 1, &one, NULL}},
        {"-1", {"a", CPL_SAFETENSORS_U8, 1, &minus, NULL}},
        {"too large", {"a", CPL_SAFETENSORS_U8, 2, huge, NULL}},
        {"too large", {"a", CPL_SAFETENSORS_U64, 1, huge, NULL}},
        {"whole bytes", {"a", CPL_SAFETENSORS_F4, 1, &one, NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(CPL_ERR_INPUT, cases[i].words, write_tensors(path, &cases[i].tensor, 1, "pt"));
    const cpl_safetensors_tensor twice[] = {{"a", CPL_SAFETENSORS_U8, 1, &one, "1"},
                                            {"a", CPL_SAFETENSORS_F32, 1, &one, "1234"}};
    assert_fails(CPL_ERR_INPUT, "written twice", write_tensors(path, twice, 2, "pt"));
    static const char names[9][2] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    cpl_safetensors_tensor nine[9];
    for (int i = 0; i < 9; i++)
        nine[i] = (cpl_safetensors_tensor){names[i], CPL_SAFETENSORS_U8, 1, &half, NULL};
    assert_fails(CPL_ERR_INPUT, "too large", write_tensors(path, nine, 9, NULL));
    assert_alone(path, 0);
    cpl_free(path);
}

TEST(refuses_a_header_that_no_reader_takes)
{
    enum { LENGTH = 100000000, AROUND = 30 }; /* {"__metadata__":{"format":"..."}} */
    char *path = fresh_path(), *value = malloc(LENGTH + 1);
    assert_non_null(value);
    memset(value, 'x', LENGTH);
    value[LENGTH] = '\0';
    cpl_safetensors *file;
    assert_fails(CPL_ERR_INPUT, "header too large", write_tensors(path, NULL, 0, value));
    value[LENGTH - AROUND + 1] = '\0'; /* the limit, a multiple of 8, is itself allowed */
    assert_fails(CPL_ERR_INPUT, "header too large", write_tensors(path, NULL, 0, value));
    assert_alone(path, 0);
    value[LENGTH - AROUND] = '\0';
    assert_ok(write_tensors(path, NULL, 0, value));
    assert_ok(cpl_safetensors_open(&file, path));
    assert_string_equal(file->metadata[1], value);
    cpl_safetensors_close(file);
    assert_int_equal(unlink(path), 0);
    free(value);
    cpl_free(path);
}

typedef struct set {
    int count;
    struct {
        char name[24];
        cpl_safetensors_dtype dtype;
        int rank;
        int64_t shape[4];
        size_t bytes;
        unsigned char data[2048];
    } tensors[12];
} set;

static uint32_t draw(uint64_t round, uint64_t *index, uint32_t below)
{
    cpl_rng_key key = {.seed = 21, .stream = CPL_STREAM_TEST, .step = round};
    return cpl_rng_u32(&key, (*index)++) % below;
}

static void make_set(set *s, uint64_t round)
{
    uint64_t index = 0;
    s->count       = (int)draw(round, &index, 13);
    for (int t = 0; t < s->count; t++) {
        int64_t elements    = 1;
        s->tensors[t].dtype = (cpl_safetensors_dtype)draw(round, &index, CPL_SAFETENSORS_N_DTYPES);
        s->tensors[t].rank  = (int)draw(round, &index, 4);
        for (int i = 0; i < s->tensors[t].rank; i++)
            elements *= s->tensors[t].shape[i] = draw(round, &index, 5);
        if (cpl_safetensors_dtype_bits(s->tensors[t].dtype) < 8) {
            elements *= 4;
            s->tensors[t].shape[s->tensors[t].rank++] = 4;
        }
        sprintf(s->tensors[t].name, "%c%u\"\xC3\xA9%d", 'A' + (int)draw(round, &index, 50),
                draw(round, &index, 1000), t);
        s->tensors[t].bytes =
            (size_t)(elements * cpl_safetensors_dtype_bits(s->tensors[t].dtype) / 8);
        for (size_t i = 0; i < s->tensors[t].bytes; i++)
            s->tensors[t].data[i] = (unsigned char)draw(round, &index, 256);
    }
}

/* Writes the tensors from `first` on in a circle. */
static cpl_status write_set(const char *path, const set *s, int first)
{
    cpl_safetensors_tensor tensors[12];
    for (int k = 0; k < s->count; k++) {
        int t = (first + k) % s->count;
        tensors[k] =
            (cpl_safetensors_tensor){s->tensors[t].name, s->tensors[t].dtype, s->tensors[t].rank,
                                     s->tensors[t].shape, s->tensors[t].data};
    }
    return write_tensors(path, tensors, s->count, "pt");
}

static void assert_holds(const char *path, const set *s)
{
    cpl_safetensors *file;
    unsigned char data[2048];
    assert_ok(cpl_safetensors_open(&file, path));
    assert_int_equal(file->count, s->count);
    for (int t = 0; t < s->count; t++) {
        const cpl_safetensors_entry *e = cpl_safetensors_find(file, s->tensors[t].name);
        assert_non_null(e);
        assert_int_equal(e->dtype, s->tensors[t].dtype);
        assert_true(cpl_safetensors_has_shape(e, s->tensors[t].rank, s->tensors[t].shape));
        assert_int_equal(e->end - e->begin, s->tensors[t].bytes);
        assert_ok(cpl_safetensors_read_raw(file, e, data, 0, s->tensors[t].bytes));
        assert_memory_equal(data, s->tensors[t].data, s->tensors[t].bytes);
    }
    for (int64_t i = 1; i < s->count; i++) {
        const cpl_safetensors_entry *a = &file->entries[i - 1];
        const cpl_safetensors_entry *b = &file->entries[i];
        assert_true(a->end == b->begin);
        if (a->begin < a->end && b->begin < b->end) /* empty tensors share a place */
            assert_true(a->dtype < b->dtype ||
                        (a->dtype == b->dtype && strcmp(a->name, b->name) < 0));
    }
    cpl_safetensors_close(file);
}

TEST(random_sets_come_back)
{
    char *path = fresh_path();
    static set s;
    for (uint64_t round = 0; round < 100; round++) {
        make_set(&s, round);
        cpl_text first = {0};
        assert_ok(write_set(path, &s, 0));
        assert_holds(path, &s);
        assert_ok(cpl_file_read(&first, path, 1 << 20));
        assert_ok(write_set(path, &s, s.count / 2));
        assert_file(path, first.bytes, first.length);
        cpl_text_free(&first);
    }
    assert_alone(path, 1);
    cpl_free(path);
}

TEST(a_full_disk_leaves_the_old_file)
{
    char *path = fresh_path();
    static set old, new;
    struct rlimit before, tight;
    make_set(&old, 1000);
    make_set(&new, 1001);
    assert_true(old.count > 2 && new.count > 2);
    assert_ok(write_set(path, &old, 0));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    tight = before;
    for (rlim_t room = 0; room < 1200; room += 50) {
        tight.rlim_cur = room;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        cpl_status status = write_set(path, &new, 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_IO);
        assert_non_null(strstr(cpl_last_error(), "cannot be written"));
        assert_holds(path, &old);
        assert_alone(path, 1);
    }
    assert_ok(write_set(path, &new, 0));
    assert_holds(path, &new);
    cpl_free(path);
}

TEST(failing_allocations)
{
    char *path = fresh_path();
    static set old, new;
    make_set(&old, 1000);
    make_set(&new, 1001);
    assert_ok(write_set(path, &old, 0));
    scarce s = {0};
    while (scarce_begin(&s)) {
        cpl_safetensors *file;
        scarce_end(&s, write_set(path, &new, 0));
        assert_alone(path, 1);
        assert_ok(cpl_safetensors_open(&file, path)); /* one of the two files, whole */
        cpl_safetensors_close(file);
    }
    assert_true(s.nth > 10);
    assert_holds(path, &new);
    cpl_free(path);
}
