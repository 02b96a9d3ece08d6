/* test_page.c - pages and charts of runs lined up: whole, escaped, with the numbers they were
 * given, never written into a run. With a folder as argument the program writes the pages and charts
 * of its cases there instead, for tests/report/check_page.py. */
#include "compare/page.h"

#include <sys/stat.h>

#include "base/arena.h"
#include "compare/charts.h"
#include "compare/compare_case.h"
#include "io/file.h"
#include "report/grid.h"
#include "report/markup.h"
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
    assert_ok(cpl_compare_page(&page, &l.c));
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
static void charts_of_a_page_are_well_formed(void **state)
{
    (void)state;
    for (int i = 0; i < PAGES; i++) {
        const page_case of = page_case_of(i);
        cpl_text page      = page_of(&of);
        assert_int_equal(check_charts(&page), of.odd ? 4 : of.by ? 16 : 8);
        cpl_text_free(&page);
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

static void pages_are_the_same_twice(void **state)
{
    (void)state;
    lined_up l;
    cpl_text a = {0}, b = {0};
    line_up(&l, six, 6, NULL);
    assert_ok(cpl_compare_page(&a, &l.c));
    assert_ok(cpl_compare_page(&b, &l.c));
    assert_string_equal(a.bytes, b.bytes);
    cpl_text_free(&a);
    cpl_text_free(&b);
    release(&l);
}

/* ---- charts ---- */

static void draw(cpl_text *out, const lined_up *l, const char *file)
{
    cpl_compare_charts charts;
    int64_t hit = -1;
    assert_ok(cpl_compare_charts_open(&charts, &l->c));
    for (int64_t i = 0; i < charts.n; i++)
        if (strcmp(charts.charts[i].file, file) == 0) hit = i;
    if (hit < 0) fail_msg("there is no chart %s", file);
    assert_ok(cpl_compare_chart_draw(out, &charts, hit, true));
    cpl_compare_charts_close(&charts);
}

static void assert_tip(const char *svg, const char *name, const char *x, double value)
{
    char tip[120], figure[48];
    snprintf(tip, sizeof tip, "<title>%s%s: %s</title>", name, x,
             cpl_markup_figure(figure, value, 4));
    if (!strstr(svg, tip)) fail_msg("no mark says %s", tip);
}

/* Points of a group are the means of its members, with a band; losses begin later. */
static void curves_are_means(void **state)
{
    (void)state;
    lined_up l;
    cpl_text svg = {0};
    line_up(&l, six, 6, NULL);
    draw(&svg, &l, "validation-loss");
    double mean = 0;
    for (int i = 0; i < 3; i++) mean += case_val(&six[i], 8) / 3;
    assert_tip(svg.bytes, "vanilla, ", "thousand tokens 0.8", mean);
    assert_int_equal(count_of(svg.bytes, "class=\"c-band\""), 2);
    assert_int_equal(count_of(svg.bytes, "<circle"), 2 * 10);
    cpl_text_clear(&svg);
    draw(&svg, &l, "eps");
    assert_int_equal(count_of(svg.bytes, "<circle"), 2 * 20);
    cpl_text_free(&svg);
    release(&l);
}

/* A member without a logged step takes no curve away, first though it be. */
static void a_run_that_has_just_begun_hides_no_curve(void **state)
{
    (void)state;
    run_case two[] = {six[0], six[1]};
    two[0].last    = 0;
    lined_up l;
    cpl_text svg = {0};
    line_up(&l, two, 2, NULL);
    draw(&svg, &l, "eps");
    assert_int_equal(count_of(svg.bytes, "<circle"), 20);
    cpl_text_free(&svg);
    release(&l);
}

static void losses_begin_at_a_twentieth(void **state)
{
    (void)state;
    run_case long_one = alphas[0];
    long_one.last = long_one.steps = 60;
    lined_up l;
    cpl_text svg = {0};
    line_up(&l, &long_one, 1, NULL);
    draw(&svg, &l, "training-loss");
    assert_int_equal(count_of(svg.bytes, "<circle"), 58); /* steps 3 to 60 */
    cpl_text_clear(&svg);
    draw(&svg, &l, "eps");
    assert_int_equal(count_of(svg.bytes, "<circle"), 60);
    cpl_text_free(&svg);
    release(&l);
}

static void ends_stand_against_the_setting(void **state)
{
    (void)state;
    lined_up l;
    cpl_text svg = {0};
    line_up(&l, alphas, 5, "erc.alpha");
    draw(&svg, &l, "at-the-end-validation-loss");
    assert_int_equal(count_of(svg.bytes, "<circle"), 5); /* a point a run; the line has none */
    for (int i = 0; i < 5; i++) {
        char place[40];
        snprintf(place, sizeof place, "erc.alpha %g", alphas[i].alpha);
        assert_tip(svg.bytes, "", place, case_val(&alphas[i], 14));
    }
    cpl_text_free(&svg);
    release(&l);
}

/* The mean is only where every member has a number: not behind the end of the shortest. */
static void a_mean_needs_all_members(void **state)
{
    (void)state;
    lined_up l;
    cpl_text svg = {0};
    line_up(&l, alphas, 5, "erc.alpha");
    draw(&svg, &l, "eps");
    assert_int_equal(count_of(svg.bytes, "<title>erc.alpha 1, "), 14);
    assert_int_equal(count_of(svg.bytes, "<title>erc.alpha 5, "), 20);
    cpl_text_free(&svg);
    release(&l);
}

/* Shares near each other still stand on the whole scale. */
static void a_share_goes_from_0_to_1(void **state)
{
    (void)state;
    const run_case few = {.name = "few", .alpha = 1, .last = 2, .steps = 2};
    const char *folder = write_run(scratch_folder(), &few);
    write_string(in_folder(folder, "metrics.jsonl"),
                 "{\"step\":1,\"tokens\":100,\"loss\":3,\"kappa_row_top1\":[0.48]}\n"
                 "{\"step\":2,\"tokens\":200,\"loss\":3,\"kappa_row_top1\":[0.52]}\n");
    lined_up l;
    cpl_text svg = {0};
    line_up_folders(&l, &folder, 1, NULL);
    draw(&svg, &l, "kappa-rows-own");
    assert_int_equal(count_of(svg.bytes, ">1.0</text>"), 1);
    assert_int_equal(count_of(svg.bytes, ">0.2</text>"), 1);
    cpl_text_free(&svg);
    release(&l);
}

static void every_chart_is_a_file(void **state)
{
    (void)state;
    lined_up l;
    char *folder = cpl_path_join(scratch_folder(), "new/charts");
    line_up(&l, alphas, 5, "erc.alpha");
    assert_ok(cpl_compare_svgs(folder, &l.c));
    assert_int_equal(check_chart_files(folder), 16);
    assert_true(cpl_path_exists(in_folder(folder, "at-the-end-eps.svg")));
    assert_true(cpl_path_exists(in_folder(folder, "validation-loss-a.svg")));
    assert_fails(CPL_ERR_INPUT, "nothing is written",
                 cpl_compare_svgs(in_folder(l.runs[2].folder, "charts"), &l.c));
    assert_false(cpl_path_exists(in_folder(l.runs[2].folder, "charts")));
    cpl_free(folder);
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
        cpl_text page = {0};
        cpl_alloc_fail_at(n);
        failed += cpl_compare_page(&page, &l.c) == CPL_ERR_MEMORY;
        cpl_alloc_fail_at(0);
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
        char path[600], charts[600];
        lined_up l;
        cpl_text page = {0};
        snprintf(path, sizeof path, "%s/%s.html", folder, of.name);
        snprintf(charts, sizeof charts, "%s/%s", folder, of.name);
        line_up(&l, of.runs, of.n, of.by);
        cpl_status status = cpl_compare_page(&page, &l.c);
        if (status == CPL_OK) status = cpl_file_write_atomic(path, page.bytes, page.length);
        if (status == CPL_OK) status = cpl_compare_svgs(charts, &l.c);
        cpl_text_free(&page);
        release(&l);
        if (status != CPL_OK) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_need_no_network),
        cmocka_unit_test(charts_of_a_page_are_well_formed),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(pages_are_the_same_twice),
        cmocka_unit_test(curves_are_means),
        cmocka_unit_test(a_run_that_has_just_begun_hides_no_curve),
        cmocka_unit_test(losses_begin_at_a_twentieth),
        cmocka_unit_test(ends_stand_against_the_setting),
        cmocka_unit_test(a_mean_needs_all_members),
        cmocka_unit_test(a_share_goes_from_0_to_1),
        cmocka_unit_test(every_chart_is_a_file),
        cmocka_unit_test(a_wide_table_is_turned),
        cmocka_unit_test(without_memory_it_is_said),
    };
    if (argc > 1) return write_all(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
