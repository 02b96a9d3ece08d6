/* test_gguf.c - the reader of GGUF files: what the Python package writes, every rule of the format,
 * sizes that the file cannot hold.
 *
 * Method: the files of golden/gguf against what their script wrote down beside them; then files built
 * here field by field, each with one thing wrong. */
#include "checkpoint/gguf.h"

#include <time.h>

#include "base/arena.h"
#include "checkpoint/safetensors.h"
#include "io/file.h"
#include "io/json.h"
#include "support/files.h"

static cpl_status read_tensor(const cpl_gguf *g, const cpl_gguf_entry *e, void *out, uint64_t first,
                              size_t bytes)
{
    return cpl_file_read_at(g->descriptor, out, bytes, e->offset + first, g->path);
}

static const char *path(void)
{
    static char name[128];
    if (!name[0]) snprintf(name, sizeof name, "%s/t.gguf", scratch_folder());
    return name;
}

/* What the package wrote ------------------------------------------------------------------------*/

/* The decoded format of this name, of those that GGUF has. */
static cpl_format format_named(const char *name)
{
#define NAMED(format, numbers, bytes, what)                                                        \
    if (strcmp(name, #format) == 0) return CPL_FORMAT_##format;
    CPL_FORMATS(NAMED)
    return CPL_FORMAT_OTHER;
}

static void check_tensor(const cpl_gguf *g, const cpl_gguf_entry *e, const json_t *wanted,
                         const cpl_safetensors *values)
{
    char name[100];
    const json_t *shape = json_object_get(wanted, "shape");
    assert_string_equal(e->type_name, json_string_value(json_object_get(wanted, "type")));
    assert_int_equal(e->format, format_named(e->type_name));
    assert_int_equal(e->rank, json_array_size(shape));
    for (int i = 0; i < CPL_GGUF_MAX_RANK; i++)
        assert_int_equal(e->shape[i],
                         i < e->rank ? json_integer_value(json_array_get(shape, (size_t)i)) : 1);
    assert_int_equal(e->n_elements, e->shape[0] * e->shape[1] * e->shape[2] * e->shape[3]);
    assert_int_equal(e->bytes, json_integer_value(json_object_get(wanted, "bytes")));
    snprintf(name, sizeof name, "%s.raw", e->name);
    const cpl_safetensors_entry *raw = cpl_safetensors_find(values, name);
    assert_non_null(raw);
    char *got = malloc(e->bytes), *want = malloc(e->bytes);
    assert_true(got && want);
    assert_ok(cpl_safetensors_read_raw(values, raw, want, 0, e->bytes));
    assert_ok(read_tensor(g, e, got, 0, e->bytes));
    assert_memory_equal(got, want, e->bytes);
    assert_ok(read_tensor(g, e, got, 7, 5));
    assert_memory_equal(got, want + 7, 5);
    free(got);
    free(want);
}

static void what_the_package_writes(void **state)
{
    (void)state;
    cpl_gguf *g;
    cpl_safetensors *values;
    json_t *wanted;
    assert_ok(cpl_gguf_open(&g, golden_path("gguf/small.gguf")));
    assert_ok(cpl_safetensors_open(&values, golden_path("gguf/small.safetensors")));
    assert_ok(cpl_json_load(&wanted, golden_path("gguf/small.json")));
    const json_t *tensors = json_object_get(wanted, "tensors");
    assert_int_equal(g->count, 11);
    assert_int_equal(json_object_size(tensors), 11);
    for (int64_t i = 0; i < 11; i++) {
        const cpl_gguf_entry *e = &g->entries[i];
        check_tensor(g, e, json_object_get(tensors, e->name), values);
    }
    assert_string_equal(g->path, golden_path("gguf/small.gguf"));
    json_t *metadata = json_object_get(wanted, "metadata");
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!json_equal(value, json_object_get(g->metadata, key)))
            fail_msg("the metadata %s differ", key);
    }
    assert_int_equal(json_object_size(g->metadata), json_object_size(metadata));
    json_decref(wanted);
    cpl_safetensors_close(values);
    cpl_gguf_close(g);
}

