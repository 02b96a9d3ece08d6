/* routing_json.h - a routing report as JSON.
 *
 * Room:  study. Every member of the JSON is told in docs/formats.md. */
#ifndef CPL_STUDY_ROUTING_JSON_H
#define CPL_STUDY_ROUTING_JSON_H

#include <jansson.h>

#include "study/routing_report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A new object; the caller gives it back with json_decref. A figure that is not finite is null. NULL
 * if there is no memory. */
json_t *cpl_routing_json(const cpl_routing_report *report);

#ifdef __cplusplus
}
#endif
#endif /* CPL_STUDY_ROUTING_JSON_H */
