/* page.h - a comparison as a page.
 *
 * Room:  compare. Charts come from the data (charts.h). */
#ifndef CPL_COMPARE_PAGE_H
#define CPL_COMPARE_PAGE_H

#include <jansson.h>

#include "base/text.h"
#include "compare/compare.h"

/* Appends the page; `data` is the comparison's JSON with its series. */
CPL_NODISCARD cpl_status cpl_compare_page(cpl_text *out, const cpl_compare *compare,
                                          const json_t *data);

#endif /* CPL_COMPARE_PAGE_H */
