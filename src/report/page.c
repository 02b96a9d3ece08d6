/* page.c - see page.h */
#include "report/page.h"

#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "report/markup.h"

/* The files of assets/, embedded when the program is built (cmake/asset_texts.cmake), with a
 * NUL. */
extern const unsigned char cpl_asset_page_html[]; /* {{name}} marks an insertion */
extern const unsigned char cpl_asset_page_css[];
extern const unsigned char cpl_asset_page_js[];
extern const unsigned char cpl_asset_charts_js[];

static const char *const template = (const char *)cpl_asset_page_html;

static void element(cpl_text *out, const char *tag, const char *class, const char *text)
{
    cpl_text_printf(out, "<%s", tag);
    if (class) cpl_text_printf(out, " class=\"%s\"", class);
    cpl_text_char(out, '>');
    cpl_markup_text(out, text);
    cpl_text_printf(out, "</%s>\n", tag);
}

static void put(cpl_text *out, const char *markup)
{
    if (markup) cpl_text_append(out, markup, strlen(markup));
}

/* Appends the template up to {{name}}; returns what follows it. */
static const char *put_until(cpl_text *out, const char *from, const char *name)
{
    const char *at = strstr(from, name);
    CPL_ASSERT(at);
    cpl_text_append(out, from, (size_t)(at - from));
    return at + strlen(name);
}

void cpl_page_open(cpl_text *out, const char *title, const char *lead)
{
    const char *rest = put_until(out, template, "{{title}}");
    cpl_markup_text(out, title);
    rest = put_until(out, rest, "{{page.css}}");
    put(out, (const char *)cpl_asset_page_css);
    put_until(out, rest, "{{body}}");
    element(out, "h1", NULL, title);
    if (lead) element(out, "p", "lead", lead);
}

/* ---- the end: the source of the report, and its data ---- */

static void put_sources(cpl_text *out, const json_t *sources)
{
    size_t i;
    const json_t *source;
    json_array_foreach(sources, i, source)
    {
        const char *hash   = json_string_value(json_object_get(source, "xxh3"));
        const json_t *step = json_object_get(source, "step");
        put(out, "<br>");
        cpl_markup_text(out, json_string_value(json_object_get(source, "path")));
        if (json_is_integer(step))
            cpl_text_printf(out, ", step %lld", (long long)json_integer_value(step));
        cpl_text_printf(out, hash ? ", XXH3 %s" : ", no hash of weights", hash ? hash : "");
    }
}

static void put_footer(cpl_text *out, const json_t *made)
{
    put(out, "<footer>");
    if (made) {
        cpl_markup_text(out, json_string_value(json_object_get(made, "program")));
        put(out, ", ");
        cpl_markup_text(out, json_string_value(json_object_get(made, "date")));
        put(out, "<br><code>");
        cpl_markup_text(out, json_string_value(json_object_get(made, "command")));
        put(out, "</code>");
        put_sources(out, json_object_get(made, "sources"));
    }
    put(out, "</footer>\n");
}

/* No text of the data can end the element that contains it. */
static void put_data(cpl_text *out, const json_t *data)
{
    char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) out->failed = true;
    for (const char *at = text; at && *at;) {
        const size_t plain = strcspn(at, "<");
        cpl_text_append(out, at, plain);
        at += plain;
        if (*at) put(out, "\\u003c");
        at += *at != '\0';
    }
    cpl_json_text_free(text);
}

void cpl_page_close(cpl_text *out, const json_t *data)
{
    const char *rest = strstr(template, "{{body}}") + strlen("{{body}}");
    rest             = put_until(out, rest, "{{footer}}");
    put_footer(out, json_object_get(json_object_get(data, "series"), "made"));
    rest = put_until(out, rest, "{{data}}");
    put_data(out, data);
    rest = put_until(out, rest, "{{charts.js}}");
    put(out, (const char *)cpl_asset_charts_js);
    rest = put_until(out, rest, "{{page.js}}");
    put(out, (const char *)cpl_asset_page_js);
    put(out, rest);
}

