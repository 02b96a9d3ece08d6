/* test_named.c - tensors go to files and come from them through get and put alone, in pieces. */
#include "store/named.h"

#include "check.h"
#include "io/file.h"
#include "io/paths.h"
#include "support/mirror.h"
#include "tensor/far/far.h"

enum { PIECE = CPL_NAMED_BUFFER / sizeof(float), LONG = 2 * PIECE + 7, MATRIX = 6 };

/* Three tensors in memory that the host cannot reach, with the numbers first, first + 1, ... */
typedef struct world {
    cpl_backend be;
    cpl_tensor memory; /* all numbers of the tensors */
    cpl_named_list list;
} world;

static world *world_of(float first)
{
    world *w       = calloc(1, sizeof *w);
    int64_t count  = LONG + MATRIX + 1;
    float *numbers = malloc((size_t)count * sizeof *numbers);
    for (int64_t i = 0; i < count; i++) numbers[i] = first + (float)i;
    cpl_backend_cpu(&w->be, CPL_F32, 1);
    cpl_backend_far(&w->be, true);
    w->list.be = &w->be;
    assert_ok(cpl_tensor_reserve(&w->memory, &w->be, CPL_F32, count));
    w->be.ops->put(&w->be, w->memory, numbers);
    cpl_tensor matrix = cpl_tensor_numbers(w->memory, LONG, MATRIX);
    cpl_tensor scalar = cpl_tensor_numbers(w->memory, LONG + MATRIX, 1);
    scalar.rank       = 0;
    assert_ok(cpl_named_add(&w->list, "long", cpl_tensor_numbers(w->memory, 0, LONG)));
    assert_ok(cpl_named_add(&w->list, "matrix", cpl_tensor_as_2d(matrix, 2, MATRIX / 2)));
    assert_ok(cpl_named_add(&w->list, "scalar", scalar));
    free(numbers);
    return w;
}

static void world_gone(world *w)
{
    cpl_named_free(&w->list);
    cpl_tensor_free(&w->memory, &w->be);
    cpl_backend_free(&w->be);
    cpl_far_free(&w->be);
    free(w);
}

static void assert_numbers(world *w, cpl_tensor t, float first)
{
    const float *numbers = cpl_f32(seen(&w->be, t));
    for (int64_t i = 0; i < cpl_tensor_count(t); i++)
        if (numbers[i] != first + (float)i) fail_msg("number %d is %g", (int)i, (double)numbers[i]);
}

TEST(numbers_go_through_one_buffer)
{
    world *from = world_of(3), *to = world_of(0);
    char *path               = cpl_path_join(scratch_folder(), "three.safetensors");
    cpl_stored_files *files  = NULL;
    const cpl_stored *tensor = NULL;
    const cpl_tensor matrix  = to->list.at[1].tensor;
    assert_ok(cpl_named_write(&from->list, path));
    assert_ok(cpl_stored_open_strict(&files, path, NULL));
    assert_ok(cpl_named_read(&to->list, files));
    assert_numbers(to, to->memory, 3);
    assert_ok(cpl_stored_find_shaped(&tensor, files, "long", 1, (int64_t[]){LONG}));
    assert_ok(cpl_named_fill(&to->list, matrix, tensor, PIECE - 1));
    assert_numbers(to, matrix, 3 + PIECE - 1);
    assert_fails(CPL_ERR_INPUT, "elements",
                 cpl_named_fill(&to->list, matrix, tensor, LONG - MATRIX + 1));
    cpl_stored_close(files);
    cpl_free(path);
    world_gone(from);
    world_gone(to);
}

static cpl_status lost(cpl_backend *be)
{
    (void)be;
    return CPL_FAIL(CPL_ERR_IO, "the device is gone");
}

/* After a failure a new file does not exist, and an old file is unchanged. */
TEST(a_backend_that_fails_writes_nothing)
{
    world *w             = world_of(3);
    const char *folder   = scratch_folder();
    char *path           = cpl_path_join(folder, "three.safetensors");
    const cpl_ops *works = w->be.ops;
    cpl_ops fails        = *works;
    uint64_t hash[2]     = {0, 0};
    fails.sync           = lost;
    for (int there = 0; there < 2; there++) {
        cpl_strings names = {0};
        w->be.ops         = &fails;
        assert_fails(CPL_ERR_IO, "the device is gone", cpl_named_write(&w->list, path));
        assert_ok(cpl_folder_list(&names, folder));
        assert_int_equal(names.count, there);
        cpl_paths_free(&names);
        if (there) assert_ok(cpl_file_hash(&hash[1], path));
        w->be.ops = works;
        assert_ok(cpl_named_write(&w->list, path));
        if (!there) assert_ok(cpl_file_hash(&hash[0], path));
    }
    assert_true(hash[0] == hash[1]);
    cpl_free(path);
    world_gone(w);
}
