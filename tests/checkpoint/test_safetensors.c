/* test_safetensors.c - the reader: every rule of the format, damaged files, conversions.
 *
 * Method: a table of header texts and data lengths, each with the rule that must refuse it.
 *         Thousands of damaged copies of a good file must be refused or read within bounds (the
 *         sanitizers check it). Then each allocation fails in turn. */
#include "checkpoint/safetensors.h"

#include <math.h>
#include <stdbool.h>

#include "base/rng.h"
#include "support/files.h"
#include "support/scarce.h"
#include "tensor/numbers.h"

static const char *path(void)
{
    static char name[128];
    if (!name[0]) snprintf(name, sizeof name, "%s/t.safetensors", scratch_folder());
    return name;
}

/* Writes a file of N = `n`, the header text and `data` zero bytes. */
static void write_file(uint64_t n, const char *header, size_t header_bytes, size_t data)
{
    unsigned char *all = calloc(1, 8 + header_bytes + data);
    assert_non_null(all);
    memcpy(all, &n, 8);
    memcpy(all + 8, header, header_bytes);
    write_bytes(path(), all, 8 + header_bytes + data);
    free(all);
}

static void refuses(const char *part)
{
    cpl_safetensors *file;
    assert_fails(CPL_ERR_INPUT, part, cpl_safetensors_open(&file, path()));
    assert_null(file);
}

static cpl_safetensors *opens(void)
{
    cpl_safetensors *file;
    assert_ok(cpl_safetensors_open(&file, path()));
    return file;
}

/* Makes the text of an entry from texts. */
#define E(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"
#define ROW(text, data, says)                                                                      \
    {                                                                                              \
        text, sizeof(text) - 1, data, says                                                         \
    }
#define ENTRY(members, data, says) ROW("{\"a\":{" members "}}", data, says)

/* A header, of its own length, and the number of data bytes. `says` is part of the refusal, or NULL
 * if the file is good. */
typedef struct row {
    const char *header;
    size_t length, data;
    const char *says;
} row;

#define SAME(name)          E(name, "F32", "2,2", "0,16")
#define I32(shape, offsets) "{" E("a", "I32", shape, offsets) "}"
#define U8(shape, offsets)  "{" E("a", "U8", shape, offsets) "}"

