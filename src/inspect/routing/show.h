/* show.h - a routing report as tables, charts, a page or sections of one, and JSON.
 *
 * Room:  inspect/routing. The figures of a layer are rows of columns.def; columns.c lists those of
 *        each table on the terminal and in the page, charts.c those of each chart. */
#ifndef CPL_INSPECT_ROUTING_SHOW_H
#define CPL_INSPECT_ROUTING_SHOW_H

#include <jansson.h>

#include "inspect/routing/report.h"
#include "report/columns.h"

/* Parts of columns.def. */
enum {
    CPL_PART_LOAD,
    CPL_PART_DOMAINS,
    CPL_PART_AGREEMENT,
    CPL_PART_SIGNS,
    CPL_PART_TOKENS,
    CPL_PART_ANSWERS,
    CPL_PART_LIKENESS,
    CPL_PART_VOCABULARY
};

typedef enum cpl_routing_table {
    CPL_ROUTING_LOAD,
    CPL_ROUTING_AGREEMENT, /* in the page with what is in LIKENESS */
    CPL_ROUTING_SIGNS,     /* of models with router rows */
    CPL_ROUTING_LIKENESS,
    CPL_ROUTING_ERC,
    CPL_ROUTING_VOCABULARY
} cpl_routing_table;

/* The list with the values of a report: rows are its layers. */
cpl_columns cpl_routing_columns(const cpl_routing_report *report);

/* A table for a terminal. All texts live in `pool`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_routing_report *report,
                                          cpl_routing_table table);

/* Appends LOAD, AGREEMENT, SIGNS or VOCABULARY to a page. */
void cpl_routing_page_layers(cpl_text *out, const cpl_routing_report *report,
                             cpl_routing_table table);

/* Appends all charts, in the sections agreement, signs, load, domains and vocabulary. The maps of each go
 * to their own sections: answers, together, by-domain. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_charts(cpl_charts *out, const cpl_routing_report *report);

/* Appends the sections to an open page (report/page.h); `data` is the JSON with its series. */
void cpl_routing_page_sections(cpl_text *out, const cpl_routing_report *report, const json_t *data);

/* Appends a whole page of them. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_page(cpl_text *out, const cpl_routing_report *report,
                                          const json_t *data);

/* Whether the router's choices follow the experts' responses (docs/inspection.md): "follow", ...;
 * NULL: it cannot be told. */
const char *cpl_routing_state(const cpl_routing_report *report);

/* Appends it with the figures that it follows from, in sentences. */
void cpl_routing_verdict(cpl_text *out, const cpl_routing_report *report);

/* A new object; the caller gives it back with json_decref. A figure that is not finite is null.
 * NULL if there is no memory. */
json_t *cpl_routing_json(const cpl_routing_report *report);

#endif /* CPL_INSPECT_ROUTING_SHOW_H */
