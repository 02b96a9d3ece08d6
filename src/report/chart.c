/* chart.c - the sheet that every kind of chart is drawn on; see chart_internal.h */
#include "report/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart_internal.h"

static const double line_height = 15, title_letter = 7.2;

/* ---- pieces ---- */

void cpl_chart_put_attribute(cpl_text *out, const char *name, double value)
{
    cpl_text_printf(out, " %s=\"", name);
    cpl_markup_coordinate(out, value);
    cpl_text_char(out, '"');
}

static void put_text_of(cpl_text *out, double x, double y, const char *classes, const char *anchor,
                        const char *string, int64_t most)
{
    cpl_text_printf(out, "<text class=\"%s\"", classes);
    cpl_chart_put_attribute(out, "x", x);
    cpl_chart_put_attribute(out, "y", y);
    if (strcmp(anchor, "start") != 0) cpl_text_printf(out, " text-anchor=\"%s\"", anchor);
    cpl_text_char(out, '>');
    cpl_markup_cut(out, string, most > 3 ? most : 3);
    cpl_text_printf(out, "</text>\n");
}

void cpl_chart_put_text(cpl_text *out, double x, double y, const char *classes, const char *anchor,
                        const char *string, double room)
{
    put_text_of(out, x, y, classes, anchor, string, (int64_t)(room / CPL_CHART_LETTER));
}

void cpl_chart_put_line(cpl_text *out, const char *classes, double x1, double y1, double x2,
                        double y2)
{
    cpl_text_printf(out, "<line class=\"%s\"", classes);
    cpl_chart_put_attribute(out, "x1", x1);
    cpl_chart_put_attribute(out, "y1", y1);
    cpl_chart_put_attribute(out, "x2", x2);
    cpl_chart_put_attribute(out, "y2", y2);
    cpl_text_printf(out, "/>\n");
}

/* A place on an axis of numbers, as short as says it: "0.5", not "0.500000". */
static void put_number(cpl_text *out, double x)
{
    char words[48];
    size_t length = strlen(cpl_markup_figure(words, x, 6));
    if (strchr(words, '.') && !strchr(words, 'e')) {
        while (words[length - 1] == '0') length--;
        if (words[length - 1] == '.') length--;
    }
    cpl_text_append(out, words, length);
}

void cpl_chart_put_place(cpl_text *out, const cpl_chart *chart, double x)
{
    if (chart->x_label) {
        cpl_markup_text(out, chart->x_label);
        cpl_text_char(out, ' ');
    }
    if (!chart->n_x_names)
        put_number(out, x);
    else if (x >= 0 && x < (double)chart->n_x_names)
        cpl_markup_text(out, chart->x_names[(int)x]);
    for (int64_t p = 0; p < chart->n_x_parts; p++) {
        if (x < (double)chart->x_parts[p].first || x > (double)chart->x_parts[p].last) continue;
        cpl_text_printf(out, " of the ");
        cpl_markup_text(out, chart->x_parts[p].name);
    }
}

double cpl_chart_place_at(const cpl_chart_canvas *sheet, double x)
{
    return cpl_chart_axis_at(&sheet->x, x);
}

/* ---- the sheet ---- */

static void put_root(cpl_text *out, const cpl_chart *chart, double width, double height)
{
    if (!chart->in_page) cpl_text_printf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    cpl_text_printf(out, "<svg class=\"chart\"");
    if (!chart->in_page) {
        cpl_text_printf(out, " xmlns=\"http://www.w3.org/2000/svg\"");
        cpl_chart_put_attribute(out, "width", width);
        cpl_chart_put_attribute(out, "height", height);
        cpl_text_printf(out, " font-family=\"Helvetica, Arial, sans-serif\"");
    }
    cpl_text_printf(out, " viewBox=\"0 0 ");
    cpl_markup_coordinate(out, width);
    cpl_text_char(out, ' ');
    cpl_markup_coordinate(out, height);
    cpl_text_printf(out, "\" role=\"img\" aria-label=\"");
    if (chart->title) cpl_markup_text(out, chart->title);
    if (chart->title && chart->subtitle) cpl_text_printf(out, ", ");
    if (chart->subtitle) cpl_markup_text(out, chart->subtitle);
    cpl_text_printf(out, "\">\n");
}

