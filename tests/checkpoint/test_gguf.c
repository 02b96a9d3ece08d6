/* test_gguf.c - the reader of GGUF files: files of the Python package, the types of tensors, cut
 * and large files, memory that runs out.
 *
 * Method: the files of golden/gguf are compared with the records that their script wrote. */
#include <time.h>

#include "checkpoint/gguf_case.h"
#include "checkpoint/safetensors.h"
#include "io/json.h"
#include "support/scarce.h"

/* Files of the package --------------------------------------------------------------------------*/

/* Returns the decoded format of this name, among those of GGUF. */
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

TEST(what_the_package_writes)
{
    cpl_gguf *g;
    cpl_safetensors *values;
    json_t *wanted;
    assert_ok(cpl_gguf_open(&g, NULL, golden_path("gguf/small.gguf"), (double)INFINITY));
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

TEST(another_alignment)
{
    cpl_gguf *g, *small;
    char got[30], want[30];
    assert_ok(cpl_gguf_open(&g, NULL, golden_path("gguf/aligned.gguf"), (double)INFINITY));
    assert_ok(cpl_gguf_open(&small, NULL, golden_path("gguf/small.gguf"), (double)INFINITY));
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

/* Builds a file with one tensor of this type and this many numbers. */
static void one_of_type(uint32_t code, uint64_t numbers)
{
    head(1, 0);
    tensor("t", 1, DIMS(numbers), code, 0);
    data(4096);
}

/* A type that the table of formats names has the numbers and bytes of a block from the table. A
 * part of a block is no tensor. */
TEST(blocks_agree_with_the_formats)
{
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

/* A file that is cut anywhere before the end of the last tensor is refused. */
TEST(every_cut_is_refused)
{
    cpl_gguf *g;
    cpl_text whole = read_bytes(golden_path("gguf/aligned.gguf"));
    assert_ok(cpl_gguf_open(&g, NULL, golden_path("gguf/aligned.gguf"), (double)INFINITY));
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

TEST(a_file_cut_while_open_is_a_sentence)
{
    static char out[40000];
    one(1, DIMS(10000), 0, 0, 40000);
    cpl_gguf *g = opens();
    assert_int_equal(truncate(path(), 20000), 0);
    assert_fails(CPL_ERR_IO, "shorter", read_tensor(g, &g->entries[0], out, 0, 40000));
    cpl_gguf_close(g);
}

/* Time is not quadratic for a large vocabulary and more tensors than any published file has. */
TEST(large_tables)
{
    enum { TENSORS = 100000, WORDS = 300000 };
    const double limit = 5; /* seconds of processor time, with sanitizers; a tenth is needed */
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
    CPL_TRY(cpl_gguf_open(&g, NULL, golden_path("gguf/small.gguf"), (double)INFINITY));
    cpl_status status = read_tensor(g, &g->entries[9], out, 0, 28);
    cpl_gguf_close(g);
    return status;
}

TEST(failing_allocations)
{
    scarce s = {0};
    while (scarce_begin(&s)) scarce_end(&s, use());
    assert_true(s.nth > 10);
}