static const row rows[] = {
    /* Cases of the tests of the reference implementation. */
    ROW("\xff", 0, "invalid header"),
    ROW("{", 0, "invalid JSON"),
    ROW("{" SAME("0") "," SAME("1") "," SAME("2") "," SAME("3") "," SAME("4") "," SAME("5") "," //
        SAME("6") "," SAME("7") "," SAME("8") "," SAME("9") "}",
        16, "invalid offset"),
    ROW(I32("2,2", "0,16"), 26, "incomplete metadata"),
    ROW(I32("2,2", "0,16"), 14, "incomplete metadata"),
    ROW(I32("2,2", "0,4"), 0, "invalid tensor info"),
    ROW(I32("2,18446744073709551614", "0,16"), 16, "overflow"),
    ROW(I32("2,9223372036854775807", "0,16"), 16, "overflow"),
    ROW("{" E("a", "F4", "1,3", "0,2") "}", 2, "misaligned"),
    ROW("{" E("a", "F4", "1,2", "0,2") "}", 2, "invalid tensor info"),
    ROW("{}\r \t\n", 0, NULL),
    ROW("\t\n{}\r ", 0, NULL),
    ROW(I32("", "0,4"), 4, NULL),
    ROW(I32("2,0", "0,0"), 0, NULL),
    ROW("{\"__metadata__\":{\"framework\":\"pt\"}," SAME("a") "}", 16, NULL),
    /* Cases that follow from its rules. */
    ROW("", 0, "invalid JSON"),
    ROW("[]", 0, "invalid JSON"),
    ROW("{}", 1, "incomplete metadata"),
    ROW("{}\0", 0, "invalid JSON"),
    ROW("\xEF\xBB\xBF{}", 0, "invalid JSON"),
    ROW("{" SAME("a") ",}", 16, "invalid JSON"),
    ROW("{\"a\":NaN}", 0, "invalid JSON"),
    ENTRY("\"x\":NaN,\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]", 1, "invalid JSON"),
    ROW(U8("4", "4,8"), 8, "invalid offset"),
    ROW("{" E("a", "U8", "4", "0,4") "," E("b", "U8", "4", "5,9") "}", 9, "invalid offset"),
    ROW("{" E("a", "U8", "4", "0,4") "," E("b", "U8", "4", "2,6") "}", 6, "invalid offset"),
    ROW("{" E("b", "F32", "2", "0,8") "," E("a", "I32", "0", "4,4") "}", 8, "invalid offset"),
    ROW(U8("0", "4,0"), 0, "invalid offset"),
    ROW(U8("0", "4,0"), 4, "invalid offset"),
    ROW("{" E("b", "F32", "1", "0,4") "," E("a", "I32", "0", "0,0") "}", 4, NULL),
    ROW("{" E("b", "U8", "2", "2,4") "," E("a", "U8", "2", "0,2") "}", 4, NULL),
    ROW(U8("9223372036854775808,4,0", "0,0"), 0, "overflow"),
    ROW(U8("0,9223372036854775808,4", "0,0"), 0, NULL),
    ROW(U8("18446744073709551616", "0,0"), 0, "invalid JSON"),
    ROW(U8("-1", "0,0"), 0, "invalid JSON"),
    ROW(U8("2.0", "0,2"), 2, "invalid JSON"),
    ROW(U8("2e0", "0,2"), 2, "invalid JSON"),
    ROW(U8("2", "-0,2"), 2, "invalid JSON"),
    ROW(U8("2", "\"0\",2"), 2, "invalid JSON"),
    ROW(U8("2", "0,2,2"), 2, "invalid JSON"),
    ROW(U8("2", "2"), 2, "invalid JSON"),
    ENTRY("\"dtype\":\"U8\",\"data_offsets\":[0,1]", 1, "invalid JSON"),
    ENTRY("\"shape\":[],\"data_offsets\":[0,1]", 1, "invalid JSON"),
    ENTRY("\"dtype\":\"U8\",\"shape\":[]", 1, "invalid JSON"),
    ROW("{" E("a", "Q8_0", "1", "0,1") "}", 1, "unknown dtype"),
    ROW("{" E("a", "f32", "1", "0,4") "}", 4, "unknown dtype"),
    ENTRY("\"x\":1,\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]", 1, NULL),
    ENTRY("\"dtype\":\"U8\",\"shape\":[],\"x\":[{\"y\":[]},-1e9],\"data_offsets\":[0,1]", 1, NULL),
    ROW("{\"__metadata__\":{\"a\":1}}", 0, "invalid JSON"),
    ROW("{\"__metadata__\":{\"a\":null}}", 0, "invalid JSON"),
    ROW("{\"__metadata__\":[]}", 0, "invalid JSON"),
    ROW("{\"__metadata__\":null}", 0, NULL),
    ROW("{\"__metadata__\":{}}", 0, NULL),
    ROW("{" E("a", "F6_E2M3", "4", "0,3") "}", 3, NULL),
    ROW("{" E("a", "F6_E2M3", "3", "0,3") "}", 3, "misaligned"),
    ROW("{" E("a", "U8", "1", "0,1") "," E("a", "U8", "1", "1,2") "}", 2, "occurs twice"),
    ROW("{" E("a", "U8", "1", "0,1") "," E("\\u0061", "U8", "1", "1,2") "}", 2, "occurs twice"),
    ROW("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "invalid JSON"),
    ROW("{\"__metadata__\":null,\"__metadata__\":null}", 0, "invalid JSON"),
    ENTRY("\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]", 1, "twice"),
    ROW("{\"a\":[\"F32\",[2],[0,8]]}", 8, "invalid JSON"),
    ROW("{\"a\":null}", 0, "invalid JSON"),
    ROW("{} {}", 0, "invalid JSON"),
    ROW("{" E("\\ud800", "U8", "1", "0,1") "}", 1, "invalid JSON"),
    ROW("{" E("a\\u0000", "U8", "1", "0,1") "}", 1, "invalid JSON"),
    ROW("{" E("", "U8", "1", "0,1") "}", 1, NULL),
    ROW(U8("18446744073709551615", "0,18446744073709551615"), 0, "overflow"),
    ROW(U8("1", "18446744073709551615,0"), 0, "invalid offset"),
};

TEST(every_header_of_the_table)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cpl_safetensors *file;
        write_file(rows[i].length, rows[i].header, rows[i].length, rows[i].data);
        cpl_status status = cpl_safetensors_open(&file, path());
        if ((status == CPL_OK) != (rows[i].says == NULL))
            fail_msg("%s with %zu bytes: %s", rows[i].header, rows[i].data,
                     status == CPL_OK ? "accepted" : cpl_last_error());
        if (rows[i].says && !strstr(cpl_last_error(), rows[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].header, cpl_last_error(),
                     rows[i].says);
        if (rows[i].says && !strstr(cpl_last_error(), path()))
            fail_msg("\"%s\" does not name the file", cpl_last_error());
        cpl_safetensors_close(file);
    }
}

