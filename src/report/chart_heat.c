/* chart_heat.c - a matrix as colours, and their bar; see chart.h
 *
 * A level of colour is one path; a run of equal cells in a row is one rectangle of it. 256 x 256
 * cells take about 800 kB that way, a rect for each cell six times as much. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "report/chart_internal.h"

enum { LEVELS = 64, NO_LEVEL = -1, MOST_NAMES = 24 };

static double share_of(double value, cpl_chart_range range, bool log_scale)
{
    if (value <= range.low) return 0; /* 0 on a logarithmic scale too */
    if (value >= range.high) return 1;
    if (log_scale) return (log(value) - log(range.low)) / (log(range.high) - log(range.low));
    return (value - range.low) / (range.high - range.low);
}

static int level_of(double value, cpl_chart_range range, bool log_scale)
{
    if (isnan(value)) return NO_LEVEL;
    int level = (int)(share_of(value, range, log_scale) * LEVELS);
    return level < LEVELS ? level : LEVELS - 1;
}

static void put_fill(cpl_text *out, int level)
{
    cpl_text_printf(out, " fill=\"#%06x\"", cpl_chart_heat_colour((level + 0.5) / LEVELS));
}

/* ---- the matrix ---- */

/* Rows, columns and the size of a cell. */
typedef struct grid {
    int64_t rows, columns;
    double width, height;
} grid;

/* Sets levels [rows,columns] in the order they are drawn. */
static void find_levels(signed char *levels, const cpl_chart_matrix *m, const grid *g)
{
    for (int64_t row = 0; row < g->rows; row++)
        for (int64_t column = 0; column < g->columns; column++) {
            int64_t i = m->order ? m->order[row] : row, j = m->order ? m->order[column] : column;
            double value = (double)m->values[i * g->columns + j] * m->scale;
            levels[row * g->columns + column] =
                (signed char)level_of(value, m->range, m->logarithmic);
        }
}

/* All cells of one level, in units of a cell: a rectangle for each run in a row. */
static void put_level(cpl_text *out, const signed char *levels, const grid *g, int level)
{
    bool any = false;
    for (int64_t row = 0; row < g->rows; row++)
        for (int64_t j = 0, end; j < g->columns; j = end) {
            end = j + 1;
            if (levels[row * g->columns + j] != level) continue;
            while (end < g->columns && levels[row * g->columns + end] == level) end++;
            if (!any) {
                cpl_text_printf(out, "<path");
                put_fill(out, level);
                cpl_text_printf(out, " d=\"");
            }
            any = true;
            cpl_text_printf(out, "M%lld %lldh%lldv1h-%lldz", (long long)j, (long long)row,
                            (long long)(end - j), (long long)(end - j));
        }
    if (any) cpl_text_printf(out, "\"/>\n");
}

static void put_cells(cpl_chart_canvas *s, const cpl_chart_matrix *m, const grid *g)
{
    signed char *levels = cpl_alloc((size_t)(g->rows * g->columns));
    if (!levels) {
        s->out->failed = true;
        return;
    }
    find_levels(levels, m, g);
    cpl_text_printf(s->out, "<g class=\"c-cells\" shape-rendering=\"crispEdges\" transform=\"");
    cpl_text_printf(s->out, "translate(%.2f %.2f) scale(%.6g", s->left, s->top, g->width);
    if (g->height != g->width) cpl_text_printf(s->out, " %.6g", g->height);
    cpl_text_printf(s->out, ")\">\n");
    for (int level = 0; level < LEVELS; level++) put_level(s->out, levels, g, level);
    cpl_text_printf(s->out, "</g>\n");
    cpl_free(levels);
}

/* Every so many-th number is shown: all of them, or in a chart of many cells whose order is their
 * own 4, 8, 16, ... apart; 0: none. */
static int64_t every_of(int64_t count, bool ordered)
{
    int64_t every = 4;
    if (count <= MOST_NAMES) return 1;
    if (ordered) return 0;
    while (count / every > MOST_NAMES / 2) every *= 2;
    return every;
}

/* The numbers of rows and columns, where they can be read. */
static void put_numbers(cpl_chart_canvas *s, const cpl_chart_matrix *m, const grid *g)
{
    const int64_t across = every_of(g->columns, m->order != NULL);
    const int64_t down   = every_of(g->rows, m->order != NULL);
    char label[24];
    for (int64_t k = 0; down && k < g->rows; k += down) {
        snprintf(label, sizeof label, "%lld", (long long)(m->order ? m->order[k] : k));
        cpl_chart_put_text(s->out, s->left - 4, s->top + ((double)k + 0.5) * g->height + 4,
                           "c-label", "end", label, 60);
    }
    for (int64_t k = 0; across && k < g->columns; k += across) {
        snprintf(label, sizeof label, "%lld", (long long)(m->order ? m->order[k] : k));
        cpl_chart_put_text(s->out, s->left + ((double)k + 0.5) * g->width, s->bottom + 13,
                           "c-label", "middle", label, 60);
    }
}

