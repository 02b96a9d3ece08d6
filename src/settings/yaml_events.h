/* yaml_events.h - a YAML text as libyaml's events, one after the other, with sentences that name file,
 * line and column.
 *
 * Room:  settings, for yaml.c, yaml_tree.c and yaml_flat.c. */
#ifndef CPL_SETTINGS_YAML_EVENTS_H
#define CPL_SETTINGS_YAML_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include "base/status.h"

typedef struct cpl_yaml_events {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned while `holds` */
    bool holds;
    const char *name, *bytes; /* of the file, and its text; borrowed */
    size_t length;
    bool lenient; /* anchors and tags are passed over */
} cpl_yaml_events;

/* `bytes` and `name` outlive it. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_yaml_events_open(cpl_yaml_events *e, const char *name,
                                              const void *bytes, size_t length);
void cpl_yaml_events_close(cpl_yaml_events *e); /* all zero: nothing to do */

/* Takes the next event in place of the current one. CPL_ERR_INPUT: no YAML; aliases, anchors and
 * tags, which make a file hard to read, or larger than it looks. */
CPL_NODISCARD cpl_status cpl_yaml_events_next(cpl_yaml_events *e);

/* The bytes of the current event, which is a scalar; a NUL within is CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_yaml_events_scalar(const cpl_yaml_events *e, const char **bytes);

/* CPL_ERR_INPUT: "NAME:LINE:COLUMN: ..." */
cpl_status cpl_yaml_events_fail(const cpl_yaml_events *e, yaml_mark_t mark, const char *format, ...)
    CPL_PRINTF(3, 4);

/* The same of the current event. */
#define CPL_YAML_FAIL(e, ...) cpl_yaml_events_fail((e), (e)->event.start_mark, __VA_ARGS__)

#endif /* CPL_SETTINGS_YAML_EVENTS_H */