TEST(every_length_of_the_table)
{
    static const char good[]      = "{" E("a", "F32", "2,2", "0,16") "}";
    static const char no_header[] = "is neither a safetensors nor a GGUF file: its first 8 bytes";
    static const struct {
        uint64_t length;
        const char *says;
    } cases[] = {{0xffffff000000003cu, no_header},
                 {UINT64_MAX, no_header},
                 {1000, "invalid header length"},
                 {100000001, no_header},
                 {100000000, "invalid header length"}};
    write_bytes(path(), "", 0);
    refuses("header too small");
    write_bytes(path(), "\x3c\0\0\0\0\0\0", 7);
    refuses("header too small");
    write_file(60, "", 0, 0);
    refuses("invalid header length");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].length, good, sizeof good - 1, 16);
        refuses(cases[i].says);
    }
    write_file(0, "", 0, 0);
    refuses("invalid JSON");
}

TEST(known_mistakes_are_named)
{
    static const struct {
        const char *bytes, *says;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"},
        {"PK\x03\x04\x14\x08\x08\x08 archive/data.pkl", "PyTorch"},
        {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8", "pickle"},
        {"GGUF\x03\x01\x01\x01 and so on", "GGUF"},
        {"<!DOCTYPE html><html>", "web page"},
        {"{\"weight_map\": {}}", "JSON"},
    };
    cpl_safetensors *file;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bytes(path(), cases[i].bytes, strlen(cases[i].bytes));
        refuses(cases[i].says);
    }
    assert_fails(CPL_ERR_IO, "No such file", cpl_safetensors_open(&file, "/no/such"));
    assert_fails(CPL_ERR_INPUT, "not a regular file", cpl_safetensors_open(&file, "/tmp"));
}

