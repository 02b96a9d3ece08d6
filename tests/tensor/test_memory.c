/* Memory of tensors: an arena measures the memory that it then holds, apart from the host's. */
#include "base/arena.h"
#include "tensor/memory.h"
#include "tensor/ops_check.h"

enum { ROWS = 3, COLS = 5 };

typedef struct pieces {
    cpl_tensor a, ids, number;
    int64_t *list;
} pieces;

static pieces take_pieces(cpl_tensor_arena *arena)
{
    return (pieces){cpl_tensor_take_2d(arena, ROWS, COLS), cpl_tensor_take_ids(arena, COLS),
                    cpl_tensor_take_numbers(arena, 1),
                    cpl_tensor_take_host(arena, ROWS * sizeof(int64_t))};
}

static bool lies_in(const cpl_arena *arena, const void *memory)
{
    const char *at = memory;
    return at >= arena->base && at < arena->base + arena->peak;
}

TEST(an_arena_holds_what_was_measured)
{
    cpl_backend *be        = new_cpu(CPL_F32, 1, (cpl_work){0});
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    const pieces unseen    = take_pieces(&arena);
    const size_t bytes     = cpl_tensor_arena_bytes(&arena);
    const int64_t held     = cpl_alloc_in_use();
    assert_false(cpl_tensor_is_there(unseen.a));
    assert_null(unseen.list);
    assert_ok(cpl_tensor_arena_init(&arena, be, &arena, "a test"));
    const cpl_tensor_mark mark = cpl_tensor_arena_mark(&arena);
    const pieces p             = take_pieces(&arena);
    assert_int_equal(cpl_tensor_arena_bytes(&arena), bytes);
    assert_true(lies_in(&arena.tensors, p.a.storage) && lies_in(&arena.tensors, p.ids.storage));
    assert_true(lies_in(&arena.host, p.list) && !lies_in(&arena.tensors, p.list));
    for (int i = 0; i < ROWS * COLS; i++) assert_true(cpl_f32(p.a)[i] == 0);
    cpl_tensor_arena_release(&arena, mark);
    assert_true(cpl_tensor_is_same(take_pieces(&arena).a, p.a));
    cpl_tensor_arena_free(&arena);
    assert_int_equal(cpl_alloc_in_use(), held);
}

TEST(numbers_go_and_come)
{
    static const float from[ROWS * COLS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    cpl_backend *be                      = new_cpu(CPL_F32, 1, (cpl_work){0});
    cpl_tensor t = cpl_tensor_none(), sum = new_1d(CPL_F64, 1);
    float row[COLS];
    assert_ok(cpl_tensor_reserve(&t, be, CPL_F32, ROWS * COLS));
    const cpl_tensor before = t;
    assert_ok(cpl_tensor_reserve(&t, be, CPL_F32, COLS));
    assert_true(cpl_tensor_is_same(t, before));
    be->ops->put(be, t, from);
    be->ops->get(be, row, cpl_tensor_at(cpl_tensor_as_2d(t, ROWS, COLS), 1));
    assert_memory_equal(row, from + COLS, sizeof row);
    *cpl_f64(sum) = 0.5;
    be->ops->sum(be, sum, cpl_tensor_numbers(t, 1, 2));
    assert_true(cpl_tensor_number(be, sum) == 5.5);
    cpl_tensor_free(&t, be);
    assert_false(cpl_tensor_is_there(t));
}

TEST(no_memory_has_a_sentence)
{
    cpl_backend *be    = new_cpu(CPL_F32, 1, (cpl_work){0});
    const int64_t held = cpl_alloc_in_use();
    cpl_tensor t       = cpl_tensor_none();
    for (int nth = 1; nth <= 2; nth++) {
        cpl_tensor_arena arena = cpl_tensor_arena_measure();
        (void)take_pieces(&arena);
        cpl_alloc_fail_at(nth);
        assert_int_equal(cpl_tensor_arena_init(&arena, be, &arena, "a test"), CPL_ERR_MEMORY);
        assert_non_null(strstr(cpl_last_error(), "for a test"));
        assert_int_equal(cpl_alloc_in_use(), held);
    }
    cpl_alloc_fail_at(1);
    assert_int_equal(cpl_tensor_reserve(&t, be, CPL_F32, 8), CPL_ERR_MEMORY);
    assert_false(cpl_tensor_is_there(t));
    cpl_alloc_fail_at(0);
}
