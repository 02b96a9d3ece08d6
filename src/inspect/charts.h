/* charts.h - the charts of one or several reports.
 *
 * Room:   inspect.
 * Several reports share their charts: up to three checkpoints in one, with a colour each; more go
 * on in further charts of the same scale. */
#ifndef CPL_INSPECT_CHARTS_H
#define CPL_INSPECT_CHARTS_H

#include "inspect/report.h"
#include "report/chart.h"

enum { CPL_COUPLING_MOST_LINES = 4 };

/* A kind of chart: lines over layers, distributions by layer, or ERC over alpha (neither). */
typedef struct cpl_chart_spec {
    const char *id, *section, *title;
    const char *y_label, *caption;
    bool log_y, from_zero, share; /* share: from 0 to 1 */

    int n_lines;
    const char *names[CPL_COUPLING_MOST_LINES];
    int colours[CPL_COUPLING_MOST_LINES]; /* where one report is shown */
    bool dashed[CPL_COUPLING_MOST_LINES];
    const char *band; /* the name of a band; NULL: none */
    int band_colour;
    const char *rule_name; /* of a line at `rule`; NULL: none */
    double rule;

    /* Sets values [n_lines], then the lower and upper end of the band, of one layer with M; of the
     * index of the alpha at which ERC is shown. */
    void (*lines)(double *values, const cpl_layer_report *layer, int alpha);

    /* Sets the values whose distribution is shown, of a layer without fault, and returns how many
     * there are; NULL: only counts them. */
    int64_t (*spread)(double *values, const cpl_layer_report *layer);

    bool raw; /* of ERC over alpha: not divided by the mean diagonal */
} cpl_chart_spec;

extern const cpl_chart_spec cpl_chart_specs[];
extern const size_t cpl_n_chart_specs;

/* Appends all charts. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_charts(cpl_charts *out,
                                             const cpl_coupling_report *const *reports,
                                             int64_t count);

/* ERC over the mean diagonal of M; NaN where that is 0. */
double cpl_coupling_relative_erc(const cpl_layer_report *layer, double erc);

#endif /* CPL_INSPECT_CHARTS_H */
