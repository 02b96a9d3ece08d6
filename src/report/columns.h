/* columns.h - figures in the columns of tables: each is described once, and its text on a terminal,
 * its cell in a page and its member of the JSON follow.
 *
 * Room:  report. Knows numbers and names; which figures there are, and of what, is the caller's
 *        list. */
#ifndef CPL_REPORT_COLUMNS_H
#define CPL_REPORT_COLUMNS_H

#include <jansson.h>

#include "report/chart.h"
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
    int n_alphas;
    int alpha; /* the index of the one whose figures are shown if one is */
} cpl_columns;

enum { CPL_COLUMN_WORDS = -1 };

/* A column of a table. A table is an array of them, which ends with one without a heading. */
typedef struct cpl_shown {
    int column; /* in the list; CPL_COLUMN_WORDS: the caller puts the cells into the page */
    const char *heading;
    const char *group; /* above this column and its neighbours of the same group; NULL: none */
    int digits; /* a terminal: decimals, of a share's percentage; of what depends on scale, and in a
                          page: significant ones */
    bool as_it_is; /* on a terminal: as a real of any kind */
    int spread;    /* in the list: the standard deviation, shown after it; 0: none */
    enum { CPL_NO_ALPHA, CPL_ONE_ALPHA, CPL_EACH_ALPHA } alphas; /* appended to the heading */
    bool range; /* if a line represents several runs: their range, not their mean */
} cpl_shown;

/* How many columns they are, each alpha being one. */
int64_t cpl_columns_count(const cpl_columns *columns, const cpl_shown *shown);

/* Opens a grid of n_rows, never turned, with its headings; sets a row of it. */
CPL_NODISCARD cpl_status cpl_columns_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_columns *columns, const cpl_shown *shown,
                                          int64_t n_rows);
void cpl_columns_grid_row(cpl_grid *grid, cpl_pool *pool, const cpl_columns *columns,
                          const cpl_shown *shown, int64_t at, const char *name, int64_t row);

/* Opens a table of a page, whose first column is `corner`; puts the cells of a row up to the next
 * column of words, which it returns. */
void cpl_columns_page_open(cpl_text *out, const char *caption, const char *corner,
                           const cpl_columns *columns, const cpl_shown *shown);
const cpl_shown *cpl_columns_page_cells(cpl_text *out, const cpl_columns *columns,
                                        const cpl_shown *shown, int64_t row);

/* The text of a value, as in a grid and as in a page. */
const char *cpl_columns_plain(cpl_pool *pool, const cpl_column *column, const cpl_shown *shown,
                              double value);
const char *cpl_columns_words(char out[48], const cpl_column *column, int digits, double value);

/* ---- charts of lines over rows ---- */

enum { CPL_CHART_MOST_LINES = 4 };

/* A chart with a line for each of some columns; or, with n_lines = 0, another, whose `form` the
 * caller draws. */
typedef struct cpl_chart_spec {
    const char *id, *section, *title, *y_label, *caption;
    int form;
    bool log_y, from_zero, share; /* share: from 0 to 1 */
    int n_lines;
    struct {
        int column;
        const char *name; /* NULL: not in the legend */
        int colour;
        bool dashed;
    } lines[CPL_CHART_MOST_LINES];
    const char *band; /* the name of a band between two columns; NULL: none */
    int low, high, band_colour;
    bool has_rule; /* a line at `rule` */
    const char *rule_name;
    double rule;
} cpl_chart_spec;

/* The title, the axis y and so on; the axis x has the names of the places (n_places). */
cpl_chart cpl_columns_chart(const cpl_chart_spec *spec, const char *const *places,
                            int64_t n_places);

/* Sets the series of the lines, of the band and of the rule, in `out` of CPL_CHART_MOST_LINES + 2,
 * and returns how many. rows (n_places): the row at a place, -1: none. Values are from the pool:
 * `out` is used only while its status is CPL_OK. */
int64_t cpl_columns_series(cpl_chart_series *out, cpl_pool *pool, const cpl_chart_spec *spec,
                           const cpl_columns *columns, const int64_t *rows, int64_t n_places);

/* Adds the members of one part to `object`. */
void cpl_columns_json(bool *failed, json_t *object, const cpl_columns *columns, int part,
                      int64_t row);

#endif /* CPL_REPORT_COLUMNS_H */
