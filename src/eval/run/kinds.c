/* kinds.c - the list of request kinds; see runner.h */
#include "eval/run/runner.h"

#define ADDRESS(name) &cpl_request_kind_##name,
const cpl_request_kind *const cpl_request_kinds[] = {CPL_REQUEST_KINDS(ADDRESS) NULL};
