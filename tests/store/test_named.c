/* test_named.c - tensors go to files and come from them through get and put alone, in pieces: the
 * memory of this backend is at addresses that nobody else can read or write. */
#include "store/named.h"

#include "base/arena.h"
#include "check.h"
#include "io/file.h"
#include "io/paths.h"
#include "tensor/backend/backend.h"
#include "tensor/memory.h"

enum { PIECE = CPL_NAMED_BUFFER / sizeof(float), LONG = 2 * PIECE + 7 };

/* ---- a backend whose addresses are no memory ---- */

static const uintptr_t away = (uintptr_t)1 << 62;

static struct {
    int gets, fails_at; /* the get from which on sync fails; 0: none */
    int64_t most;       /* numbers of the longest get or put */
} seen;

static void *shifted(void *memory, uintptr_t by)
{
    return memory ? (void *)((uintptr_t)memory + by) : NULL;
}

static void *take(cpl_backend *be, size_t bytes)
{
    (void)be;
    return shifted(cpl_alloc(bytes), away);
}

static void give(cpl_backend *be, void *memory)
{
    (void)be;
    cpl_free(shifted(memory, -away));
}

static void *here(cpl_tensor t)
{
    if (cpl_tensor_count(t) > seen.most) seen.most = cpl_tensor_count(t);
    return shifted(t.data, -away);
}

static void put(cpl_backend *be, cpl_tensor to, const void *from)
{
    (void)be;
    memcpy(here(to), from, cpl_tensor_bytes(to));
}

static void get(cpl_backend *be, void *to, cpl_tensor from)
{
    (void)be;
    seen.gets++;
    memcpy(to, here(from), cpl_tensor_bytes(from));
}

static cpl_status wait_for_all(cpl_backend *be)
{
    (void)be;
    if (!seen.fails_at || seen.gets < seen.fails_at) return CPL_OK;
    return CPL_FAIL(CPL_ERR_IO, "the device is gone");
}

static const cpl_ops ops = {
    .take = take, .give = give, .put = put, .get = get, .sync = wait_for_all};

/* ---- three tensors ---- */

typedef struct world {
    cpl_backend be;
    cpl_tensor memory;
    cpl_named_list list;
} world;

/* `memory` has `first`, `first` + 1, ... */
static world *world_of(float first)
{
    enum { MATRIX = 6, ALL = LONG + MATRIX + 1 };
    world *w       = calloc(1, sizeof *w);
    float *numbers = malloc(ALL * sizeof *numbers);
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < ALL; i++) numbers[i] = first + (float)i;
    w->be.ops  = &ops;
    w->list.be = &w->be;
    assert_ok(cpl_tensor_reserve(&w->memory, &w->be, CPL_F32, ALL));
    put(&w->be, w->memory, numbers);
    cpl_tensor scalar = cpl_tensor_numbers(w->memory, LONG + MATRIX, 1);
    scalar.rank       = 0;
    assert_ok(cpl_named_add(&w->list, "long", cpl_tensor_numbers(w->memory, 0, LONG)));
    assert_ok(cpl_named_add(
        &w->list, "matrix",
        cpl_tensor_as_2d(cpl_tensor_numbers(w->memory, LONG, MATRIX), 2, MATRIX / 2)));
    assert_ok(cpl_named_add(&w->list, "scalar", scalar));
    free(numbers);
    return w;
}

static void world_gone(world *w)
{
    cpl_named_free(&w->list);
    cpl_tensor_free(&w->memory, &w->be);
    free(w);
}

static void assert_numbers(world *w, cpl_tensor t, float first)
{
    float *numbers = malloc(cpl_tensor_bytes(t));
    get(&w->be, numbers, t);
    for (int64_t i = 0; i < cpl_tensor_count(t); i++)
        if (numbers[i] != first + (float)i) fail_msg("number %d is %g", (int)i, (double)numbers[i]);
    free(numbers);
}

static void numbers_go_through_one_buffer(void **state)
{
    (void)state;
    world *from = world_of(3), *to = world_of(0);
    char *path               = cpl_path_join(scratch_folder(), "three.safetensors");
    cpl_stored_files *files  = NULL;
    const cpl_stored *tensor = NULL;
    seen.most                = 0;
    assert_ok(cpl_named_write(&from->list, path));
    assert_ok(cpl_stored_open_strict(&files, path, NULL));
    assert_ok(cpl_named_read(&to->list, files));
    assert_int_equal(seen.most, PIECE);
    assert_numbers(to, to->memory, 3);
    assert_ok(cpl_stored_find_shaped(&tensor, files, "long", 1, (int64_t[]){LONG}));
    assert_ok(cpl_named_fill(&to->list, to->list.at[1].tensor, tensor, PIECE - 1));
    assert_numbers(to, to->list.at[1].tensor, 3 + PIECE - 1);
    assert_fails(CPL_ERR_INPUT, "elements",
                 cpl_named_fill(&to->list, to->list.at[1].tensor, tensor, LONG - 1));
    cpl_stored_close(files);
    cpl_free(path);
    world_gone(from);
    world_gone(to);
}

/* A file that was not there is not there afterwards, and one that was is as before. */
static void a_backend_that_fails_writes_nothing(void **state)
{
    (void)state;
    world *w           = world_of(3);
    const char *folder = scratch_folder();
    char *path         = cpl_path_join(folder, "three.safetensors");
    uint64_t before = 0, after = 0;
    for (int there = 0; there < 2; there++) {
        cpl_strings names = {0};
        seen.fails_at     = seen.gets + 2;
        assert_fails(CPL_ERR_IO, "the device is gone", cpl_named_write(&w->list, path));
        assert_ok(cpl_folder_list(&names, folder));
        assert_int_equal(names.count, there);
        cpl_paths_free(&names);
        if (there) continue;
        seen.fails_at = 0;
        assert_ok(cpl_named_write(&w->list, path));
        assert_ok(cpl_file_hash(&before, path));
    }
    assert_ok(cpl_file_hash(&after, path));
    assert_true(before == after);
    cpl_free(path);
    world_gone(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_go_through_one_buffer),
        cmocka_unit_test(a_backend_that_fails_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
