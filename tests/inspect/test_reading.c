/* test_reading.c - an inspection reads from another origin exactly the ranges that it planned, in
 * the planned order, in every layout. Its figures are those of the local files. */
#include "inspect/families/layout_list.h"
#include "inspect/inspect_case.h"
#include "support/passing_origin.h"

static cpl_source_pieces planned;
static int64_t next_piece;
static bool is_planned;

/* Checks that a reading is the next one of the plan. */
static void check_reading(const cpl_source *source, size_t bytes, uint64_t offset)
{
    if (!is_planned) return;
    assert_true(next_piece < planned.count);
    const cpl_source_piece *piece = &planned.at[next_piece++];
    assert_ptr_equal(piece->source, source);
    assert_int_equal(piece->offset, offset);
    assert_int_equal(piece->bytes, bytes);
}

static void keep_plan(cpl_origin_plan *plan, const cpl_source_pieces *pieces)
{
    assert_false(is_planned);
    is_planned = true;
    for (int64_t i = 0; i < pieces->count; i++) {
        const cpl_source_piece *p = &pieces->at[i];
        assert_true(p->bytes > 0 && p->offset + p->bytes <= p->source->length);
        assert_ok(cpl_source_pieces_add(&planned, p->source, p->offset, p->bytes));
        plan->bytes += (double)p->bytes;
    }
}

static passing_origin spy = {.origin = {.ops = &passing_ops, .lists = true, .memory_bytes = 12345},
                             .see_reading = check_reading,
                             .see_plan    = keep_plan};

static void inspect_both(const char *folder, cpl_inspect_options o, cpl_inspect_cost *cost)
{
    cpl_coupling_report here, there;
    cpl_inspect_cost local;
    assert_ok(cpl_inspect_open(&here, &local, folder, &o, NULL));
    assert_ok(cpl_inspect_run(&here));
    o.origin   = &spy.origin;
    is_planned = false;
    next_piece = 0;
    assert_ok(cpl_inspect_open(&there, cost, folder, &o, NULL));
    assert_true(is_planned && next_piece == 0);
    assert_ok(cpl_inspect_run(&there));
    assert_int_equal(next_piece, planned.count);
    check_same_report(&here, &there);
    assert_true(cost->bytes == local.bytes && cost->files_bytes == local.files_bytes);
    assert_near(cost->memory_bytes - local.memory_bytes, 12345, 4096); /* the copied paths */
    assert_int_equal(here.rows.bytes, there.rows.bytes);
    if (here.rows.bytes) assert_memory_equal(here.rows.file, there.rows.file, here.rows.bytes);
    cpl_inspect_close(&here);
    cpl_inspect_close(&there);
    cpl_source_pieces_free(&planned);
}

static int n_sampled;

/* Checks an inspection of a part of the rows: it plans the blocks alone and reads them in that
 * order. Layouts whose rows are not contiguous bytes are refused. */
static void a_sample(const char *folder, bool along)
{
    cpl_inspect_options o = inspect_plainly();
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    o.sample = 0.5;
    if (cpl_inspect_open(&report, &cost, folder, &o, NULL) != CPL_OK) {
        assert_non_null(strstr(cpl_last_error(), "stored by columns"));
        return;
    }
    cpl_inspect_close(&report);
    n_sampled++;
    inspect_both(folder, o, &cost);
    assert_true(cost.reading.bytes == cost.bytes && cost.bytes <= cost.whole_bytes);
    assert_true(along == (cost.shared_bytes > 0) && cost.shared_bytes < cost.bytes / 2);
}

TEST(every_layout)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *t    = &layouts[i];
        const char *folder = scratch_folder();
        const bool along   = t->kind == COLUMNS || t->kind == COLUMNS_ALTERNATE ||
                           t->kind == ROWS_ALTERNATE || t->kind == EACH_PAIR_TURNED;
        cpl_inspect_cost cost;
        layout_write(t, folder);
        inspect_both(folder, inspect_plainly(), &cost);
        assert_true(cost.reading.bytes == cost.bytes);
        if (along != (cost.shared_bytes > 0))
            fail_msg("%s: %g bytes come along", t->name, cost.shared_bytes);
        assert_true(cost.shared_bytes < cost.bytes / 2);
        a_sample(folder, t->kind == ROWS_ALTERNATE);
    }
    assert_true(n_sampled > 10);
}

TEST(what_is_read_again)
{
    inspect_case c        = mixed_case();
    cpl_inspect_options o = inspect_plainly();
    cpl_inspect_cost once, twice, rows;
    case_write(&c, 3);
    inspect_both(c.folder, o, &once);
    o.silhouette = true;
    inspect_both(c.folder, o, &twice);
    assert_true(twice.reading.bytes > 1.5 * once.reading.bytes);
    o.silhouette = false;
    o.rows       = true;
    inspect_both(c.folder, o, &rows);
    assert_true(rows.reading.bytes > once.reading.bytes);
    assert_true(rows.files_bytes > rows.bytes);
    case_free(&c);
}
