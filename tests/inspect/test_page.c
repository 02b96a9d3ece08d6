/* test_page.c - pages and chart files of coupling reports: whole, escaped, with the numbers they were
 * given, on one scale, and never written into a checkpoint. With a folder as argument the program
 * writes the pages and files of its cases there instead, for tests/report/check_page.py. */
#include "inspect/page.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "check.h"
#include "inspect/charts.h"
#include "inspect/coupling_fixture.h"
#include "io/file.h"
#include "io/path_guard.h"
#include "report/markup.h"
#include "report/page.h"
#include "report/page_check.h"

enum { MOST_REPORTS = 2 };

typedef struct fixture_case {
    const char *name;
    const fixture_kind *kinds[MOST_REPORTS];
    int64_t count;
} fixture_case;

static const fixture_case cases[] = {{"small", {&fixture_small}, 1},
                                     {"two", {&fixture_small, &fixture_wide}, 2},
                                     {"odd", {&fixture_odd}, 1},
                                     {"one", {&fixture_single}, 1},
                                     {"same", {&fixture_odd, &fixture_odd}, 2}};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct opened {
    cpl_coupling_report reports[MOST_REPORTS];
    const cpl_coupling_report *pointers[MOST_REPORTS];
    int64_t count;
} opened;

static void open_case(opened *out, const fixture_case *of)
{
    out->count = of->count;
    for (int64_t i = 0; i < of->count; i++) {
        fixture_open(&out->reports[i], of->kinds[i]);
        out->pointers[i] = &out->reports[i];
    }
}

static void close_case(opened *out)
{
    for (int64_t i = 0; i < out->count; i++) fixture_close(&out->reports[i]);
}

static cpl_text page_of(const fixture_case *of)
{
    opened o;
    cpl_text page = {0};
    open_case(&o, of);
    assert_ok(cpl_coupling_page(&page, o.pointers, o.count));
    close_case(&o);
    return page;
}

static int64_t layers_with_M(const cpl_coupling_report *report)
{
    int64_t count = 0;
    for (int64_t i = 0; i < report->n_layers; i++) count += report->layers[i].has_M;
    return count;
}

/* A chart of each kind, but the picture and the silhouettes where there are none. */
static int64_t charts_of(const fixture_kind *kind)
{
    return CPL_COUPLING_KINDS - !kind->picture - !kind->silhouette;
}

/* ---- the page ---- */

static void pages_need_no_network(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        cpl_text page = page_of(&cases[i]);
        check_page(&page);
        cpl_text_free(&page);
    }
}

static void charts_of_a_page_are_well_formed(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        cpl_text page  = page_of(&cases[i]);
        int64_t wanted = 1; /* the colour bar */
        for (int64_t k = 0; k < cases[i].count; k++) wanted += charts_of(cases[i].kinds[k]);
        assert_int_equal(check_charts(&page), wanted);
        cpl_text_free(&page);
    }
}

static void pages_are_the_same_twice(void **state)
{
    (void)state;
    cpl_text a = page_of(&cases[1]), b = page_of(&cases[1]);
    assert_string_equal(a.bytes, b.bytes);
    cpl_text_free(&a);
    cpl_text_free(&b);
}

/* Columns of all checkpoints, and of the layers of those whose silhouettes were asked for. */
static void silhouettes_where_asked_for(void **state)
{
    static const int64_t columns[CASES] = {0, 2, 2, 2, 3};
    (void)state;
    for (int i = 0; i < CASES; i++) {
        cpl_text page = page_of(&cases[i]);
        assert_int_equal(count_of(page.bytes, ">silhouette</th>"), columns[i]);
        cpl_text_free(&page);
    }
}

static void names_are_escaped(void **state)
{
    cpl_text page = page_of(&cases[2]);
    (void)state;
    assert_null(strstr(page.bytes, "<b>"));
    assert_null(strstr(page.bytes, "[0,<7>]"));
    assert_true(count_of(page.bytes, "&lt;b&gt;&amp;&quot;x") >= 3);
    assert_non_null(strstr(page.bytes, "router &amp; mlp.w1"));
    cpl_text_free(&page);
}