static void put_ground(cpl_text *out, const cpl_chart *chart, double width, double height)
{
    if (chart->in_page) return;
    cpl_text_printf(out, "<style>\n");
    cpl_chart_style(out, false);
    cpl_text_printf(out, "</style>\n<rect fill=\"#ffffff\"");
    cpl_chart_put_attribute(out, "width", width);
    cpl_chart_put_attribute(out, "height", height);
    cpl_text_printf(out, "/>\n");
}

static void put_heading(cpl_chart_canvas *s, const char *classes, const char *text, double letter)
{
    if (!text) return;
    put_text_of(s->out, s->edge, s->top + 11, classes, "start", text,
                (int64_t)((s->width - 2 * s->edge) / letter));
    s->top += line_height;
}

cpl_chart_canvas cpl_chart_canvas_open(cpl_text *out, const cpl_chart *chart)
{
    cpl_chart_canvas s = {.out    = out,
                          .chart  = chart,
                          .width  = chart->width > 0 ? chart->width : 360,
                          .height = chart->height > 0 ? chart->height : 250};
    s.edge             = chart->in_page ? 1 : 8; /* a page keeps its distance itself */
    s.left             = s.edge;
    s.top              = s.edge - 2;
    s.right            = s.width - s.edge;
    s.bottom           = s.height - s.edge + 2;
    put_root(out, chart, s.width, s.height);
    put_ground(out, chart, s.width, s.height);
    put_heading(&s, "c-title", chart->title, title_letter);
    put_heading(&s, "c-sub", chart->subtitle, CPL_CHART_LETTER);
    s.top += 3;
    if (!chart->note) return s;
    put_text_of(out, s.edge, s.bottom - 3, "c-note", "start", chart->note,
                (int64_t)((s.width - 2 * s.edge) / (CPL_CHART_LETTER * 0.87)));
    s.bottom -= line_height;
    return s;
}

void cpl_chart_canvas_close(cpl_chart_canvas *sheet)
{
    cpl_text_printf(sheet->out, "</svg>\n");
}

/* ---- legend ---- */

static void key_mark(cpl_text *out, const cpl_chart_key *key, double x, double y)
{
    if (key->mark == CPL_CHART_KEY_BAND) {
        cpl_text_printf(out, "<rect class=\"c-band %s\" width=\"14\" height=\"8\"", key->colour);
        cpl_chart_put_attribute(out, "x", x);
        cpl_chart_put_attribute(out, "y", y - 8);
        cpl_text_printf(out, "/>\n");
    } else if (key->mark == CPL_CHART_KEY_DOT) {
        cpl_text_printf(out, "<circle class=\"c-dot %s\" r=\"4\"", key->colour);
        cpl_chart_put_attribute(out, "cx", x + 5);
        cpl_chart_put_attribute(out, "cy", y - 4);
        cpl_text_printf(out, "/>\n");
    } else {
        char classes[48] = "c-rule";
        if (key->mark != CPL_CHART_KEY_RULE)
            snprintf(classes, sizeof classes, "c-line %s%s", key->colour,
                     key->mark == CPL_CHART_KEY_DASHED ? " c-dash" : "");
        cpl_chart_put_line(out, classes, x, y - 4, x + 14, y - 4);
    }
}

