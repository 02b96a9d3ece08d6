/* coupling_verdict.h - a coupling report as one sentence in plain words: the last line in the terminal,
 * the first paragraph of the page, a member of the JSON.
 *
 * Room:  study. */
#ifndef CPL_STUDY_COUPLING_VERDICT_H
#define CPL_STUDY_COUPLING_VERDICT_H

#include "base/text.h"
#include "study/coupling_report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends what the scale-free figures of all layers come to: one or two sentences. */
void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *report);

#ifdef __cplusplus
}
#endif
#endif /* CPL_STUDY_COUPLING_VERDICT_H */
