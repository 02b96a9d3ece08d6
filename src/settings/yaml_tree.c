/* yaml_tree.c - see yaml_tree.h */
#include "settings/yaml_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/arena.h"
#include "io/file.h"

/* ---- events of libyaml ---- */

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current event; owned while `holds` */
    bool holds;
    const char *bytes;
    size_t length;
    cpl_yaml_tree *tree;
} reader;

static cpl_status fail_at(const char *name, size_t line, size_t column, const char *format,
                          va_list arguments)
{
    char sentence[1024];
    vsnprintf(sentence, sizeof sentence, format, arguments);
    return CPL_FAIL(CPL_ERR_INPUT, "%s:%zu:%zu: %s", name, line, column, sentence);
}

/* Fails at a mark of libyaml, which counts from 0. */
static cpl_status CPL_PRINTF(3, 4)
    fail_mark(const reader *in, yaml_mark_t mark, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    cpl_status status = fail_at(in->tree->name, mark.line + 1, mark.column + 1, format, arguments);
    va_end(arguments);
    return status;
}

#define FAIL_HERE(in, ...) fail_mark(in, (in)->event.start_mark, __VA_ARGS__)

static cpl_status no_memory(const reader *in)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to read it", in->tree->name);
}

/* Returns whether a tab is among the blanks at the beginning of line `line`, counted from 0. */
static bool is_indented_with_tab(const reader *in, size_t line)
{
    const char *at = in->bytes, *end = in->length ? in->bytes + in->length : in->bytes;
    for (; line && at < end; line--) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at                  = newline ? newline + 1 : end;
    }
    while (at < end && *at == ' ') at++;
    return at < end && *at == '\t';
}

static cpl_status syntax_error(const reader *in)
{
    const yaml_parser_t *p = &in->parser;
    const char *problem    = p->problem ? p->problem : "this is not YAML";
    if (p->error == YAML_MEMORY_ERROR) return no_memory(in);
    if (p->error == YAML_READER_ERROR)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: byte %zu: %s", in->tree->name, p->problem_offset,
                        problem);
    if (is_indented_with_tab(in, p->problem_mark.line))
        return fail_mark(in, p->problem_mark,
                         "this line is indented with a tab, which YAML does not allow: use spaces");
    return fail_mark(in, p->problem_mark, "%s", problem);
}

/* Refuses anchors, aliases and tags, which make a file hard to read or its content larger than its
 * text. */
static cpl_status refuse_extras(const reader *in)
{
    const yaml_event_t *event = &in->event;
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
        return FAIL_HERE(in, "aliases (*%s) are not used here",
                         (const char *)event->data.alias.anchor);
    }
    if (anchor) return FAIL_HERE(in, "anchors (&%s) are not used here", (const char *)anchor);
    if (tag) return FAIL_HERE(in, "tags (%s) are not used here", (const char *)tag);
    return CPL_OK;
}

static void drop_event(reader *in)
{
    if (in->holds) yaml_event_delete(&in->event);
    in->holds = false;
}

/* Replaces the current event by the next one. */
static cpl_status next(reader *in)
{
    drop_event(in);
    if (!yaml_parser_parse(&in->parser, &in->event)) return syntax_error(in);
    in->holds = true;
    return refuse_extras(in);
}

/* ---- values ---- */