static void another_alignment(void **state)
{
    (void)state;
    cpl_gguf *g, *small;
    char got[30], want[30];
    assert_ok(cpl_gguf_open(&g, golden_path("gguf/aligned.gguf")));
    assert_ok(cpl_gguf_open(&small, golden_path("gguf/small.gguf")));
    assert_int_equal(g->count, 2);
    assert_int_equal(g->entries[0].offset % 128, 0);
    assert_int_equal(g->entries[1].offset, g->entries[0].offset + 1024);
    assert_ok(read_tensor(g, &g->entries[1], got, 0, 30));
    assert_ok(read_tensor(small, &small->entries[1], want, 0, 30));
    assert_memory_equal(got, want, 30);
    cpl_gguf_close(small);
    cpl_gguf_close(g);
}

/* Files built here ------------------------------------------------------------------------------*/

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static cpl_text file;

static void u32(uint32_t value)
{
    cpl_text_append(&file, &value, sizeof value);
}

static void u64(uint64_t value)
{
    cpl_text_append(&file, &value, sizeof value);
}

static void string(const char *text)
{
    u64(strlen(text));
    cpl_text_append(&file, text, strlen(text));
}

static void head(uint64_t n_tensors, uint64_t n_pairs)
{
    cpl_text_clear(&file);
    cpl_text_append(&file, "GGUF", 4);
    u32(3);
    u64(n_tensors);
    u64(n_pairs);
}

/* Head and key of a file with this one pair. */
static void pair(const char *key, uint32_t type)
{
    head(0, 1);
    string(key);
    u32(type);
}

static void tensor(const char *name, int rank, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    string(name);
    u32((uint32_t)rank);
    for (int i = 0; i < rank; i++) u64(dims[i]);
    u32(type);
    u64(offset);
}

#define DIMS(...)                                                                                  \
    (const uint64_t[])                                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Padding to 32 and this many bytes. */
static void data(size_t bytes)
{
    while (file.length % 32) cpl_text_char(&file, 0);
    for (size_t i = 0; i < bytes; i++) cpl_text_char(&file, (char)i);
}

static void refuses(const char *says)
{
    cpl_gguf *g;
    write_bytes(path(), file.bytes, file.length);
    assert_fails(CPL_ERR_INPUT, says, cpl_gguf_open(&g, path()));
    assert_null(g);
    assert_non_null(strstr(cpl_last_error(), path()));
}

static cpl_gguf *opens(void)
{
    cpl_gguf *g;
    write_bytes(path(), file.bytes, file.length);
    assert_ok(cpl_gguf_open(&g, path()));
    return g;
}

static void accepts(void)
{
    cpl_gguf_close(opens());
}

/* A file with one tensor of a type and so many numbers. */
static void one_of_type(uint32_t code, uint64_t numbers)
{
    head(1, 0);
    tensor("t", 1, DIMS(numbers), code, 0);
    data(4096);
}

/* Types are those of the table of formats where there is one of the name: a block has as many numbers
 * and bytes, and a part of one is no tensor. */
static void blocks_agree_with_the_formats(void **state)
{
    (void)state;
    static const struct {
        int64_t numbers, bytes;
    } formats[] = {
#define SIZES(name, numbers, bytes, what) {numbers, bytes},
        CPL_FORMATS(SIZES)};
    int decoded = 0;
    for (uint32_t code = 0; code < 1000; code++) {
        one_of_type(code, 256);
        cpl_gguf *g             = opens();
        const cpl_gguf_entry *e = &g->entries[0];
        const cpl_format format = e->format;
        assert_int_equal(format, format_named(e->type_name));
        if (code == 4 || code > 255) assert_memory_equal(e->type_name, "type ", 5);
        if (code == 17) assert_string_equal(e->type_name, "IQ2_XS");
        cpl_gguf_close(g);
        if (format == CPL_FORMAT_OTHER) continue;
        one_of_type(code, (uint64_t)formats[format].numbers);
        g = opens();
        assert_int_equal(g->entries[0].bytes, formats[format].bytes);
        cpl_gguf_close(g);
        one_of_type(code, (uint64_t)formats[format].numbers / 2);
        if (formats[format].numbers > 1) refuses("t");
        decoded++;
    }
    assert_int_equal(decoded, 9);
}

static void only(const char *bytes, size_t length)
{
    cpl_text_clear(&file);
    cpl_text_append(&file, bytes, length);
}