TEST(what_was_opened_can_be_asked)
{
    static const char header[] = " {" E(
        "z\\u00e9", "F32", "2,3", "2,26") ",\"__metadata__\":{\"format\":\"pt\",\"a\":\"\\n\"}," //
        E("s", "BF16", "", "0,2") "," E("empty", "I64", "5,0", "26,26") "}";
    write_file(sizeof header - 1, header, sizeof header - 1, 26);
    cpl_safetensors *file = opens();
    char text[128];
    assert_string_equal(file->path, path());
    assert_int_equal(file->count, 3);
    const char *const want[] = {"a", "\n", "format", "pt"}; /* sorted by key */
    assert_int_equal(file->n_metadata, 2);
    for (int i = 0; i < 4; i++) assert_string_equal(file->metadata[i], want[i]);
    const cpl_safetensors_entry *z = cpl_safetensors_find(file, "z\xC3\xA9");
    assert_ptr_equal(z, &file->entries[1]);
    assert_int_equal(z->dtype, CPL_SAFETENSORS_F32);
    assert_int_equal(z->n_elements, 6);
    assert_int_equal(z->begin, 2);
    assert_int_equal(z->end, 26);
    assert_true(cpl_safetensors_has_shape(z, 2, (int64_t[]){2, 3}));
    assert_false(cpl_safetensors_has_shape(z, 2, (int64_t[]){3, 2}));
    assert_false(cpl_safetensors_has_shape(z, 1, (int64_t[]){2}));
    assert_string_equal(cpl_safetensors_shape_text(text, z), "[2,3]");
    const cpl_safetensors_entry *s = cpl_safetensors_find(file, "s");
    assert_string_equal(cpl_safetensors_shape_text(text, s), "[]");
    assert_int_equal(s->n_elements, 1);
    assert_int_equal(cpl_safetensors_find(file, "empty")->n_elements, 0);
    assert_null(cpl_safetensors_find(file, "none"));
    cpl_safetensors_close(file);
}

TEST(long_shapes_are_cut_in_sentences)
{
    uint64_t shape[64];
    char text[128];
    for (int i = 0; i < 64; i++) shape[i] = UINT64_MAX;
    for (int rank = 0; rank <= 64; rank++) {
        cpl_safetensors_entry entry = {.rank = rank, .shape = shape};
        size_t length               = strlen(cpl_safetensors_shape_text(text, &entry));
        assert_true(length < sizeof text && text[length - 1] == ']');
        assert_int_equal(strstr(text, "...") != NULL, rank > 5);
    }
}

