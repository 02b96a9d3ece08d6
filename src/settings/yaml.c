/* yaml.c - reading a configuration file; see yaml.h
 *
 * A reader asks libyaml for one event after the other. A value is put together again as flow style,
 * its strings quoted, and handed to cpl_setting_parse: what is a number and which bounds it has is
 * known there alone. */
#include "settings/yaml.h"

#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "settings/yaml_events.h"
#include "settings/yaml_paths.h"

typedef struct reader {
    cpl_yaml_events events;
    char *folder; /* of the file; owned */
    void *joint;
    const cpl_section *sections;
    size_t count;
    bool *given; /* never NULL */
    bool *begun; /* by section */
} reader;

/* Sentences with a position ---------------------------------------------------------------------*/

#define FAIL_HERE(in, ...) CPL_YAML_FAIL(&(in)->events, __VA_ARGS__)

/* The last sentence with the position before it. */
static cpl_status place(const reader *in, yaml_mark_t mark, cpl_status status)
{
    return CPL_FAIL(status, "%s:%zu:%zu: %s", in->events.name, mark.line + 1, mark.column + 1,
                    cpl_last_error());
}

/* Events ----------------------------------------------------------------------------------------*/

static cpl_status next(reader *in)
{
    return cpl_yaml_events_next(&in->events);
}

static cpl_status scalar(const reader *in, const char **bytes)
{
    return cpl_yaml_events_scalar(&in->events, bytes);
}