static void known_mistakes_are_named(void **state)
{
    (void)state;
    cpl_gguf *g;
#define BYTES(text) only(text, sizeof(text) - 1)
    BYTES("");
    refuses("no GGUF file");
    BYTES("GGUF");
    refuses("the head");
    BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    refuses("Git LFS pointer");
    BYTES("tjgg\1\0\0\0and so on, as it was before");
    refuses("convert the model again");
    BYTES("\x10\0\0\0\0\0\0\0{\"a\":{}}       ");
    refuses("safetensors");
    BYTES("<!DOCTYPE html><html>");
    refuses("web page");
    BYTES("PK\x03\x04 and so on");
    refuses("PyTorch");
    const struct {
        uint32_t version;
        const char *says;
    } versions[] = {{0, "version 0"}, {1, "version 1"}, {4, "version 4"}, {3u << 24, "big-endian"}};
    for (size_t i = 0; i < 4; i++) {
        head(0, 0);
        memcpy(file.bytes + 4, &versions[i].version, 4);
        refuses(versions[i].says);
    }
    head(0, 0);
    accepts();
    file.bytes[4] = 2;
    accepts();
    assert_fails(CPL_ERR_IO, "No such file", cpl_gguf_open(&g, "/no/such.gguf"));
    assert_fails(CPL_ERR_INPUT, "not a regular file", cpl_gguf_open(&g, "/tmp"));
}

static void counts_that_the_file_cannot_hold(void **state)
{
    (void)state;
    const uint64_t counts[] = {1, 1ull << 32, 1ull << 60, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        head(counts[i], 0);
        refuses("the table of tensors announces");
        head(0, counts[i]);
        refuses("the metadata announces");
        head(0, 1);
        u64(counts[i] + (i == 0 ? 100 : 0)); /* a key */
        cpl_text_append(&file, "0123456789", 10);
        refuses("continues for");
        pair("s", STRING);
        u64(counts[i]);
        refuses("continues for");
        for (uint32_t type = U8; type <= F64; type++) {
            pair("a", ARRAY);
            u32(type);
            u64(counts[i]);
            refuses("the metadata");
        }
    }
}

static void rules_of_the_metadata(void **state)
{
    (void)state;
    head(0, 1);
    string("");
    u32(U32), u64(0);
    refuses("empty");
    pair("\xff", U32);
    u32(1);
    refuses("no text");
    head(0, 1);
    u64(2), cpl_text_append(&file, "a\0", 2), u32(U32), u32(1);
    refuses("no text");
    head(0, 3);
    for (int i = 0; i < 3; i++) string(i == 1 ? "b" : "a"), u32(U32), u32(1);
    refuses("a is there twice");
    pair("a", 13);
    u64(0);
    refuses("no known type");
    pair("a", ARRAY);
    u32(13), u64(0);
    refuses("no known type");
    pair("a", U64);
    u32(0);
    refuses("continues for 8 bytes, the file for 4");
    pair("a", STRING);
    u64(1), cpl_text_char(&file, '\xff');
    cpl_gguf *g = opens();
    assert_int_equal(json_object_size(g->metadata), 0);
    cpl_gguf_close(g);
}

/* Arrays in arrays are passed over to a certain depth; what stands behind them is read. */
static void nested_arrays(void **state)
{
    (void)state;
    for (int depth = 1; depth <= 6; depth++) {
        head(0, 2);
        string("deep"), u32(ARRAY);
        for (int i = 1; i < depth; i++) u32(ARRAY), u64(1);
        u32(STRING), u64(2), string("x"), string("");
        string("behind"), u32(U32), u32(5);
        if (depth > 4) {
            refuses("too deep");
            continue;
        }
        cpl_gguf *g = opens();
        assert_null(json_object_get(g->metadata, "deep"));
        assert_int_equal(json_integer_value(json_object_get(g->metadata, "behind")), 5);
        cpl_gguf_close(g);
    }
}

static void alignments(void **state)
{
    (void)state;
    const uint32_t bad[] = {0, 3, 48, UINT32_MAX}, good[] = {1, 2, 64, 4096};
    for (size_t i = 0; i < 4; i++) {
        pair("general.alignment", U32);
        u32(bad[i]);
        refuses("power of two");
        head(2, 1);
        string("general.alignment"), u32(U32), u32(good[i]);
        tensor("a", 1, DIMS(3), 24, 0);
        tensor("b", 1, DIMS(1), 24, good[i] < 4 ? 4 - (good[i] == 1) : good[i]);
        while (file.length % good[i]) cpl_text_char(&file, 0);
        size_t begins = file.length;
        for (size_t k = 0; k < good[i] + 4; k++) cpl_text_char(&file, 0);
        cpl_gguf *g = opens();
        assert_int_equal(g->entries[0].offset, begins);
        cpl_gguf_close(g);
    }
    pair("general.alignment", U64);
    u64(32);
    refuses("must be a u32");
    pair("general.alignment", ARRAY);
    u32(U32), u64(1), u32(32);
    refuses("must be a u32");
    pair("general.alignment", STRING);
    string("32");
    refuses("must be a u32");
}

