/* page.h - a comparison as a page, and its charts as files.
 *
 * Room:  compare; made of page.h and chart.h. */
#ifndef CPL_COMPARE_PAGE_H
#define CPL_COMPARE_PAGE_H

#include "base/text.h"
#include "compare/compare.h"

/* Appends the page. */
CPL_NODISCARD cpl_status cpl_compare_page(cpl_text *out, const cpl_compare *compare);

/* Writes every chart as FOLDER/NAME.svg and makes the folder where it is not there. CPL_ERR_INPUT
 * where it lies in one of the runs. */
CPL_NODISCARD cpl_status cpl_compare_svgs(const char *folder, const cpl_compare *compare);

#endif /* CPL_COMPARE_PAGE_H */
