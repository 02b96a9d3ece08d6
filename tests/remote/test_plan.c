/* test_plan.c - the requested ranges: they cover every piece, stay within limits, and are few. */
#include <string.h>

#include "base/rng.h"
#include "check.h"
#include "remote/plan.h"

enum { GAP = 100, MOST = 1000 };

static cpl_source file_a, file_b;

static cpl_source_pieces list;
static cpl_remote_plan plan;

static int free_both(void **state)
{
    (void)state;
    cpl_remote_plan_free(&plan);
    cpl_source_pieces_free(&list);
    return 0;
}
TESTS_DO(after_each, free_both);

static void add(const cpl_source *file, uint64_t offset, uint64_t bytes)
{
    assert_ok(cpl_source_pieces_add(&list, file, offset, bytes));
}

static void assert_range(int64_t i, const cpl_source *file, uint64_t begin, uint64_t end,
                         uint64_t wanted)
{
    assert_true(i < plan.count);
    assert_ptr_equal(plan.ranges[i].source, file);
    assert_int_equal(plan.ranges[i].begin, begin);
    assert_int_equal(plan.ranges[i].end, end);
    assert_int_equal(plan.ranges[i].wanted, wanted);
}

TEST(neighbours)
{
    add(&file_a, 0, 50);
    add(&file_a, 150, 50);  /* a gap of 100 is read too */
    add(&file_a, 301, 9);   /* a gap of 101 is not read */
    add(&file_a, 1010, 90); /* the range from 301 on would stay within the limit */
    add(&file_b, 1110, 10); /* a piece of another file */
    assert_ok(cpl_remote_plan_make(&plan, &list, GAP, MOST));
    assert_int_equal(plan.count, 4);
    assert_range(0, &file_a, 0, 200, 100);
    assert_range(1, &file_a, 301, 310, 9);
    assert_range(2, &file_a, 1010, 1100, 90);
    assert_range(3, &file_b, 1110, 1120, 10);
    assert_true(plan.bytes == 200 + 9 + 90 + 10);
    assert_ok(cpl_remote_plan_make(&plan, &list, 1000, 100000));
    assert_int_equal(plan.count, 2);
    assert_range(0, &file_a, 0, 1100, 199);
}

TEST(long_pieces)
{
    add(&file_a, 7, 2500);
    add(&file_a, 2507, 1000);
    add(&file_a, 3507, 1);
    assert_ok(cpl_remote_plan_make(&plan, &list, GAP, MOST));
    assert_int_equal(plan.count, 5);
    assert_range(0, &file_a, 7, 841, 834);
    assert_range(1, &file_a, 841, 1675, 834);
    assert_range(2, &file_a, 1675, 2507, 832);
    assert_range(3, &file_a, 2507, 3507, 1000);
    assert_range(4, &file_a, 3507, 3508, 1);
}

/* Gates with their factors in turn. The factors lie together at the beginning of the file, in the
 * order of the digits of their names, as in DeepSeek-V3. */
TEST(factors_of_gates)
{
    static const int order[] = {0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9};
    for (int e = 0; e < 12; e++) {
        int place = 0;
        while (order[place] != e) place++;
        add(&file_a, 10000 + 2000 * (uint64_t)place, 600);
        add(&file_a, 30 * (uint64_t)place, 10);
    }
    assert_ok(cpl_remote_plan_make(&plan, &list, GAP, MOST));
    assert_int_equal(plan.count, 13);
    assert_range(0, &file_a, 10000, 10600, 600);
    assert_range(1, &file_a, 0, 340, 120);
    assert_range(2, &file_a, 12000, 12600, 600);
}

