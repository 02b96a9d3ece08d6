/* chart_internal.h - what the kinds of chart share: the sheet they draw on, its axes and its legend.
 *
 * Room:  report, chart*.c only.
 * Units: those of the SVG's viewBox, from the upper left corner; text is 11 units high. */
#ifndef CPL_REPORT_CHART_INTERNAL_H
#define CPL_REPORT_CHART_INTERNAL_H

#include "report/chart.h"
#include "report/markup.h"

enum { CPL_CHART_MOST_TICKS = 24 };

#define CPL_CHART_LETTER 5.9 /* width of a letter of 11 units, on average and a little more */

typedef struct cpl_chart_axis {
    double low, high;
    bool log;
    double from, to; /* where low and high stand */
    double ticks[CPL_CHART_MOST_TICKS];
    int n_ticks;
    double step; /* between ticks; 0 where they stand at 1, 2, 5 of decades */
} cpl_chart_axis;

/* What is drawn, and the part of it that is still free. */
typedef struct cpl_chart_canvas {
    cpl_text *out;
    const cpl_chart *chart;
    double width, height, edge;
    double left, top, right, bottom;
    cpl_chart_axis x, y;
} cpl_chart_canvas;

/* Whether cpl_chart_range_add has added nothing. */
bool cpl_chart_range_is_none(cpl_chart_range range);

/* The axis of the range that is asked for, as cpl_chart_range_shown has it; of the one that is seen,
 * rounded, where `asked` is all zero, upside down or not finite, or not above 0 on a logarithmic
 * scale. It has between 2 and CPL_CHART_MOST_TICKS ticks. */
cpl_chart_axis cpl_chart_axis_of(cpl_chart_range asked, cpl_chart_range seen, bool log);

/* Where the value stands, from `from` to `to`. Not for NaN. */
double cpl_chart_axis_at(const cpl_chart_axis *axis, double value);
const char *cpl_chart_axis_label(char out[48], const cpl_chart_axis *axis, int tick);
double cpl_chart_axis_label_width(const cpl_chart_axis *axis); /* of the widest */

/* Opens the SVG, writes titles and the note, and sets what is free. */
cpl_chart_canvas cpl_chart_canvas_open(cpl_text *out, const cpl_chart *chart);
void cpl_chart_canvas_close(cpl_chart_canvas *sheet);

/* Takes room at the edges for the labels of both axes (x, y of the sheet, whose ends it sets) and
 * draws grid, ticks, labels, parts and rules. */
void cpl_chart_canvas_axes(cpl_chart_canvas *sheet);

/* Says in the middle that there are no values. */
void cpl_chart_canvas_empty(cpl_chart_canvas *sheet);

/* One name with its colour. */
typedef struct cpl_chart_key {
    const char *name;
    char colour[24]; /* a class */
    enum {
        CPL_CHART_KEY_LINE,
        CPL_CHART_KEY_DASHED,
        CPL_CHART_KEY_BAND,
        CPL_CHART_KEY_DOT,
        CPL_CHART_KEY_RULE
    } mark;
} cpl_chart_key;

/* Draws the legend at the upper edge, in as many rows as it takes, and takes the room. A legend
 * title stands in front. */
void cpl_chart_canvas_legend(cpl_chart_canvas *sheet, const cpl_chart_key *keys, int64_t n_keys);

/* The same for the ramp, between its two names. */
void cpl_chart_canvas_ramp(cpl_chart_canvas *sheet);

/* The class of a colour: "c-q3", "c-r12" or "c-none". */
void cpl_chart_colour_class(char out[24], int colour, bool ramp, double share);

/* Appends a piece of text, at most `room` units wide. `anchor` is start, middle or end. */
void cpl_chart_put_text(cpl_text *out, double x, double y, const char *classes, const char *anchor,
                        const char *string, double room);
void cpl_chart_put_line(cpl_text *out, const char *classes, double x1, double y1, double x2,
                        double y2);
void cpl_chart_put_attribute(cpl_text *out, const char *name, double value); /* ` name="value"` */

/* The name of a place: that of a category axis, or "x label value". */
void cpl_chart_put_place(cpl_text *out, const cpl_chart *chart, double x);

/* Where the middle of a place of a category axis, or a value of another, stands. */
double cpl_chart_place_at(const cpl_chart_canvas *sheet, double x);

#endif /* CPL_REPORT_CHART_INTERNAL_H */
