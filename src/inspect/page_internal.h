/* page_internal.h - the pieces of page.h's page, in the order of the page.
 *
 * Room:  inspect, coupling_page*.c only. */
#ifndef CPL_INSPECT_PAGE_INTERNAL_H
#define CPL_INSPECT_PAGE_INTERNAL_H

#include "inspect/charts.h"

/* One line a checkpoint: what it is, and its scale-free figures over all layers. */
void cpl_coupling_page_checkpoints(cpl_text *out, const cpl_coupling_charts *charts);

/* What is to be known of one report in words: a closing sentence, a guess, notes. */
void cpl_coupling_page_words(cpl_text *out, const cpl_coupling_report *report);

/* Every layer with its scale-free figures, and with those that depend on the scale. */
void cpl_coupling_page_layers(cpl_text *out, const cpl_coupling_view *view);
void cpl_coupling_page_raw_layers(cpl_text *out, const cpl_coupling_view *view);

/* M of every layer on a canvas, and what draws it. */
void cpl_coupling_page_heats(cpl_text *out, const cpl_coupling_charts *charts);
void cpl_coupling_page_heat_script(cpl_text *out, const cpl_coupling_charts *charts);
extern const char cpl_coupling_page_heat_style[];

/* Every quantity in two sentences. */
void cpl_coupling_page_definitions(cpl_text *out);

#endif /* CPL_INSPECT_PAGE_INTERNAL_H */
