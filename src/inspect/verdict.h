/* verdict.h - a coupling report as one sentence in plain words: the last line in the terminal,
 * the first paragraph of the page, a member of the JSON.
 *
 * Room:  inspect. */
#ifndef CPL_INSPECT_VERDICT_H
#define CPL_INSPECT_VERDICT_H

#include "base/text.h"
#include "inspect/report.h"

/* Appends what the scale-free figures of all layers come to: one or two sentences. */
void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *report);

#endif /* CPL_INSPECT_VERDICT_H */
