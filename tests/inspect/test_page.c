/* test_page.c - pages of coupling reports: whole, escaped, with the given numbers, and never
 * written into a checkpoint. With a folder as argument the program writes the pages of its cases
 * there instead, for tests/report/check_view.py. */
#include "inspect/show/show.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "check.h"
#include "inspect/coupling_fixture.h"
#include "io/file.h"
#include "report/page_check.h"
#include "report/view.h"
#include "support/files.h"

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
    int64_t count;
} opened;

static void open_case(opened *out, const fixture_case *of)
{
    out->count = of->count;
    for (int64_t i = 0; i < of->count; i++) fixture_open(&out->reports[i], of->kinds[i]);
}

static void close_case(opened *out)
{
    for (int64_t i = 0; i < out->count; i++) fixture_close(&out->reports[i]);
}

/* Returns the report of a page: the JSON with its maps. */
static json_t *data_of(const opened *o)
{
    json_t *data = cpl_coupling_json(o->reports, o->count);
    assert_non_null(data);
    assert_ok(cpl_coupling_maps(data, o->reports, o->count));
    return data;
}

static cpl_status make_page(cpl_text *page, const opened *o)
{
    json_t *data      = cpl_coupling_json(o->reports, o->count);
    cpl_pool pool     = {0};
    cpl_grid grid     = {0};
    cpl_text verdict  = {0};
    cpl_status status = data ? cpl_coupling_maps(data, o->reports, o->count) : CPL_ERR_MEMORY;
    cpl_coupling_verdict(&verdict, &o->reports[0]);
    if (status == CPL_OK) status = cpl_text_status(&verdict);
    if (status == CPL_OK) status = cpl_inspect_grid_compare(&grid, &pool, o->reports, o->count);
    const cpl_view view = LIST(.kind = "inspect", .title = o->reports[0].name, .report = data,
                               .sentences = verdict.bytes, .main = &grid);
    if (status == CPL_OK) status = cpl_view_page(page, &view);
    json_decref(data);
    cpl_text_free(&verdict);
    cpl_pool_free(&pool);
    return status;
}

static cpl_text page_of(const fixture_case *of)
{
    opened o;
    cpl_text page = {0};
    open_case(&o, of);
    assert_ok(make_page(&page, &o));
    close_case(&o);
    return page;
}

/* ---- the page ---- */

/* A row of the comparison is left out only where no report has its figure. */
TEST(a_comparison_has_the_rows_of_every_report)
{
    fixture_kind bare = fixture_small;
    opened o          = {.count = 2};
    cpl_pool pool     = {0};
    cpl_grid grid     = {0};
    bare.n_layers     = 1;
    bare.without_M    = 0;
    fixture_open(&o.reports[0], &bare);
    fixture_open(&o.reports[1], &fixture_small);
    assert_ok(cpl_inspect_grid_compare(&grid, &pool, o.reports, 2));
    assert_string_equal(grid.rows[0], "alignment with the own expert (kappa)");
    assert_string_equal(grid.cells[0], "-");
    assert_string_not_equal(grid.cells[1], "-");
    for (int64_t k = 0; k < grid.n_rows; k++) assert_null(strstr(grid.rows[k], "silhouette"));
    cpl_pool_free(&pool);
    close_case(&o);
}

TEST(pages_need_no_network)
{
    for (int i = 0; i < CASES; i++) {
        cpl_text page = page_of(&cases[i]);
        check_page(&page);
        cpl_text_free(&page);
    }
}

TEST(pages_are_the_same_twice)
{
    cpl_text a = page_of(&cases[1]), b = page_of(&cases[1]);
    assert_string_equal(a.bytes, b.bytes);
    cpl_text_free(&a);
    cpl_text_free(&b);
}

TEST(names_are_escaped)
{
    cpl_text page = page_of(&cases[2]);
    assert_null(strstr(page.bytes, "<b>"));
    assert_null(strstr(page.bytes, "[0,<7>]"));
    assert_true(count_of(page.bytes, "&lt;b&gt;&amp;&quot;x") >= 2); /* title and heading */
    assert_non_null(strstr(page.bytes, "router & mlp.w1"));
    assert_non_null(strstr(page.bytes, "[0,\\u003c7>]"));
    cpl_text_free(&page);
}