static void names_of_tensors(void **state)
{
    (void)state;
    char name[65] = {0};
    memset(name, 'n', 64);
    head(1, 0);
    tensor(name, 1, DIMS(1), 24, 0), data(1);
    refuses("63 at most");
    name[63] = 0;
    head(1, 0);
    tensor(name, 1, DIMS(1), 24, 0), data(1);
    accepts();
    head(1, 0);
    tensor("", 1, DIMS(1), 24, 0), data(1);
    refuses("empty");
    head(1, 0);
    tensor("\xc3", 1, DIMS(1), 24, 0), data(1);
    refuses("no text");
    head(3, 0);
    tensor("a", 1, DIMS(1), 24, 0), tensor("b", 1, DIMS(1), 24, 32);
    tensor("a", 1, DIMS(1), 24, 64), data(65);
    refuses("a is there twice");
}

static void one(int rank, const uint64_t *dims, uint32_t type, uint64_t offset, size_t bytes)
{
    head(1, 0);
    tensor("a.weight", rank, dims, type, offset);
    data(bytes);
}

static void shapes_and_sizes(void **state)
{
    (void)state;
    one(5, DIMS(1, 1, 1, 1, 1), 0, 0, 4);
    refuses("tensor a.weight: it has more than 4 dimensions");
    one(1, DIMS(1ull << 63), 24, 0, 4);
    refuses("overflow");
    one(2, DIMS(1ull << 40, 1ull << 40), 24, 0, 4);
    refuses("overflow");
    one(2, DIMS(1ull << 31, 1ull << 32), 24, 0, 4);
    refuses("overflow");
    one(1, DIMS(1ull << 62), 0, 0, 4); /* 2^64 bytes */
    refuses("overflow");
    one(1, DIMS(1ull << 61), 0, 0, 4);
    refuses("after the end of the file");
    one(2, DIMS(33, 32), 8, 0, 34 * 33);
    refuses("its rows have 33 numbers, which is no multiple of the 32 of a block of Q8_0");
    one(2, DIMS(128, 2), 12, 0, 144);
    refuses("no multiple of the 256");
    one(0, DIMS(0), 8, 0, 34);
    refuses("its rows have 1 numbers");
    one(1, DIMS(3), 0, 0, 11);
    refuses("tensor a.weight ends 1 bytes after the end of the file");
    one(0, DIMS(0), 0, 0, 4);
    accepts();
    one(2, DIMS(5, 0), 0, 0, 0);
    accepts();
    one(2, DIMS(64, 3), 8, 0, 2 * 3 * 34 + 1000); /* bytes behind the data are nobody's */
    cpl_gguf *g = opens();
    assert_int_equal(g->entries[0].shape[0], 3);
    assert_int_equal(g->entries[0].shape[1], 64);
    assert_int_equal(g->entries[0].bytes, 2 * 3 * 34);
    cpl_gguf_close(g);
}

static void two(uint64_t first, uint64_t second, uint32_t type, size_t bytes)
{
    head(2, 0);
    tensor("a", 1, DIMS(10), type, first);
    tensor("b", 1, DIMS(2), 24, second);
    data(bytes);
}

static void offsets(void **state)
{
    (void)state;
    two(0, 32, 24, 34);
    accepts();
    two(0, 32, 24, 33);
    refuses("tensor b ends 1 bytes after");
    const uint64_t seconds[] = {0, 10, 31, 33, 64, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < 7; i++) {
        two(0, seconds[i], 24, 1000);
        refuses("invalid offset: tensor b");
    }
    two(32, 64, 24, 1000);
    refuses("invalid offset: tensor a");
    two(32, 0, 24, 1000);
    refuses("invalid offset: tensor a");
}