static void what_is_wrong_is_told(void **state)
{
    cpl_text page = page_of(&cases[2]);
    (void)state;
    assert_non_null(strstr(page.bytes, "switch_like (a guess)"));
    assert_non_null(strstr(page.bytes, "No row of the table of families"));
    assert_non_null(strstr(page.bytes, "no figures: model-00002.safetensors"));
    assert_non_null(strstr(page.bytes, "skipped: hash-routed"));
    assert_non_null(strstr(page.bytes, ">encoder 2: model-00002"));
    assert_non_null(strstr(page.bytes, ">decoder 2: router and experts read different vectors"));
    assert_non_null(strstr(page.bytes, ">decoder 4: α_min is infinite (∞)"));
    assert_non_null(strstr(page.bytes, ">encoder 3: its experts have no gate"));
    assert_non_null(strstr(page.bytes, ">encoder 3: biases"));
    assert_non_null(strstr(page.bytes, ">∞<title>"));
    cpl_text_free(&page);
}

static void raw_values_are_not_for_ranking(void **state)
{
    cpl_text one = page_of(&cases[0]), two = page_of(&cases[1]);
    (void)state;
    assert_non_null(strstr(one.bytes, "smaller weights alone make it smaller"));
    assert_non_null(strstr(one.bytes, "ε is uninformative"));
    assert_non_null(strstr(two.bytes, "must not be ranked against each other"));
    /* The scale-free figures come first. */
    assert_true(strstr(two.bytes, "Scale-free figures by layer") <
                strstr(two.bytes, "Figures that depend on the scale"));
    cpl_text_free(&one);
    cpl_text_free(&two);
}

static void every_quantity_is_defined(void **state)
{
    static const char *const names[] = {
        "R, W_g, M",     "κ", "assignment", "z-score",       "ERC",
        "ratios, α_min", "ε", "norms",      "router cosine", "t-SNE"};
    cpl_text page = page_of(&cases[0]);
    char term[64];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(term, sizeof term, "<dt>%s</dt>", names[i]);
        assert_non_null(strstr(page.bytes, term));
    }
    cpl_text_free(&page);
}

static void the_picture_says_what_it_shows(void **state)
{
    cpl_text page = page_of(&cases[1]);
    (void)state;
    assert_non_null(strstr(page.bytes,
                           "Layer 1; experts i with i mod 8 = 0 (8 of them); one row in "
                           "4 of each gate, 2400 points; perplexity 30, 1000 "
                           "iterations, Kullback-Leibler divergence 1.831."));
    assert_int_equal(count_of(page.bytes, "<circle class=\"c-point\""), 2400 + 480);
    cpl_text_free(&page);
}

/* ---- matrices ---- */

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at             = strchr(digits, c);
    assert_non_null(at);
    return (int)(at - digits);
}

/* The numbers of an attribute; returns how many. */
static int64_t read_words(uint16_t *out, int64_t most, const char *tag, const char *name)
{
    const char *s  = strstr(tag, name) + strlen(name);
    uint32_t word  = 0;
    int64_t n      = 0;
    int bits       = 0;
    uint32_t bytes = 0, have = 0;
    for (; *s != '"' && *s != '='; s++) {
        word = word << 6 | (uint32_t)base64_digit(*s);
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        bytes |= (word >> bits & 255) << (8 * have);
        if (++have < 2) continue;
        assert_true(n < most);
        out[n++] = (uint16_t)bytes;
        bytes = have = 0;
    }
    return n;
}

static double read_number(const char *tag, const char *name)
{
    return strtod(strstr(tag, name) + strlen(name), NULL);
}

/* Four significant digits: half a unit of the last is 5e-4 at worst. */
static void check_matrix(const cpl_layer_report *layer, const char *tag)
{
    int64_t n       = layer->at->n;
    uint16_t *cells = fixture_take(n * n, sizeof *cells), *order = fixture_take(n, sizeof *order);
    double low = read_number(tag, "data-low=\""), high = read_number(tag, "data-high=\"");
    assert_int_equal((int64_t)read_number(tag, "data-n=\""), n);
    assert_int_equal(read_words(cells, n * n, tag, "data-m=\""), n * n);
    assert_int_equal(read_words(order, n, tag, "data-order=\""), n);
    for (int64_t i = 0; i < n * n; i++) {
        double value = cells[i] ? low * exp((cells[i] - 1) / 65534.0 * log(high / low)) : 0;
        assert_near(value, layer->M[i], 2e-4 * layer->M[i]);
    }
    for (int64_t i = 1; i < n; i++)
        assert_true(layer->M[order[i - 1] * (n + 1)] >= layer->M[order[i] * (n + 1)]);
    free(cells);
    free(order);
}

