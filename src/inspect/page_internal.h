/* page_internal.h - the pieces of page.h's page, in the order of the page.
 *
 * Room:  inspect, page*.c only. */
#ifndef CPL_INSPECT_PAGE_INTERNAL_H
#define CPL_INSPECT_PAGE_INTERNAL_H

#include "inspect/charts.h"

/* One line a checkpoint: what it is, and its scale-free figures over all layers. */
void cpl_coupling_page_checkpoints(cpl_text *out, const cpl_coupling_report *const *reports,
                                   int64_t count);

/* What is to be known of one report in words: a closing sentence, a guess, notes. */
void cpl_coupling_page_words(cpl_text *out, const cpl_coupling_report *report);

/* Every layer with its scale-free figures, and with those that depend on the scale. */
void cpl_coupling_page_layers(cpl_text *out, const cpl_coupling_report *report);
void cpl_coupling_page_raw_layers(cpl_text *out, const cpl_coupling_report *report);

/* Every quantity in two sentences. */
void cpl_coupling_page_definitions(cpl_text *out);

#endif /* CPL_INSPECT_PAGE_INTERNAL_H */
