/* test_chart.c - charts: well-formed whatever they are given, as many marks as data, ticks that cover
 * the range, colours that mean what they say. */
#include "report/chart.h"

#include <float.h>
#include <math.h>

#include "base/arena.h"
#include "check.h"
#include "report/chart_internal.h"
#include "report/xml_check.h"

static const char evil[] = "<b>&\"'x\x01\xff\xc3\x28</text>";

static double random_unit(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* ---- markup ---- */

static void assert_markup(const char *string, const char *want)
{
    cpl_text out = {0};
    cpl_markup_text(&out, string);
    assert_string_equal(out.bytes ? out.bytes : "", want);
    cpl_text_free(&out);
}

static void text_is_escaped(void **state)
{
    (void)state;
    assert_markup("", "");
    assert_markup("a<b>&\"'c", "a&lt;b&gt;&amp;&quot;&#39;c");
    assert_markup("a\x01\x7f\xff\xc3\xa9", "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xc3\xa9");
    assert_markup("\xEF\xBF\xBE", "\xEF\xBF\xBD"); /* U+FFFE is none of XML's */
}

static void long_text_is_cut(void **state)
{
    cpl_text out = {0};
    (void)state;
    cpl_markup_cut(&out, "abcdefghij", 10);
    assert_string_equal(out.bytes, "abcdefghij");
    cpl_text_clear(&out);
    cpl_markup_cut(&out, "<bcdefghijé", 7);
    assert_string_equal(out.bytes, "&lt;bc…ijé");
    assert_int_equal(cpl_markup_length("é<\xff"), 3);
    cpl_text_free(&out);
}

static void assert_figure(double value, int digits, const char *want)
{
    char out[48];
    assert_string_equal(cpl_markup_figure(out, value, digits), want);
}

static void figures_are_for_people(void **state)
{
    (void)state;
    assert_figure(0, 4, "0");
    assert_figure(-1.25, 3, "−1.25");
    assert_figure(0.00012345, 3, "0.000123");
    assert_figure(0.000012345, 3, "1.23e−5");
    assert_figure(-3e120, 1, "−3e120");
    assert_figure(123456, 3, "123456");
    assert_figure(INFINITY, 3, "∞");
    assert_figure(NAN, 3, "–");
}

/* The examples of RFC 4648. */
static void base64_is_the_standards(void **state)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        cpl_text out = {0};
        cpl_markup_base64(&out, (const unsigned char *)pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(out.bytes ? out.bytes : "", pairs[i][1]);
        cpl_text_free(&out);
    }
}

/* ---- axes ---- */

static void check_axis(cpl_chart_range data, bool log)
{
    cpl_chart_axis axis = cpl_chart_axis_of((cpl_chart_range){0, 0}, data, log);
    const double slack  = 1e-9; /* relative: multiples of a step are rounded */
    double width        = axis.high - axis.low;
    assert_true(axis.low <= data.low + slack * width && axis.high >= data.high - slack * width);
    assert_in_range(axis.n_ticks, 2, 12);
    assert_near(axis.ticks[0], axis.low, log && axis.n_ticks < 4 ? width : slack * width);
    if (!log) {
        assert_near(axis.ticks[axis.n_ticks - 1], axis.high, slack * width);
        for (int i = 1; i < axis.n_ticks; i++)
            assert_near(axis.ticks[i] - axis.ticks[i - 1], axis.step, slack * width);
        assert_true(width <= 3 * fmax(data.high - data.low, 1e-6 * fabs(data.high)) ||
                    data.high - data.low < 1e-5 * fabs(data.high));
    }
    for (int i = 0; i < axis.n_ticks; i++) {
        double share = cpl_chart_axis_at(&axis, axis.ticks[i]);
        assert_true(share >= -slack && share <= 1 + slack);
        if (i) assert_true(axis.ticks[i] > axis.ticks[i - 1]);
    }
}

