/* charts.h - the charts of a comparison: curves against tokens, and figures at the end
 * against a setting.
 *
 * Room:    compare.
 * Curves:  a line a run; of groups the mean over the runs where all have a number, with a band of
 *          one standard deviation to both sides. Up to CPL_CHART_COLOURS lines have colours of their
 *          own, more take the ramp.
 * Losses:  begin at a twentieth of the tokens, so that the fall from the first steps does not hide
 *          what differs. */
#ifndef CPL_COMPARE_CHARTS_H
#define CPL_COMPARE_CHARTS_H

#include "base/text.h"
#include "compare/compare.h"

typedef struct cpl_compare_chart {
    char file[96];       /* plain name without its ending: "at-the-end-eps" */
    const char *caption; /* a sentence */
    int64_t figure;      /* of cpl_compare.figures */
    cpl_run_curve curve;
    bool at_the_end; /* against the setting of group_by */
} cpl_compare_chart;

typedef struct cpl_compare_charts {
    const cpl_compare *compare; /* not owned */
    cpl_compare_chart *charts;  /* (n) those that have something to show */
    int64_t n;
    cpl_pool pool;
} cpl_compare_charts;

CPL_NODISCARD cpl_status cpl_compare_charts_open(cpl_compare_charts *charts,
                                                 const cpl_compare *compare);
void cpl_compare_charts_close(cpl_compare_charts *charts);

/* Appends one of them as SVG. */
CPL_NODISCARD cpl_status cpl_compare_chart_draw(cpl_text *out, const cpl_compare_charts *charts,
                                                int64_t i, bool in_page);

#endif /* CPL_COMPARE_CHARTS_H */