/* Every element type that can be read as f32 is tried with values that all types hold. */
TEST(reads_as_f32)
{
    enum { N = 20001 }; /* several pieces of the reader's buffer, and a part */
    static const float values[] = {0.0f, 1.0f, -2.0f, 0.5f, 448.0f, -0.015625f};
    static const uint16_t f16[] = {0, 0x3c00, 0xc000, 0x3800, 0x5f00, 0xa400};
    static const uint8_t e4m3[] = {0, 0x38, 0xc0, 0x30, 0x7e, 0x88};
    static const struct {
        const char *name;
        size_t bytes;
    } types[]                 = {{"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"F8_E4M3", 1}};
    unsigned char *file_bytes = malloc(1 << 20);
    float *out                = malloc(N * sizeof *out);
    assert_true(file_bytes && out);
    for (size_t t = 0; t < 5; t++) {
        char header[128];
        uint64_t n = (uint64_t)snprintf(header, sizeof header,
                                        "{\"a\":{\"dtype\":\"%s\",\"shape\":[%d],"
                                        "\"data_offsets\":[0,%zu]}}",
                                        types[t].name, N, N * types[t].bytes);
        memcpy(file_bytes, &n, 8);
        memcpy(file_bytes + 8, header, n);
        for (size_t i = 0; i < N; i++) {
            double wide        = (double)values[i % 6];
            uint16_t brain     = cpl_bf16_from_f32(values[i % 6]);
            const void *from[] = {&wide, &values[i % 6], &brain, &f16[i % 6], &e4m3[i % 6]};
            memcpy(file_bytes + 8 + n + i * types[t].bytes, from[t], types[t].bytes);
        }
        write_bytes(path(), file_bytes, 8 + n + N * types[t].bytes);
        cpl_safetensors *file          = opens();
        const cpl_safetensors_entry *a = cpl_safetensors_find(file, "a");
        const int64_t firsts[]         = {0, 1, 4095, N - 1, N};
        for (size_t f = 0; f < 5; f++) {
            assert_ok(cpl_safetensors_read_f32(file, a, out, firsts[f], N - firsts[f]));
            for (int64_t i = firsts[f]; i < N; i++)
                if (out[i - firsts[f]] != values[i % 6])
                    fail_msg("%s element %lld is %g", types[t].name, (long long)i,
                             (double)out[i - firsts[f]]);
        }
        assert_fails(CPL_ERR_INPUT, "elements", cpl_safetensors_read_f32(file, a, out, 1, N));
        assert_fails(CPL_ERR_INPUT, "elements", cpl_safetensors_read_f32(file, a, out, -1, 1));
        assert_fails(CPL_ERR_INPUT, "elements", cpl_safetensors_read_f32(file, a, out, 0, -1));
        assert_fails(CPL_ERR_INPUT, "bytes",
                     cpl_safetensors_read_raw(file, a, out, N * types[t].bytes, 1));
        assert_ok(cpl_safetensors_read_raw(file, a, out, types[t].bytes, types[t].bytes));
        assert_memory_equal(out, file_bytes + 8 + n + types[t].bytes, types[t].bytes);
        cpl_safetensors_close(file);
    }
    free(file_bytes);
    free(out);
}

TEST(reads_the_other_small_formats)
{
    static const char header[] = "{" E("e", "F8_E5M2", "2", "0,2") "," //
        E("s", "F8_E8M0", "2", "2,4") "," E("i", "I32", "1", "4,8") "," E("f", "F4", "2",
                                                                          "8,9") "}";
    unsigned char all[8 + sizeof header - 1 + 9] = {0};
    uint64_t n                                   = sizeof header - 1;
    float out[2];
    memcpy(all, &n, 8);
    memcpy(all + 8, header, n);
    memcpy(all + 8 + n, "\x3c\x7c\x80\xff", 4);
    write_bytes(path(), all, sizeof all);
    cpl_safetensors *file = opens();
    assert_ok(cpl_safetensors_read_f32(file, cpl_safetensors_find(file, "e"), out, 0, 2));
    assert_true(out[0] == 1.0f && isinf(out[1]));
    assert_ok(cpl_safetensors_read_f32(file, cpl_safetensors_find(file, "s"), out, 0, 2));
    assert_true(out[0] == 2.0f && isnan(out[1]));
    assert_fails(CPL_ERR_INPUT, "is I32",
                 cpl_safetensors_read_f32(file, cpl_safetensors_find(file, "i"), out, 0, 1));
    assert_fails(CPL_ERR_INPUT, "is F4",
                 cpl_safetensors_read_f32(file, cpl_safetensors_find(file, "f"), out, 0, 1));
    cpl_safetensors_close(file);
}

TEST(a_file_cut_while_open_is_a_sentence)
{
    static const char header[] = "{" E("a", "F32", "10000", "0,40000") "}";
    static float out[10000];
    write_file(sizeof header - 1, header, sizeof header - 1, 40000);
    cpl_safetensors *file = opens();
    assert_int_equal(truncate(path(), 20000), 0);
    assert_fails(CPL_ERR_IO, "shorter",
                 cpl_safetensors_read_f32(file, cpl_safetensors_find(file, "a"), out, 0, 10000));
    cpl_safetensors_close(file);
}

/* Builds a good file with names, metadata and several dtypes, and returns its length. */
static size_t good_file(unsigned char *bytes)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u00e9\\\"\"}," //
        E("model.a", "F32", "2,3", "0,24") "," E("model.b", "BF16", "4", "24,32") ","           //
        E("c", "F8_E4M3", "2,2,2", "32,40") "," E("d", "U8", "", "40,41") "}   ";
    uint64_t n = sizeof header - 1;
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < 41; i++) bytes[8 + n + i] = (unsigned char)(37 * i);
    return 8 + n + 41;
}

/* Opens the file and, if that succeeds, reads everything. */
static cpl_status use(const char *name)
{
    cpl_safetensors *file;
    float out[4096];
    CPL_TRY(cpl_safetensors_open(&file, name));
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < file->count && status != CPL_ERR_IO; i++) {
        const cpl_safetensors_entry *entry = &file->entries[i];
        assert_ptr_equal(cpl_safetensors_find(file, entry->name), entry);
        assert_true(entry->n_elements <= 4096);
        status = cpl_safetensors_read_f32(file, entry, out, 0, entry->n_elements);
        assert_ok(cpl_safetensors_read_raw(file, entry, out, 0, entry->end - entry->begin));
    }
    cpl_safetensors_close(file);
    return status == CPL_ERR_IO ? status : CPL_OK;
}

