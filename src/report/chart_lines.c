/* chart_lines.c - named series over x; see chart.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart_internal.h"

enum { MOST_DOTS = 80, MOST_DIRECT = 32, MOST_KEYS = 32 };

static double x_of(const cpl_chart_series *s, int64_t i)
{
    return s->x ? s->x[i] : (double)i;
}

static bool is_band(const cpl_chart_series *s)
{
    return s->low && s->high;
}

/* Whether a value can be drawn: finite, and above 0 on a logarithmic axis. */
static bool is_shown(double value, bool log)
{
    return isfinite(value) && (!log || value > 0);
}

static bool point_is_shown(const cpl_chart_canvas *sheet, const cpl_chart_series *s, int64_t i)
{
    return is_shown(x_of(s, i), sheet->chart->log_x) && is_shown(s->y[i], sheet->chart->log_y);
}

static void see(cpl_chart_range *range, double value, bool log)
{
    if (is_shown(value, log)) cpl_chart_range_add(range, value);
}

/* Sets both axes; returns whether there is anything to draw. */
static bool make_axes(cpl_chart_canvas *sheet, const cpl_chart_series *series, int64_t n_series)
{
    const cpl_chart *chart = sheet->chart;
    cpl_chart_range x = cpl_chart_range_none(), y = cpl_chart_range_none();
    for (int64_t k = 0; k < n_series; k++)
        for (int64_t i = 0; i < series[k].n; i++) {
            see(&x, x_of(&series[k], i), chart->log_x);
            if (is_band(&series[k])) {
                see(&y, series[k].low[i], chart->log_y);
                see(&y, series[k].high[i], chart->log_y);
            } else {
                see(&y, series[k].y[i], chart->log_y);
            }
        }
    if (chart->n_x_names)
        x = (cpl_chart_range){0, chart->n_x_names > 1 ? (double)(chart->n_x_names - 1) : 1};
    sheet->x = cpl_chart_axis_of(chart->n_x_names ? x : chart->x, x, chart->log_x);
    sheet->y = cpl_chart_axis_of(chart->y, y, chart->log_y);
    return !cpl_chart_range_is_none(y);
}

/* ---- one series ---- */

static void put_point(cpl_chart_canvas *sheet, char command, double x, double y)
{
    cpl_text_char(sheet->out, command);
    cpl_markup_coordinate(sheet->out, cpl_chart_axis_at(&sheet->x, x));
    cpl_text_char(sheet->out, ' ');
    cpl_markup_coordinate(sheet->out, cpl_chart_axis_at(&sheet->y, y));
}

/* The stretch of points without a gap that begins at or behind `i`; false if there is none. */
static bool next_stretch(const cpl_chart_canvas *sheet, const cpl_chart_series *s, int64_t *i,
                         int64_t *end)
{
    while (*i < s->n && !point_is_shown(sheet, s, *i)) (*i)++;
    for (*end = *i; *end < s->n && point_is_shown(sheet, s, *end);) (*end)++;
    return *i < s->n;
}

static void line(cpl_chart_canvas *sheet, const cpl_chart_series *s)
{
    int64_t i = 0, end;
    bool any  = false;
    for (; next_stretch(sheet, s, &i, &end); i = end) {
        if (end - i < 2) continue;
        if (!any)
            cpl_text_printf(sheet->out, "<path class=\"c-line%s%s\" d=\"",
                            s->dashed ? " c-dash" : "", s->ramp ? " c-thin" : "");
        any = true;
        for (int64_t k = i; k < end; k++) put_point(sheet, k == i ? 'M' : 'L', x_of(s, k), s->y[k]);
    }
    if (any) cpl_text_printf(sheet->out, "\"/>\n");
}

