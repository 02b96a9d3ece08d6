/* test_page.c - pages and charts of runs lined up: whole, escaped, with the numbers they were
 * given. With a folder as argument the program writes the pages of its cases there instead, for
 * tests/report/check_page.py. */

#include <math.h>

#include "base/arena.h"
#include "compare/compare_case.h"
#include "report/grid.h"
#include "report/page_check.h"

static const run_case alphas[] = {
    {.name = "a-s0", .seed = 0, .alpha = 0.5, .weight = 1, .last = 20, .steps = 20},
    {.name = "a-s1", .seed = 1, .alpha = 0.5, .weight = 1, .last = 20, .steps = 30, .shift = 0.2},
    {.name = "b-s0", .seed = 0, .alpha = 1, .weight = 1, .last = 20, .steps = 20},
    {.name = "b-s1", .seed = 1, .alpha = 1, .weight = 1, .last = 14, .steps = 20, .shift = -0.1},
    {.name = "c-s0", .seed = 0, .alpha = 5, .weight = 1, .last = 20, .steps = 20},
};

static const run_case evil[] = {
    {.name = "<b>&\"'x<i>", .seed = 0, .alpha = 1, .last = 20, .steps = 20},
    {.name  = "a name that is far longer than there is room for in any legend of a chart",
     .seed  = 0,
     .alpha = 2,
     .last  = 20,
     .steps = 20,
     .train = "[/x/<script>, '/y/\"z']"},
};

static const run_case one[] = {{.name = "alone", .last = 1, .steps = 3, .alpha = 1}};

enum { MANY = 12, SETTINGS = 40 };

/* Two runs that differ in so many settings that a table of theirs is higher than a window. */
static const run_case *other_settings(void)
{
    static run_case cases[2];
    static char more[2][SETTINGS * 24];
    for (int i = 0; i < 2; i++) {
        cases[i] = six[i * 4];
        for (int k = 0, at = 0; k < SETTINGS; k++)
            at += snprintf(more[i] + at, sizeof more[i] - (size_t)at, "    k%d: %d\n", k, k + i);
        cases[i].more = more[i];
    }
    return cases;
}

static const run_case *many(void)
{
    static run_case cases[MANY];
    static char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "run%d", i);
        cases[i] = (run_case){.name   = names[i],
                              .alpha  = i + 1,
                              .shift  = 0.01 * i,
                              .last   = 20,
                              .steps  = 20,
                              .weight = 1};
    }
    return cases;
}

typedef struct page_case {
    const char *name;
    const run_case *runs;
    int64_t n;
    const char *by;
    bool odd; /* no warning, figures or pairs to speak of */
} page_case;

enum { PAGES = 7 };

static page_case page_case_of(int i)
{
    const page_case cases[PAGES] = {
        {"seeds", six, 6, NULL, false},
        {"alphas", alphas, 5, "erc.alpha", false},
        {"words", alphas, 5, "train.seed", false},
        {"many", many(), MANY, NULL, false},
        {"evil", evil, 2, NULL, false},
        {"alone", one, 1, NULL, true},
        {"settings", other_settings(), 2, NULL, false},
    };
    return cases[i];
}

static cpl_text page_of(const page_case *of)
{
    lined_up l;
    cpl_text page = {0};
    line_up(&l, of->runs, of->n, of->by);
    json_t *data = page_data(&l.c);
    assert_ok(cpl_compare_page(&page, &l.c, data));
    json_decref(data);
    release(&l);
    return page;
}

/* ---- the page ---- */

static void pages_need_no_network(void **state)
{
    (void)state;
    for (int i = 0; i < PAGES; i++) {
        const page_case of = page_case_of(i);
        cpl_text page      = page_of(&of);
        check_page(&page);
        cpl_text_free(&page);
    }
}

/* 7 figures of these runs have a curve: both losses, ERC of clean weights, alpha_min, eps, balance,
 * and the validation loss of each of two sources makes 9 in all. */
