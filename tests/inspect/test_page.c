/* test_page.c - pages and charts of coupling reports: whole, escaped, with the numbers they were
 * given, and never written into a checkpoint. With a folder as argument the program writes the
 * pages of its cases there instead, for tests/report/check_page.py. */
#include "inspect/show.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "check.h"
#include "inspect/coupling_fixture.h"
#include "io/file.h"
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

/* The series of the reports, as --series writes them. */
static json_t *data_of(const opened *o)
{
    cpl_charts charts = {0};
    json_t *data      = json_object();
    assert_ok(cpl_coupling_charts(&charts, o->pointers, o->count));
    assert_ok(cpl_charts_into(data, &charts, NULL));
    return data;
}

static cpl_text page_of(const fixture_case *of)
{
    opened o;
    cpl_text page = {0};
    open_case(&o, of);
    json_t *data = data_of(&o);
    assert_ok(cpl_coupling_page(&page, o.pointers, o.count, data, NULL, NULL, NULL));
    json_decref(data);
    close_case(&o);
    return page;
}

static int64_t layers_with_M(const cpl_coupling_report *report)
{
    int64_t count = 0;
    for (int64_t i = 0; i < report->n_layers; i++) count += report->layers[i].has_M;
    return count;
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

static void pages_are_the_same_twice(void **state)
{
    (void)state;
    cpl_text a = page_of(&cases[1]), b = page_of(&cases[1]);
    assert_string_equal(a.bytes, b.bytes);
    cpl_text_free(&a);
    cpl_text_free(&b);
}

/* The value at `place` of the series with this name. */
static double drawn(const json_t *data, const char *id, const char *name, size_t place)
{
    json_t *chart = chart_at(data, id), *curve;
    size_t i;
    if (!chart) fail_msg("no chart %s", id);
    json_array_foreach(json_object_get(chart, "series"), i, curve)
    {
        const char *is = json_string_value(json_object_get(curve, "name"));
        if (is && strcmp(is, name) == 0)
            return json_number_value(json_array_get(json_object_get(curve, "y"), place));
    }
    fail_msg("%s has no curve %s", id, name);
    return 0;
}

/* Numbers of the centred rows, another in each layer, and lambda. */
static void add_centred(cpl_coupling_report *report)
{
    report->options.lambda = true;
    for (int64_t i = 0; i < report->n_layers; i++) {
        cpl_layer_report *l             = &report->layers[i];
        cpl_centred_report *c           = &l->centred;
        c->has_M                        = l->has_M;
        c->chance.kappa_diagonal        = 0.11 + (double)i;
        c->chance.kappa_off_diagonal    = 0.22 + (double)i;
        c->erc[0]                       = 0.6 + (double)i;
        c->figures.m_diagonal           = 2;
        l->figures.router_lambda        = 0.33 + (double)i;
        c->figures.router_lambda        = 0.44 + (double)i;
        l->figures.router_lambda_random = 0.55 + (double)i;
    }
}

/* Beside those of the rows as stored; of several checkpoints own and other in charts of their own. */
static void centred_rows_and_lambda_are_drawn(void **state)
{
    (void)state;
    for (int k = 0; k < CASES; k++) {
        opened o;
        open_case(&o, &cases[k]);
        json_t *data = data_of(&o);
        assert_null(chart_at(data, "lambda"));
        assert_null(chart_at(data, "centred-erc"));
        json_decref(data);
        for (int64_t i = 0; i < o.count; i++) add_centred(&o.reports[i]);
        data = data_of(&o);
        if (o.count == 1 && o.reports[0].layers[0].has_M) {
            const double kappa = o.reports[0].layers[0].chance.kappa_diagonal;
            assert_near(drawn(data, "centred-kappa", "own", 0), kappa, 1e-5 * kappa);
            assert_near(drawn(data, "centred-kappa", "own, centred", 0), 0.11, 1e-9);
            assert_near(drawn(data, "centred-kappa", "other, centred", 0), 0.22, 1e-9);
            assert_near(drawn(data, "centred-erc", "centred rows", 0), 0.3, 1e-9);
            assert_near(drawn(data, "lambda", "rows as stored", 0), 0.33, 1e-9);
            assert_near(drawn(data, "lambda", "centred rows", 0), 0.44, 1e-9);
            assert_near(drawn(data, "lambda", "random direction", 0), 0.55, 1e-9);
        } else if (o.count > 1) {
            assert_non_null(chart_at(data, "centred-kappa-own"));
            assert_non_null(chart_at(data, "lambda-centred-rows"));
            assert_int_equal(
                json_array_size(json_object_get(chart_at(data, "centred-kappa-other"), "series")),
                2 * (o.count < 3 ? o.count : 3));
        }
        json_decref(data);
        close_case(&o);
    }
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

/* `text` as it is in a page. */
static void assert_in_page(const cpl_text *page, const char *before, const char *text)
{
    cpl_text want = {0};
    cpl_text_printf(&want, "%s", before);
    cpl_markup_text(&want, text);
    if (!strstr(page->bytes, want.bytes)) fail_msg("the page does not say \"%s\"", want.bytes);
    cpl_text_free(&want);
}

/* Of the checkpoint its guess, of each layer what the report says of it, behind the layer's
 * name. */
static void what_is_wrong_is_told(void **state)
{
    opened o;
    int told      = 0;
    cpl_text page = page_of(&cases[2]);
    (void)state;
    open_case(&o, &cases[2]);
    const cpl_coupling_report *r = &o.reports[0];
    assert_in_page(&page, "", r->map.guess);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *layer = &r->layers[i];
        const char *said[]            = {layer->fault, layer->at->note};
        char name[64];
        snprintf(name, sizeof name, ">%s %d: ", layer->at->part, (int)layer->at->layer);
        for (int k = 0; k < 2; k++)
            if (said[k])
                assert_in_page(&page, layer->skipped ? "skipped: " : name, said[k]), told++;
        if (layer->skipped) continue;
        const bool odd = layer->fault || layer->at->biased || !layer->at->comparable ||
                         (layer->has_M && isinf(layer->ratios.most));
        assert_int_equal(strstr(page.bytes, name) != NULL, odd || layer->at->note);
    }
    assert_int_equal(told, 3);
    close_case(&o);
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

/* Every term of the list has its words, and is there once. */
static void every_quantity_is_defined(void **state)
{
    cpl_text page = page_of(&cases[0]);
    (void)state;
    const int64_t terms = count_of(page.bytes, "<dt>");
    assert_true(terms >= 10);
    assert_int_equal(count_of(page.bytes, "<dd>"), terms);
    for (const char *at = page.bytes; (at = strstr(at, "<dt>")); at++) {
        char term[160];
        const char *end = strstr(at, "</dt>");
        assert_non_null(end);
        snprintf(term, sizeof term, "%.*s</dt>", (int)(end - at), at);
        assert_int_equal(count_of(page.bytes, term), 1);
        const char *words = strstr(end, "<dd>");
        assert_true(words && strstr(words, "</dd>") > words + strlen("<dd>") + 20);
    }
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

/* The numbers of base64, little end first; returns how many. */
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

/* The value of a cell as the page's script finds it, times the factor that makes it M. */
static double cell_of(const json_t *heat, uint16_t q)
{
    double low     = json_number_value(json_object_get(heat, "low"));
    double high    = json_number_value(json_object_get(heat, "high"));
    double raw     = json_number_value(json_object_get(heat, "raw_factor"));
    bool log_scale = strcmp(json_string_value(json_object_get(heat, "scale")), "log") == 0;
    if (q == 0 && json_is_true(json_object_get(heat, "zeros"))) return 0;
    return raw * (log_scale ? low * exp(q / 65534.0 * log(high / low))
                            : low + q / 65534.0 * (high - low));
}

/* Four significant digits on a logarithmic scale, a step of the range on a linear one; rows and
 * columns by falling diagonal. */
static void check_matrix(const cpl_layer_report *layer, const json_t *chart)
{
    const json_t *heat = json_object_get(chart, "heat"), *rows = json_object_get(heat, "row_names");
    int64_t n       = layer->at->n;
    uint16_t *cells = fixture_take(n * n, sizeof *cells);
    double most     = 0;
    float last      = INFINITY;
    assert_int_equal(json_integer_value(json_object_get(heat, "rows")), n);
    assert_int_equal(read_words(cells, n * n, json_string_value(json_object_get(heat, "data"))),
                     n * n);
    for (int64_t i = 0; i < n * n; i++) most = fmax(most, layer->M[i]);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = json_integer_value(json_array_get(rows, (size_t)i));
        assert_true(layer->M[row * (n + 1)] <= last);
        last = layer->M[row * (n + 1)];
        for (int64_t k = 0; k < n; k++) {
            const int64_t column = json_integer_value(json_array_get(rows, (size_t)k));
            const double value   = layer->M[row * n + column];
            assert_near(cell_of(heat, cells[i * n + k]), value, 2e-4 * value + 2e-5 * most);
        }
    }
    free(cells);
}

/* The maps of the data are those of the layers with M, in their order. */
static void check_matrices(const opened *o, const json_t *data)
{
    size_t at   = 0;
    json_t *all = json_object_get(json_object_get(data, "series"), "charts"), *chart;
    for (int64_t r = 0; r < o->count; r++)
        for (int64_t i = 0; i < o->reports[r].n_layers; i++) {
            if (!o->reports[r].layers[i].has_M) continue;
            do chart = json_array_get(all, at++);
            while (chart && !json_object_get(chart, "heat"));
            assert_non_null(chart);
            check_matrix(&o->reports[r].layers[i], chart);
        }
    for (; (chart = json_array_get(all, at)); at++) assert_null(json_object_get(chart, "heat"));
}

static void pages_hold_the_matrices(void **state)
{
    (void)state;
    for (int k = 0; k < CASES; k++) {
        opened o;
        open_case(&o, &cases[k]);
        json_t *data = data_of(&o);
        check_matrices(&o, data);
        json_decref(data);
        close_case(&o);
    }
}

/* ---- matrices of hardly any width ---- */

/* Sets M [n,n] to `value` in every layer, with the figures that scale the colours. The layers
 * differ by `apart` of their mean diagonal. */
static void make_even(cpl_coupling_report *report, float value, double apart)
{
    for (int64_t l = 0; l < report->n_layers; l++) {
        cpl_layer_report *layer = &report->layers[l];
        for (int64_t i = 0; i < layer->at->n * layer->at->n; i++) layer->M[i] = value;
        layer->figures.m_diagonal     = value * (1 + apart * (double)l);
        layer->figures.m_off_diagonal = layer->at->n > 1 ? layer->figures.m_diagonal : 0;
    }
}

/* The scale of colours has some width, every M is in its place. */
static void check_even(const fixture_case *of, float value, double apart)
{
    opened o;
    open_case(&o, of);
    for (int64_t r = 0; r < o.count; r++) make_even(&o.reports[r], value, apart);
    json_t *data = data_of(&o);
    const json_t *colours =
        json_object_get(json_object_get(chart_at(data, "coupling-0"), "heat"), "colours");
    const double low  = json_number_value(json_array_get(colours, 0)),
                 high = json_number_value(json_array_get(colours, 1));
    assert_true(high - low > 1e-7 * high);
    check_matrices(&o, data);
    json_decref(data);
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
    cpl_text_free(&page);
}

/* ---- charts ---- */

/* Two checkpoints share their charts: each has its curve, with a colour of its own. */
static void two_checkpoints_share_charts(void **state)
{
    opened o;
    (void)state;
    open_case(&o, &cases[1]);
    json_t *data = data_of(&o);
    for (int v = 0; v < 2; v++) {
        const json_t *curve = curve_at(data, "z-score", (size_t)v);
        assert_int_equal(json_integer_value(json_object_get(curve, "group")), v);
        assert_string_equal(json_string_value(json_object_get(curve, "name")), o.reports[v].name);
        assert_int_equal(points_of(curve), layers_with_M(&o.reports[v]));
    }
    assert_non_null(chart_at(data, "own-share-rows"));
    assert_int_equal(json_array_size(json_object_get(chart_at(data, "eps"), "groups")), 2);
    assert_null(chart_at(data, "z-score-2"));
    json_decref(data);
    close_case(&o);
}

/* The numbers of a chart are those of the report; an infinite alpha_min is marked. */
static void curves_hold_the_figures(void **state)
{
    opened o;
    int64_t infinite = 0;
    (void)state;
    open_case(&o, &cases[2]);
    json_t *data        = data_of(&o);
    const json_t *curve = curve_at(data, "kappa", 0);
    for (int64_t i = 0; i < o.reports[0].n_layers; i++) {
        const cpl_layer_report *layer = &o.reports[0].layers[i];
        const double shown            = value_at(curve, "y", (size_t)i);
        if (!layer->has_M) {
            assert_true(isnan(shown));
            continue;
        }
        assert_near(shown, layer->chance.kappa_diagonal, 1e-5 * fabs(shown));
        infinite += isinf(layer->ratios.most);
    }
    assert_int_equal(points_of(curve), layers_with_M(&o.reports[0]));
    assert_true(infinite > 0);
    assert_int_equal(json_array_size(json_object_get(curve_at(data, "ratios", 3), "infinite")),
                     infinite);
    assert_true(
        json_is_true(json_object_get(json_object_get(chart_at(data, "kappa"), "y"), "zero")));
    json_decref(data);
    close_case(&o);
}

/* A loss of 0 at every alpha is a sentence, not a flat line. */
static void no_loss_is_a_sentence(void **state)
{
    opened o;
    (void)state;
    open_case(&o, &cases[0]);
    for (int64_t i = 0; i < o.reports[0].n_layers; i++)
        for (int k = 0; k < o.reports[0].options.n_alphas; k++) o.reports[0].layers[i].erc[k] = 0;
    json_t *data  = data_of(&o);
    json_t *chart = chart_at(data, "erc-over-alpha");
    assert_int_equal(json_array_size(json_object_get(chart, "series")), 0);
    assert_int_equal(json_array_size(json_object_get(chart, "notes")), 1);
    json_decref(data);
    close_case(&o);
}

/* Curves that cover each other are named. */
static void equal_curves_are_named(void **state)
{
    opened o;
    (void)state;
    open_case(&o, &cases[0]);
    for (int64_t i = 0; i < o.reports[0].n_layers; i++) {
        cpl_null_model *c = &o.reports[0].layers[i].chance;
        c->kappa_row_top1 = c->kappa_column_top1 = 1;
        c->assignment_accuracy                   = 0.5;
    }
    json_t *data  = data_of(&o);
    json_t *notes = json_object_get(chart_at(data, "own-share"), "notes");
    assert_int_equal(json_array_size(notes), 1);
    json_decref(data);
    close_case(&o);
}

/* ---- files ---- */

static void a_checkpoint_is_never_written_into(void **state)
{
    const char *root = scratch_folder();
    char model[128], file[160], inside[160], link_to[160], beside[160], round_about[200];
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

    cpl_folder_remove(root);
}

/* ---- memory ---- */

static cpl_status make_page(cpl_text *page, const opened *o)
{
    cpl_charts charts = {0};
    json_t *data      = json_object();
    cpl_status status = cpl_coupling_charts(&charts, o->pointers, o->count);
    if (status == CPL_OK) status = cpl_charts_into(data, &charts, NULL);
    if (status == CPL_OK)
        status = cpl_coupling_page(page, o->pointers, o->count, data, NULL, NULL, NULL);
    cpl_charts_close(&charts);
    json_decref(data);
    return status;
}

/* Every allocation fails once: that is CPL_ERR_MEMORY, and nothing is lost. */
static void without_memory_it_is_said(void **state)
{
    opened o;
    int64_t n = 0, before, all;
    (void)state;
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
    assert_true(all > 20);
    cpl_text_free(&whole);
    close_case(&o);
}

/* ---- for check_page.py ---- */

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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_need_no_network),
        cmocka_unit_test(pages_are_the_same_twice),
        cmocka_unit_test(silhouettes_where_asked_for),
        cmocka_unit_test(centred_rows_and_lambda_are_drawn),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(what_is_wrong_is_told),
        cmocka_unit_test(raw_values_are_not_for_ranking),
        cmocka_unit_test(every_quantity_is_defined),
        cmocka_unit_test(pages_hold_the_matrices),
        cmocka_unit_test(even_matrices_have_pages),
        cmocka_unit_test(one_expert_is_no_experts),
        cmocka_unit_test(two_checkpoints_share_charts),
        cmocka_unit_test(curves_hold_the_figures),
        cmocka_unit_test(no_loss_is_a_sentence),
        cmocka_unit_test(equal_curves_are_named),
        cmocka_unit_test(a_checkpoint_is_never_written_into),
        cmocka_unit_test(without_memory_it_is_said),
    };
    if (argc > 1) return write_all(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
