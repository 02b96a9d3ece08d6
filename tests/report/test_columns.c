/* test_columns.c - one list of figures as a table on a terminal and as members of JSON, compared
 * with texts written by hand. */
#include "report/columns.h"

#include <math.h>

#include "check.h"

enum { COUNT, SHARE, LOSS, BOUND, SPREAD, N };

static const cpl_column list[N] = {[COUNT]  = {"n", 0, CPL_COLUMN_COUNT},
                                   [SHARE]  = {"own.share", 0, CPL_COLUMN_SHARE},
                                   [LOSS]   = {"loss.", 0, CPL_COLUMN_SCALED},
                                   [BOUND]  = {"own.bound", 1, CPL_COLUMN_BOUND},
                                   [SPREAD] = {NULL, 0, CPL_COLUMN_SCALED}};

static double value(const void *ctx, int64_t row, int column, int alpha)
{
    const double *alphas = ctx;
    switch (column) {
    case COUNT:
        return row ? 12 : (double)NAN;
    case SHARE:
        return 0.125;
    case LOSS:
        return row ? alphas[alpha] / 4 : (double)INFINITY;
    case BOUND:
        return row ? 2.5 : (double)INFINITY;
    default:
        return 0.001234;
    }
}

static const double alphas[]     = {0.5, 2};
static const cpl_columns columns = {list, N, value, alphas, alphas, 2};
static const cpl_shown shown[]   = {{COUNT, "n", .digits = 0},
                                    {SHARE, "own", "% of pairs", .digits = 1},
                                    {BOUND, "bound", "% of pairs", .digits = 2},
                                    {LOSS, "a=", .digits = 3, .alphas = CPL_EACH_ALPHA},
                                    {LOSS, "one", .digits = 3, .spread = SPREAD},
                                    {BOUND, "two", .digits = 2, .spread = SPREAD, .spread_digits = 2},
                                    {0}};

TEST(a_table_on_a_terminal)
{
    cpl_pool pool = {0};
    cpl_text text = {0};
    cpl_grid grid;
    assert_ok(cpl_columns_grid(&grid, &pool, &columns, shown, 2));
    grid.corner = "layer";
    cpl_columns_grid_row(&grid, &pool, &columns, shown, 0, "0", 0);
    cpl_columns_grid_row(&grid, &pool, &columns, shown, 1, "1", 1);
    cpl_grid_text(&text, &grid);
    assert_string_equal(text.bytes,
                        "            % of pairs\n"
                        "layer   n   own  bound  a=0.5    a=2              one             two\n"
                        "0       -  12.5    inf    inf    inf    inf +- 0.0012   inf +- 0.0012\n"
                        "1      12  12.5   2.50  0.125  0.500  0.125 +- 0.0012  2.50 +- 0.0012\n");
    cpl_text_free(&text);
    cpl_pool_free(&pool);
}

TEST(members_of_json)
{
    static const char *const wanted[] = {
        "{\"own\":{\"share\":0.125,\"bound\":null,\"bound_infinite\":true},"
        "\"loss\":{\"0.5\":null,\"2\":null}}",
        "{\"n\":12,\"own\":{\"share\":0.125,\"bound\":2.5},\"loss\":{\"0.5\":0.125,\"2\":0.5}}"};
    for (int64_t row = 0; row < 2; row++) {
        bool failed    = false;
        json_t *object = json_object();
        cpl_columns_json(&failed, object, &columns, 0, row);
        cpl_columns_json(&failed, object, &columns, 1, row);
        char *text = json_dumps(object, JSON_COMPACT);
        assert_false(failed);
        assert_string_equal(text, wanted[row]);
        free(text);
        json_decref(object);
    }
}