static void charts_of_a_page(void **state)
{
    (void)state;
    for (int i = 0; i < PAGES; i++) {
        const page_case of = page_case_of(i);
        lined_up l;
        line_up(&l, of.runs, of.n, of.by);
        json_t *data = page_data(&l.c);
        assert_int_equal(charts_in(data), of.odd ? 4 : of.by ? 16 : 8);
        json_decref(data);
        release(&l);
    }
}

static void names_are_escaped(void **state)
{
    (void)state;
    const page_case of = page_case_of(4);
    cpl_text page      = page_of(&of);
    assert_null(strstr(page.bytes, "<b>"));
    assert_null(strstr(page.bytes, "<script>,"));
    assert_non_null(strstr(page.bytes, "&lt;b&gt;&amp;&quot;&#39;x"));
    assert_non_null(strstr(page.bytes, "class=\"note\">Warning: "));
    cpl_text_free(&page);
}

/* ---- charts ---- */

/* Points of a group are the means of its members, with a band; losses begin later. */
static void curves_are_means(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, six, 6, NULL);
    json_t *data = page_data(&l.c), *first = curve_at(data, "validation-loss", 0);
    double mean = 0;
    for (int i = 0; i < 3; i++) mean += case_val(&six[i], 8) / 3;
    assert_string_equal(json_string_value(json_object_get(first, "name")), "vanilla");
    size_t at = 0;
    while (fabs(value_at(first, "x", at) - 0.8) > 1e-9) at++;
    assert_near(value_at(first, "y", at), mean, 1e-5 * mean);
    assert_true(value_at(first, "low", at) < mean && value_at(first, "high", at) > mean);
    for (size_t g = 0; g < 2; g++) {
        assert_int_equal(points_of(curve_at(data, "validation-loss", g)), 10);
        assert_int_equal(points_of(curve_at(data, "eps", g)), 20);
    }
    json_decref(data);
    release(&l);
}

/* A member without a logged step takes no curve away, first though it be. */
static void a_run_that_has_just_begun_hides_no_curve(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[1]};
    two[0].last    = 0;
    lined_up l;
    line_up(&l, two, 2, NULL);
    json_t *data = page_data(&l.c);
    assert_int_equal(points_of(curve_at(data, "eps", 0)), 20);
    json_decref(data);
    release(&l);
}

static void losses_begin_at_a_twentieth(void **state)
{
    (void)state;
    run_case long_one = alphas[0];
    long_one.last = long_one.steps = 60;
    lined_up l;
    line_up(&l, &long_one, 1, NULL);
    json_t *data = page_data(&l.c);
    assert_int_equal(points_of(curve_at(data, "training-loss", 0)), 58); /* steps 3 to 60 */
    assert_int_equal(points_of(curve_at(data, "eps", 0)), 60);
    json_decref(data);
    release(&l);
}

static void ends_stand_against_the_setting(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, alphas, 5, "erc.alpha");
    json_t *data = page_data(&l.c), *runs = curve_at(data, "at-the-end-validation-loss", 1);
    assert_int_equal(points_of(runs), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_near(value_at(runs, "x", i), alphas[i].alpha, 1e-9);
        assert_near(value_at(runs, "y", i), case_val(&alphas[i], 14), 1e-4);
    }
    json_decref(data);
    release(&l);
}

/* The mean is only where every member has a number: not after the end of the shortest. */
static void a_mean_needs_all_members(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, alphas, 5, "erc.alpha");
    json_t *data = page_data(&l.c);
    assert_int_equal(points_of(curve_at(data, "eps", 1)), 14);
    assert_int_equal(points_of(curve_at(data, "eps", 2)), 20);
    json_decref(data);
    release(&l);
}