static void ticks_cover_the_range(void **state)
{
    uint64_t seed = 5;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        double size = pow(10, 24 * random_unit(&seed) - 12), at = 2 * random_unit(&seed) - 1;
        double low = size * at, width = size * pow(10, -4 * random_unit(&seed));
        check_axis((cpl_chart_range){low, low + width}, false);
        check_axis((cpl_chart_range){size, size * pow(10, 9 * random_unit(&seed))}, true);
    }
}

/* No two ticks of an axis look the same. */
static void labels_differ(void **state)
{
    uint64_t seed = 6;
    char a[48], b[48];
    (void)state;
    for (int i = 0; i < 5000; i++) {
        double size = pow(10, 16 * random_unit(&seed) - 8), low = size * random_unit(&seed);
        cpl_chart_range data = {low, low + size * pow(10, -2 * random_unit(&seed))};
        cpl_chart_axis axis  = cpl_chart_axis_of((cpl_chart_range){0, 0}, data, i % 2);
        for (int k = 1; k < axis.n_ticks; k++)
            assert_string_not_equal(cpl_chart_axis_label(a, &axis, k),
                                    cpl_chart_axis_label(b, &axis, k - 1));
    }
}

static void strange_ranges_have_axes(void **state)
{
    static const double values[] = {0,      1,      -1,    DBL_MAX,         -DBL_MAX, DBL_MIN,
                                    5e-324, 1e-300, 1e300, 1 + DBL_EPSILON, -1e-9};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++)
            for (int log = 0; log < 2; log++) {
                cpl_chart_range seen = cpl_chart_range_none();
                cpl_chart_range_add(&seen, values[i]);
                cpl_chart_range_add(&seen, values[k]);
                cpl_chart_range_add(&seen, NAN);
                cpl_chart_range_add(&seen, -INFINITY);
                cpl_chart_axis axis = cpl_chart_axis_of((cpl_chart_range){0, 0}, seen, log);
                assert_true(isfinite(axis.low) && isfinite(axis.high) && axis.low < axis.high);
                double share = cpl_chart_axis_at(&axis, values[i]);
                if (!(share >= 0 && share <= 1))
                    fail_msg("%g to %g: %g", values[i], values[k], share);
                assert_true(axis.n_ticks >= 1 && axis.n_ticks <= CPL_CHART_MOST_TICKS);
            }
}

/* Whatever is asked for or seen, the axis is there: finite, with ticks that rise, lie in the range and
 * can be told apart. */
static void check_any_axis(cpl_chart_range asked, cpl_chart_range seen, bool log)
{
    cpl_chart_axis axis = cpl_chart_axis_of(asked, seen, log);
    char a[48], b[48];
    if (!isfinite(axis.low) || !isfinite(axis.high) || !(axis.low < axis.high) ||
        (log && !(axis.low > 0)) || axis.n_ticks < 2 || axis.n_ticks > CPL_CHART_MOST_TICKS)
        fail_msg("asked %.17g to %.17g, seen %.17g to %.17g, log %d: %.17g to %.17g, %d ticks",
                 asked.low, asked.high, seen.low, seen.high, log, axis.low, axis.high,
                 axis.n_ticks);
    double over = 1e-9 * (log ? axis.high : axis.high - axis.low);
    for (int i = 0; i < axis.n_ticks; i++) {
        double share = cpl_chart_axis_at(&axis, axis.ticks[i]);
        if (!(axis.ticks[i] >= axis.low - over && axis.ticks[i] <= axis.high + over) ||
            !(share >= 0 && share <= 1))
            fail_msg("%.17g to %.17g, log %d: tick %.17g", axis.low, axis.high, log, axis.ticks[i]);
        if (i == 0) continue;
        assert_true(axis.ticks[i] > axis.ticks[i - 1]);
        cpl_chart_axis_label(a, &axis, i);
        cpl_chart_axis_label(b, &axis, i - 1);
        if (strcmp(a, b) == 0) fail_msg("%.17g to %.17g: %s twice", axis.low, axis.high, a);
    }
}