static void pages_hold_the_matrices(void **state)
{
    (void)state;
    for (int k = 0; k < CASES; k++) {
        cpl_text page = page_of(&cases[k]);
        opened o;
        open_case(&o, &cases[k]);
        const char *tag = page.bytes;
        for (int64_t r = 0; r < o.count; r++)
            for (int64_t i = 0; i < o.reports[r].n_layers; i++) {
                if (!o.reports[r].layers[i].has_M) continue;
                tag = strstr(tag + 1, "<button type=\"button\"");
                assert_non_null(tag);
                check_matrix(&o.reports[r].layers[i], tag);
            }
        assert_null(strstr(tag + 1, "<button type=\"button\""));
        close_case(&o);
        cpl_text_free(&page);
    }
}

/* ---- matrices of hardly any width ---- */

/* Sets M [n,n] to `value` in every layer, with the figures that scale the colours. The layers differ
 * by `apart` of their mean diagonal. */
static void make_even(cpl_coupling_report *report, float value, double apart)
{
    for (int64_t l = 0; l < report->n_layers; l++) {
        cpl_layer_report *layer = &report->layers[l];
        for (int64_t i = 0; i < layer->at->n * layer->at->n; i++) layer->M[i] = value;
        layer->figures.m_diagonal     = value * (1 + apart * (double)l);
        layer->figures.m_off_diagonal = layer->at->n > 1 ? layer->figures.m_diagonal : 0;
    }
}

/* The page and the files are made, the scale of colours has some width, every M is in its place. */
static void check_even(const fixture_case *of, float value, double apart)
{
    opened o;
    cpl_text page              = {0};
    cpl_coupling_charts charts = {0};
    char *folder               = cpl_path_join(scratch_folder(), "even");
    open_case(&o, of);
    for (int64_t r = 0; r < o.count; r++) make_even(&o.reports[r], value, apart);
    assert_ok(cpl_coupling_charts_open(&charts, o.pointers, o.count));
    assert_true(charts.heat.high - charts.heat.low > 1e-6 * charts.heat.high);
    cpl_coupling_charts_close(&charts);
    assert_ok(cpl_coupling_page(&page, o.pointers, o.count));
    const char *tag = page.bytes;
    for (int64_t l = 0; l < o.reports[0].n_layers; l++) {
        tag = strstr(tag + 1, "<button type=\"button\"");
        assert_non_null(tag);
        check_matrix(&o.reports[0].layers[l], tag);
    }
    if (value == 0) assert_non_null(strstr(page.bytes, ": M from 0 to 0, mean diagonal 0"));
    assert_ok(cpl_coupling_svgs(NULL, folder, o.pointers, o.count));
    cpl_folder_remove(folder);
    cpl_free(folder);
    cpl_text_free(&page);
    close_case(&o);
}

static void even_matrices_have_pages(void **state)
{
    static const float values[]  = {1, 0, 0.3f, 1e-45f, 3e38f};
    static const double aparts[] = {0, 1.2e-16, 3e-16, 1e-12, 1e-7};
    fixture_kind some = fixture_small, single = fixture_single;
    some.n_layers             = 3;
    single.n_layers           = 3;
    const fixture_case made[] = {{"even", {&some}, 1}, {"one", {&single}, 1}};
    (void)state;
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (size_t a = 0; a < sizeof aparts / sizeof *aparts; a++)
            for (size_t k = 0; k < 2; k++) check_even(&made[k], values[v], aparts[a]);
}

/* Of one expert nothing is said in the plural. */
static void one_expert_is_no_experts(void **state)
{
    cpl_text page = page_of(&cases[3]);
    (void)state;
    assert_null(strstr(page.bytes, "1 experts"));
    assert_null(strstr(page.bytes, "1 of them"));
    assert_null(strstr(page.bytes, "i mod 1 = 0"));
    assert_non_null(strstr(page.bytes, "Layer 0; expert 0 alone; one row in 4 of its gate, "));
    assert_non_null(strstr(page.bytes, "layer 0; expert 0; 1 row in 4; perplexity 30"));
    cpl_text_free(&page);
}

/* ---- the same scales ---- */

