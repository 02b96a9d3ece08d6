/* view.h - writes a report as one self-contained HTML page.
 *
 * Room:   report. A page is the template assets/view.html with the report's JSON, which
 *         assets/view.js draws according to the list assets/charts.json.
 * Source: docs/formats.md, "Pages". */
#ifndef CPL_REPORT_VIEW_H
#define CPL_REPORT_VIEW_H

#include <jansson.h>

#include "report/grid.h"

typedef struct cpl_view {
    const char *kind;      /* selects charts and words of the list: "inspect", "routing", "eval" */
    const char *title;     /* any text */
    const json_t *report;  /* the report, as written by --json */
    json_t *made;          /* provenance (provenance.h); NULL: left out of the page */
    const char *sentences; /* shown without scripts, a paragraph per line; may be NULL */
    const cpl_grid *main;  /* shown without scripts: a table of the main figures; may be NULL */
} cpl_view;

/* Appends the page. No text of the report can end the element that holds it. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_view_page(cpl_text *out, const cpl_view *view);

/* Returns a matrix [rows, columns] of finite values >= 0, packed for a page, or NULL. */
json_t *cpl_view_matrix(const float *values, int64_t rows, int64_t columns);

#endif /* CPL_REPORT_VIEW_H */
