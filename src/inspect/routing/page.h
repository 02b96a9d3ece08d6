/* page.h - a routing report for people: sections of a page, or a page of its own.
 *
 * Room:  inspect/routing. Charts come from the data (charts.h). */
#ifndef CPL_INSPECT_ROUTING_PAGE_H
#define CPL_INSPECT_ROUTING_PAGE_H

#include <jansson.h>

#include "base/text.h"
#include "inspect/routing/report.h"

/* Appends the sections to an open page (report/page.h); `data` is the JSON with its series. */
void cpl_routing_page_sections(cpl_text *out, const cpl_routing_report *report, const json_t *data);

/* Appends a whole page of them. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_page(cpl_text *out, const cpl_routing_report *report,
                                          const json_t *data);

#endif /* CPL_INSPECT_ROUTING_PAGE_H */