/* Shares near each other still stand on the whole scale; a loss of 0 stands on its axis. */
static void scales(void **state)
{
    (void)state;
    const run_case few = {.name = "few", .alpha = 1, .last = 2, .steps = 2};
    const char *folder = write_run(scratch_folder(), &few);
    write_string(in_folder(folder, "metrics.jsonl"),
                 "{\"step\":1,\"tokens\":100,\"loss\":3,\"erc\":0.5,\"kappa_row_top1\":[0.48]}\n"
                 "{\"step\":2,\"tokens\":200,\"loss\":3,\"erc\":0,\"kappa_row_top1\":[0.52]}\n");
    lined_up l;
    line_up_folders(&l, &folder, 1, NULL);
    json_t *data = page_data(&l.c), *y = json_object_get(chart_at(data, "kappa-row-top1"), "y");
    assert_near(json_number_value(json_object_get(y, "to")), 1, 0);
    assert_near(json_number_value(json_object_get(y, "from")), 0, 0);
    y = json_object_get(chart_at(data, "erc"), "y");
    assert_true(json_is_true(json_object_get(y, "zero")));
    assert_near(value_at(curve_at(data, "erc", 0), "y", 1), 0, 0);
    json_decref(data);
    release(&l);
}

/* ---- tables ---- */

static void a_wide_table_is_turned(void **state)
{
    (void)state;
    cpl_pool pool = {0};
    cpl_text text = {0};
    cpl_grid g;
    for (int columns = CPL_GRID_COLUMNS; columns <= CPL_GRID_COLUMNS + 1; columns++) {
        assert_ok(cpl_grid_open(&g, &pool, 1, columns));
        g.rows[0] = "row";
        for (int c = 0; c < columns; c++) g.columns[c] = cpl_pool_printf(&pool, "c%d", c);
        cpl_grid_set(&g, 0, columns - 1, "−1 ± 2");
        cpl_text_clear(&text);
        cpl_grid_text(&text, &g);
        int64_t lines = count_of(text.bytes, "\n");
        assert_int_equal(lines, columns > CPL_GRID_COLUMNS ? columns + 1 : 2);
        assert_non_null(strstr(text.bytes, "  -1 +- 2\n"));
    }
    cpl_text_free(&text);
    cpl_pool_free(&pool);
}

static void without_memory_it_is_said(void **state)
{
    (void)state;
    lined_up l;
    line_up(&l, alphas, 5, "erc.alpha");
    const int64_t held = cpl_alloc_in_use();
    int failed         = 0;
    for (int64_t n = 1; n < 80; n++) {
        cpl_text page     = {0};
        cpl_charts charts = {0};
        json_t *data      = json_object();
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_compare_charts(&charts, &l.c);
        if (status == CPL_OK) status = cpl_charts_into(data, &charts, NULL);
        if (status == CPL_OK) status = cpl_compare_page(&page, &l.c, data);
        failed += status == CPL_ERR_MEMORY;
        cpl_alloc_fail_at(0);
        cpl_charts_close(&charts);
        json_decref(data);
        cpl_text_free(&page);
        assert_int_equal(cpl_alloc_in_use(), held);
    }
    assert_true(failed > 20);
    release(&l);
}

/* ---- for the browser ---- */

static int write_all(const char *folder)
{
    for (int i = 0; i < PAGES; i++) {
        const page_case of = page_case_of(i);
        char path[600];
        cpl_text page = page_of(&of);
        snprintf(path, sizeof path, "%s/%s.html", folder, of.name);
        cpl_status status = cpl_file_write_atomic(path, page.bytes, page.length);
        cpl_text_free(&page);
        if (status != CPL_OK) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_need_no_network),
        cmocka_unit_test(charts_of_a_page),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(curves_are_means),
        cmocka_unit_test(a_run_that_has_just_begun_hides_no_curve),
        cmocka_unit_test(losses_begin_at_a_twentieth),
        cmocka_unit_test(ends_stand_against_the_setting),
        cmocka_unit_test(a_mean_needs_all_members),
        cmocka_unit_test(scales),
        cmocka_unit_test(a_wide_table_is_turned),
        cmocka_unit_test(without_memory_it_is_said),
    };
    if (argc > 1) return write_all(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
