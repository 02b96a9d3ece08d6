/* yaml.c - reading a configuration file; see yaml.h
 *
 * A reader asks libyaml for one event after the other. A value is put together again as flow style,
 * its strings quoted, and handed to cpl_setting_parse: what is a number and which bounds it has is
 * known there alone. */
#include "io/yaml.h"

#include <string.h>
#include <yaml.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/yaml_paths.h"

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned while `holds` */
    bool holds;
    const char *name;
    char *folder; /* of the file; owned */
    void *joint;
    const cpl_section *sections;
    size_t count;
    bool *given; /* never NULL */
    bool *begun; /* by section */
} reader;

/* Sentences with a position ---------------------------------------------------------------------*/

#define FAIL_AT(in, mark, format, ...)                                                             \
    CPL_FAIL(CPL_ERR_INPUT, "%s:%zu:%zu: " format, (in)->name, (mark).line + 1, (mark).column + 1, \
             __VA_ARGS__)

/* The last sentence with the position before it. */
static cpl_status place(const reader *in, yaml_mark_t mark, cpl_status status)
{
    return CPL_FAIL(status, "%s:%zu:%zu: %s", in->name, mark.line + 1, mark.column + 1,
                    cpl_last_error());
}

static cpl_status syntax_error(const reader *in)
{
    const yaml_parser_t *p = &in->parser;
    const char *problem    = p->problem ? p->problem : "this is not YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory while reading %s", in->name);
    if (p->error == YAML_READER_ERROR)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: byte %zu: %s", in->name, p->problem_offset, problem);
    return FAIL_AT(in, p->problem_mark, "%s", problem);
}

/* Events ----------------------------------------------------------------------------------------*/

static void drop(reader *in)
{
    if (in->holds) yaml_event_delete(&in->event);
    in->holds = false;
}

/* Refuses what a configuration has no use for. */
static cpl_status refuse_extras(const reader *in)
{
    const yaml_event_t *e     = &in->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag    = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag    = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag    = e->data.mapping_start.tag;
    } else if (e->type == YAML_ALIAS_EVENT) {
        return FAIL_AT(in, e->start_mark, "aliases (*%s) are not used in a configuration",
                       (const char *)e->data.alias.anchor);
    }
    if (anchor)
        return FAIL_AT(in, e->start_mark, "anchors (&%s) are not used in a configuration",
                       (const char *)anchor);
    if (tag)
        return FAIL_AT(in, e->start_mark, "tags (%s) are not used in a configuration",
                       (const char *)tag);
    return CPL_OK;
}

/* Takes the next event in place of the current one. */
static cpl_status next(reader *in)
{
    drop(in);
    if (!yaml_parser_parse(&in->parser, &in->event)) return syntax_error(in);
    in->holds = true;
    return refuse_extras(in);
}

/* The bytes of the current scalar; a NUL within is refused. */
static cpl_status scalar(const reader *in, const char **bytes)
{
    *bytes = (const char *)in->event.data.scalar.value;
    if (strlen(*bytes) != in->event.data.scalar.length)
        return FAIL_AT(in, in->event.start_mark, "%s", "a text holds a NUL character");
    return CPL_OK;
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
    if (in->event.type != YAML_SCALAR_EVENT)
        return FAIL_AT(in, in->event.start_mark, "%s", "a name is expected here");
    return scalar(in, key);
}

/* Values ----------------------------------------------------------------------------------------*/

/* Appends the current scalar: as it is if it is plain, else quoted. `nested`: within a list or
 * pairs, where a plain one could be mistaken and is quoted too. */