static cpl_status note_place(cpl_yaml_tree *tree, cpl_yaml_place place)
{
    if (tree->n_places == tree->room) {
        size_t room           = tree->room ? 2 * tree->room : 64;
        cpl_yaml_place *grown = cpl_realloc(tree->places, room * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        tree->places = grown;
        tree->room   = room;
    }
    tree->places[tree->n_places++] = place;
    return CPL_OK;
}

static cpl_status check_scalar(const reader *in)
{
    if (strlen((const char *)in->event.data.scalar.value) != in->event.data.scalar.length)
        return FAIL_HERE(in, "a text holds a NUL character");
    return CPL_OK;
}

static cpl_status read_value(reader *in, json_t **out, const yaml_mark_t *key, int depth);

/* Reads the member of a mapping whose key is the current event. */
static cpl_status read_member(reader *in, json_t *mapping, int depth)
{
    const yaml_mark_t mark = in->event.start_mark;
    json_t *value          = NULL;
    if (in->event.type != YAML_SCALAR_EVENT) return FAIL_HERE(in, "a name is expected here");
    CPL_TRY(check_scalar(in));
    char *key = cpl_text_copy((const char *)in->event.data.scalar.value);
    if (!key) return no_memory(in);
    cpl_status status = CPL_OK;
    if (json_object_get(mapping, key))
        CPL_TRY_DONE(fail_mark(in, mark, "%.100s is given twice", key));
    CPL_TRY_DONE(next(in));
    CPL_TRY_DONE(read_value(in, &value, &mark, depth));
    if (json_object_set_new_nocheck(mapping, key, value)) status = no_memory(in);
done:
    cpl_free(key);
    return status;
}

/* Reads the members of a list or mapping, whose first event is current. Then its last event is
 * current. */
static cpl_status read_members(reader *in, json_t *parent, yaml_event_type_t end, int depth)
{
    CPL_TRY(next(in));
    while (in->event.type != end) {
        json_t *value = NULL;
        if (json_is_object(parent))
            CPL_TRY(read_member(in, parent, depth));
        else
            CPL_TRY(read_value(in, &value, NULL, depth));
        if (value && json_array_append_new(parent, value)) return no_memory(in);
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

/* Reads the value that begins with the current event. Its last event is current afterwards. `key`
 * is the place where the key of a mapping's member begins, else NULL. */
static cpl_status read_value(reader *in, json_t **out, const yaml_mark_t *key, int depth)
{
    const yaml_event_type_t type = in->event.type;
    const yaml_mark_t mark       = in->event.start_mark;
    cpl_status status            = CPL_OK;
    cpl_yaml_place place         = {.line = mark.line + 1, .column = mark.column + 1};
    place.key_line               = key ? key->line + 1 : place.line;
    place.key_column             = key ? key->column + 1 : place.column;
    if (depth >= CPL_YAML_DEPTH) return FAIL_HERE(in, "more than %d levels", CPL_YAML_DEPTH);
    json_t *value = NULL;
    if (type == YAML_SCALAR_EVENT) {
        CPL_TRY(check_scalar(in));
        place.plain = in->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        value       = json_string_nocheck((const char *)in->event.data.scalar.value);
    } else if (type == YAML_SEQUENCE_START_EVENT) {
        value = json_array();
    } else if (type == YAML_MAPPING_START_EVENT) {
        value = json_object();
    } else {
        return FAIL_HERE(in, "a value is expected here");
    }
    place.value = value;
    CPL_TRY_DONE(value ? note_place(in->tree, place) : no_memory(in));
    if (json_is_array(value)) status = read_members(in, value, YAML_SEQUENCE_END_EVENT, depth + 1);
    if (json_is_object(value)) status = read_members(in, value, YAML_MAPPING_END_EVENT, depth + 1);
done:
    if (status != CPL_OK) json_decref(value);
    *out = status == CPL_OK ? value : NULL;
    return status;
}

static cpl_status read_stream(reader *in)
{
    CPL_TRY(next(in)); /* the stream's start */
    CPL_TRY(next(in));
    if (in->event.type == YAML_STREAM_END_EVENT) {
        in->tree->root       = json_string_nocheck("");
        cpl_yaml_place place = {in->tree->root, 1, 1, 1, 1, true};
        return in->tree->root ? note_place(in->tree, place) : no_memory(in);
    }
    CPL_TRY(next(in));
    CPL_TRY(read_value(in, &in->tree->root, NULL, 0));
    CPL_TRY(next(in)); /* the document's end */
    CPL_TRY(next(in));
    if (in->event.type == YAML_STREAM_END_EVENT) return CPL_OK;
    return FAIL_HERE(in, "a second document begins here; a file holds one");
}

static int by_address(const void *a, const void *b)
{
    const json_t *x = ((const cpl_yaml_place *)a)->value, *y = ((const cpl_yaml_place *)b)->value;
    return (x > y) - (x < y);
}

cpl_status cpl_yaml_tree_parse(cpl_yaml_tree *tree, const char *name, const void *bytes,
                               size_t length)
{
    reader in = {.bytes = bytes, .length = length, .tree = tree};
    *tree     = (cpl_yaml_tree){.name = cpl_text_copy(name)};
    if (!tree->name) return CPL_ERR_MEMORY;
    cpl_status status = CPL_OK;
    if (length > CPL_YAML_MOST_BYTES)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: more than %d bytes", name, CPL_YAML_MOST_BYTES);
    else if (!yaml_parser_initialize(&in.parser))
        status = no_memory(&in);
    if (status == CPL_OK) {
        yaml_parser_set_input_string(&in.parser, length ? bytes : (const void *)"", length);
        status = read_stream(&in);
        drop_event(&in);
        yaml_parser_delete(&in.parser);
    }
    if (status == CPL_OK) qsort(tree->places, tree->n_places, sizeof *tree->places, by_address);
    if (status != CPL_OK) cpl_yaml_tree_free(tree);
    return status;
}

cpl_status cpl_yaml_tree_read(cpl_yaml_tree *tree, const char *path)
{
    cpl_text text     = {0};
    cpl_status status = CPL_OK;
    memset(tree, 0, sizeof *tree);
    CPL_TRY_DONE(cpl_file_read_given(&text, path, CPL_YAML_MOST_BYTES));
    status = cpl_yaml_tree_parse(tree, path, text.bytes, text.length);
done:
    cpl_text_free(&text);
    return status;
}

void cpl_yaml_tree_free(cpl_yaml_tree *tree)
{
    json_decref(tree->root);
    cpl_free(tree->places);
    cpl_free(tree->name);
    memset(tree, 0, sizeof *tree);
}

const cpl_yaml_place *cpl_yaml_tree_find(const cpl_yaml_tree *tree, const json_t *value)
{
    const cpl_yaml_place wanted = {.value = value};
    if (!value || !tree->n_places) return NULL;
    return bsearch(&wanted, tree->places, tree->n_places, sizeof *tree->places, by_address);
}

const char *cpl_yaml_tree_text(const cpl_yaml_tree *tree, const char *section, const char *name)
{
    return json_string_value(json_object_get(json_object_get(tree->root, section), name));
}

cpl_status cpl_yaml_tree_same_place(cpl_yaml_tree *tree, const json_t *made, const json_t *value)
{
    const cpl_yaml_place *found = cpl_yaml_tree_find(tree, value);
    if (!found) return CPL_OK;
    cpl_yaml_place place = *found;
    place.value          = made;
    CPL_TRY(note_place(tree, place));
    qsort(tree->places, tree->n_places, sizeof *tree->places, by_address);
    return CPL_OK;
}

cpl_status cpl_yaml_tree_fail(const cpl_yaml_tree *tree, const json_t *value, const char *format,
                              ...)
{
    const cpl_yaml_place *place = cpl_yaml_tree_find(tree, value);
    const cpl_yaml_place whole  = {.key_line = 1, .key_column = 1};
    va_list arguments;
    if (!place) place = cpl_yaml_tree_find(tree, tree->root);
    if (!place) place = &whole;
    va_start(arguments, format);
    cpl_status status = fail_at(tree->name, place->key_line, place->key_column, format, arguments);
    va_end(arguments);
    return status;
}

cpl_status cpl_yaml_tree_fail_value(const cpl_yaml_tree *tree, const json_t *value,
                                    const char *format, ...)
{
    const cpl_yaml_place *place = cpl_yaml_tree_find(tree, value);
    va_list arguments;
    va_start(arguments, format);
    cpl_status status = fail_at(tree->name, place->line, place->column, format, arguments);
    va_end(arguments);
    return status;
}

cpl_status cpl_yaml_tree_place(const cpl_yaml_tree *tree, const json_t *value, cpl_status status)
{
    return status == CPL_ERR_INPUT ? cpl_yaml_tree_fail(tree, value, "%s", cpl_last_error())
                                   : status;
}
