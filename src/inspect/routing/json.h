/* json.h - a routing report as JSON.
 *
 * Room:  inspect/routing. Every member of the JSON is told in docs/formats.md. */
#ifndef CPL_INSPECT_ROUTING_JSON_H
#define CPL_INSPECT_ROUTING_JSON_H

#include <jansson.h>

#include "inspect/routing/report.h"

/* A new object; the caller gives it back with json_decref. A figure that is not finite is null. NULL
 * if there is no memory. */
json_t *cpl_routing_json(const cpl_routing_report *report);

#endif /* CPL_INSPECT_ROUTING_JSON_H */
