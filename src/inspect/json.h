/* json.h - a coupling report as JSON.
 *
 * Room:  inspect. Every member of the JSON is told in docs/formats.md. */
#ifndef CPL_INSPECT_JSON_H
#define CPL_INSPECT_JSON_H

#include <jansson.h>

#include "inspect/report.h"

/* A new object for one report, {"checkpoints": [...]} for several; the caller gives it back with
 * json_decref. A figure that is not finite is null. NULL if there is no memory. */
json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count);

#endif /* CPL_INSPECT_JSON_H */