/* The labels of the y axis, joined. */
static void y_labels(char *out, size_t size, const char *svg)
{
    static const char mark[] = " text-anchor=\"end\">";
    out[0]                   = '\0';
    for (const char *s = svg; (s = strstr(s, mark)); s++) {
        size_t length = strlen(out);
        snprintf(out + length, size - length, "%.*s;", (int)strcspn(s + strlen(mark), "<"),
                 s + strlen(mark));
    }
}

static void reports_share_their_scales(void **state)
{
    opened o;
    cpl_coupling_charts charts, alone;
    char a[600], b[600], c[600];
    int differ = 0;
    (void)state;
    open_case(&o, &cases[1]);
    assert_ok(cpl_coupling_charts_open(&charts, o.pointers, 2));
    assert_ok(cpl_coupling_charts_open(&alone, o.pointers, 1));
    for (cpl_coupling_kind kind = 0; kind < CPL_COUPLING_PICTURE; kind++) {
        cpl_text first = {0}, second = {0}, by_itself = {0};
        cpl_coupling_charts_draw(&first, &charts, 0, kind, false);
        cpl_coupling_charts_draw(&second, &charts, 1, kind, false);
        cpl_coupling_charts_draw(&by_itself, &alone, 0, kind, false);
        y_labels(a, sizeof a, first.bytes);
        y_labels(b, sizeof b, second.bytes);
        y_labels(c, sizeof c, by_itself.bytes);
        assert_true(strlen(a) > 3);
        assert_string_equal(a, b);
        differ += strcmp(a, c) != 0;
        cpl_text_free(&first);
        cpl_text_free(&second);
        cpl_text_free(&by_itself);
    }
    assert_true(differ > 2); /* or the comparison would say nothing */
    cpl_coupling_charts_close(&charts);
    cpl_coupling_charts_close(&alone);
    close_case(&o);
}

/* The numbers of a chart are those of the report: every kappa is in a tip of its mark. */
static void marks_tell_the_figures(void **state)
{
    opened o;
    cpl_coupling_charts charts;
    cpl_text svg = {0};
    (void)state;
    open_case(&o, &cases[2]);
    assert_ok(cpl_coupling_charts_open(&charts, o.pointers, 1));
    cpl_coupling_charts_draw(&svg, &charts, 0, CPL_COUPLING_KAPPA, true);
    for (int64_t i = 0; i < o.reports[0].n_layers; i++) {
        const cpl_layer_report *layer = &o.reports[0].layers[i];
        char tip[160], figure[48];
        if (!layer->has_M) continue;
        snprintf(tip, sizeof tip, "<title>own expert, layer %lld of the %s: %s</title>",
                 (long long)layer->at->layer, layer->at->part,
                 cpl_markup_figure(figure, layer->chance.kappa_diagonal, 4));
        assert_non_null(strstr(svg.bytes, tip));
    }
    assert_int_equal(count_of(svg.bytes, "<circle"), 2 * layers_with_M(&o.reports[0]));
    cpl_text_free(&svg);
    cpl_coupling_charts_close(&charts);
    close_case(&o);
}

/* ---- files ---- */

static void every_chart_is_a_file(void **state)
{
    (void)state;
    for (int k = 0; k < CASES; k++) {
        opened o;
        int64_t n_written = 0, wanted = 0;
        char *folder = cpl_path_join(scratch_folder(), "new/charts");
        open_case(&o, &cases[k]);
        for (int64_t r = 0; r < o.count; r++)
            wanted += layers_with_M(&o.reports[r]) + charts_of(cases[k].kinds[r]);
        assert_ok(cpl_coupling_svgs(&n_written, folder, o.pointers, o.count));
        assert_int_equal(n_written, wanted);
        assert_int_equal(check_chart_files(folder), wanted);
        cpl_folder_remove(folder);
        cpl_free(folder);
        close_case(&o);
    }
}