/* A range of each kind at `at`: alone, as what is asked for and as what is seen. */
static void check_ranges_at(double at, double width)
{
    const cpl_chart_range none = {0, 0}, unit = {0, 1},
                          ranges[] = {{at, at + width},
                                      {-at - width, -at},
                                      {-at, width},
                                      {at, nextafter(at, INFINITY)}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int log = 0; log < 2; log++) {
            check_any_axis(ranges[i], unit, log);
            check_any_axis(none, ranges[i], log);
            check_any_axis(ranges[i], ranges[i], log);
            cpl_chart_range shown = cpl_chart_range_shown(ranges[i], log);
            cpl_chart_range again = cpl_chart_range_shown(shown, log);
            assert_true(shown.low < shown.high);
            if (again.low != shown.low || again.high != shown.high)
                fail_msg("shown %.17g to %.17g, then %.17g to %.17g", shown.low, shown.high,
                         again.low, again.high);
        }
}

static void axes_of_any_width_have_ticks(void **state)
{
    (void)state;
    for (int power = -323; power <= 308; power += power > -10 && power < 20 ? 1 : 9)
        for (int lead = 1; lead < 10; lead += 4) {
            double at = fmin(lead * pow(10, power), DBL_MAX);
            check_ranges_at(at, 0);
            for (int narrow = -20; narrow <= 20; narrow++)
                check_ranges_at(at, fmin(at * pow(10, narrow), DBL_MAX - at));
        }
    check_ranges_at(DBL_MAX, 0);
    check_ranges_at(5e-324, 5e-324);
    check_ranges_at(9007199254740992, 2); /* 2^53, from where on adding 1 changes nothing */
    check_any_axis((cpl_chart_range){-DBL_MAX, DBL_MAX}, (cpl_chart_range){0, 0}, false);
    check_any_axis((cpl_chart_range){5e-324, DBL_MAX}, (cpl_chart_range){0, 0}, true);
    check_any_axis((cpl_chart_range){NAN, 1}, (cpl_chart_range){0, 0}, false);
    check_any_axis((cpl_chart_range){2, 1}, cpl_chart_range_none(), true);
}

/* A range that is wide enough is shown as it was asked for; a narrower one holds what was asked. */
static void asked_ranges_are_kept_or_widened(void **state)
{
    static const double widths[] = {1e-16, 1e-12, 1e-9, 5e-7, 2e-6, 1e-3, 0.3, 7};
    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int log = 0; log < 2; log++) {
            cpl_chart_range asked = {1.2345, 1.2345 * (1 + widths[i])};
            cpl_chart_axis axis   = cpl_chart_axis_of(asked, (cpl_chart_range){0, 1}, log);
            assert_true(axis.low <= asked.low && axis.high >= asked.high);
            if (widths[i] > 1e-6)
                assert_true(axis.low == asked.low && axis.high == asked.high);
            else
                assert_true(axis.high - axis.low > 0.5);
        }
}

/* Given to a chart, a rounded range is the one the chart would have taken itself. */
static void rounding_twice_changes_nothing(void **state)
{
    uint64_t seed = 7;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        double low = 10 * random_unit(&seed) - 5, high = low + pow(10, 6 * random_unit(&seed) - 3);
        cpl_chart_range once  = cpl_chart_range_round((cpl_chart_range){low, high}, false);
        cpl_chart_range twice = cpl_chart_range_round(once, false);
        assert_near(twice.low, once.low, 1e-9 * (once.high - once.low));
        assert_near(twice.high, once.high, 1e-9 * (once.high - once.low));
        cpl_chart_axis axis = cpl_chart_axis_of(once, once, false);
        assert_near(axis.ticks[0], once.low, 1e-9 * (once.high - once.low));
        assert_near(axis.ticks[axis.n_ticks - 1], once.high, 1e-9 * (once.high - once.low));
    }
}

/* ---- colours ---- */

/* CIE lightness of an sRGB colour. */
static double lightness(uint32_t rgb)
{
    static const double weights[] = {0.0722, 0.7152, 0.2126}; /* blue, green, red */
    double y                      = 0;
    for (int k = 0; k < 3; k++) {
        double c = (rgb >> (8 * k) & 255) / 255.0;
        y += weights[k] * (c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4));
    }
    return y > 0.008856 ? 116 * cbrt(y) - 16 : 903.3 * y;
}

