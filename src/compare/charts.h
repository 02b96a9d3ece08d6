/* charts.h - the charts of a comparison: curves against tokens, and figures at the end against a
 * setting.
 *
 * Room:    compare.
 * Curves:  a line a run; of groups the mean over the runs where all have a number, with a band of
 *          one standard deviation to both sides. Up to CPL_COMPARE_COLOURS lines have colours of
 *          their own, more take the ramp.
 * Losses:  begin at a twentieth of the tokens, so that the fall from the first steps does not hide
 *          what differs. */
#ifndef CPL_COMPARE_CHARTS_H
#define CPL_COMPARE_CHARTS_H

#include "compare/compare.h"
#include "report/chart.h"

enum { CPL_COMPARE_COLOURS = 8 };

/* Appends all charts, in the sections end and curves. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_compare_charts(cpl_charts *out, const cpl_compare *compare);

#endif /* CPL_COMPARE_CHARTS_H */
