/* page.h - one self-contained HTML page: no network, light and dark, from a telephone to a desk.
 *
 * Room:  report. Handles text, tables and charts; independent of coupling.
 * Use:   open, then pieces in reading order, then close; `out` is checked once at the end with
 *        cpl_text_status. Every string is escaped here.
 * Data:  the JSON of the report with its series (chart.h): charts are drawn from it by the page's
 *        script; tables are plain HTML. The look is in assets/.
 * Tests: an error of the page's script is kept in data-error of <html>; data-ready is set when
 *        everything is drawn. */
#ifndef CPL_REPORT_PAGE_H
#define CPL_REPORT_PAGE_H

#include <jansson.h>

#include "base/text.h"

/* Begins the page: <title>, <h1> and one paragraph below it (NULL: none). */
void cpl_page_open(cpl_text *out, const char *title, const char *lead);
/* Ends the page: the source of the report, its data and the scripts. */
void cpl_page_close(cpl_text *out, const json_t *data);

void cpl_page_section(cpl_text *out, const char *heading);    /* <h2> */
void cpl_page_subsection(cpl_text *out, const char *heading); /* <h3> */
void cpl_page_paragraph(cpl_text *out, const char *text);
void cpl_page_note(cpl_text *out, const char *text); /* a paragraph one should not miss */
void cpl_page_small(cpl_text *out, const char *text);

/* Names with their explanations. */
void cpl_page_terms_open(cpl_text *out);
void cpl_page_term(cpl_text *out, const char *name, const char *explanation);
void cpl_page_terms_close(cpl_text *out);

/* A table that scrolls in its own box if it is too wide. Cells of a row are added one by one;
 * numbers are right-aligned. The first cell of a row is its name. */
void cpl_page_table_open(cpl_text *out, const char *caption, const char *const *columns,
                         int64_t n_columns);
void cpl_page_row_open(cpl_text *out, const char *name);
void cpl_page_cell(cpl_text *out, const char *text);
void cpl_page_count(cpl_text *out, int64_t value);
void cpl_page_cell_span(cpl_text *out, const char *text, int64_t columns); /* words, at the left */
void cpl_page_row_close(cpl_text *out);
void cpl_page_table_close(cpl_text *out);

/* Places for the charts of a section of the data, in their order, in a grid. Maps are shown one at
 * a time, with small ones to choose from. Nothing if the section has none. */
void cpl_page_charts(cpl_text *out, const json_t *data, const char *section);
bool cpl_page_has_charts(const json_t *data, const char *section);

#endif /* CPL_REPORT_PAGE_H */