TEST(damaged_files_never_crash)
{
    enum { ROUNDS = 8000 };
    unsigned char good[1024], bad[2048];
    size_t length            = good_file(good);
    cpl_rng_key key          = {.seed = 5, .stream = CPL_STREAM_TEST};
    static const char pool[] = "{}[]:,\"\\0159.-eu \xff\x80";
    int refused              = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        size_t now = length;
        memcpy(bad, good, length);
        for (uint64_t k = 0; k < 1 + round % 4; k++) {
            uint32_t r = cpl_rng_u32(&key, 16 * round + 2 * k);
            uint32_t s = cpl_rng_u32(&key, 16 * round + 2 * k + 1);
            size_t at  = r % now;
            if (s % 8 < 3)
                bad[at] ^= (unsigned char)(1u << (s >> 8) % 8);
            else if (s % 8 < 6)
                bad[at] = (unsigned char)pool[(s >> 8) % (sizeof pool - 1)];
            else if (s % 8 == 6)
                now = at + 1; /* a shorter file */
            else
                memset(bad + now, (int)(s >> 8 & 255), 7), now += 7; /* a longer file */
        }
        write_bytes(path(), bad, now);
        cpl_status status = use(path());
        assert_true(status == CPL_OK || status == CPL_ERR_INPUT);
        refused += status != CPL_OK;
    }
    assert_in_range(refused, ROUNDS / 2, ROUNDS - 1);
    write_bytes(path(), good, length);
    assert_ok(use(path()));
}

TEST(every_cut_is_refused)
{
    unsigned char good[1024];
    size_t length = good_file(good);
    cpl_safetensors *file;
    for (size_t cut = 0; cut < length; cut++) {
        write_bytes(path(), good, cut);
        assert_int_equal(cpl_safetensors_open(&file, path()), CPL_ERR_INPUT);
        assert_non_null(strstr(cpl_last_error(), path()));
    }
}

TEST(failing_allocations)
{
    unsigned char good[1024];
    write_bytes(path(), good, good_file(good));
    scarce s = {0};
    while (scarce_begin(&s)) scarce_end(&s, use(path()));
    assert_true(s.nth > 6);
}

/* The file has as many tensors as the largest published checkpoints. */
TEST(a_hundred_thousand_tensors)
{
    enum { COUNT = 100000 };
    char *header = malloc(COUNT * 100), name[64];
    assert_non_null(header);
    size_t length = 1;
    header[0]     = '{';
    for (int64_t i = 0; i < COUNT; i++) /* 7919 and COUNT have no common factor: all i once */
        length += (size_t)sprintf(header + length,
                                  "%s\"model.layers.%lld.w\":{\"dtype\":\"BF16\",\"shape\":[1],"
                                  "\"data_offsets\":[%lld,%lld]}",
                                  i ? "," : "", (long long)i, (long long)(i * 7919 % COUNT * 2),
                                  (long long)(i * 7919 % COUNT * 2 + 2));
    header[length++] = '}';
    write_file(length, header, length, 2 * COUNT);
    cpl_safetensors *file = opens();
    assert_int_equal(file->count, COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        sprintf(name, "model.layers.%lld.w", (long long)i);
        const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
        assert_ptr_equal(entry, &file->entries[i * 7919 % COUNT]);
    }
    cpl_safetensors_close(file);
    free(header);
}

TEST(dtypes)
{
    int bits = 0;
    for (int i = 0; i < CPL_SAFETENSORS_N_DTYPES; i++)
        bits += cpl_safetensors_dtype_bits((cpl_safetensors_dtype)i);
    assert_int_equal(bits, 4 * 64 + 3 * 32 + 4 * 16 + 8 * 8 + 2 * 6 + 4);
}