void cpl_chart_canvas_legend(cpl_chart_canvas *s, const cpl_chart_key *keys, int64_t n_keys)
{
    double x = s->edge, y = s->top + 11, room = s->width - 2 * s->edge;
    if (n_keys == 0) return;
    if (s->chart->legend_title) {
        cpl_chart_put_text(s->out, x, y, "c-label", "start", s->chart->legend_title, room);
        x += (double)cpl_markup_length(s->chart->legend_title) * CPL_CHART_LETTER + 8;
    }
    for (int64_t i = 0; i < n_keys; i++) {
        double mark  = keys[i].mark == CPL_CHART_KEY_DOT ? 13 : 18;
        double width = mark + fmin((double)cpl_markup_length(keys[i].name), 40) * CPL_CHART_LETTER;
        if (x > s->edge && x + width > s->width - s->edge) {
            x = s->edge;
            y += line_height;
        }
        key_mark(s->out, &keys[i], x, y);
        cpl_chart_put_text(s->out, x + mark, y, "c-key", "start", keys[i].name,
                           40 * CPL_CHART_LETTER);
        x += width + 9;
    }
    s->top = y + 7;
}

void cpl_chart_canvas_ramp(cpl_chart_canvas *s)
{
    const char *const *names = s->chart->ramp_names;
    double x = s->edge, y = s->top + 11;
    if (!names[0] || !names[1]) return;
    cpl_chart_put_text(s->out, x, y, "c-key", "start", names[0], 120);
    x += fmin((double)cpl_markup_length(names[0]) * CPL_CHART_LETTER, 120) + 6;
    for (int i = 0; i < CPL_CHART_RAMP; i++, x += 5) {
        cpl_text_printf(s->out, "<rect class=\"c-dot c-r%d\" width=\"5\" height=\"8\"", i);
        cpl_chart_put_attribute(s->out, "x", x);
        cpl_chart_put_attribute(s->out, "y", y - 8);
        cpl_text_printf(s->out, "/>\n");
    }
    cpl_chart_put_text(s->out, x + 6, y, "c-key", "start", names[1], 120);
    s->top = y + 7;
}

/* ---- axes ---- */

static void y_axis(cpl_chart_canvas *s)
{
    char label[48];
    for (int i = 0; i < s->y.n_ticks; i++) {
        double y = cpl_chart_axis_at(&s->y, s->y.ticks[i]);
        cpl_chart_put_line(s->out, "c-grid", s->left, y, s->right, y);
        cpl_chart_put_text(s->out, s->left - 5, y + 4, "c-label", "end",
                           cpl_chart_axis_label(label, &s->y, i), s->width);
    }
}

static void x_label_at(cpl_chart_canvas *s, double x, const char *label)
{
    cpl_chart_put_line(s->out, "c-axis", x, s->bottom, x, s->bottom + 3);
    cpl_chart_put_text(s->out, x, s->bottom + 14, "c-label", "middle", label, s->width);
}

static void number_labels(cpl_chart_canvas *s)
{
    char label[48];
    double free_from = -1;
    for (int i = 0; i < s->x.n_ticks; i++) {
        double x = cpl_chart_axis_at(&s->x, s->x.ticks[i]);
        double half =
            (double)cpl_markup_length(cpl_chart_axis_label(label, &s->x, i)) * CPL_CHART_LETTER / 2;
        if (x - half < free_from) continue;
        x_label_at(s, x, label);
        free_from = x + half + 4;
    }
}

/* Width of the widest name. */
static double names_width(const cpl_chart *chart)
{
    int64_t most = 1;
    for (int64_t k = 0; k < chart->n_x_names; k++) {
        int64_t letters = cpl_markup_length(chart->x_names[k]);
        if (letters > most) most = letters;
    }
    return (double)(most < 12 ? most : 12) * CPL_CHART_LETTER;
}