static void heat_colours_are_even(void **state)
{
    (void)state;
    assert_int_equal(cpl_chart_heat_colour(-1), 0x440154);
    assert_int_equal(cpl_chart_heat_colour(0), 0x440154);
    assert_int_equal(cpl_chart_heat_colour(1), 0xfde725);
    assert_int_equal(cpl_chart_heat_colour(7), 0xfde725);
    double first = lightness(0x440154), last = lightness(0xfde725);
    for (int i = 1; i <= 32; i++) {
        double step = lightness(cpl_chart_heat_colour(i / 32.0)) -
                      lightness(cpl_chart_heat_colour((i - 1) / 32.0));
        assert_near(step, (last - first) / 32, 0.5 * (last - first) / 32);
    }
}

static void a_page_takes_variables_and_a_file_none(void **state)
{
    cpl_text file = {0}, page = {0}, colours = {0};
    (void)state;
    cpl_chart_style(&file, false);
    cpl_chart_style(&page, true);
    cpl_chart_colours(&colours, true);
    assert_null(strstr(file.bytes, "var("));
    assert_null(strchr(file.bytes, '$'));
    assert_null(strchr(page.bytes, '$'));
    assert_null(strchr(page.bytes, '#'));
    for (const char *at = page.bytes; (at = strstr(at, "var(")); at += 4) {
        char name[24];
        snprintf(name, sizeof name, "%.*s:", (int)strcspn(at + 4, ")"), at + 4);
        assert_non_null(strstr(colours.bytes, name));
    }
    cpl_text_free(&file);
    cpl_text_free(&page);
    cpl_text_free(&colours);
}

/* ---- lines ---- */

static const double steps[] = {0, 1, 2, 3, 4, 5};

static cpl_chart evil_chart(void)
{
    static const char *const names[]    = {evil, evil, "2", "3", "4", "5"};
    static const cpl_chart_part parts[] = {{evil, 0, 2}, {"b", 3, 5}};
    static const cpl_chart_rule rules[] = {{0.5, evil}};
    return (cpl_chart){.title        = evil,
                       .subtitle     = evil,
                       .note         = evil,
                       .x_label      = evil,
                       .y_label      = evil,
                       .x_names      = names,
                       .n_x_names    = 6,
                       .x_parts      = parts,
                       .n_x_parts    = 2,
                       .rules        = rules,
                       .n_rules      = 1,
                       .legend_title = evil,
                       .ramp_names   = {evil, evil}};
}

static void lines_have_a_mark_for_each_value(void **state)
{
    const double y[] = {1, NAN, 3, INFINITY, 0.5, 2}, low[] = {0, 1, NAN, 1, 1, 1};
    const double high[]       = {1, 2, 3, INFINITY, 2, 2};
    cpl_chart_series series[] = {{.name = evil, .x = steps, .y = y, .n = 6},
                                 {.name = evil, .low = low, .high = high, .n = 6, .colour = -1},
                                 {.name = "r", .y = y, .n = 6, .ramp = true, .share = 0.4}};
    (void)state;
    for (int way = 0; way < 8; way++) {
        cpl_text out = {0}, again = {0};
        cpl_chart chart = evil_chart();
        chart.direct    = way & 1;
        chart.in_page   = way & 2;
        chart.log_y     = way & 4;
        if (way & 1) chart.n_x_names = chart.n_x_parts = 0;
        cpl_chart_lines(&out, &chart, series, 3);
        cpl_chart_lines(&again, &chart, series, 3);
        assert_string_equal(out.bytes, again.bytes);
        xml_check(out.bytes);
        assert_int_equal(count_of(out.bytes, "<circle class=\"c-dot\""), 8);
        assert_int_equal(count_of(out.bytes, ">∞<title>"), 2);
        assert_int_equal(count_of(out.bytes, "<path class=\"c-band\""), 1);
        assert_int_equal(count_of(out.bytes, "Z"), 2); /* two stretches of the band */
        assert_null(strstr(out.bytes, "<b>"));
        cpl_text_free(&out);
        cpl_text_free(&again);
    }
}

