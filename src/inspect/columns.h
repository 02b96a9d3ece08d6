/* columns.h - the tables of an inspection, on the terminal and in a page, and the figures of a layer in the
 * JSON. The figures are rows of columns.def; columns.c lists those of each table.
 *
 * Room:  inspect. */
#ifndef CPL_INSPECT_COLUMNS_H
#define CPL_INSPECT_COLUMNS_H

#include "inspect/report.h"
#include "report/columns.h"

/* Parts of columns.def. */
enum { CPL_PART_SHAPE, CPL_PART_COUPLING, CPL_PART_ROUTER, CPL_PART_NOISE, CPL_PART_CLUSTERS };

/* The list with the values of a report: rows are its layers. */
cpl_columns cpl_inspect_columns(const cpl_coupling_report *report);

typedef enum cpl_inspect_table {
    CPL_TABLE_AGREEMENT, /* free of scale: layers with M */
    CPL_TABLE_RAW,       /* depends on the scale of the weights */
    CPL_TABLE_CLUSTERS   /* silhouettes */
} cpl_inspect_table;

/* The layers that have no fault, for a terminal; AGREEMENT: those with M. All texts live in `pool`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_inspect_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_coupling_report *report,
                                          cpl_inspect_table table);

/* Several checkpoints beside each other: means over the layers. */
CPL_NODISCARD cpl_status cpl_inspect_grid_compare(cpl_grid *grid, cpl_pool *pool,
                                                  const cpl_coupling_report *reports,
                                                  int64_t count);

/* Appends the table of one report, AGREEMENT or RAW, to a page: every layer, or why it has no figures. */
void cpl_inspect_page_layers(cpl_text *out, const cpl_coupling_report *report,
                             cpl_inspect_table table);

/* Appends two tables with a line a checkpoint: what it is; its scale-free figures, means and ranges
 * over the layers. */
void cpl_inspect_page_checkpoints(cpl_text *out, const cpl_coupling_report *const *reports,
                                  int64_t count);

/* "3" or "encoder 3" into `out`, which is returned. */
const char *cpl_coupling_layer_label(char out[48], const cpl_layer_report *layer);

/* The index in options.alphas of 1; where it is not among them 0. */
int cpl_coupling_alpha(const cpl_coupling_report *report);

#endif /* CPL_INSPECT_COLUMNS_H */
