/* columns.h - the descriptions of figures, from which columns of tables on a terminal and members
 * of JSON are made.
 *
 * Room:  report. Handles numbers and names. The caller defines the list of figures. */
#ifndef CPL_REPORT_COLUMNS_H
#define CPL_REPORT_COLUMNS_H

#include <jansson.h>

#include "report/grid.h"

typedef enum cpl_column_kind {
    CPL_COLUMN_REAL,
    CPL_COLUMN_BOUND,  /* a real; if infinite, the JSON has a member KEY_infinite, true */
    CPL_COLUMN_SCALED, /* a real that depends on the scale of weights, or a quotient of these */
    CPL_COLUMN_SHARE,  /* shown as percent */
    CPL_COLUMN_COUNT   /* an integer; NaN has no member in the JSON */
} cpl_column_kind;

/* Describes a figure. */
typedef struct cpl_column {
    const char
        *key; /* JSON member: "kappa.diag_mean" is member diag_mean of the object kappa; "erc." is
                        an object with a member for every alpha; NULL: none */
    int part; /* members of one part are written together */
    cpl_column_kind kind;
} cpl_column;

/* Holds the list of figures, and the function that returns their values. */
typedef struct cpl_columns {
    const cpl_column *list;
    int n;
    double (*value)(const void *ctx, int64_t row, int column, int alpha);
    const void *ctx;
    const double *alphas; /* (n_alphas) */
    int n_alphas;         /* figures of one alpha use the first */
} cpl_columns;

/* Describes a column of a table. A table is an array of columns, ended by a column without a
 * heading. */
typedef struct cpl_shown {
    int column; /* index in the list */
    const char *heading;
    const char *group; /* heading of neighbouring columns with the same group, or NULL */
    int digits;    /* decimals (of the percentage for a share), or significant digits if scaled */
    bool as_it_is; /* shown as a plain real */
    int spread;    /* index of its standard deviation, shown after it; 0: not shown */
    int spread_digits; /* significant digits of `spread`; 0: written as the value */
    enum { CPL_NO_ALPHA, CPL_ONE_ALPHA, CPL_EACH_ALPHA } alphas; /* alphas in the heading */
} cpl_shown;

/* cpl_columns_grid opens a grid of n_rows with its headings. cpl_columns_grid_row sets one row. */
CPL_NODISCARD cpl_status cpl_columns_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_columns *columns, const cpl_shown *shown,
                                          int64_t n_rows);
void cpl_columns_grid_row(cpl_grid *grid, cpl_pool *pool, const cpl_columns *columns,
                          const cpl_shown *shown, int64_t at, const char *name, int64_t row);

/* Returns the text of a value in a grid. */
const char *cpl_columns_plain(cpl_pool *pool, const cpl_column *column, const cpl_shown *shown,
                              double value);

/* Adds the members of one part to `object`. */
void cpl_columns_json(bool *failed, json_t *object, const cpl_columns *columns, int part,
                      int64_t row);

#endif /* CPL_REPORT_COLUMNS_H */