static void put_tip(cpl_chart_canvas *sheet, const cpl_chart_series *s, int64_t i)
{
    char words[48];
    cpl_text_printf(sheet->out, "<title>");
    if (s->name) {
        cpl_markup_text(sheet->out, s->name);
        cpl_text_printf(sheet->out, ", ");
    }
    cpl_chart_put_place(sheet->out, sheet->chart, x_of(s, i));
    cpl_text_printf(sheet->out, ": %s</title>", cpl_markup_figure(words, s->y[i], 4));
}

/* Circles at the points; where there are too many, only at those without neighbours, which no line
 * shows. */
static void dots(cpl_chart_canvas *sheet, const cpl_chart_series *s)
{
    bool all = s->n <= MOST_DOTS && !s->plain, small = s->ramp || s->n > MOST_DOTS / 2;
    int64_t i = 0, end;
    for (; next_stretch(sheet, s, &i, &end); i = end)
        for (int64_t k = i; k < end && (all || end - i == 1); k++) {
            cpl_text_printf(sheet->out, "<circle class=\"c-dot\" r=\"%s\"", small ? "1.7" : "2.4");
            cpl_chart_put_attribute(sheet->out, "cx", cpl_chart_axis_at(&sheet->x, x_of(s, k)));
            cpl_chart_put_attribute(sheet->out, "cy", cpl_chart_axis_at(&sheet->y, s->y[k]));
            cpl_text_char(sheet->out, '>');
            put_tip(sheet, s, k);
            cpl_text_printf(sheet->out, "</circle>\n");
        }
}

static void infinities(cpl_chart_canvas *sheet, const cpl_chart_series *s)
{
    for (int64_t i = 0; i < s->n; i++) {
        if (!is_shown(x_of(s, i), sheet->chart->log_x) || !(isinf(s->y[i]) && s->y[i] > 0))
            continue;
        cpl_text_printf(sheet->out, "<text class=\"c-inf\" text-anchor=\"middle\"");
        cpl_chart_put_attribute(sheet->out, "x", cpl_chart_axis_at(&sheet->x, x_of(s, i)));
        cpl_chart_put_attribute(sheet->out, "y", sheet->top + 8);
        cpl_text_printf(sheet->out, ">∞");
        put_tip(sheet, s, i);
        cpl_text_printf(sheet->out, "</text>\n");
    }
}

static void band(cpl_chart_canvas *sheet, const cpl_chart_series *s)
{
    bool log = sheet->chart->log_y, in_stretch = false;
    int64_t begin = 0;
    cpl_text_printf(sheet->out, "<path class=\"c-band\" d=\"");
    for (int64_t i = 0; i <= s->n; i++) {
        bool shown = i < s->n && is_shown(x_of(s, i), sheet->chart->log_x) &&
                     is_shown(s->low[i], log) && is_shown(s->high[i], log);
        if (shown && !in_stretch) begin = i;
        if (shown) put_point(sheet, in_stretch ? 'L' : 'M', x_of(s, i), s->high[i]);
        if (!shown && in_stretch) {
            for (int64_t k = i; k-- > begin;) put_point(sheet, 'L', x_of(s, k), s->low[k]);
            cpl_text_char(sheet->out, 'Z');
        }
        in_stretch = shown;
    }
    cpl_text_printf(sheet->out, "\"/>\n");
}

static void put_series(cpl_chart_canvas *sheet, const cpl_chart_series *s)
{
    char colour[24];
    cpl_chart_colour_class(colour, s->colour, s->ramp, s->share);
    cpl_text_printf(sheet->out, "<g class=\"%s\">\n", colour);
    if (is_band(s)) {
        band(sheet, s);
    } else {
        line(sheet, s);
        dots(sheet, s);
        infinities(sheet, s);
    }
    cpl_text_printf(sheet->out, "</g>\n");
}

/* ---- names ---- */