/* One path in two stretches, with the y of each point where a plain formula has it. */
static void a_gap_breaks_the_line(void **state)
{
    const double y[]        = {0, 1, NAN, 1, 0.25, NAN};
    cpl_chart_series series = {.x = steps, .y = y, .n = 6};
    cpl_chart chart         = {.y = {0, 1}, .x = {0, 5}, .in_page = true};
    cpl_text out            = {0};
    double x1, y1, x2, y2, x3, y3, x4, y4;
    (void)state;
    cpl_chart_lines(&out, &chart, &series, 1);
    xml_check(out.bytes);
    const char *d = strstr(out.bytes, "<path class=\"c-line\" d=\"");
    assert_non_null(d);
    assert_int_equal(sscanf(d, "<path class=\"c-line\" d=\"M%lf %lfL%lf %lfM%lf %lfL%lf %lf\"", &x1,
                            &y1, &x2, &y2, &x3, &y3, &x4, &y4),
                     8);
    const double rounding = 0.011; /* two decimals, twice */
    assert_near(x3 - x1, 3 * (x2 - x1), 3 * rounding);
    assert_near(y3, y2, rounding);
    assert_near(y4, y1 + (y2 - y1) / 4, rounding);
    assert_true(y2 < y1);
    cpl_text_free(&out);
}

static void nothing_is_said(void **state)
{
    const double y[]        = {NAN, -INFINITY};
    cpl_chart_series series = {.y = y, .n = 2};
    cpl_chart chart         = {.title = "empty"};
    cpl_text out            = {0};
    (void)state;
    cpl_chart_lines(&out, &chart, &series, 1);
    cpl_chart_lines(&out, &chart, NULL, 0);
    assert_int_equal(count_of(out.bytes, "no values"), 2);
    cpl_text_free(&out);
}

static void values_beyond_the_range_stay_at_its_edge(void **state)
{
    const double y[] = {1e300, -1e300, 0.5}, x[] = {-7, 1e200, 1};
    cpl_chart_series series = {.x = x, .y = y, .n = 3};
    cpl_chart chart         = {.x = {0, 2}, .y = {0, 1}, .width = 200, .height = 100};
    cpl_text out            = {0};
    (void)state;
    cpl_chart_lines(&out, &chart, &series, 1);
    xml_check(out.bytes); /* which refuses coordinates off the sheet */
    assert_int_equal(count_of(out.bytes, "<circle class=\"c-dot\""), 3);
    cpl_text_free(&out);
}

/* Names at the ends of lines stand at least their height apart. */
static void direct_names_do_not_overlap(void **state)
{
    enum { N = 9 };
    double y[N][2], at[N];
    cpl_chart_series series[N];
    cpl_chart chart = {.direct = true};
    cpl_text out    = {0};
    int n           = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        y[i][0] = y[i][1] = i < 5 ? 0.001 * i : 1 - 0.001 * i;
        series[i]         = (cpl_chart_series){.name = "s", .y = y[i], .n = 2, .colour = i % 8};
    }
    cpl_chart_lines(&out, &chart, series, N);
    for (const char *s = out.bytes; (s = strstr(s, "<text class=\"c-key c-own")); s++)
        assert_int_equal(sscanf(strstr(s, "y=\""), "y=\"%lf", &at[n++]), 1);
    assert_int_equal(n, N);
    for (int i = 1; i < N; i++) assert_true(at[i] - at[i - 1] >= 11.9);
    assert_true(at[0] > 8 && at[N - 1] < 248); /* on the sheet */
    cpl_text_free(&out);
}

/* ---- spread ---- */

