/* json.h - a comparison as JSON; docs/formats.md lists every member.
 *
 * Room:  compare. */
#ifndef CPL_COMPARE_JSON_H
#define CPL_COMPARE_JSON_H

#include <jansson.h>

#include "compare/compare.h"

/* A new object; NULL if there is no memory. What is not finite is null. */
json_t *cpl_compare_json(const cpl_compare *compare);

#endif /* CPL_COMPARE_JSON_H */
