/* chart.h - charts from plain numbers: a clean SVG file, or the same markup inside a page.
 *
 * Room:    report. Knows numbers and names, nothing of coupling.
 * Numbers: NaN is a gap. A value beyond a fixed range is drawn at its edge; +infinity is drawn as a
 *          sign at the upper edge. No coordinate is ever infinite or not a number.
 * Text:    may hold anything; it is escaped here. A name that is too long is cut in its middle.
 * Same:    the same data gives the same bytes.
 * Look:    a file holds its own style, light, with plain colours that every reader of SVG knows; in
 *          a page the same classes take the page's colours (cpl_chart_style), light and dark. */
#ifndef CPL_REPORT_CHART_H
#define CPL_REPORT_CHART_H

#include "base/text.h"

enum { CPL_CHART_COLOURS = 8, CPL_CHART_RAMP = 16 };

typedef struct cpl_chart_range {
    double low, high; /* to be shown as cpl_chart_range_shown says; all zero: taken from the data */
} cpl_chart_range;

/* An empty range to begin cpl_chart_range_add with. */
cpl_chart_range cpl_chart_range_none(void);

/* Widens it to hold the value; what is not finite is passed over. */
void cpl_chart_range_add(cpl_chart_range *range, double value);

/* Widens it to round numbers, as a chart does with a range that it takes from the data: charts that
 * are given the result have the same scale. An empty one becomes [0, 1]; on a logarithmic scale a
 * range that is not above 0 becomes [0.1, 1]. */
cpl_chart_range cpl_chart_range_round(cpl_chart_range range, bool logarithmic);

/* What a chart shows that is asked for the range: exactly that, up to 1e301 in size, and from 1e-301
 * on a logarithmic scale. One that is empty, or whose ends differ by less than a millionth, is
 * rounded instead, which widens it: no ticks could be told apart on it. */
cpl_chart_range cpl_chart_range_shown(cpl_chart_range range, bool logarithmic);

/* A stretch of a category axis with a name of its own below it: "encoder". */
typedef struct cpl_chart_part {
    const char *name;
    int64_t first, last;
} cpl_chart_part;

/* A horizontal line with a name, at a value that means something: 0 of a z-score. */
typedef struct cpl_chart_rule {
    double y;
    const char *name; /* in the legend of lines; NULL: none */
} cpl_chart_rule;

/* What all charts have. Names that are NULL are left out. */
typedef struct cpl_chart {
    const char *title, *subtitle;
    const char *note; /* one line of small print below */
    const char *x_label, *y_label;
    cpl_chart_range x, y;
    bool log_x, log_y;
    const char *const *x_names; /* (n_x_names) a category axis: places 0, 1, ... */
    int64_t n_x_names;
    const cpl_chart_part *x_parts;
    int64_t n_x_parts;
    const cpl_chart_rule *rules;
    int64_t n_rules;
    bool direct;               /* names of series at their ends instead of a legend above */
    const char *legend_title;  /* in front of the legend */
    const char *ramp_names[2]; /* what the two ends of the ramp stand for: "layer 0", "layer 15" */
    double width, height;      /* 0: 360 x 250, two of which stand well in a paper's column */
    bool in_page;              /* inside an HTML page; else a file of its own */
} cpl_chart;

/* The rules of style of all charts. In a page they refer to variables that cpl_chart_colours
 * defines: once for light, once for dark. */
void cpl_chart_style(cpl_text *out, bool in_page);
void cpl_chart_colours(cpl_text *out, bool dark);

/* The colour of a share in [0, 1] on the map of heat maps, 0xRRGGBB. */
uint32_t cpl_chart_heat_colour(double share);

/* ---- lines ---- */

typedef struct cpl_chart_series {
    const char *name;   /* NULL: not in the legend */
    const double *x;    /* (n); NULL: 0, 1, ... */
    const double *y;    /* (n) */
    const double *low;  /* (n) of a band instead of a line, with `high`; `y` may be NULL then */
    const double *high; /* (n) */
    int64_t n;
    int colour; /* 0 .. CPL_CHART_COLOURS - 1; -1: grey */
    bool ramp;  /* instead: the colour at `share` of the ramp */
    double share;
    bool dashed;
    bool plain; /* no dots at the points; there are none in any case where n > 80 */
} cpl_chart_series;

void cpl_chart_lines(cpl_text *out, const cpl_chart *chart, const cpl_chart_series *series,
                     int64_t n_series);

/* ---- spread: distributions side by side ---- */

typedef struct cpl_chart_box {
    double least, q5, q25, q50, q75, q95, most, mean; /* NaN: nothing is drawn */
} cpl_chart_box;

/* Quantiles linear between neighbours, as NumPy's; all NaN for n = 0 or where a value is not
 * finite. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_chart_box_of(cpl_chart_box *out, const double *values, int64_t n);

typedef struct cpl_chart_group {
    const char *name;           /* NULL: not in the legend */
    const cpl_chart_box *boxes; /* (n_x_names of the chart) */
    int colour;
} cpl_chart_group;

/* Boxes from quartile to quartile with the median, whiskers from 5 % to 95 %, points at the least,
 * the greatest (open) and the mean (filled). The groups of one place stand side by side. */
void cpl_chart_spread(cpl_text *out, const cpl_chart *chart, const cpl_chart_group *groups,
                      int64_t n_groups);

/* ---- heat ---- */

typedef struct cpl_chart_matrix {
    const float *values;  /* [n, n_columns] */
    const int32_t *order; /* (n) of rows and columns alike; NULL: as they are */
    int64_t n;
    double scale;          /* what is drawn is value * scale */
    cpl_chart_range range; /* of colours; what lies beyond has the colour of the end */
    bool logarithmic;
    const char *value_label; /* above the colour bar */
    int64_t n_columns;       /* 0: n, with cells that are squares; else they fill the chart */
} cpl_chart_matrix;

/* One path for each of 64 levels of colour that occur. Rows downwards, columns to the right. */
void cpl_chart_heat(cpl_text *out, const cpl_chart *chart, const cpl_chart_matrix *matrix);

/* The colour bar alone, lying, for matrices that are drawn elsewhere. */
void cpl_chart_heat_bar(cpl_text *out, const cpl_chart *chart, cpl_chart_range range,
                        bool logarithmic);

/* ---- points ---- */

/* Points [n,2] in classes, on a square without ticks; `class_of` (n) in [0, n_classes), at most
 * CPL_CHART_COLOURS of them; `names` (n_classes). Range of the chart: x for both directions. */
void cpl_chart_points(cpl_text *out, const cpl_chart *chart, const float *points,
                      const int32_t *class_of, int64_t n, const char *const *names,
                      int64_t n_classes);

#endif /* CPL_REPORT_CHART_H */