static void a_checkpoint_is_never_written_into(void **state)
{
    const char *root = scratch_folder();
    char model[128], file[160], inside[160], link_to[160], beside[160], round_about[200];
    opened o;
    (void)state;
    snprintf(model, sizeof model, "%s/model", root);
    snprintf(file, sizeof file, "%s/model.safetensors", model);
    snprintf(inside, sizeof inside, "%s/new/charts", model);
    snprintf(beside, sizeof beside, "%s/model2", root);
    snprintf(link_to, sizeof link_to, "%s/link", root);
    snprintf(round_about, sizeof round_about, "%s/not/there/../../model/./x", root);
    assert_int_equal(mkdir(model, 0755), 0);
    assert_int_equal(symlink("model", link_to), 0);
    assert_ok(cpl_file_write_atomic(file, "x", 1));

    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(model, model));
    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(inside, model));
    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(link_to, model));
    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(inside, link_to));
    assert_fails(CPL_ERR_INPUT, "where nothing is written",
                 cpl_path_guard_check(round_about, model));
    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(file, file));
    assert_ok(cpl_path_guard_check(beside, model));
    assert_ok(cpl_path_guard_check(root, model));
    assert_ok(cpl_path_guard_check("charts", model));
    assert_ok(cpl_path_guard_check(inside, "/no/such/checkpoint"));
    assert_ok(cpl_path_guard_check(inside, file)); /* a file in anybody's folder */
    snprintf(inside, sizeof inside, "%s/config.json", model);
    assert_ok(cpl_file_write_atomic(inside, "{}", 2));
    snprintf(inside, sizeof inside, "%s/new/charts", model);
    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(inside, file));
    assert_ok(cpl_path_guard_check(beside, file));

    open_case(&o, &cases[0]);
    free(o.reports[0].path);
    o.reports[0].path = strdup(model);
    assert_fails(CPL_ERR_INPUT, "where nothing is written",
                 cpl_coupling_svgs(NULL, inside, o.pointers, 1));
    snprintf(round_about, sizeof round_about, "%s/new", model);
    assert_false(cpl_path_exists(round_about));
    close_case(&o);
    cpl_folder_remove(root);
}

/* ---- memory ---- */

/* Every allocation fails once: the page says so, and nothing is lost or half done. */
static void without_memory_it_is_said(void **state)
{
    opened o;
    int64_t n = 0, before, all;
    (void)state;
    open_case(&o, &cases[3]);
    cpl_text whole = {0};
    before         = cpl_alloc_count();
    assert_ok(cpl_coupling_page(&whole, o.pointers, 1));
    all = cpl_alloc_count() - before;
    for (n = 1; n <= all; n++) {
        cpl_text page = {0};
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_coupling_page(&page, o.pointers, 1);
        cpl_alloc_fail_at(0);
        assert_int_equal(status, CPL_ERR_MEMORY);
        cpl_text_free(&page);
    }
    assert_true(all > 20);
    cpl_text_free(&whole);
    close_case(&o);
}

/* ---- for check_page.py ---- */

static int write_all(const char *folder)
{
    for (int i = 0; i < CASES; i++) {
        char path[512];
        opened o;
        cpl_text page = {0};
        open_case(&o, &cases[i]);
        snprintf(path, sizeof path, "%s/%s.html", folder, cases[i].name);
        cpl_status status = cpl_coupling_page(&page, o.pointers, o.count);
        if (status == CPL_OK) status = cpl_file_write_atomic(path, page.bytes, page.length);
        snprintf(path, sizeof path, "%s/%s", folder, cases[i].name);
        if (status == CPL_OK) status = cpl_coupling_svgs(NULL, path, o.pointers, o.count);
        if (status != CPL_OK) fprintf(stderr, "%s\n", cpl_last_error());
        cpl_text_free(&page);
        close_case(&o);
        if (status != CPL_OK) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_need_no_network),
        cmocka_unit_test(charts_of_a_page_are_well_formed),
        cmocka_unit_test(pages_are_the_same_twice),
        cmocka_unit_test(silhouettes_where_asked_for),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(what_is_wrong_is_told),
        cmocka_unit_test(raw_values_are_not_for_ranking),
        cmocka_unit_test(every_quantity_is_defined),
        cmocka_unit_test(the_picture_says_what_it_shows),
        cmocka_unit_test(pages_hold_the_matrices),
        cmocka_unit_test(even_matrices_have_pages),
        cmocka_unit_test(one_expert_is_no_experts),
        cmocka_unit_test(reports_share_their_scales),
        cmocka_unit_test(marks_tell_the_figures),
        cmocka_unit_test(every_chart_is_a_file),
        cmocka_unit_test(a_checkpoint_is_never_written_into),
        cmocka_unit_test(without_memory_it_is_said),
    };
    if (argc > 1) return write_all(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
