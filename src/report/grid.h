/* grid.h - a table of names and texts, shown on a terminal or in a page.
 *
 * Room:  report.
 * Text:  cells are UTF-8. On a terminal the signs of numbers become ASCII, and a line end or tab in
 *        a cell becomes \x0a or \x09. */
#ifndef CPL_REPORT_GRID_H
#define CPL_REPORT_GRID_H

#include "base/arena.h"
#include "base/text.h"

/* Holds a table. All texts are allocated from the pool passed to cpl_grid_open. */
typedef struct cpl_grid {
    const char *title, *note; /* each may be NULL */
    const char *corner;       /* heading of the column of row names */
    const char **rows;        /* (n_rows) */
    const char **columns;     /* (n_columns) */
    const char **groups;      /* (n_columns) heading of neighbours that share it, or NULL */
    const char **cells;       /* [n_rows,n_columns] */
    int64_t n_rows, n_columns;
} cpl_grid;

/* Allocates empty names and cells. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_grid_open(cpl_grid *grid, cpl_pool *pool, int64_t n_rows,
                                       int64_t n_columns);
void cpl_grid_set(cpl_grid *grid, int64_t row, int64_t column, const char *text);

/* Appends the table as text. Appends nothing if it has no rows. */
void cpl_grid_text(cpl_text *out, const cpl_grid *grid);
void cpl_grid_page(cpl_text *out, const cpl_grid *grid);

#endif /* CPL_REPORT_GRID_H */