static bool is_plain(const yaml_event_t *event)
{
    return event->type == YAML_SCALAR_EVENT && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_nothing(const yaml_event_t *event)
{
    return is_plain(event) && event->data.scalar.length == 0;
}

/* The key that the current event must be. */
static cpl_status read_key(const reader *in, const char **key)
{
    if (in->events.event.type != YAML_SCALAR_EVENT) return FAIL_HERE(in, "a name is expected here");
    return scalar(in, key);
}

/* Values ----------------------------------------------------------------------------------------*/

/* Appends the current scalar: as it is if it is plain, else quoted. `nested`: within a list or
 * pairs, where a plain one could be mistaken and is quoted too. */
static cpl_status append_scalar(const reader *in, cpl_text *value, bool nested)
{
    const char *bytes = NULL;
    CPL_TRY(scalar(in, &bytes));
    if (is_plain(&in->events.event) && !nested)
        cpl_text_append(value, bytes, strlen(bytes));
    else
        cpl_setting_quote(value, bytes);
    return CPL_OK;
}

/* Appends a list, of which the current event is the opening. */
static cpl_status append_sequence(reader *in, cpl_text *value)
{
    cpl_text_char(value, '[');
    CPL_TRY(next(in));
    for (; in->events.event.type != YAML_SEQUENCE_END_EVENT;) {
        if (in->events.event.type != YAML_SCALAR_EVENT || is_nothing(&in->events.event))
            return FAIL_HERE(in, "a list here holds texts only");
        CPL_TRY(append_scalar(in, value, true));
        cpl_text_char(value, ',');
        CPL_TRY(next(in));
    }
    cpl_text_char(value, ']');
    return CPL_OK;
}

/* Appends pairs, of which the current event is the opening. */
static cpl_status append_mapping(reader *in, cpl_text *value)
{
    const char *name = NULL;
    cpl_text_char(value, '{');
    CPL_TRY(next(in));
    for (; in->events.event.type != YAML_MAPPING_END_EVENT;) {
        CPL_TRY(read_key(in, &name));
        cpl_setting_quote(value, name);
        cpl_text_append(value, ": ", 2);
        CPL_TRY(next(in));
        if (in->events.event.type != YAML_SCALAR_EVENT || is_nothing(&in->events.event))
            return FAIL_HERE(in, "a number is expected here");
        CPL_TRY(append_scalar(in, value, true));
        cpl_text_char(value, ',');
        CPL_TRY(next(in));
    }
    cpl_text_char(value, '}');
    return CPL_OK;
}

/* Appends the value that begins with the current event. */
static cpl_status append_value(reader *in, cpl_text *value, const cpl_setting *setting)
{
    yaml_event_type_t type = in->events.event.type;
    if (type == YAML_SCALAR_EVENT && is_nothing(&in->events.event)) {
        cpl_text_append(value, "unset", 5);
        return CPL_OK;
    }
    if (type == YAML_SCALAR_EVENT) return append_scalar(in, value, false);
    if (type == YAML_SEQUENCE_START_EVENT && setting->kind == CPL_KIND_STRINGS)
        return append_sequence(in, value);
    if (type == YAML_MAPPING_START_EVENT && setting->kind == CPL_KIND_WEIGHTS)
        return append_mapping(in, value);
    return FAIL_HERE(in, "%s.%s cannot be %s", setting->section, setting->name,
                     type == YAML_SEQUENCE_START_EVENT ? "a list" : "a mapping");
}

/* Reads the value of `setting`, whose key was the current event. */
static cpl_status read_value(reader *in, const cpl_setting *setting, void *field)
{
    cpl_text value    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(next(in));
    yaml_mark_t mark = in->events.event.start_mark;
    CPL_TRY_DONE(append_value(in, &value, setting));
    CPL_TRY_DONE(cpl_text_status(&value));
    status = cpl_setting_parse(setting, field, value.bytes);
    if (status == CPL_OK) status = cpl_yaml_resolve(setting, field, in->folder);
    if (status != CPL_OK) status = place(in, mark, status);
done:
    cpl_text_free(&value);
    return status;
}

/* Sections --------------------------------------------------------------------------------------*/

static cpl_status read_setting(reader *in, const cpl_section *section)
{
    const char *key  = NULL;
    yaml_mark_t mark = in->events.event.start_mark;
    char dotted[256];
    void *field = NULL;
    CPL_TRY(read_key(in, &key));
    snprintf(dotted, sizeof dotted, "%s.%s", section->name, key);
    const cpl_setting *setting =
        cpl_settings_find(in->joint, in->sections, in->count, dotted, &field);
    if (!setting)
        return place(in, mark,
                     cpl_settings_unknown(CPL_ERR_INPUT, in->sections, in->count, dotted));
    bool *given = &in->given[cpl_settings_index(in->sections, in->count, setting)];
    if (*given) return cpl_yaml_events_fail(&in->events, mark, "%s is given twice", dotted);
    *given = true;
    return read_value(in, setting, field);
}

static cpl_status unknown_section(const reader *in, const char *key)
{
    yaml_mark_t mark = in->events.event.start_mark;
    const char *names[64];
    size_t n = in->count < 64 ? in->count : 64;
    for (size_t i = 0; i < n; i++) names[i] = in->sections[i].name;
    const char *near           = cpl_text_nearest(key, names, n);
    const cpl_setting *setting = cpl_settings_find(in->joint, in->sections, in->count, key, NULL);
    if (setting)
        return cpl_yaml_events_fail(
            &in->events, mark,
            "%s stands in the section %s: write %s: and below it, indented, "
            "%s: VALUE",
            key, setting->section, setting->section, setting->name);
    if (near)
        return cpl_yaml_events_fail(&in->events, mark,
                                    "there is no section %.200s; did you mean %s?", key, near);
    return cpl_yaml_events_fail(&in->events, mark, "there is no section %.200s", key);
}

/* Reads a section, of which the current event is the key. */
static cpl_status read_section(reader *in)
{
    const char *key = NULL;
    size_t s        = 0;
    CPL_TRY(read_key(in, &key));
    while (s < in->count && strcmp(in->sections[s].name, key) != 0) s++;
    if (s == in->count) return unknown_section(in, key);
    if (in->begun[s]) return FAIL_HERE(in, "the section %s is given twice", key);
    in->begun[s] = true;
    CPL_TRY(next(in));
    if (is_nothing(&in->events.event)) return CPL_OK;
    if (in->events.event.type != YAML_MAPPING_START_EVENT)
        return FAIL_HERE(in, "the section %s must hold settings, NAME: VALUE",
                         in->sections[s].name);
    CPL_TRY(next(in));
    while (in->events.event.type != YAML_MAPPING_END_EVENT) {
        CPL_TRY(read_setting(in, &in->sections[s]));
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

/* Reads the one document, whose start is the current event, to its end. */
static cpl_status read_document(reader *in)
{
    CPL_TRY(next(in));
    if (!is_nothing(&in->events.event)) {
        if (in->events.event.type != YAML_MAPPING_START_EVENT)
            return FAIL_HERE(in,
                             "a configuration is made of sections, NAME: and its settings below");
        CPL_TRY(next(in));
        while (in->events.event.type != YAML_MAPPING_END_EVENT) {
            CPL_TRY(read_section(in));
            CPL_TRY(next(in));
        }
    }
    return next(in); /* the document's end */
}

static cpl_status read_stream(reader *in)
{
    CPL_TRY(next(in)); /* the stream's start */
    CPL_TRY(next(in));
    if (in->events.event.type == YAML_STREAM_END_EVENT) return CPL_OK;
    CPL_TRY(read_document(in));
    CPL_TRY(next(in));
    if (in->events.event.type != YAML_STREAM_END_EVENT)
        return FAIL_HERE(in, "a configuration is one document");
    return CPL_OK;
}

/* Memory for what was begun and given; marks of a caller's own `given` are not duplicates. */
static cpl_status open_reader(reader *in)
{
    size_t total = cpl_settings_total(in->sections, in->count);
    in->folder   = cpl_path_folder(in->events.name);
    in->given    = cpl_alloc(total * sizeof *in->given);
    in->begun    = cpl_alloc(in->count * sizeof *in->begun);
    if (!in->folder || !in->given || !in->begun) return CPL_ERR_MEMORY;
    memset(in->given, 0, total * sizeof *in->given);
    memset(in->begun, 0, in->count * sizeof *in->begun);
    return CPL_OK;
}

cpl_status cpl_yaml_parse(void *joint, const cpl_section *sections, size_t count, const char *name,
                          const void *bytes, size_t length, bool *given)
{
    cpl_status status = CPL_OK;
    reader in         = {.joint = joint, .sections = sections, .count = count};
    CPL_TRY_DONE(cpl_yaml_events_open(&in.events, name, bytes, length));
    CPL_TRY_DONE(open_reader(&in));
    CPL_TRY_DONE(read_stream(&in));
    for (size_t i = 0; given && i < cpl_settings_total(sections, count); i++)
        given[i] |= in.given[i];
done:
    cpl_yaml_events_close(&in.events);
    cpl_free(in.folder);
    cpl_free(in.given);
    cpl_free(in.begun);
    return status;
}

static cpl_status read_file(void *joint, const cpl_section *sections, size_t count,
                            const char *path, bool named, bool *given)
{
    cpl_text bytes    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE((named ? cpl_file_read_given : cpl_file_read)(&bytes, path, CPL_YAML_MOST_BYTES));
    CPL_TRY_DONE(cpl_yaml_parse(joint, sections, count, path, bytes.bytes, bytes.length, given));
done:
    cpl_text_free(&bytes);
    return status;
}

cpl_status cpl_yaml_read(void *joint, const cpl_section *sections, size_t count, const char *path,
                         bool *given)
{
    return read_file(joint, sections, count, path, false, given);
}

cpl_status cpl_yaml_read_given(void *joint, const cpl_section *sections, size_t count,
                               const char *path, bool *given)
{
    return read_file(joint, sections, count, path, true, given);
}
