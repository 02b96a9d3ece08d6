/* page_check.h - what every page must be, whatever it shows, and charts looked up in its data. */
#ifndef CPL_TESTS_REPORT_PAGE_CHECK_H
#define CPL_TESTS_REPORT_PAGE_CHECK_H

#include <jansson.h>
#include <math.h>

#include "check.h"
#include "io/file.h"
#include "report/chart.h"

/* It is whole in one file, and made for narrow windows and dark ones too; nothing of the data can
 * end the element that it stands in. */
static inline void check_page(const cpl_text *page)
{
    static const char *const outside[] = {"https:", " src=", "@import", "url(", "<link"};
    static const char *const inside[]  = {"default-src 'none'", "width=device-width",
                                          "prefers-color-scheme: dark"};
    assert_int_equal(strlen(page->bytes), page->length);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_null(strstr(page->bytes, outside[i]));
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        assert_non_null(strstr(page->bytes, inside[i]));
    const char *data = strstr(page->bytes, "id=\"couplet-data\">");
    assert_non_null(data);
    assert_int_equal(strncmp(strchr(data, '<'), "</script>", 9), 0);
    if (strstr(page->bytes, "data-chart=") || strstr(page->bytes, "couplet-charts"))
        assert_non_null(strstr(page->bytes, "<noscript>"));
}

static inline int64_t count_of(const char *text, const char *part)
{
    int64_t count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

/* A chart of the data by its id; NULL: there is none. */
static inline json_t *chart_at(const json_t *data, const char *id)
{
    size_t i;
    json_t *chart;
    json_array_foreach(json_object_get(json_object_get(data, "series"), "charts"), i,
                       chart) if (strcmp(json_string_value(json_object_get(chart, "id")), id) ==
                                  0) return chart;
    return NULL;
}

static inline int64_t charts_in(const json_t *data)
{
    return (int64_t)json_array_size(json_object_get(json_object_get(data, "series"), "charts"));
}

/* The i-th curve of a chart. */
static inline json_t *curve_at(const json_t *data, const char *id, size_t i)
{
    json_t *chart = chart_at(data, id);
    if (!chart) fail_msg("there is no chart %s", id);
    return json_array_get(json_object_get(chart, "series"), i);
}

/* The k-th value of a member of a curve; NaN: null. */
static inline double value_at(const json_t *curve, const char *member, size_t k)
{
    const json_t *value = json_array_get(json_object_get(curve, member), k);
    assert_non_null(value);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static inline size_t points_of(const json_t *curve)
{
    size_t i, n = 0;
    json_t *y;
    json_array_foreach(json_object_get(curve, "y"), i, y) n += json_is_number(y);
    return n;
}

#endif /* CPL_TESTS_REPORT_PAGE_CHECK_H */
