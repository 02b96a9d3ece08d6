/* page.h - reports of coupling as one page.
 *
 * Room:  inspect. Charts come from the data (charts.h); how a page is made, report/page.h.
 * Lead:  the scale-free figures. Raw values of the loss and norms come later, with a sentence on
 *        why models of different families are not compared by them; nothing is ranked. */
#ifndef CPL_INSPECT_PAGE_H
#define CPL_INSPECT_PAGE_H

#include <jansson.h>

#include "base/text.h"
#include "inspect/report.h"

/* Appends the whole page of one or more reports; `data` is their JSON with its series. `more` writes
 * sections before the definitions of words, from `ctx`; NULL: none. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_page(
    cpl_text *out, const cpl_coupling_report *const *reports, int64_t count, const json_t *data,
    void (*more)(cpl_text *out, const void *ctx, const json_t *data), const void *ctx);

#endif /* CPL_INSPECT_PAGE_H */
