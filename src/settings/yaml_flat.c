/* yaml_flat.c - see yaml_flat.h */
#include "settings/yaml_flat.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "settings/settings.h"
#include "settings/yaml.h"
#include "settings/yaml_events.h"

typedef struct reader {
    cpl_yaml_events events;
    cpl_yaml_flat *out;
} reader;

#define FAIL_HERE(in, ...) CPL_YAML_FAIL(&(in)->events, __VA_ARGS__)

static cpl_status next(reader *in)
{
    return cpl_yaml_events_next(&in->events);
}

/* Appends the current scalar; `nested`: within a list or pairs, where a quoted one stays quoted. */
static void append_scalar(const reader *in, cpl_text *out, bool nested)
{
    const char *bytes = (const char *)in->events.event.data.scalar.value;
    if (nested && in->events.event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        cpl_setting_quote(out, bytes);
    else
        cpl_text_append(out, bytes, strlen(bytes));
}

/* Appends the value that begins with the current event, on one line. A list or mapping that is
 * nested in another one counts `depth` up. */
static cpl_status append_value(reader *in, cpl_text *out, int depth)
{
    const bool list         = in->events.event.type == YAML_SEQUENCE_START_EVENT;
    yaml_event_type_t close = list ? YAML_SEQUENCE_END_EVENT : YAML_MAPPING_END_EVENT;
    if (in->events.event.type == YAML_SCALAR_EVENT) {
        append_scalar(in, out, depth > 0);
        return CPL_OK;
    }
    if (depth >= CPL_YAML_FLAT_DEPTH) return FAIL_HERE(in, "values are nested too deep");
    cpl_text_char(out, list ? '[' : '{');
    CPL_TRY(next(in));
    for (bool first = true; in->events.event.type != close; first = false) {
        if (!first) cpl_text_append(out, ", ", 2);
        CPL_TRY(append_value(in, out, depth + 1));
        CPL_TRY(next(in));
        if (list) continue;
        cpl_text_append(out, ": ", 2);
        CPL_TRY(append_value(in, out, depth + 1));
        CPL_TRY(next(in));
    }
    cpl_text_char(out, list ? ']' : '}');
    return CPL_OK;
}

/* Takes both texts over; gives them back where there is no memory. */
static cpl_status add(cpl_yaml_flat *flat, char *name, char *text)
{
    if (flat->count == flat->capacity) {
        int64_t capacity    = flat->capacity ? 2 * flat->capacity : 128;
        cpl_yaml_pair *more = cpl_realloc(flat->pairs, (size_t)capacity * sizeof *more);
        if (more) {
            flat->pairs    = more;
            flat->capacity = capacity;
        }
    }
    if (!name || !text || flat->count == flat->capacity) {
        cpl_free(name);
        cpl_free(text);
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a configuration");
    }
    flat->pairs[flat->count++] = (cpl_yaml_pair){name, text};
    return CPL_OK;
}

/* The value of `name`, whose first event is the current one. */
static cpl_status read_value(reader *in, const char *name)
{
    cpl_text text     = {0};
    cpl_status status = append_value(in, &text, 0);
    if (status == CPL_OK) status = cpl_text_status(&text);
    if (status == CPL_OK)
        status = add(in->out, cpl_text_copy(name), cpl_text_copy(text.bytes ? text.bytes : ""));
    cpl_text_free(&text);
    return status;
}

/* Appends the current event, which must be a name. */
static cpl_status append_name(const reader *in, cpl_text *name)
{
    if (in->events.event.type != YAML_SCALAR_EVENT) return FAIL_HERE(in, "a name is expected here");
    append_scalar(in, name, false);
    return cpl_text_status(name);
}

/* The members of a mapping whose opening is the current event. `name` is what stands before their
 * own, with its dot; within a section a mapping is a value. */
static cpl_status read_members(reader *in, cpl_text *name, bool in_section)
{
    const size_t length = name->length;
    CPL_TRY(next(in));
    while (in->events.event.type != YAML_MAPPING_END_EVENT) {
        CPL_TRY(append_name(in, name));
        CPL_TRY(next(in));
        if (!in_section && in->events.event.type == YAML_MAPPING_START_EVENT) {
            cpl_text_char(name, '.');
            CPL_TRY(read_members(in, name, true));
        } else {
            CPL_TRY(read_value(in, name->bytes ? name->bytes : ""));
        }
        name->length = length;
        if (name->bytes) name->bytes[length] = '\0';
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

static cpl_status read_stream(reader *in)
{
    cpl_text name     = {0};
    cpl_status status = CPL_OK;
    CPL_TRY(next(in)); /* the stream's start */
    CPL_TRY(next(in)); /* the document's start */
    if (in->events.event.type == YAML_STREAM_END_EVENT) return CPL_OK;
    CPL_TRY(next(in));
    if (in->events.event.type != YAML_MAPPING_START_EVENT)
        return FAIL_HERE(in, "a configuration is made of sections, NAME: and its "
                             "settings below");
    status = read_members(in, &name, false);
    cpl_text_free(&name);
    return status;
}

cpl_status cpl_yaml_flat_parse(cpl_yaml_flat *out, const char *name, const void *bytes,
                               size_t length)
{
    reader in = {.out = out};
    *out      = (cpl_yaml_flat){0};
    CPL_TRY(cpl_yaml_events_open(&in.events, name, bytes, length));
    in.events.lenient = true;
    cpl_status status = read_stream(&in);
    cpl_yaml_events_close(&in.events);
    if (status != CPL_OK) cpl_yaml_flat_free(out);
    return status;
}

cpl_status cpl_yaml_flat_read(cpl_yaml_flat *out, const char *path)
{
    cpl_text bytes    = {0};
    cpl_status status = cpl_file_read(&bytes, path, CPL_YAML_MOST_BYTES);
    *out              = (cpl_yaml_flat){0};
    if (status == CPL_OK) status = cpl_yaml_flat_parse(out, path, bytes.bytes, bytes.length);
    cpl_text_free(&bytes);
    return status;
}

void cpl_yaml_flat_free(cpl_yaml_flat *flat)
{
    for (int64_t i = 0; i < flat->count; i++) {
        cpl_free(flat->pairs[i].name);
        cpl_free(flat->pairs[i].text);
    }
    cpl_free(flat->pairs);
    *flat = (cpl_yaml_flat){0};
}

const char *cpl_yaml_flat_get(const cpl_yaml_flat *flat, const char *name)
{
    for (int64_t i = flat->count; i-- > 0;)
        if (strcmp(flat->pairs[i].name, name) == 0) return flat->pairs[i].text;
    return NULL;
}
