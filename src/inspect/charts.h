/* charts.h - the charts of one or several reports, all of one kind with one scale.
 *
 * Room:  inspect; shared by page.h's page and its files.
 * Names: as in report.h. A layer has figures where it has no fault; M only where has_M. */
#ifndef CPL_INSPECT_CHARTS_H
#define CPL_INSPECT_CHARTS_H

#include "inspect/report.h"
#include "report/chart.h"

/* In the order of the page. */
typedef enum cpl_coupling_kind {
    CPL_COUPLING_KAPPA,
    CPL_COUPLING_OWN,
    CPL_COUPLING_Z,
    CPL_COUPLING_CHANCE,
    CPL_COUPLING_RATIOS,
    CPL_COUPLING_ALPHA,
    CPL_COUPLING_SILHOUETTE,
    CPL_COUPLING_COSINE,
    CPL_COUPLING_EPS,
    CPL_COUPLING_ERC,
    CPL_COUPLING_ROUTER_NORM,
    CPL_COUPLING_GATE_NORM,
    CPL_COUPLING_PICTURE,
    CPL_COUPLING_KINDS
} cpl_coupling_kind;

enum { CPL_COUPLING_MOST_LINES = 4 };

/* What there is to know of a kind, once. Either `lines` or `spread` or neither. */
typedef struct cpl_chart_spec {
    const char *file;             /* how its files end: "kappa" */
    const char *title;            /* at most 50 letters */
    const char *y_label;          /* NULL: none */
    const char *caption;          /* what one sees, for the page */
    bool log_y, from_zero, whole; /* whole: the scale is [0, 1] */

    int n_lines;
    const char *names[CPL_COUPLING_MOST_LINES];
    int colours[CPL_COUPLING_MOST_LINES];
    bool dashed[CPL_COUPLING_MOST_LINES];
    const char *band; /* the name of a band, or NULL */
    int band_colour;
    double rule; /* a line at a value that means something, with its name; NULL: none */
    const char *rule_name;

    /* Sets values [n_lines], and with a band its lower and upper end behind them, of one layer with
     * M; of the index of the alpha that stands for ERC. */
    void (*lines)(double *values, const cpl_layer_report *layer, int alpha);

    /* Sets the values whose distribution is shown, of a layer without fault, and returns how many
     * they are; NULL: only counts them. */
    int64_t (*spread)(double *values, const cpl_layer_report *layer);
} cpl_chart_spec;

extern const cpl_chart_spec cpl_chart_specs[CPL_COUPLING_KINDS];

/* One report as charts show it. */
typedef struct cpl_coupling_view {
    const cpl_coupling_report *report;
    const char **names; /* (n_layers) "0", "1", ... of the axis */
    cpl_chart_part parts[2];
    int64_t n_parts;
    int alpha; /* index in options.alphas of 1, or where it is not there 0 */
    cpl_chart_box *boxes[CPL_COUPLING_KINDS]; /* (n_layers) where the kind has a spread */
    int32_t **orders; /* (n_layers) experts by falling diagonal of M; NULL without M */
} cpl_coupling_view;

typedef struct cpl_coupling_charts {
    cpl_coupling_view *views;
    int64_t n_views;
    cpl_chart_range y[CPL_COUPLING_KINDS];
    cpl_chart_range alphas;
    cpl_chart_range
        heat; /* of M / mean diagonal: from the least 1 % to the greatest 99.9 % quantile */
    bool heat_log;
    cpl_chart_range picture;
    void *memory; /* inner */
} cpl_coupling_charts;

/* Common scales, distributions and orders. The reports must outlive it. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_charts_open(cpl_coupling_charts *charts,
                                                  const cpl_coupling_report *const *reports,
                                                  int64_t count);
void cpl_coupling_charts_close(cpl_coupling_charts *charts); /* all zero: nothing to do */

/* Whether a chart of the kind would show anything of the report. */
bool cpl_coupling_charts_have(const cpl_coupling_charts *charts, int64_t view,
                              cpl_coupling_kind kind);

/* Appends one chart. Inside a page the report's name is below the title where there are several. */
void cpl_coupling_charts_draw(cpl_text *out, const cpl_coupling_charts *charts, int64_t view,
                              cpl_coupling_kind kind, bool in_page);

/* M of one layer that has one, as vectors. */
void cpl_coupling_charts_heat(cpl_text *out, const cpl_coupling_charts *charts, int64_t view,
                              int64_t layer);

/* What M is multiplied with before it becomes a colour: 1 / mean diagonal, or where that is 0
 * 1 / mean off the diagonal, or where both are 0 1. */
double cpl_coupling_charts_scale(const cpl_layer_report *layer);

/* "3" or "encoder 3" into `out`, which is returned. */
const char *cpl_coupling_charts_label(char out[48], const cpl_layer_report *layer);

/* "layer 3" or "layer 3 of the encoder". */
const char *cpl_coupling_charts_words(char out[64], const cpl_layer_report *layer);

/* ERC at the k-th alpha over the mean diagonal of M; NaN where that is 0. */
double cpl_coupling_charts_erc(const cpl_layer_report *layer, double erc);

#endif /* CPL_INSPECT_CHARTS_H */
