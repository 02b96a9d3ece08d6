/* test_gguf_writer.c - the writer of GGUF files: its bytes against a file that is built field by
 * field, reading the file back, files that are not finished, memory that runs out. */
#include "checkpoint/gguf_writer.h"

#include "checkpoint/gguf_case.h"
#include "io/paths.h"
#include "support/scarce.h"

static const int64_t matrix[2] = {3, 5}, vector[1] = {3}, blocks[3] = {2, 1, 64};

static void fill(cpl_gguf_writer *w)
{
    cpl_gguf_writer_string(w, "general.architecture", "olmoe");
    cpl_gguf_writer_u32(w, "a.size", 4294967295);
    cpl_gguf_writer_f32(w, "a.eps", 1e-5f);
    cpl_gguf_writer_bool(w, "a.bool", true);
    cpl_gguf_writer_array(w, "a.types", CPL_GGUF_I32, 2);
    cpl_gguf_writer_add_i32(w, 1);
    cpl_gguf_writer_add_i32(w, -3);
    cpl_gguf_writer_array(w, "a.words", CPL_GGUF_STRING, 2);
    cpl_gguf_writer_add_string(w, "\xC4\xA0the", 5);
    cpl_gguf_writer_add_string(w, "", 0);
    cpl_gguf_writer_tensor(w, "half", CPL_FORMAT_F16, 2, matrix);
    cpl_gguf_writer_tensor(w, "norm", CPL_FORMAT_F32, 1, vector);
    cpl_gguf_writer_tensor(w, "eight", CPL_FORMAT_Q8_0, 3, blocks);
}

static unsigned char numbers[4 * 34];

/* Writes each tensor in two pieces. */
static cpl_status put_data(cpl_gguf_writer *w)
{
    static const size_t bytes[] = {30, 12, sizeof numbers};
    for (size_t i = 0; i < 3; i++) {
        CPL_TRY(cpl_gguf_writer_data(w, numbers, 7));
        CPL_TRY(cpl_gguf_writer_data(w, numbers + 7, bytes[i] - 7));
        cpl_gguf_writer_end_tensor(w);
    }
    return CPL_OK;
}

static cpl_status write_whole(const char *to)
{
    cpl_gguf_writer w = {0};
    fill(&w);
    cpl_status status = cpl_gguf_writer_begin(&w, to);
    if (status == CPL_OK) status = put_data(&w);
    if (status == CPL_OK) status = cpl_gguf_writer_commit(&w);
    cpl_gguf_writer_free(&w);
    return status;
}

static void value(const char *key, uint32_t type)
{
    string(key);
    u32(type);
}

static void pad_with(size_t bytes)
{
    cpl_text_append(&file, numbers, bytes);
    while (file.length % 32) cpl_text_char(&file, 0);
}

/* Builds the expected file by the specification. */
static void by_hand(void)
{
    const float eps = 1e-5f;
    head(3, 6);
    value("general.architecture", STRING), string("olmoe");
    value("a.size", U32), u32(0xffffffffu);
    value("a.eps", F32), cpl_text_append(&file, &eps, sizeof eps);
    value("a.bool", BOOL), cpl_text_char(&file, 1);
    value("a.types", ARRAY), u32(I32), u64(2), u32(1), u32((uint32_t)-3);
    value("a.words", ARRAY), u32(STRING), u64(2), string("\xC4\xA0the"), string("");
    tensor("half", 2, DIMS(5, 3), 1, 0);
    tensor("norm", 1, DIMS(3), 0, 32);
    tensor("eight", 3, DIMS(64, 1, 2), 8, 64);
    pad_with(0);
    pad_with(30);
    pad_with(12);
    pad_with(sizeof numbers);
}

TEST(every_byte)
{
    for (size_t i = 0; i < sizeof numbers; i++) numbers[i] = (unsigned char)(i + 1);
    by_hand();
    assert_ok(write_whole(path()));
    cpl_text got = read_bytes(path());
    assert_int_equal(got.length, file.length);
    assert_memory_equal(got.bytes, file.bytes, got.length);
    cpl_text_free(&got);
}

TEST(what_the_reader_finds)
{
    cpl_gguf *g;
    unsigned char got[sizeof numbers];
    assert_ok(write_whole(path()));
    assert_ok(cpl_gguf_open(&g, NULL, path(), (double)INFINITY));
    assert_int_equal(g->count, 3);
    assert_string_equal(g->entries[2].name, "eight");
    assert_int_equal(g->entries[2].format, CPL_FORMAT_Q8_0);
    assert_int_equal(g->entries[2].rank, 3);
    assert_memory_equal(g->entries[2].shape, blocks, sizeof blocks);
    assert_ok(read_tensor(g, &g->entries[2], got, 0, sizeof got));
    assert_memory_equal(got, numbers, sizeof got);
    assert_int_equal(json_integer_value(json_object_get(g->metadata, "a.size")), 4294967295);
    const json_t *types = json_object_get(g->metadata, "a.types");
    assert_int_equal(json_integer_value(json_array_get(types, 1)), -3);
    cpl_gguf_close(g);
}

static int64_t files_beside(void)
{
    cpl_strings names;
    char *folder = cpl_path_folder(path());
    assert_non_null(folder);
    assert_ok(cpl_folder_list(&names, folder));
    const int64_t count = names.count;
    cpl_paths_free(&names);
    cpl_free(folder);
    return count;
}

/* The old file stays, and no other file is left. */
TEST(a_file_that_is_not_finished)
{
    cpl_gguf_writer w = {0};
    write_string(path(), "old");
    fill(&w);
    assert_ok(cpl_gguf_writer_begin(&w, path()));
    assert_ok(cpl_gguf_writer_data(&w, numbers, 30));
    assert_int_equal(files_beside(), 2);
    cpl_gguf_writer_free(&w);
    assert_int_equal(files_beside(), 1);
    cpl_text got = read_bytes(path());
    assert_string_equal(got.bytes, "old");
    cpl_text_free(&got);
}

TEST(places_that_cannot_be_written)
{
    assert_fails(CPL_ERR_IO, "no-such-folder", write_whole("no-such-folder/a.gguf"));
    assert_fails(CPL_ERR_IO, "/dev/null", write_whole("/dev/null"));
    const char *folder = scratch_folder();
    assert_fails(CPL_ERR_IO, folder, write_whole(folder));
}

TEST(memory_that_runs_out)
{
    const int64_t before = cpl_alloc_in_use();
    scarce s             = {0};
    while (scarce_begin(&s)) {
        scarce_end(&s, write_whole(path()));
        assert_int_equal(cpl_alloc_in_use(), before);
    }
    assert_true(s.nth > 5);
}
