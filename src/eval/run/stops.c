/* stops.c - see stops.h */
#include "eval/run/stops.h"

#include <string.h>

cpl_span cpl_stops_cut(cpl_span text, const char *const *stops, int64_t n_stops)
{
    for (int64_t i = 0; i < n_stops; i++) {
        size_t at = *stops[i] ? cpl_span_find(text, 0, stops[i]) : CPL_NOWHERE;
        if (at != CPL_NOWHERE) text = cpl_span_part(text, 0, at);
    }
    return text;
}

bool cpl_stops_reached(cpl_span text, size_t known, const char *const *stops, int64_t n_stops)
{
    for (int64_t i = 0; i < n_stops; i++) {
        size_t length = strlen(stops[i]), from = known < length ? 0 : known - length + 1;
        if (length && cpl_span_find(text, from, stops[i]) != CPL_NOWHERE) return true;
    }
    return false;
}
