/* view.c - see view.h */
#include "report/view.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "io/json.h"
#include "report/markup.h"

/* The files of assets/, embedded by the build (cmake/asset_texts.cmake), with a NUL. */
extern const unsigned char cpl_asset_view_html[]; /* {{name}} marks an insertion */
extern const unsigned char cpl_asset_view_css[];
extern const unsigned char cpl_asset_view_js[];
extern const unsigned char cpl_asset_charts_json[];

/* ---- without scripts ---- */

static void put_sentences(cpl_text *out, const char *lines)
{
    while (lines && *lines) {
        const size_t length = strcspn(lines, "\n");
        cpl_text line       = {0};
        cpl_text_append(&line, lines, length);
        cpl_markup_element(out, "p", line.bytes ? line.bytes : "");
        out->failed = out->failed || line.failed;
        cpl_text_free(&line);
        lines += length + (lines[length] == '\n');
    }
}

static void put_noscript(cpl_text *out, const cpl_view *view)
{
    cpl_markup_element(out, "h1", view->title);
    cpl_text_printf(out, "<p class=\"note\">Charts and further tables are drawn by the page's own "
                         "script, which is switched off.</p>\n");
    put_sentences(out, view->sentences);
    if (view->main) cpl_grid_page(out, view->main);
}

/* ---- the template ---- */

static void put_json(cpl_text *out, const char *text)
{
    for (; *text; text += *text != '\0') {
        const size_t plain = strcspn(text, "<");
        cpl_text_append(out, text, plain);
        text += plain;
        if (*text == '<') cpl_text_printf(out, "\\u003c");
    }
}

static void put_data(cpl_text *out, const cpl_view *view)
{
    json_t *data = json_pack("{s:o, s:o, s:O?, s:O}", "kind", json_string(view->kind), "title",
                             cpl_json_words(view->title), "made", view->made, "report",
                             (json_t *)(uintptr_t)view->report);
    char *text   = data ? json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (text) put_json(out, text);
    out->failed = out->failed || !text;
    cpl_json_text_free(text);
    json_decref(data);
}

static void put_part(cpl_text *out, const char *name, size_t length, const cpl_view *view)
{
    const struct {
        const char *name;
        const unsigned char *text;
    } assets[] = {{"view.css", cpl_asset_view_css}, {"view.js", cpl_asset_view_js}};
    if (strncmp(name, "title", length) == 0) cpl_markup_text(out, view->title);
    if (strncmp(name, "noscript", length) == 0) put_noscript(out, view);
    if (strncmp(name, "data", length) == 0) put_data(out, view);
    if (strncmp(name, "charts.json", length) == 0)
        put_json(out, (const char *)cpl_asset_charts_json);
    for (size_t i = 0; i < sizeof assets / sizeof *assets; i++)
        if (strncmp(name, assets[i].name, length) == 0)
            cpl_text_append(out, (const char *)assets[i].text,
                            strlen((const char *)assets[i].text));
}

cpl_status cpl_view_page(cpl_text *out, const cpl_view *view)
{
    const char *rest = (const char *)cpl_asset_view_html, *mark;
    for (; (mark = strstr(rest, "{{")); rest = mark + 2) {
        cpl_text_append(out, rest, (size_t)(mark - rest));
        rest = mark + 2;
        mark = strstr(rest, "}}");
        CPL_ASSERT(mark);
        put_part(out, rest, (size_t)(mark - rest), view);
    }
    cpl_text_append(out, rest, strlen(rest));
    return cpl_text_status(out);
}

/* ---- matrices ---- */

enum { STEPS = 65534 };

json_t *cpl_view_matrix(const float *values, int64_t rows, int64_t columns)
{
    const int64_t n      = rows * columns;
    unsigned char *bytes = cpl_alloc(2 * (size_t)n + 1);
    double low = DBL_MAX, high = 0;
    cpl_text text  = {0};
    json_t *packed = NULL;
    for (int64_t i = 0; i < n; i++) {
        if (values[i] > 0) low = fmin(low, (double)values[i]);
        high = fmax(high, (double)values[i]);
    }
    if (low >= high) low = high > 0 ? high / 2 : 1;
    if (high <= 0) high = 2;
    for (int64_t i = 0; bytes && i < n; i++) {
        const double share = values[i] > 0 ? log(values[i] / low) / log(high / low) : -1;
        const int q        = share < 0 ? 0 : 1 + (int)floor(STEPS * share + 0.5);
        bytes[2 * i]       = (unsigned char)(q & 255);
        bytes[2 * i + 1]   = (unsigned char)(q >> 8);
    }
    if (bytes) cpl_markup_base64(&text, bytes, 2 * (size_t)n);
    if (bytes && !text.failed)
        packed = json_pack("{s:I, s:I, s:f, s:f, s:s}", "rows", (json_int_t)rows, "columns",
                           (json_int_t)columns, "low", low, "high", high, "data",
                           text.bytes ? text.bytes : "");
    cpl_free(bytes);
    cpl_text_free(&text);
    return packed;
}