/* The layers of a report in the JSON have their quantiles and the figures of the verdict. */
TEST(summaries_are_those_of_the_layers)
{
    opened o;
    open_case(&o, &cases[0]);
    json_t *data                 = data_of(&o);
    const cpl_coupling_summary s = cpl_coupling_summary_of(&o.reports[0]);
    json_t *stored               = json_object_get(json_object_get(data, "summary"), "stored");
    double own = 0, z = 0;
    for (int64_t i = 0; i < o.reports[0].n_layers; i++) {
        const cpl_layer_report *l = &o.reports[0].layers[i];
        json_t *layer             = json_array_get(json_object_get(data, "layers"), (size_t)i);
        json_t *eps               = json_object_get(json_object_get(layer, "quantiles"), "eps");
        own += l->chance.kappa_row_top1 / (double)o.reports[0].n_layers;
        z += l->chance.z / sqrt((double)o.reports[0].n_layers);
        assert_near(json_real_value(json_object_get(eps, "low")), l->figures.eps_min, 1e-12);
        assert_near(json_real_value(json_object_get(eps, "high")), l->figures.eps_max, 1e-12);
        assert_near(json_real_value(json_object_get(eps, "mean")), l->figures.eps_mean, 1e-6);
    }
    assert_near(json_real_value(json_object_get(stored, "own")), own, 1e-12);
    assert_near(json_real_value(json_object_get(stored, "z")), z, 1e-9);
    assert_near(s.own_by_chance, 1.0 / 8, 1e-12);
    json_decref(data);
    close_case(&o);
}

/* ---- matrices ---- */

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at             = strchr(digits, c);
    assert_non_null(at);
    return (int)(at - digits);
}