/* A type without a name here does not hide the other tensors. */
static void unknown_types(void **state)
{
    (void)state;
    char byte;
    two(0, 96, 31, 98);
    cpl_gguf *g = opens();
    assert_string_equal(g->entries[0].type_name, "type 31");
    assert_int_equal(g->entries[0].format, CPL_FORMAT_OTHER);
    assert_int_equal(g->entries[0].bytes, 96);
    assert_string_equal(g->entries[1].name, "b");
    assert_ok(read_tensor(g, &g->entries[1], &byte, 1, 1));
    assert_int_equal(byte, 97);
    cpl_gguf_close(g);
    two(0, 97, 31, 1000);
    refuses("invalid offset: tensor b");
    two(0, 1ull << 62, 31, 1000);
    refuses("after the end of the file");
    one(1, DIMS(10), 4294967295u, 0, 77);
    g = opens();
    assert_string_equal(g->entries[0].type_name, "type 4294967295");
    assert_int_equal(g->entries[0].bytes, 77);
    cpl_gguf_close(g);
}

/* Cut anywhere before the end of the last tensor, a file is refused. */
static void every_cut_is_refused(void **state)
{
    (void)state;
    cpl_gguf *g;
    cpl_text whole = read_bytes(golden_path("gguf/aligned.gguf"));
    assert_ok(cpl_gguf_open(&g, golden_path("gguf/aligned.gguf")));
    size_t needed = g->entries[1].offset + g->entries[1].bytes;
    cpl_gguf_close(g);
    assert_true(needed <= whole.length);
    for (size_t cut = 0; cut < needed; cut++) {
        only(whole.bytes, cut);
        refuses(cut < 4 ? "no GGUF file" : "file");
    }
    only(whole.bytes, needed);
    accepts();
    cpl_text_free(&whole);
}

static void a_file_cut_while_open_is_a_sentence(void **state)
{
    (void)state;
    static char out[40000];
    one(1, DIMS(10000), 0, 0, 40000);
    cpl_gguf *g = opens();
    assert_int_equal(truncate(path(), 20000), 0);
    assert_fails(CPL_ERR_IO, "shorter", read_tensor(g, &g->entries[0], out, 0, 40000));
    cpl_gguf_close(g);
}

/* What a large vocabulary and as many tensors as no published file has take: not their square. */
static void large_tables(void **state)
{
    (void)state;
    enum { TENSORS = 100000, WORDS = 300000 };
    const double limit = 5; /* seconds of processor time, with sanitizers; it takes a tenth of it */
    char name[64];
    head(TENSORS, 1);
    string("tokenizer.ggml.tokens"), u32(ARRAY), u32(STRING), u64(WORDS);
    for (int i = 0; i < WORDS; i++) string(i % 7 ? "token" : "");
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i * 7919 % TENSORS);
        tensor(name, 2, DIMS(1, 1), 0, 32 * (uint64_t)i);
    }
    data((size_t)32 * TENSORS);
    clock_t began = clock();
    cpl_gguf *g   = opens();
    assert_true((double)(clock() - began) / CLOCKS_PER_SEC < limit);
    assert_int_equal(g->count, TENSORS);
    assert_string_equal(g->entries[2].name, "blk.15838.weight");
    cpl_gguf_close(g);
}

static cpl_status use(void)
{
    cpl_gguf *g;
    char out[28];
    CPL_TRY(cpl_gguf_open(&g, golden_path("gguf/small.gguf")));
    cpl_status status = read_tensor(g, &g->entries[9], out, 0, 28);
    cpl_gguf_close(g);
    return status;
}

static void failing_allocations(void **state)
{
    (void)state;
    cpl_status status = CPL_ERR_MEMORY;
    int64_t nth       = 0;
    while (status != CPL_OK && nth < 100) {
        cpl_alloc_fail_at(++nth);
        status = use();
        cpl_alloc_fail_at(0);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
    }
    assert_ok(status);
    assert_true(nth > 10);
}

static int free_file(void **state)
{
    (void)state;
    cpl_text_free(&file);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_package_writes),
        cmocka_unit_test(another_alignment),
        cmocka_unit_test(blocks_agree_with_the_formats),
        cmocka_unit_test(known_mistakes_are_named),
        cmocka_unit_test(counts_that_the_file_cannot_hold),
        cmocka_unit_test(rules_of_the_metadata),
        cmocka_unit_test(nested_arrays),
        cmocka_unit_test(alignments),
        cmocka_unit_test(names_of_tensors),
        cmocka_unit_test(shapes_and_sizes),
        cmocka_unit_test(offsets),
        cmocka_unit_test(unknown_types),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(a_file_cut_while_open_is_a_sentence),
        cmocka_unit_test(large_tables),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, free_file);
}
