/* A checkpoint whose files come from another origin than the local file system: one that knows the
 * files of a folder under names that begin with "far://", and fails on request. */
#include <math.h>

#include "base/arena.h"
#include "checkpoint/stored_case.h"
#include "io/file.h"
#include "io/paths.h"

static const char *folder;       /* in which the files really are */
static int64_t n_opened, n_open; /* files: opened so far, and now */
static int64_t n_expected;       /* files that were announced */
static bool fails;               /* every question whether a file exists */

typedef struct far_file {
    cpl_source source;
    cpl_source *local;
} far_file;

static const char *local_path(const char *path)
{
    static char name[512];
    assert_int_equal(strncmp(path, "far://model", 11), 0);
    snprintf(name, sizeof name, "%s%s", folder, path + 11);
    return name;
}

static cpl_status far_read_at(const cpl_source *source, void *out, size_t bytes, uint64_t offset)
{
    return cpl_source_read_at(((const far_file *)source)->local, out, bytes, offset);
}

static void far_prefetch(const cpl_source *source, uint64_t offset, size_t bytes)
{
    (void)source, (void)offset, (void)bytes;
}

static void far_close(cpl_source *source)
{
    cpl_source_close(((far_file *)source)->local);
    cpl_free(source->path);
    cpl_free(source);
    n_open--;
}

static cpl_status far_open(const cpl_origin *origin, cpl_source **source, const char *path)
{
    static const cpl_source_ops ops = {far_read_at, far_prefetch, far_close};
    cpl_source *local;
    (void)origin;
    CPL_TRY(cpl_origin_open(NULL, &local, local_path(path)));
    far_file *file = cpl_alloc(sizeof *file);
    *file          = (far_file){{&ops, cpl_text_copy(path), local->length}, local};
    *source        = &file->source;
    n_opened++;
    n_open++;
    return CPL_OK;
}

static cpl_status far_read(const cpl_origin *origin, cpl_text *out, const char *path, size_t most)
{
    (void)origin;
    return cpl_file_read(out, local_path(path), most);
}

static cpl_status far_exists(const cpl_origin *origin, bool *there, const char *path)
{
    (void)origin;
    *there = cpl_path_exists(local_path(path));
    return fails ? CPL_FAIL(CPL_ERR_IO, "%s: the server is gone", path) : CPL_OK;
}

static cpl_status far_list(const cpl_origin *origin, cpl_strings *names, const char *path)
{
    *names = (cpl_strings){0};
    return origin->lists ? cpl_folder_list(names, local_path(path)) : CPL_OK;
}

static bool far_is_folder(const cpl_origin *origin, const char *path)
{
    (void)origin;
    return cpl_path_is_folder(local_path(path));
}

static void far_expect(const cpl_origin *origin, const cpl_strings *paths)
{
    (void)origin;
    n_expected += paths->count;
}

static const cpl_origin_ops far_ops = {far_open,      far_read,   far_exists, far_list,
                                       far_is_folder, far_expect, NULL};

TEST(reads_all_through_it)
{
    const cpl_origin origin = {.ops = &far_ops, .lists = true};
    cpl_stored_files *s, *same;
    folder   = three_shards();
    n_opened = n_expected = 0;
    assert_ok(cpl_stored_open(&s, &origin, "far://model", INFINITY, NULL));
    assert_ok(cpl_stored_open(&same, NULL, folder, (double)INFINITY, NULL));
    assert_true(s->count > 0 && s->count == same->count);
    assert_int_equal(n_opened, s->n_parts);
    assert_int_equal(n_expected, s->n_parts);
    assert_string_equal(s->path, "far://model");
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
    assert_int_equal(n_open, 0);
}

TEST(a_gguf_file_too)
{
    const cpl_origin origin = {.ops = &far_ops};
    cpl_stored_files *s;
    folder = "tests/golden/gguf";
    assert_ok(
        cpl_stored_open(&s, &origin, "far://model/split-00002-of-00003.gguf", INFINITY, NULL));
    assert_int_equal(s->n_parts, 3);
    assert_true(s->is_gguf && s->count > 0);
    cpl_stored_close(s);
    assert_int_equal(n_open, 0);
}

/* Files of many tensors that no byte of data belongs to. */
static const char *many_tensors(void)
{
    static char made[192];
    char map[160] = "";
    snprintf(made, sizeof made, "%s", scratch_folder());
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "model-%d.safetensors", i);
        empty_tensors_file(at(made, name), name + 6, 4000);
        snprintf(map + strlen(map), sizeof map - strlen(map), "%s\"%.1s.safetensors0\": \"%s\"",
                 i ? ", " : "", name + 6, name);
    }
    index_file(made, map);
    return made;
}

/* What is taken at most before the refusal: the room, and what is not yet known to be too much. */
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
    const cpl_origin origin = {.ops = &far_ops, .lists = true};
    cpl_stored_files *s;
    folder = many_tensors();
    check_room("far://model", &origin, 1e5,
               "model-0.safetensors: not enough memory: its table of tensors needs 2");
    check_room("far://model", &origin, 4e5,
               "model-0.safetensors: not enough memory: its table of tensors needs 7");
    check_room("far://model", &origin, 1.2e6, "model-1.safetensors: not enough memory");
    check_room(folder, NULL, 3e6, "not enough memory: its table of tensors needs");
    assert_ok(cpl_stored_open(&s, NULL, folder, 1e7, NULL));
    assert_int_equal(s->count, 12000);
    cpl_stored_close(s);
    folder = "tests/golden/gguf";
    check_room("far://model/split-00002-of-00003.gguf", &origin, 2000,
               "gguf: not enough memory: its table");
}

TEST(failures)
{
    cpl_origin origin = {.ops = &far_ops};
    cpl_stored_files *s;
    folder = three_shards();
    fails  = true;
    assert_fails(CPL_ERR_IO, "far://model/model.safetensors: the server is gone",
                 cpl_stored_open(&s, &origin, "far://model", INFINITY, NULL));
    assert_null(s);
    fails  = false;
    folder = "tests/golden";
    assert_fails(CPL_ERR_INPUT, "cannot be listed",
                 cpl_stored_open(&s, &origin, "far://model", INFINITY, NULL));
    assert_non_null(strstr(cpl_last_error(), "no weights found: expected model.safetensors"));
    origin.lists = true;
    assert_fails(CPL_ERR_INPUT, ", or one .gguf file",
                 cpl_stored_open(&s, &origin, "far://model", INFINITY, NULL));
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
