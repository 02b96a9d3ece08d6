/* A checkpoint whose files come from another origin than the local file system. The origin serves
 * the files of a folder under names that begin with "far://", and fails on request. */
#include <math.h>

#include "checkpoint/stored_case.h"
#include "support/passing_origin.h"

static const char anywhere[] = "far://model";

static passing_origin far_from(const char *folder, bool lists)
{
    return (passing_origin){
        .origin = {.ops = &passing_ops, .lists = lists}, .prefix = anywhere, .folder = folder};
}

TEST(reads_all_through_it)
{
    const char *folder = three_shards();
    passing_origin far = far_from(folder, true);
    cpl_stored_files *s, *same;
    assert_ok(cpl_stored_open(&s, &far.origin, anywhere, INFINITY, NULL));
    assert_ok(cpl_stored_open(&same, NULL, folder, (double)INFINITY, NULL));
    assert_true(s->count > 0 && s->count == same->count);
    assert_int_equal(far.n_opened, s->n_parts);
    assert_int_equal(far.n_expected, s->n_parts);
    assert_string_equal(s->path, anywhere);
    for (int64_t i = 0; i < s->count; i++) {
        char here[64], there[64];
        const size_t bytes = s->tensors[i].bytes;
        assert_string_equal(s->tensors[i].name, same->tensors[i].name);
        assert_int_equal(strncmp(s->tensors[i].path, "far://model/", 12), 0);
        assert_true(bytes <= sizeof here && bytes == same->tensors[i].bytes);
        assert_ok(cpl_stored_read(&s->tensors[i], there, 0, bytes));
        assert_ok(cpl_stored_read(&same->tensors[i], here, 0, bytes));
        assert_memory_equal(here, there, bytes);
        assert_string_equal(cpl_stored_source(&s->tensors[i])->path, s->tensors[i].path);
    }
    cpl_stored_close(s);
    cpl_stored_close(same);
    assert_int_equal(far.n_open, 0);
}

TEST(a_gguf_file_too)
{
    passing_origin far = far_from("tests/golden/gguf", false);
    cpl_stored_files *s;
    assert_ok(
        cpl_stored_open(&s, &far.origin, "far://model/split-00002-of-00003.gguf", INFINITY, NULL));
    assert_int_equal(s->n_parts, 3);
    assert_true(s->is_gguf && s->count > 0);
    cpl_stored_close(s);
    assert_int_equal(far.n_open, 0);
}

/* Returns a file of many tensors without a byte of data. */
static const char *many_tensors(void)
{
    const char *made = scratch_folder();
    char map[160]    = "";
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "model-%d.safetensors", i);
        empty_tensors_file(in_folder(made, name), name + 6, 4000);
        snprintf(map + strlen(map), sizeof map - strlen(map), "%s\"%.1s.safetensors0\": \"%s\"",
                 i ? ", " : "", name + 6, name);
    }
    index_file(made, map);
    return made;
}

/* Asserts that at most `room` bytes and a margin are taken before the refusal. */
static void check_room(const char *path, const cpl_origin *origin, double room, const char *says)
{
    cpl_stored_files *s;
    const int64_t before = cpl_alloc_in_use();
    (void)cpl_alloc_peak();
    assert_fails(CPL_ERR_MEMORY, says, cpl_stored_open(&s, origin, path, room, NULL));
    const double taken = (double)(cpl_alloc_peak() - before);
    if (taken > room + 100000) fail_msg("room %g: %g bytes were taken", room, taken);
    assert_int_equal(cpl_alloc_in_use(), before);
}

TEST(tables_stay_in_their_room)
{
    const char *folder = many_tensors();
    passing_origin far = far_from(folder, true);
    cpl_stored_files *s;
    check_room(anywhere, &far.origin, 1e5,
               "model-0.safetensors: not enough memory: its table of tensors needs 2");
    check_room(anywhere, &far.origin, 4e5,
               "model-0.safetensors: not enough memory: its table of tensors needs 7");
    check_room(anywhere, &far.origin, 1.2e6, "model-1.safetensors: not enough memory");
    check_room(folder, NULL, 3e6, "not enough memory: its table of tensors needs");
    assert_ok(cpl_stored_open(&s, NULL, folder, 1e7, NULL));
    assert_int_equal(s->count, 12000);
    cpl_stored_close(s);
    far = far_from("tests/golden/gguf", true);
    check_room("far://model/split-00002-of-00003.gguf", &far.origin, 2000,
               "gguf: not enough memory: its table");
}

TEST(failures)
{
    passing_origin far = far_from(three_shards(), false);
    cpl_stored_files *s;
    far.fails = true;
    assert_fails(CPL_ERR_IO, "far://model/model.safetensors: the server is gone",
                 cpl_stored_open(&s, &far.origin, anywhere, INFINITY, NULL));
    assert_null(s);
    far = far_from("tests/golden", false);
    assert_fails(CPL_ERR_INPUT, "cannot be listed",
                 cpl_stored_open(&s, &far.origin, anywhere, INFINITY, NULL));
    assert_non_null(strstr(cpl_last_error(), "no weights found: expected model.safetensors"));
    far.origin.lists = true;
    assert_fails(CPL_ERR_INPUT, ", or one .gguf file",
                 cpl_stored_open(&s, &far.origin, anywhere, INFINITY, NULL));
    assert_null(strstr(cpl_last_error(), "cannot be listed"));
}

TEST(lists_of_pieces)
{
    cpl_source_pieces pieces = {0};
    cpl_origin_plan plan     = {.n_requests = 7};
    cpl_source *file;
    assert_ok(cpl_origin_open(NULL, &file, "tests/golden/gguf/small.gguf"));
    for (uint64_t i = 0; i < 1000; i++) assert_ok(cpl_source_pieces_add(&pieces, file, i, i % 2));
    assert_int_equal(pieces.count, 500);
    assert_true(pieces.at[499].source == file && pieces.at[499].offset == 999);
    assert_ok(cpl_origin_plan_set(NULL, &plan, &pieces));
    assert_true(plan.n_requests == 0 && plan.bytes == 0);
    cpl_source_pieces_free(&pieces);
    cpl_source_close(file);
    cpl_source_close(NULL);
}