TEST(what_is_read_again)
{
    uint64_t until;
    for (int time = 0; time < 2; time++)
        for (uint64_t e = 0; e < 20; e++) add(&file_a, 1000 * e, 900);
    assert_ok(cpl_remote_plan_make(&plan, &list, GAP - 1, MOST));
    assert_int_equal(plan.count, 40);
    cpl_remote_range *r = cpl_remote_plan_find(&plan, &until, &file_a, 3100, 3900);
    assert_ptr_equal(r, &plan.ranges[3]);
    assert_int_equal(until, 3900);
    r->state = CPL_REMOTE_SPENT;
    assert_ptr_equal(cpl_remote_plan_find(&plan, &until, &file_a, 3100, 5000), &plan.ranges[23]);
    assert_int_equal(until, 3900);
    plan.ranges[23].state = CPL_REMOTE_SPENT;
    assert_null(cpl_remote_plan_find(&plan, &until, &file_a, 3100, 5000));
    assert_int_equal(until, 4000);
    assert_null(cpl_remote_plan_find(&plan, &until, &file_a, 3100, 3200));
    assert_int_equal(until, 3200);
    assert_null(cpl_remote_plan_find(&plan, &until, &file_b, 3100, 3200));
    assert_null(cpl_remote_plan_find(&plan, &until, &file_a, 19900, 20000));
    assert_int_equal(until, 20000);
}

/* A range that is earlier in the plan begins within the range that holds the byte: from its
 * beginning on the earlier range supplies the bytes. */
TEST(earlier_range_within)
{
    uint64_t until;
    add(&file_a, 500, 100);
    for (uint64_t i = 0; i < CPL_REMOTE_LANES; i++) add(&file_b, 2000 * i, 10);
    add(&file_a, 100, 900);
    assert_ok(cpl_remote_plan_make(&plan, &list, GAP, MOST));
    assert_int_equal(plan.count, 2 + CPL_REMOTE_LANES);
    cpl_remote_range *first = &plan.ranges[0], *last = &plan.ranges[1 + CPL_REMOTE_LANES];
    assert_ptr_equal(cpl_remote_plan_find(&plan, &until, &file_a, 100, 1000), last);
    assert_int_equal(until, 500);
    assert_ptr_equal(cpl_remote_plan_find(&plan, &until, &file_a, 500, 1000), first);
    assert_int_equal(until, 600);
    first->state = CPL_REMOTE_SPENT;
    assert_ptr_equal(cpl_remote_plan_find(&plan, &until, &file_a, 100, 1000), last);
    assert_int_equal(until, 1000);
}

/* Checks that the ranges cover the piece, each byte once for each reading, as a reader reads it. */
static void read_piece(const cpl_source_piece *piece)
{
    const uint64_t end = piece->offset + piece->bytes;
    uint64_t until;
    for (uint64_t at = piece->offset; at < end; at = until) {
        cpl_remote_range *r = cpl_remote_plan_find(&plan, &until, piece->source, at, end);
        assert_non_null(r);
        assert_true(until > at && r->begin <= at && r->end >= until);
        r->taken += until - at;
        assert_true(r->taken <= r->wanted);
        if (r->taken == r->wanted) r->state = CPL_REMOTE_SPENT;
    }
}

/* Returns the number of ranges of the plainest plan: a range for each piece. */
static int64_t plain_count(void)
{
    int64_t count = 0;
    for (int64_t i = 0; i < list.count; i++)
        count += (int64_t)((list.at[i].bytes + MOST - 1) / MOST);
    return count;
}

TEST(any_pieces)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TEST};
        uint64_t at           = 0, until;
        for (uint64_t i = 0; i < 300; i++) {
            const uint32_t draw = cpl_rng_u32(&key, 2 * i), skip = cpl_rng_u32(&key, 2 * i + 1);
            const uint64_t bytes = 1 + draw % (seed % 2 ? 2500 : 90);
            add(skip & 1 ? &file_a : &file_b, at, bytes);
            at += bytes + (skip >> 1) % 300; /* pieces do not overlap */
        }
        assert_ok(cpl_remote_plan_make(&plan, &list, GAP, MOST));
        assert_true(plan.count <= plain_count());
        uint64_t wanted = 0;
        for (int64_t i = 0; i < plan.count; i++) {
            assert_true(plan.ranges[i].end - plan.ranges[i].begin <= MOST);
            assert_true(plan.ranges[i].begin < plan.ranges[i].end);
            wanted += plan.ranges[i].wanted;
        }
        for (int64_t i = 0; i < list.count; i++) wanted -= list.at[i].bytes;
        assert_int_equal(wanted, 0);
        for (int64_t i = 0; i < list.count; i++) read_piece(&list.at[i]);
        assert_null(cpl_remote_plan_find(&plan, &until, &file_a, 0, at));
        assert_int_equal(until, at);
        free_both(NULL);
    }
}
