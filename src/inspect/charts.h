/* charts.h - the charts of one or several reports.
 *
 * Room:   inspect.
 * Several reports share their charts: up to three checkpoints in one, with a colour each; more go
 * on in further charts of the same scale. */
#ifndef CPL_INSPECT_CHARTS_H
#define CPL_INSPECT_CHARTS_H

#include "inspect/report.h"
#include "report/chart.h"

/* Appends all charts. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_charts(cpl_charts *out,
                                             const cpl_coupling_report *const *reports,
                                             int64_t count);

/* Inner, of maps.c: the coupling matrices; and the points of t-SNE of one of several reports, if there
 * are any. */
CPL_NODISCARD cpl_status cpl_coupling_maps(cpl_charts *out,
                                           const cpl_coupling_report *const *reports,
                                           int64_t count);
CPL_NODISCARD cpl_status cpl_coupling_points(cpl_charts *out, const cpl_coupling_report *report,
                                             bool several);

#endif /* CPL_INSPECT_CHARTS_H */