/* numpy.quantile of the same eleven numbers. */
static void quantiles_are_numpys(void **state)
{
    const double values[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
    const double broken[] = {1, NAN};
    cpl_chart_box box;
    (void)state;
    assert_ok(cpl_chart_box_of(&box, values, 11));
    assert_near(box.least, 1, 0);
    assert_near(box.q5, 1, 1e-15);
    assert_near(box.q25, 2.5, 1e-15);
    assert_near(box.q50, 4, 1e-15);
    assert_near(box.q75, 5, 1e-15);
    assert_near(box.q95, 7.5, 1e-14);
    assert_near(box.most, 9, 0);
    assert_near(box.mean, 4, 1e-15);
    assert_ok(cpl_chart_box_of(&box, values, 1));
    assert_near(box.q5, 3, 0);
    assert_ok(cpl_chart_box_of(&box, NULL, 0));
    assert_true(isnan(box.least));
    assert_ok(cpl_chart_box_of(&box, broken, 2));
    assert_true(isnan(box.mean));
}

static void spread_has_a_box_for_each_place(void **state)
{
    cpl_chart_box boxes[6]   = {{1, 2, 3, 4, 5, 6, 7, 4}, {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN},
                                {1, 1, 1, 1, 1, 1, 1, 1}, {0, 2, 3, 4, 5, 6, 7, 4},
                                {1, 2, 3, 4, 5, 6, 9, 4}, {-1, 2, 3, 4, 5, 6, 7, 4}};
    cpl_chart_group groups[] = {{evil, boxes, 0}, {"b", boxes, 1}};
    (void)state;
    for (int log = 0; log < 2; log++) {
        cpl_text out    = {0};
        cpl_chart chart = evil_chart();
        chart.log_y     = log;
        cpl_chart_spread(&out, &chart, groups, 2);
        xml_check(out.bytes);
        assert_int_equal(count_of(out.bytes, "<g class=\"c-spread\">"), log ? 6 : 10);
        assert_null(strstr(out.bytes, "<b>"));
        cpl_text_free(&out);
    }
}

/* ---- heat ---- */

/* Reads the paths back into a matrix of colours. */
static void read_cells(uint32_t *cells, int64_t n, const char *svg)
{
    const char *s = strstr(svg, "<g class=\"c-cells\""), *end = strstr(s, "</g>");
    for (; (s = strstr(s, "<path fill=\"#")) && s < end; s++) {
        uint32_t colour = (uint32_t)strtoul(s + 13, NULL, 16);
        for (const char *run = strchr(s, 'M'); *run == 'M';) {
            int x, y, w, back, used;
            assert_int_equal(sscanf(run, "M%d %dh%dv1h-%dz%n", &x, &y, &w, &back, &used), 4);
            assert_int_equal(w, back);
            for (int k = 0; k < w; k++) {
                assert_true(x + k < n && y < n && cells[y * n + x + k] == 0);
                cells[y * n + x + k] = colour;
            }
            run += used;
        }
    }
}

static void every_cell_has_the_colour_of_its_value(void **state)
{
    enum { N = 19 };
    float values[N * N];
    int32_t order[N];
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < N * N; i++) values[i] = (float)(4 * random_unit(&seed));
    for (int i = 0; i < N; i++) order[i] = (i * 7 + 3) % N;
    values[5] = NAN;
    values[6] = 0;
    for (int log_scale = 0; log_scale < 2; log_scale++) {
        uint32_t cells[N * N]   = {0};
        cpl_text out            = {0};
        cpl_chart chart         = evil_chart();
        cpl_chart_matrix matrix = {values, order, N, 0.5, {0.1, 1.9}, log_scale, evil, 0};
        cpl_chart_heat(&out, &chart, &matrix);
        xml_check(out.bytes);
        assert_null(strstr(out.bytes, "<b>"));
        read_cells(cells, N, out.bytes);
        for (int r = 0; r < N; r++)
            for (int c = 0; c < N; c++) {
                double v = 0.5 * values[order[r] * N + order[c]];
                double s = log_scale ? log(v / 0.1) / log(19) : (v - 0.1) / 1.8;
                int k    = (int)floor(64 * fmin(fmax(s, 0), 0.9999999));
                if (isnan(v))
                    assert_int_equal(cells[r * N + c], 0);
                else
                    assert_int_equal(cells[r * N + c], cpl_chart_heat_colour((k + 0.5) / 64));
            }
        assert_int_equal(count_of(strstr(out.bytes, "c-bar"), "<rect"), 64);
        cpl_text_free(&out);
    }
}