static cpl_status append_scalar(const reader *in, cpl_text *value, bool nested)
{
    const char *bytes = NULL;
    CPL_TRY(scalar(in, &bytes));
    if (is_plain(&in->event) && !nested)
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
    for (; in->event.type != YAML_SEQUENCE_END_EVENT;) {
        if (in->event.type != YAML_SCALAR_EVENT || is_nothing(&in->event))
            return FAIL_AT(in, in->event.start_mark, "%s", "a list here holds texts only");
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
    for (; in->event.type != YAML_MAPPING_END_EVENT;) {
        CPL_TRY(read_key(in, &name));
        cpl_setting_quote(value, name);
        cpl_text_append(value, ": ", 2);
        CPL_TRY(next(in));
        if (in->event.type != YAML_SCALAR_EVENT || is_nothing(&in->event))
            return FAIL_AT(in, in->event.start_mark, "%s", "a number is expected here");
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
    yaml_event_type_t type = in->event.type;
    if (type == YAML_SCALAR_EVENT && is_nothing(&in->event)) {
        cpl_text_append(value, "unset", 5);
        return CPL_OK;
    }
    if (type == YAML_SCALAR_EVENT) return append_scalar(in, value, false);
    if (type == YAML_SEQUENCE_START_EVENT && setting->kind == CPL_KIND_STRINGS)
        return append_sequence(in, value);
    if (type == YAML_MAPPING_START_EVENT && setting->kind == CPL_KIND_WEIGHTS)
        return append_mapping(in, value);
    return FAIL_AT(in, in->event.start_mark, "%s.%s cannot be %s", setting->section, setting->name,
                   type == YAML_SEQUENCE_START_EVENT ? "a list" : "a mapping");
}

/* Reads the value of `setting`, whose key was the current event. */
static cpl_status read_value(reader *in, const cpl_setting *setting, void *field)
{
    cpl_text value    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(next(in));
    yaml_mark_t mark = in->event.start_mark;
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
    yaml_mark_t mark = in->event.start_mark;
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
    if (*given) return FAIL_AT(in, mark, "%s is given twice", dotted);
    *given = true;
    return read_value(in, setting, field);
}

static cpl_status unknown_section(const reader *in, const char *key)
{
    yaml_mark_t mark = in->event.start_mark;
    const char *names[64];
    size_t n = in->count < 64 ? in->count : 64;
    for (size_t i = 0; i < n; i++) names[i] = in->sections[i].name;
    const char *near           = cpl_text_nearest(key, names, n);
    const cpl_setting *setting = cpl_settings_find(in->joint, in->sections, in->count, key, NULL);
    if (setting)
        return FAIL_AT(in, mark,
                       "%s stands in the section %s: write %s: and below it, indented, "
                       "%s: VALUE",
                       key, setting->section, setting->section, setting->name);
    if (near) return FAIL_AT(in, mark, "there is no section %.200s; did you mean %s?", key, near);
    return FAIL_AT(in, mark, "there is no section %.200s", key);
}

/* Reads a section, of which the current event is the key. */
static cpl_status read_section(reader *in)
{
    const char *key = NULL;
    size_t s        = 0;
    CPL_TRY(read_key(in, &key));
    while (s < in->count && strcmp(in->sections[s].name, key) != 0) s++;
    if (s == in->count) return unknown_section(in, key);
    if (in->begun[s])
        return FAIL_AT(in, in->event.start_mark, "the section %s is given twice", key);
    in->begun[s] = true;
    CPL_TRY(next(in));
    if (is_nothing(&in->event)) return CPL_OK;
    if (in->event.type != YAML_MAPPING_START_EVENT)
        return FAIL_AT(in, in->event.start_mark, "the section %s must hold settings, NAME: VALUE",
                       in->sections[s].name);
    CPL_TRY(next(in));
    while (in->event.type != YAML_MAPPING_END_EVENT) {
        CPL_TRY(read_setting(in, &in->sections[s]));
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

/* Reads the one document, whose start is the current event, to its end. */
static cpl_status read_document(reader *in)
{
    CPL_TRY(next(in));
    if (!is_nothing(&in->event)) {
        if (in->event.type != YAML_MAPPING_START_EVENT)
            return FAIL_AT(in, in->event.start_mark, "%s",
                           "a configuration is made of sections, NAME: and its settings below");
        CPL_TRY(next(in));
        while (in->event.type != YAML_MAPPING_END_EVENT) {
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
    if (in->event.type == YAML_STREAM_END_EVENT) return CPL_OK;
    CPL_TRY(read_document(in));
    CPL_TRY(next(in));
    if (in->event.type != YAML_STREAM_END_EVENT)
        return FAIL_AT(in, in->event.start_mark, "%s", "a configuration is one document");
    return CPL_OK;
}

/* Memory for what was begun and given; marks of a caller's own `given` are not duplicates. */
static cpl_status open_reader(reader *in)
{
    size_t total = cpl_settings_total(in->sections, in->count);
    in->folder   = cpl_path_folder(in->name);
    in->given    = cpl_alloc(total * sizeof *in->given);
    in->begun    = cpl_alloc(in->count * sizeof *in->begun);
    if (!in->folder || !in->given || !in->begun) return CPL_ERR_MEMORY;
    memset(in->given, 0, total * sizeof *in->given);
    memset(in->begun, 0, in->count * sizeof *in->begun);
    if (!yaml_parser_initialize(&in->parser))
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory while reading %s", in->name);
    return CPL_OK;
}

cpl_status cpl_yaml_parse(void *joint, const cpl_section *sections, size_t count, const char *name,
                          const void *bytes, size_t length, bool *given)
{
    cpl_status status = CPL_OK;
    reader in         = {.name = name, .joint = joint, .sections = sections, .count = count};
    CPL_TRY_DONE(open_reader(&in));
    yaml_parser_set_input_string(&in.parser, length ? bytes : (const void *)"", length);
    CPL_TRY_DONE(read_stream(&in));
    for (size_t i = 0; given && i < cpl_settings_total(sections, count); i++)
        given[i] |= in.given[i];
done:
    drop(&in);
    yaml_parser_delete(&in.parser); /* all zero is allowed */
    cpl_free(in.folder);
    cpl_free(in.given);
    cpl_free(in.begun);
    return status;
}

cpl_status cpl_yaml_read(void *joint, const cpl_section *sections, size_t count, const char *path,
                         bool *given)
{
    cpl_text bytes    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_file_read(&bytes, path, CPL_YAML_MOST_BYTES));
    CPL_TRY_DONE(cpl_yaml_parse(joint, sections, count, path, bytes.bytes, bytes.length, given));
done:
    cpl_text_free(&bytes);
    return status;
}
