/* view.h - a report as one self-contained HTML page.
 *
 * Room:  report. A page is the template assets/view.html with the report's own JSON inside, which
 *        assets/view.js draws by the list assets/charts.json; nothing is drawn here.
 * Page:  docs/formats.md, "Pages". */
#ifndef CPL_REPORT_VIEW_H
#define CPL_REPORT_VIEW_H

#include <jansson.h>

#include "report/grid.h"

typedef struct cpl_view {
    const char *kind;      /* "inspect", "routing", "eval": which charts and words of the list */
    const char *title;     /* any text */
    const json_t *report;  /* what --json writes */
    json_t *made;          /* provenance.h; NULL: left out */
    const char *sentences; /* without scripts: lines, each a paragraph; NULL: none */
    const cpl_grid *main;  /* ... and a table of the main figures; NULL: none */
} cpl_view;

/* Appends the page. No text of the report can end the element that holds it. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_view_page(cpl_text *out, const cpl_view *view);

/* A matrix [rows, columns] of finite values from 0 on, packed for a page. NULL if there is no
 * memory. */
json_t *cpl_view_matrix(const float *values, int64_t rows, int64_t columns);

#endif /* CPL_REPORT_VIEW_H */
