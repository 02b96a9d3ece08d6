/* charts.h - the charts of a routing report.
 *
 * Room:  inspect/routing. */
#ifndef CPL_INSPECT_ROUTING_CHARTS_H
#define CPL_INSPECT_ROUTING_CHARTS_H

#include "inspect/routing/report.h"
#include "report/chart.h"

/* Appends all charts, in the sections agreement, load, domains and vocabulary, and the maps of each
 * in a section of its own: answers, together, by-domain. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_charts(cpl_charts *out, const cpl_routing_report *report);

/* Inner, of maps.c: the maps alone. */
CPL_NODISCARD cpl_status cpl_routing_maps(cpl_charts *out, const cpl_routing_report *report);

#endif /* CPL_INSPECT_ROUTING_CHARTS_H */
