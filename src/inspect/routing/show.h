/* show.h - a routing report as tables, JSON, and sentences.
 *
 * Room:  inspect/routing. The figures of a layer are rows of columns.def; columns.c lists those of
 *        each table on the terminal; the page is drawn from the JSON by assets/charts.json. */
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
    CPL_ROUTING_AGREEMENT,
    CPL_ROUTING_SIGNS, /* of models with router rows */
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

/* Whether the router's choices follow the experts' responses (docs/inspection.md): "follow", ...;
 * NULL: it cannot be told. */
const char *cpl_routing_state(const cpl_routing_report *report);

/* Means over the layers; those of rho and own over the layers that have one. */
typedef struct cpl_routing_summary {
    double rho, least, most; /* rho NaN: no layer has one */
    double top1, overlap;
    double own; /* of the rows of M_tok */
} cpl_routing_summary;

cpl_routing_summary cpl_routing_summary_of(const cpl_routing_report *report);

/* Appends it with the figures that it follows from, in sentences. */
void cpl_routing_verdict(cpl_text *out, const cpl_routing_report *report);

/* A new object; the caller gives it back with json_decref. A figure that is not finite is null.
 * NULL if there is no memory. */
json_t *cpl_routing_json(const cpl_routing_report *report);

#endif /* CPL_INSPECT_ROUTING_SHOW_H */