/* Decodes the numbers of base64, little-endian, and returns how many there are. */
static int64_t read_words(uint16_t *out, int64_t most, const char *s)
{
    uint32_t word = 0, bytes = 0, have = 0;
    int64_t n = 0;
    int bits  = 0;
    for (; *s && *s != '='; s++) {
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

/* Returns the value of a cell as the page's script computes it. */
static double cell_of(const json_t *map, uint16_t q)
{
    const double low  = json_number_value(json_object_get(map, "low")),
                 high = json_number_value(json_object_get(map, "high"));
    return q ? low * pow(high / low, (q - 1) / 65534.0) : 0;
}

/* Checks each number of a map to one step of the logarithmic scale. */
static void check_matrix(const cpl_layer_report *layer, const json_t *map)
{
    const int64_t n   = layer->at->n;
    const double low  = json_number_value(json_object_get(map, "low")),
                 high = json_number_value(json_object_get(map, "high")),
                 step = log(high / low) / 65534;
    uint16_t *cells   = fixture_take(n * n, sizeof *cells);
    assert_true(low > 0 && high > low);
    assert_int_equal(json_integer_value(json_object_get(map, "rows")), n);
    assert_int_equal(json_integer_value(json_object_get(map, "columns")), n);
    assert_int_equal(read_words(cells, n * n, json_string_value(json_object_get(map, "data"))),
                     n * n);
    for (int64_t i = 0; i < n * n; i++) {
        const double value = (double)layer->M[i];
        assert_near(cell_of(map, cells[i]), value, (step + 1e-8) * value);
    }
    free(cells);
}

/* Checks that every layer with M has its map, and that no other layer has a map. */
static void check_matrices(const opened *o, const json_t *data)
{
    for (int64_t r = 0; r < o->count; r++) {
        json_t *all    = json_object_get(data, "checkpoints");
        json_t *layers = json_object_get(all ? json_array_get(all, (size_t)r) : data, "layers");
        size_t at      = 0;
        for (int64_t i = 0; i < o->reports[r].n_layers; i++) {
            const cpl_layer_report *l = &o->reports[r].layers[i];
            if (l->fault) continue;
            json_t *map = json_object_get(json_array_get(layers, at++), "map");
            assert_int_equal(map != NULL, l->has_M);
            if (map) check_matrix(l, map);
        }
        assert_int_equal(json_array_size(layers), at);
    }
}

TEST(pages_hold_the_matrices)
{
    for (int k = 0; k < CASES; k++) {
        opened o;
        open_case(&o, &cases[k]);
        json_t *data = data_of(&o);
        check_matrices(&o, data);
        json_decref(data);
        close_case(&o);
    }
}

/* ---- matrices of nearly equal numbers ---- */

/* Checks a matrix of equal numbers: the scale has some width, and every M its place in it. */
static void check_even(const fixture_case *of, float value)
{
    opened o;
    open_case(&o, of);
    for (int64_t l = 0; l < o.reports[0].n_layers; l++) {
        cpl_layer_report *layer = &o.reports[0].layers[l];
        for (int64_t i = 0; i < layer->at->n * layer->at->n; i++) layer->M[i] = value;
    }
    json_t *data = data_of(&o);
    check_matrices(&o, data);
    json_decref(data);
    close_case(&o);
}

TEST(even_matrices_have_pages)
{
    static const float values[] = {1, 0, 0.3f, 1e-45f, 3e38f};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        check_even(&cases[0], values[v]);
        check_even(&cases[3], values[v]);
    }
}

/* ---- files ---- */

TEST(a_checkpoint_is_never_written_into)
{
    const char *root = scratch_folder(), *model = in_folder(root, "model");
    const char *file   = in_folder(model, "model.safetensors");
    const char *inside = in_folder(model, "new/charts"), *beside = in_folder(root, "model2");
    const char *link_to            = in_folder(root, "link");
    const char *const refused[][2] = {
        {model, model},
        {inside, model},
        {link_to, model},
        {inside, link_to},
        {in_folder(root, "not/there/../../model/./x"), model},
        {file, file},
    };
    assert_int_equal(mkdir(model, 0755), 0);
    assert_int_equal(symlink("model", link_to), 0);
    write_string(file, "x");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_fails(CPL_ERR_INPUT, "where nothing is written",
                     cpl_path_guard_check(refused[i][0], refused[i][1]));
    assert_ok(cpl_path_guard_check(beside, model));
    assert_ok(cpl_path_guard_check(root, model));
    assert_ok(cpl_path_guard_check("charts", model));
    assert_ok(cpl_path_guard_check(inside, "/no/such/checkpoint"));
    assert_ok(cpl_path_guard_check(inside, file)); /* a file in another user's folder */
    write_string(in_folder(model, "config.json"), "{}");
    assert_fails(CPL_ERR_INPUT, "where nothing is written", cpl_path_guard_check(inside, file));
    assert_ok(cpl_path_guard_check(beside, file));
}

/* ---- memory ---- */

/* Every allocation fails once. The error is CPL_ERR_MEMORY, and no memory is lost. */
TEST(without_memory_it_is_said)
{
    opened o;
    int64_t n = 0, before, all;
    open_case(&o, &cases[3]);
    cpl_text whole = {0};
    before         = cpl_alloc_count();
    assert_ok(make_page(&whole, &o));
    all = cpl_alloc_count() - before;
    for (n = 1; n <= all; n++) {
        cpl_text page = {0};
        cpl_alloc_fail_at(n);
        cpl_status status = make_page(&page, &o);
        cpl_alloc_fail_at(0);
        assert_int_equal(status, CPL_ERR_MEMORY);
        cpl_text_free(&page);
    }
    assert_true(all > 10);
    cpl_text_free(&whole);
    close_case(&o);
}

/* ---- for check_view.py ---- */

static int write_all(const char *folder)
{
    for (int i = 0; i < CASES; i++) {
        char path[512];
        cpl_text page = page_of(&cases[i]);
        snprintf(path, sizeof path, "%s/%s.html", folder, cases[i].name);
        cpl_status status = cpl_file_write_atomic(path, page.bytes, page.length);
        cpl_text_free(&page);
        if (status != CPL_OK) return 1;
    }
    return 0;
}

TESTS_DO(with_argument, write_all);