static void put_frame(cpl_chart_canvas *s)
{
    cpl_text_printf(s->out, "<rect class=\"c-axis\"");
    cpl_chart_put_attribute(s->out, "x", s->left);
    cpl_chart_put_attribute(s->out, "y", s->top);
    cpl_chart_put_attribute(s->out, "width", s->right - s->left);
    cpl_chart_put_attribute(s->out, "height", s->bottom - s->top);
    cpl_text_printf(s->out, "/>\n");
}

/* ---- the bar ---- */

static void put_bar_cell(cpl_text *out, int level, double x, double y, double width, double height)
{
    cpl_text_printf(out, "<rect");
    put_fill(out, level);
    cpl_chart_put_attribute(out, "x", x);
    cpl_chart_put_attribute(out, "y", y);
    cpl_chart_put_attribute(out, "width", width);
    cpl_chart_put_attribute(out, "height", height);
    cpl_text_printf(out, "/>\n");
}

static void put_bar(cpl_text *out, const cpl_chart_axis *axis, double across, bool lying)
{
    const double thick = 11;
    double step = (axis->to - axis->from) / LEVELS, length = fabs(step);
    char label[48];
    cpl_text_printf(out, "<g class=\"c-bar\" shape-rendering=\"crispEdges\">\n");
    for (int i = 0; i < LEVELS; i++) {
        double at = axis->from + i * step + (step < 0 ? step : 0);
        if (lying)
            put_bar_cell(out, i, at, across, length, thick);
        else
            put_bar_cell(out, i, across, at, thick, length);
    }
    cpl_text_printf(out, "</g>\n");
    for (int i = 0; i < axis->n_ticks; i++) {
        double at        = cpl_chart_axis_at(axis, axis->ticks[i]);
        const char *name = cpl_chart_axis_label(label, axis, i);
        if (lying) {
            cpl_chart_put_line(out, "c-axis", at, across + thick, at, across + thick + 3);
            cpl_chart_put_text(out, at, across + thick + 14, "c-label", "middle", name, 80);
        } else {
            cpl_chart_put_line(out, "c-axis", across + thick, at, across + thick + 3, at);
            cpl_chart_put_text(out, across + thick + 6, at + 4, "c-label", "start", name, 80);
        }
    }
}

void cpl_chart_heat(cpl_text *out, const cpl_chart *chart, const cpl_chart_matrix *matrix)
{
    cpl_chart tall     = *chart;
    cpl_chart_matrix m = *matrix;
    m.range            = cpl_chart_range_shown(m.range, m.logarithmic);
    if (tall.height <= 0) tall.height = 370;
    cpl_chart_canvas s   = cpl_chart_canvas_open(out, &tall);
    cpl_chart_axis axis  = cpl_chart_axis_of(m.range, m.range, m.logarithmic);
    double bar_room      = 31 + fmax(cpl_chart_axis_label_width(&axis), 12);
    const char *label[2] = {chart->y_label, m.value_label};
    for (int i = 0; i < 2; i++)
        if (label[i])
            cpl_chart_put_text(out, i ? s.right : s.left, s.top + 10, "c-label",
                               i ? "end" : "start", label[i], (s.right - s.left) / 2);
    s.top += 17;
    s.left += 20;
    s.bottom -= 31;
    grid g       = {m.n, m.n_columns ? m.n_columns : m.n, 0, 0};
    double width = s.right - bar_room - s.left, height = s.bottom - s.top;
    if (m.n_columns == 0) width = height = fmin(width, height);
    g.width  = width / (double)g.columns;
    g.height = height / (double)g.rows;
    s.right  = s.left + width;
    s.bottom = s.top + height;
    put_cells(&s, &m, &g);
    put_frame(&s);
    put_numbers(&s, &m, &g);
    if (chart->x_label)
        cpl_chart_put_text(out, (s.left + s.right) / 2, s.bottom + 28, "c-label", "middle",
                           chart->x_label, width);
    axis.from = s.bottom;
    axis.to   = s.top;
    put_bar(out, &axis, s.right + 12, false);
    cpl_chart_canvas_close(&s);
}

void cpl_chart_heat_bar(cpl_text *out, const cpl_chart *chart, cpl_chart_range range,
                        bool logarithmic)
{
    cpl_chart low = *chart;
    if (low.height <= 0) low.height = 54;
    cpl_chart_canvas s  = cpl_chart_canvas_open(out, &low);
    range               = cpl_chart_range_shown(range, logarithmic);
    cpl_chart_axis axis = cpl_chart_axis_of(range, range, logarithmic);
    if (chart->x_label) {
        cpl_chart_put_text(out, s.left, s.top + 9, "c-label", "start", chart->x_label,
                           s.right - s.left);
        s.top += 15;
    }
    axis.from = s.left + 12;
    axis.to   = s.right - 12;
    put_bar(out, &axis, s.top, true);
    cpl_chart_canvas_close(&s);
}
