/* columns.h - the tables of a routing report, on the terminal and in a page. The figures are rows of
 * columns.def; columns.c lists those of each table.
 *
 * Room:  inspect/routing. */
#ifndef CPL_INSPECT_ROUTING_COLUMNS_H
#define CPL_INSPECT_ROUTING_COLUMNS_H

#include "inspect/routing/report.h"
#include "report/columns.h"

/* Parts of columns.def. */
enum {
    CPL_PART_LOAD,
    CPL_PART_DOMAINS,
    CPL_PART_AGREEMENT,
    CPL_PART_TOKENS,
    CPL_PART_ANSWERS,
    CPL_PART_LIKENESS,
    CPL_PART_VOCABULARY
};

typedef enum cpl_routing_table {
    CPL_ROUTING_LOAD,
    CPL_ROUTING_AGREEMENT, /* in the page with what is in LIKENESS */
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

/* Appends LOAD, AGREEMENT or VOCABULARY to a page. */
void cpl_routing_page_layers(cpl_text *out, const cpl_routing_report *report,
                             cpl_routing_table table);

#endif /* CPL_INSPECT_ROUTING_COLUMNS_H */