/* A matrix with more columns than rows fills the chart; its cells are no squares. */
static void a_matrix_may_be_wide(void **state)
{
    enum { ROWS = 3, COLUMNS = 30 };
    float values[ROWS * COLUMNS];
    uint32_t cells[COLUMNS * COLUMNS] = {0};
    cpl_text out                      = {0};
    cpl_chart chart                   = {.title = "wide"};
    cpl_chart_matrix matrix           = {values, NULL, ROWS, 1, {0, 1}, false, "x", COLUMNS};
    double left, top, width, height;
    (void)state;
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)(i * 7 % 90) / 90;
    cpl_chart_heat(&out, &chart, &matrix);
    xml_check(out.bytes);
    read_cells(cells, COLUMNS, out.bytes);
    for (int r = 0; r < COLUMNS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            int level = r < ROWS ? (int)(64 * (double)values[r * COLUMNS + c]) : 0;
            assert_int_equal(cells[r * COLUMNS + c],
                             r < ROWS ? cpl_chart_heat_colour((level + 0.5) / 64) : 0);
        }
    assert_int_equal(sscanf(strstr(out.bytes, "translate("), "translate(%lf %lf) scale(%lf %lf)",
                            &left, &top, &width, &height),
                     4);
    assert_true(left + COLUMNS * width < 360 && top + ROWS * height < 370);
    assert_true(COLUMNS * width > 200 && ROWS * height > 250);
    assert_non_null(strstr(out.bytes, ">28</text>")); /* every fourth column has its number */
    assert_null(strstr(out.bytes, ">27</text>"));
    assert_non_null(strstr(out.bytes, ">2</text>")); /* and every row */
    cpl_text_free(&out);
}

/* Matrices and bars of a range that is hardly one, or none. */
static void narrow_ranges_have_colours(void **state)
{
    static const cpl_chart_range ranges[] = {{1, 1},      {1, 1 + DBL_EPSILON}, {0, 0},
                                             {0, 5e-324}, {DBL_MAX, DBL_MAX},   {1e15, 1e15 + 1}};
    const float values[]                  = {1, 0, 3e38f, 1e-45f};
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int log_scale = 0; log_scale < 2; log_scale++) {
            uint32_t cells[4]       = {0};
            cpl_text out            = {0};
            cpl_chart chart         = {.title = "narrow"};
            cpl_chart_matrix matrix = {values, NULL, 2, 1, ranges[i], log_scale, NULL, 0};
            cpl_chart_heat(&out, &chart, &matrix);
            xml_check(out.bytes);
            read_cells(cells, 2, out.bytes);
            for (int k = 0; k < 4; k++) assert_true(cells[k] != 0);
            cpl_text_clear(&out);
            cpl_chart_heat_bar(&out, &chart, ranges[i], log_scale);
            xml_check(out.bytes);
            assert_true(count_of(out.bytes, "<line class=\"c-axis\"") >= 2);
            cpl_text_free(&out);
        }
}

static void a_heat_bar_has_all_colours(void **state)
{
    cpl_text out    = {0};
    cpl_chart chart = {.x_label = evil, .in_page = true};
    (void)state;
    cpl_chart_heat_bar(&out, &chart, (cpl_chart_range){0.2, 3}, true);
    xml_check(out.bytes);
    assert_int_equal(count_of(out.bytes, "<rect"), 64);
    assert_non_null(strstr(out.bytes, ">0.2</text>"));
    cpl_text_free(&out);
}

/* ---- points ---- */

