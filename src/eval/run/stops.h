/* stops.h - where a generated text ends.
 *
 * Room:   eval/run.
 * Note:   a stop string may begin inside a token, so it is looked for in the text. Empty ones stop
 *         nothing.
 * Source: docs/tasks.md, "Generated texts". */
#ifndef CPL_EVAL_RUN_STOPS_H
#define CPL_EVAL_RUN_STOPS_H

#include "base/span.h"

/* The text up to the first occurrence of each stop string, one after the other in their order. */
cpl_span cpl_stops_cut(cpl_span text, const char *const *stops, int64_t n_stops);

/* Whether the text contains a stop string, when its first `known` bytes contain none: while a text
 * grows only what is new is searched. */
bool cpl_stops_reached(cpl_span text, size_t known, const char *const *stops, int64_t n_stops);

#endif /* CPL_EVAL_RUN_STOPS_H */