/* Every so many-th name, in steps of 1, 2, 5, 10, ...; counted anew in each part. */
static void category_labels(cpl_chart_canvas *s)
{
    static const int64_t steps[] = {1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 200, 500, 1000};
    const cpl_chart *chart       = s->chart;
    double slot = (s->right - s->left) / (double)chart->n_x_names, wide = names_width(chart) + 5;
    double free_from = -1;
    size_t i         = 0;
    while (i + 1 < sizeof steps / sizeof *steps && (double)steps[i] * slot < wide) i++;
    for (int64_t k = 0; k < chart->n_x_names; k++) {
        int64_t in_part = k;
        for (int64_t p = 0; p < chart->n_x_parts; p++)
            if (k >= chart->x_parts[p].first) in_part = k - chart->x_parts[p].first;
        double x = cpl_chart_place_at(s, (double)k);
        if (in_part % steps[i] != 0 || x - wide / 2 < free_from) continue;
        x_label_at(s, x, chart->x_names[k]);
        free_from = x + wide / 2 - 5;
    }
}

static void part_labels(cpl_chart_canvas *s, double y)
{
    double slot = (s->right - s->left) / (double)s->chart->n_x_names;
    for (int64_t p = 0; p < s->chart->n_x_parts; p++) {
        const cpl_chart_part *part = &s->chart->x_parts[p];
        double a                   = s->left + (double)part->first * slot + 2;
        double b                   = s->left + (double)(part->last + 1) * slot - 2;
        cpl_chart_put_line(s->out, "c-axis", a, y, b, y);
        cpl_chart_put_text(s->out, (a + b) / 2, y + 12, "c-label", "middle", part->name, b - a);
    }
}

static void rules(cpl_chart_canvas *s)
{
    for (int64_t i = 0; i < s->chart->n_rules; i++) {
        const cpl_chart_rule *rule = &s->chart->rules[i];
        if (!(rule->y >= s->y.low && rule->y <= s->y.high)) continue;
        double y = cpl_chart_axis_at(&s->y, rule->y);
        cpl_chart_put_line(s->out, "c-rule", s->left, y, s->right, y);
    }
}

/* What the label of the last tick takes beyond the axis; half a place of a category is free. */
static double overhang(const cpl_chart_canvas *s)
{
    if (s->chart->n_x_names == 0)
        return fmax(cpl_chart_axis_label_width(&s->x) / 2 + 3 - s->edge, 8);
    double slot = (s->right - s->left) / (double)s->chart->n_x_names;
    return fmax((names_width(s->chart) + 4 - slot) / 2 - s->edge, 0);
}

void cpl_chart_canvas_axes(cpl_chart_canvas *s)
{
    const cpl_chart *chart = s->chart;
    if (chart->y_label) {
        cpl_chart_put_text(s->out, s->edge, s->top + 10, "c-label", "start", chart->y_label,
                           s->width - 2 * s->edge);
        s->top += line_height;
    }
    s->top += 7;
    s->left += cpl_chart_axis_label_width(&s->y) + 8; /* some fonts are wider */
    s->right -= overhang(s);
    if (chart->x_label) {
        s->bottom -= line_height - 2;
        cpl_chart_put_text(s->out, (s->left + s->right) / 2, s->bottom + 9, "c-label", "middle",
                           chart->x_label, s->right - s->left);
    }
    if (chart->n_x_parts) s->bottom -= line_height;
    s->bottom -= 17;
    double inset = chart->n_x_names ? (s->right - s->left) / (double)chart->n_x_names / 2 : 0;
    s->x.from    = s->left + inset;
    s->x.to      = s->right - inset;
    s->y.from    = s->bottom;
    s->y.to      = s->top;
    y_axis(s);
    cpl_chart_put_line(s->out, "c-axis", s->left, s->bottom, s->right, s->bottom);
    if (chart->n_x_names)
        category_labels(s);
    else
        number_labels(s);
    part_labels(s, s->bottom + 19);
    rules(s);
}

void cpl_chart_canvas_empty(cpl_chart_canvas *s)
{
    cpl_chart_put_text(s->out, (s->left + s->right) / 2, (s->top + s->bottom) / 2, "c-label",
                       "middle", "no values", s->width);
}