static void legend(cpl_chart_canvas *sheet, const cpl_chart_series *series, int64_t n_series)
{
    cpl_chart_key keys[MOST_KEYS];
    int64_t n_keys = 0;
    for (int64_t k = 0; k < n_series && n_keys < MOST_KEYS; k++) {
        const cpl_chart_series *s = &series[k];
        if (!s->name || s->ramp || (sheet->chart->direct && !is_band(s))) continue;
        cpl_chart_key *key = &keys[n_keys++];
        key->name          = s->name;
        key->mark          = is_band(s)  ? CPL_CHART_KEY_BAND
                             : s->dashed ? CPL_CHART_KEY_DASHED
                                         : CPL_CHART_KEY_LINE;
        cpl_chart_colour_class(key->colour, s->colour, s->ramp, s->share);
    }
    for (int64_t i = 0; i < sheet->chart->n_rules && n_keys < MOST_KEYS; i++)
        if (sheet->chart->rules[i].name)
            keys[n_keys++] =
                (cpl_chart_key){.name = sheet->chart->rules[i].name, .mark = CPL_CHART_KEY_RULE};
    cpl_chart_canvas_legend(sheet, keys, n_keys);
}

static double direct_room(const cpl_chart_series *series, int64_t n_series)
{
    double letters = 0;
    for (int64_t k = 0; k < n_series; k++)
        if (series[k].name && !is_band(&series[k]))
            letters = fmax(letters, fmin((double)cpl_markup_length(series[k].name), 18));
    return letters * CPL_CHART_LETTER + 6;
}

typedef struct direct_name {
    const cpl_chart_series *of;
    double y;
} direct_name;

/* Sorted by height, then pushed apart from the lowest up and from the highest down. */
static void push_apart(direct_name *names, int n, double top, double bottom)
{
    const double apart = 12;
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && names[k].y < names[k - 1].y; k--) {
            direct_name other = names[k];
            names[k]          = names[k - 1];
            names[k - 1]      = other;
        }
    for (int i = n; i-- > 0; bottom = names[i].y - apart) names[i].y = fmin(names[i].y, bottom);
    for (int i = 0; i < n; top = names[i++].y + apart) names[i].y = fmax(names[i].y, top);
}

static void direct_names(cpl_chart_canvas *sheet, const cpl_chart_series *series, int64_t n_series,
                         double room)
{
    direct_name names[MOST_DIRECT];
    int n = 0;
    for (int64_t k = 0; k < n_series && n < MOST_DIRECT; k++) {
        if (!series[k].name || is_band(&series[k])) continue;
        for (int64_t i = series[k].n; i-- > 0;) {
            if (!point_is_shown(sheet, &series[k], i)) continue;
            names[n++] = (direct_name){&series[k], cpl_chart_axis_at(&sheet->y, series[k].y[i])};
            break;
        }
    }
    push_apart(names, n, sheet->top + 2, sheet->bottom);
    for (int i = 0; i < n; i++) {
        char colour[24], classes[48];
        cpl_chart_colour_class(colour, names[i].of->colour, names[i].of->ramp, names[i].of->share);
        snprintf(classes, sizeof classes, "c-key c-own %s", colour);
        cpl_chart_put_text(sheet->out, sheet->right + 6, names[i].y + 4, classes, "start",
                           names[i].of->name, room);
    }
}

void cpl_chart_lines(cpl_text *out, const cpl_chart *chart, const cpl_chart_series *series,
                     int64_t n_series)
{
    cpl_chart_canvas sheet = cpl_chart_canvas_open(out, chart);
    double room            = chart->direct ? direct_room(series, n_series) : 0;
    legend(&sheet, series, n_series);
    cpl_chart_canvas_ramp(&sheet);
    bool any = make_axes(&sheet, series, n_series);
    sheet.right -= room;
    cpl_chart_canvas_axes(&sheet);
    if (!any) cpl_chart_canvas_empty(&sheet);
    for (int64_t k = 0; k < n_series; k++)
        if (is_band(&series[k])) put_series(&sheet, &series[k]);
    for (int64_t k = 0; k < n_series; k++)
        if (!is_band(&series[k])) put_series(&sheet, &series[k]);
    if (chart->direct) direct_names(&sheet, series, n_series, room);
    cpl_chart_canvas_close(&sheet);
}
