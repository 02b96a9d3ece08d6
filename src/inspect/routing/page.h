/* page.h - a routing report for people: sections of a page, a page of its own, or a file for
 * each chart.
 *
 * Room:  inspect/routing. What is drawn is charts.h; how a page is made, page.h. The same report gives
 *        the same bytes. */
#ifndef CPL_INSPECT_ROUTING_PAGE_H
#define CPL_INSPECT_ROUTING_PAGE_H

#include "base/text.h"
#include "inspect/routing/report.h"

/* Appends the sections to an open page (page.h). */
void cpl_routing_page_sections(cpl_text *out, const cpl_routing_report *report);

/* Appends a whole page of them. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_page(cpl_text *out, const cpl_routing_report *report);

/* Writes every chart as a file NAME-routing-KIND.svg into `folder`, which is made where it is not
 * there; sets how many; NULL: not asked. As cpl_coupling_svgs. */
CPL_NODISCARD cpl_status cpl_routing_svgs(int64_t *n_written, const char *folder,
                                          const cpl_routing_report *report);

#endif /* CPL_INSPECT_ROUTING_PAGE_H */
