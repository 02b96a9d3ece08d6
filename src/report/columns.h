/* columns.h - figures in the columns of tables: each is described once, and its text on a terminal
 * and its member of the JSON follow.
 *
 * Room:  report. Knows numbers and names; which figures there are, and of what, is the caller's
 *        list. */
#ifndef CPL_REPORT_COLUMNS_H
#define CPL_REPORT_COLUMNS_H

#include <jansson.h>

#include "report/grid.h"

typedef enum cpl_column_kind {
    CPL_COLUMN_REAL,
    CPL_COLUMN_BOUND,  /* a real; if it is infinite the JSON has a member KEY_infinite, true */
    CPL_COLUMN_SCALED, /* depends on the scale of weights, or is a quotient of what does */
    CPL_COLUMN_SHARE,  /* shown as percent */
    CPL_COLUMN_COUNT   /* whole; NaN has no member in the JSON */
} cpl_column_kind;

/* A figure. */
typedef struct cpl_column {
    const char
        *key; /* its member: "kappa.diag_mean" is member diag_mean of the object kappa; "erc." is an
                        object with a member for every alpha; NULL: none */
    int part; /* members of one part are written together */
    cpl_column_kind kind;
} cpl_column;

/* The list of figures, and the location of their values. */
typedef struct cpl_columns {
    const cpl_column *list;
    int n;
    double (*value)(const void *ctx, int64_t row, int column, int alpha);
    const void *ctx;
    const double *alphas; /* (n_alphas) */
    int n_alphas;         /* figures of one alpha are those of the first */
} cpl_columns;

/* A column of a table. A table is an array of them, which ends with one without a heading. */
typedef struct cpl_shown {
    int column; /* in the list */
    const char *heading;
    const char *group; /* above this column and its neighbours of the same group; NULL: none */
    int digits; /* decimals, of a share's percentage; of what depends on scale: significant ones */
    bool as_it_is; /* as a real of any kind */
    int spread;    /* in the list: the standard deviation, shown after it; 0: none */
    enum { CPL_NO_ALPHA, CPL_ONE_ALPHA, CPL_EACH_ALPHA } alphas; /* appended to the heading */
} cpl_shown;

/* Opens a grid of n_rows with its headings; sets a row of it. */
CPL_NODISCARD cpl_status cpl_columns_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_columns *columns, const cpl_shown *shown,
                                          int64_t n_rows);
void cpl_columns_grid_row(cpl_grid *grid, cpl_pool *pool, const cpl_columns *columns,
                          const cpl_shown *shown, int64_t at, const char *name, int64_t row);

/* The text of a value in a grid. */
const char *cpl_columns_plain(cpl_pool *pool, const cpl_column *column, const cpl_shown *shown,
                              double value);

/* Adds the members of one part to `object`. */
void cpl_columns_json(bool *failed, json_t *object, const cpl_columns *columns, int part,
                      int64_t row);

#endif /* CPL_REPORT_COLUMNS_H */