/* ---- charts ---- */

static const char *word(const json_t *chart, const char *key)
{
    const char *text = json_string_value(json_object_get(chart, key));
    return text ? text : "";
}

bool cpl_page_has_charts(const json_t *data, const char *section)
{
    size_t i;
    const json_t *chart;
    json_array_foreach(json_object_get(json_object_get(data, "series"), "charts"), i, chart)
    {
        if (strcmp(word(chart, "section"), section) == 0) return true;
    }
    return false;
}

void cpl_page_charts(cpl_text *out, const json_t *data, const char *section)
{
    size_t i;
    const json_t *chart;
    bool begun = false;
    json_array_foreach(json_object_get(json_object_get(data, "series"), "charts"), i, chart)
    {
        const bool map = strcmp(word(chart, "kind"), "heat") == 0;
        if (strcmp(word(chart, "section"), section) != 0) continue;
        if (!begun)
            put(out, "<noscript><p class=\"note\">The charts are drawn by the page's own script, "
                     "which is switched off.</p></noscript>\n");
        if (!begun && map) cpl_text_printf(out, "<div class=\"maps\" data-maps=\"%s\">", section);
        if (!begun && !map) put(out, "<div class=\"charts\">");
        begun = true;
        if (!map) /* an id has letters, digits and - */
            cpl_text_printf(out, "<figure id=\"chart-%s\" data-chart=\"%s\"></figure>\n",
                            word(chart, "id"), word(chart, "id"));
    }
    if (begun) put(out, "</div>\n");
}

/* ---- text and tables ---- */

void cpl_page_section(cpl_text *out, const char *heading)
{
    element(out, "h2", NULL, heading);
}

void cpl_page_subsection(cpl_text *out, const char *heading)
{
    element(out, "h3", NULL, heading);
}

void cpl_page_paragraph(cpl_text *out, const char *text)
{
    element(out, "p", NULL, text);
}

void cpl_page_note(cpl_text *out, const char *text)
{
    element(out, "p", "note", text);
}

void cpl_page_small(cpl_text *out, const char *text)
{
    element(out, "p", "small", text);
}

void cpl_page_terms_open(cpl_text *out)
{
    put(out, "<dl>\n");
}

void cpl_page_term(cpl_text *out, const char *name, const char *explanation)
{
    element(out, "dt", NULL, name);
    element(out, "dd", NULL, explanation);
}

void cpl_page_terms_close(cpl_text *out)
{
    put(out, "</dl>\n");
}

void cpl_page_table_open(cpl_text *out, const char *caption, const char *const *columns,
                         int64_t n_columns)
{
    if (caption) element(out, "p", "small", caption);
    put(out, "<div class=\"table\"><table>\n<thead><tr>\n");
    for (int64_t i = 0; i < n_columns; i++) element(out, "th", NULL, columns[i]);
    put(out, "</tr></thead>\n<tbody>\n");
}

void cpl_page_row_open(cpl_text *out, const char *name)
{
    put(out, "<tr>");
    element(out, "th", NULL, name);
}

void cpl_page_cell(cpl_text *out, const char *text)
{
    element(out, "td", NULL, text);
}

void cpl_page_count(cpl_text *out, int64_t value)
{
    char words[24];
    snprintf(words, sizeof words, "%lld", (long long)value);
    cpl_page_cell(out, words);
}

void cpl_page_cell_span(cpl_text *out, const char *text, int64_t columns)
{
    cpl_text_printf(out, "<td class=\"words\" colspan=\"%lld\">", (long long)columns);
    cpl_markup_text(out, text);
    put(out, "</td>\n");
}

void cpl_page_row_close(cpl_text *out)
{
    put(out, "</tr>\n");
}

void cpl_page_table_close(cpl_text *out)
{
    put(out, "</tbody></table></div>\n");
}