static void every_point_is_a_mark_of_its_class(void **state)
{
    enum { N = 50 };
    float points[2 * N];
    int32_t class_of[N];
    const char *names[] = {evil, "1", "2"};
    uint64_t seed       = 9;
    cpl_text out        = {0};
    cpl_chart chart     = evil_chart();
    (void)state;
    for (int i = 0; i < N; i++) {
        class_of[i]       = i % 5 == 0 ? 0 : 1 + i % 2;
        points[2 * i]     = (float)random_unit(&seed);
        points[2 * i + 1] = (float)random_unit(&seed);
    }
    points[7] = NAN;
    cpl_chart_points(&out, &chart, points, class_of, N, names, 3);
    xml_check(out.bytes);
    assert_int_equal(count_of(out.bytes, "<circle class=\"c-point\""), N - 1);
    assert_int_equal(count_of(strstr(out.bytes, "<g class=\"c-q0\">"), "<circle class=\"c-point\""),
                     N - 1);
    assert_int_equal(count_of(strstr(out.bytes, "<g class=\"c-q1\">"), "<circle class=\"c-point\""),
                     N - 1 - 10);
    cpl_text_free(&out);
}

/* ---- files ---- */

static void files_stand_alone(void **state)
{
    const double y[]        = {1, 2};
    cpl_chart_series series = {.name = "a", .y = y, .n = 2};
    cpl_text file = {0}, page = {0};
    cpl_chart chart = {.title = "t"};
    (void)state;
    cpl_chart_lines(&file, &chart, &series, 1);
    chart.in_page = true;
    cpl_chart_lines(&page, &chart, &series, 1);
    assert_int_equal(count_of(file.bytes, "http"), 1);
    assert_non_null(strstr(file.bytes, "xmlns=\"http://www.w3.org/2000/svg\""));
    assert_int_equal(count_of(page.bytes, "http"), 0);
    assert_null(strstr(page.bytes, "<style>"));
    assert_null(strstr(page.bytes, "fill=\"#"));
    cpl_text_free(&file);
    cpl_text_free(&page);
}

/* Every allocation of a chart fails once: the text says so, and nothing is lost. */
static void without_memory_it_is_said(void **state)
{
    const float values[]    = {1, 2, 3, 4};
    cpl_chart chart         = {.title = "t"};
    cpl_chart_matrix matrix = {values, NULL, 2, 1, {0, 4}, false, "v", 0};
    int64_t n               = 1;
    (void)state;
    for (bool done = false; !done; n++) {
        cpl_text out = {0};
        cpl_alloc_fail_at(n);
        cpl_chart_heat(&out, &chart, &matrix);
        cpl_alloc_fail_at(0);
        done = cpl_text_status(&out) == CPL_OK;
        if (done) xml_check(out.bytes);
        cpl_text_free(&out);
        assert_true(n < 1000);
    }
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(figures_are_for_people),
        cmocka_unit_test(base64_is_the_standards),
        cmocka_unit_test(ticks_cover_the_range),
        cmocka_unit_test(labels_differ),
        cmocka_unit_test(strange_ranges_have_axes),
        cmocka_unit_test(axes_of_any_width_have_ticks),
        cmocka_unit_test(asked_ranges_are_kept_or_widened),
        cmocka_unit_test(rounding_twice_changes_nothing),
        cmocka_unit_test(heat_colours_are_even),
        cmocka_unit_test(a_page_takes_variables_and_a_file_none),
        cmocka_unit_test(lines_have_a_mark_for_each_value),
        cmocka_unit_test(a_gap_breaks_the_line),
        cmocka_unit_test(nothing_is_said),
        cmocka_unit_test(values_beyond_the_range_stay_at_its_edge),
        cmocka_unit_test(direct_names_do_not_overlap),
        cmocka_unit_test(quantiles_are_numpys),
        cmocka_unit_test(spread_has_a_box_for_each_place),
        cmocka_unit_test(every_cell_has_the_colour_of_its_value),
        cmocka_unit_test(narrow_ranges_have_colours),
        cmocka_unit_test(a_heat_bar_has_all_colours),
        cmocka_unit_test(a_matrix_may_be_wide),
        cmocka_unit_test(every_point_is_a_mark_of_its_class),
        cmocka_unit_test(files_stand_alone),
        cmocka_unit_test(without_memory_it_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
