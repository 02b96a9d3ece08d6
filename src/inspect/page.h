/* page.h - reports of coupling for people: one page, or a file for each chart.
 *
 * Room:   inspect. What is drawn is charts.h; how a page is made, page.h.
 * Lead:   the scale-free figures. Raw values of the loss and norms come later, with a sentence on
 *         why models of different families are not compared by them; nothing is ranked.
 * Same:   the same reports give the same bytes: no time, place or version is in them. */
#ifndef CPL_INSPECT_PAGE_H
#define CPL_INSPECT_PAGE_H

#include "base/text.h"
#include "inspect/report.h"

/* Appends the whole page of one or more reports; several have their charts side by side with the
 * same scales, in the order given. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_page(cpl_text *out, const cpl_coupling_report *const *reports,
                                           int64_t count);

/* The same with sections of the caller's before the definitions of words; `more` writes them into the
 * page from `ctx`. */
CPL_NODISCARD cpl_status cpl_coupling_page_with(cpl_text *out,
                                                const cpl_coupling_report *const *reports,
                                                int64_t count,
                                                void (*more)(cpl_text *out, const void *ctx),
                                                const void *ctx);

/* Writes every chart as a file NAME-KIND.svg into `folder`, which is made where it is not there; M
 * of a layer is NAME-coupling-PART-LAYER.svg. Sets how many files were written; NULL: not asked.
 * CPL_ERR_INPUT, before anything is made, where the folder is a checkpoint's or below one
 * (path_guard.h); CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_svgs(int64_t *n_written, const char *folder,
                                           const cpl_coupling_report *const *reports,
                                           int64_t count);

#endif /* CPL_INSPECT_PAGE_H */
