/* yaml_events.c - see yaml_events.h */
#include "settings/yaml_events.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static cpl_status no_memory(const cpl_yaml_events *e)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to read it", e->name);
}

cpl_status cpl_yaml_events_open(cpl_yaml_events *e, const char *name, const void *bytes,
                                size_t length)
{
    *e = (cpl_yaml_events){.name = name, .bytes = bytes, .length = length};
    if (!yaml_parser_initialize(&e->parser)) return no_memory(e);
    yaml_parser_set_input_string(&e->parser, length ? bytes : (const void *)"", length);
    return CPL_OK;
}

static void drop(cpl_yaml_events *e)
{
    if (e->holds) yaml_event_delete(&e->event);
    e->holds = false;
}

void cpl_yaml_events_close(cpl_yaml_events *e)
{
    drop(e);
    yaml_parser_delete(&e->parser); /* all zero is allowed */
}

cpl_status cpl_yaml_events_fail(const cpl_yaml_events *e, yaml_mark_t mark, const char *format, ...)
{
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return CPL_FAIL(CPL_ERR_INPUT, "%s:%zu:%zu: %s", e->name, mark.line + 1, mark.column + 1,
                    sentence);
}

/* Whether a tab is among the blanks that line `line`, counted from 0, begins with. */
static bool is_indented_with_tab(const cpl_yaml_events *e, size_t line)
{
    const char *at = e->bytes, *end = e->length ? e->bytes + e->length : e->bytes;
    for (; line && at < end; line--) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at                  = newline ? newline + 1 : end;
    }
    while (at < end && *at == ' ') at++;
    return at < end && *at == '\t';
}

static cpl_status syntax_error(const cpl_yaml_events *e)
{
    const yaml_parser_t *p = &e->parser;
    const char *problem    = p->problem ? p->problem : "this is not YAML";
    if (p->error == YAML_MEMORY_ERROR) return no_memory(e);
    if (p->error == YAML_READER_ERROR)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: byte %zu: %s", e->name, p->problem_offset, problem);
    if (is_indented_with_tab(e, p->problem_mark.line))
        return cpl_yaml_events_fail(e, p->problem_mark,
                                    "this line is indented with a tab, which YAML does not allow: "
                                    "use spaces");
    return cpl_yaml_events_fail(e, p->problem_mark, "%s", problem);
}

static cpl_status refuse_extras(const cpl_yaml_events *e)
{
    const yaml_event_t *event = &e->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag    = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag    = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag    = event->data.mapping_start.tag;
    } else if (event->type == YAML_ALIAS_EVENT) {
        return CPL_YAML_FAIL(e, "aliases (*%s) are not used here",
                             (const char *)event->data.alias.anchor);
    }
    if (e->lenient) return CPL_OK;
    if (anchor) return CPL_YAML_FAIL(e, "anchors (&%s) are not used here", (const char *)anchor);
    if (tag) return CPL_YAML_FAIL(e, "tags (%s) are not used here", (const char *)tag);
    return CPL_OK;
}

cpl_status cpl_yaml_events_next(cpl_yaml_events *e)
{
    drop(e);
    if (!yaml_parser_parse(&e->parser, &e->event)) return syntax_error(e);
    e->holds = true;
    return refuse_extras(e);
}

cpl_status cpl_yaml_events_scalar(const cpl_yaml_events *e, const char **bytes)
{
    *bytes = (const char *)e->event.data.scalar.value;
    if (strlen(*bytes) == e->event.data.scalar.length) return CPL_OK;
    return CPL_YAML_FAIL(e, "a text holds a NUL character");
}
