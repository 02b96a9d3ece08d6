/* chart.h - charts as data: the content of a chart, written as JSON. Drawing is assets/charts.js in
 * a page and python -m couplet.plot for files.
 *
 * Room:    report. Handles numbers and names; independent of coupling.
 * Format:  docs/formats.md, "Charts: --series".
 * Numbers: a value that is not finite becomes null, a gap. */
#ifndef CPL_REPORT_CHART_H
#define CPL_REPORT_CHART_H

#include <jansson.h>

#include "base/text.h"

/* ---- ranges and quantiles ---- */

typedef struct cpl_chart_range {
    double low, high; /* both 0: from the data */
} cpl_chart_range;

/* An empty range to begin cpl_chart_range_add with. */
cpl_chart_range cpl_chart_range_none(void);

/* Widens it to hold the value; ignores what is not finite. */
void cpl_chart_range_add(cpl_chart_range *range, double value);

typedef struct cpl_chart_box {
    double low, q05, q25, q50, q75, q95, high, mean; /* NaN: nothing is drawn */
    int64_t n;
} cpl_chart_box;

/* Quantiles linear between neighbours, as NumPy's; all NaN for n = 0 or if a value is not finite.
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_chart_box_of(cpl_chart_box *out, const double *values, int64_t n);

/* ---- a chart ---- */

typedef struct cpl_chart_axis {
    const char *label;
    cpl_chart_range range;    /* common to charts that are compared */
    bool log;                 /* logarithmic; with `zero`, 0 is at its lower end */
    bool zero;                /* contains 0 */
    bool percent;             /* values are shares, shown as percent */
    bool whole;               /* ticks at whole numbers */
    const char *const *names; /* (n_names) of the places 0, 1, ...; NULL: an axis of numbers */
    int64_t n_names;
} cpl_chart_axis;

/* Members of all kinds. NULL: absent. */
typedef struct cpl_chart {
    const char *id;      /* unique; any text, written with letters, digits and - */
    const char *section; /* of the page */
    const char *title, *caption;
    cpl_chart_axis x, y;
    const char *const *groups; /* (n_groups) names of what has a colour: checkpoints */
    int64_t n_groups;
    const char *ramp[2]; /* what the ends of the ramp of colours are: "layer 0", "layer 15" */
    const char *note;
} cpl_chart;

typedef enum cpl_chart_style {
    CPL_CHART_LINE,
    CPL_CHART_DASHED,
    CPL_CHART_RULE, /* a horizontal line at y[0] */
    CPL_CHART_DOTS  /* points without a line */
} cpl_chart_style;

typedef struct cpl_chart_series {
    const char *name;         /* NULL: not in the legend */
    const double *x;          /* (n); NULL: 0, 1, ... */
    const double *y;          /* (n); NULL: only a band */
    const double *low, *high; /* (n) of a band; NULL: none */
    int64_t n;
    int group; /* the colour; -1: grey */
    bool ramp; /* instead: the colour at `share` of the ramp */
    double share;
    cpl_chart_style style;
    bool marks; /* a dot at every point */
} cpl_chart_series;

/* A matrix with a colour a cell. */
typedef struct cpl_chart_matrix {
    const float *values; /* [rows, columns] */
    const int32_t
        *order; /* (rows) of rows and columns alike, with rows = columns; NULL: as they are */
    int64_t rows, columns;
    double scale;            /* value * scale is shown */
    cpl_chart_range colours; /* values beyond have the colour of the end; both 0: from the data */
    bool log;
    const char *value_label; /* of value * scale */
    const char *raw_label;   /* of the value; NULL: not shown */
    const char *label;       /* short, for a choice among maps: "3" */
    int group;
    bool diverging;
} cpl_chart_matrix;

/* The charts of one report. All zero is an empty list. */
typedef struct cpl_charts {
    json_t *array;
    bool failed;
} cpl_charts;

/* Append a chart. Curves that are equal are named in a note. */
void cpl_charts_lines(cpl_charts *charts, const cpl_chart *chart, const cpl_chart_series *series,
                      int64_t n_series);
/* boxes [groups, places], a group of them for every name of the chart's groups, at least one. */
void cpl_charts_boxes(cpl_charts *charts, const cpl_chart *chart, const cpl_chart_box *boxes);
void cpl_charts_heat(cpl_charts *charts, const cpl_chart *chart, const cpl_chart_matrix *matrix);

/* Adds the member "series" with the charts and the source of the report (provenance.h; NULL:
 * omitted) to `report`, and empties the list. Takes over `made`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_charts_into(json_t *report, cpl_charts *charts, json_t *made);
void cpl_charts_close(cpl_charts *charts);

#endif /* CPL_REPORT_CHART_H */
