/* yaml_tree.c - see yaml_tree.h */
#include "settings/yaml_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "settings/yaml.h"
#include "settings/yaml_events.h"

typedef struct reader {
    cpl_yaml_events events;
    cpl_yaml_tree *tree;
} reader;

#define FAIL_HERE(in, ...)  CPL_YAML_FAIL(&(in)->events, __VA_ARGS__)
#define OUT_OF_MEMORY(tree) CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to read it", (tree)->name)

static cpl_status next(reader *in)
{
    return cpl_yaml_events_next(&in->events);
}

/* ---- values ---- */

static cpl_status note_place(cpl_yaml_tree *tree, const json_t *value, yaml_mark_t mark)
{
    if (tree->n_places == tree->room) {
        size_t room           = tree->room ? 2 * tree->room : 64;
        cpl_yaml_place *grown = cpl_realloc(tree->places, room * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        tree->places = grown;
        tree->room   = room;
    }
    tree->places[tree->n_places++] = (cpl_yaml_place){value, mark.line + 1, mark.column + 1};
    return CPL_OK;
}

static cpl_status read_scalar(const reader *in, json_t **value)
{
    const char *bytes;
    CPL_TRY(cpl_yaml_events_scalar(&in->events, &bytes));
    *value = json_stringn_nocheck(bytes, in->events.event.data.scalar.length);
    return *value ? CPL_OK : OUT_OF_MEMORY(in->tree);
}

static cpl_status read_value(reader *in, json_t **value, yaml_mark_t mark, int depth);

static cpl_status read_list(reader *in, json_t *list, int depth)
{
    CPL_TRY(next(in));
    while (in->events.event.type != YAML_SEQUENCE_END_EVENT) {
        json_t *value = NULL;
        CPL_TRY(read_value(in, &value, in->events.event.start_mark, depth + 1));
        if (json_array_append_new(list, value)) return OUT_OF_MEMORY(in->tree);
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

static cpl_status read_member(reader *in, json_t *mapping, int depth)
{
    json_t *key = NULL, *value = NULL;
    yaml_mark_t mark  = in->events.event.start_mark;
    cpl_status status = CPL_OK;
    if (in->events.event.type != YAML_SCALAR_EVENT) return FAIL_HERE(in, "a name is expected here");
    CPL_TRY_DONE(read_scalar(in, &key));
    const char *name = json_string_value(key);
    if (json_object_get(mapping, name)) {
        status = FAIL_HERE(in, "%.100s stands here twice", name);
        goto done;
    }
    CPL_TRY_DONE(next(in));
    CPL_TRY_DONE(read_value(in, &value, mark, depth + 1));
    if (json_object_set_new_nocheck(mapping, name, value)) status = OUT_OF_MEMORY(in->tree);
done:
    json_decref(key);
    return status;
}

static cpl_status read_mapping(reader *in, json_t *mapping, int depth)
{
    CPL_TRY(next(in));
    while (in->events.event.type != YAML_MAPPING_END_EVENT) {
        CPL_TRY(read_member(in, mapping, depth));
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

/* Sets the value whose first event is the current one; the last one is then. */
static cpl_status read_value(reader *in, json_t **value, yaml_mark_t mark, int depth)
{
    cpl_status status      = CPL_OK;
    yaml_event_type_t type = in->events.event.type;
    *value                 = NULL;
    if (depth > CPL_YAML_TREE_DEPTH)
        return FAIL_HERE(in, "more than %d levels", CPL_YAML_TREE_DEPTH);
    if (type == YAML_SCALAR_EVENT) {
        CPL_TRY_DONE(read_scalar(in, value));
    } else if (type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT) {
        *value = type == YAML_SEQUENCE_START_EVENT ? json_array() : json_object();
        if (!*value) return OUT_OF_MEMORY(in->tree);
        status = type == YAML_SEQUENCE_START_EVENT ? read_list(in, *value, depth)
                                                   : read_mapping(in, *value, depth);
        if (status != CPL_OK) goto done;
    } else {
        return FAIL_HERE(in, "a value is expected here");
    }
    status = note_place(in->tree, *value, mark);
done:
    if (status != CPL_OK) {
        json_decref(*value);
        *value = NULL;
    }
    return status;
}

static cpl_status read_stream(reader *in)
{
    CPL_TRY(next(in)); /* the stream's start */
    CPL_TRY(next(in));
    if (in->events.event.type == YAML_STREAM_END_EVENT) {
        in->tree->root = json_string("");
        if (!in->tree->root) return OUT_OF_MEMORY(in->tree);
        return note_place(in->tree, in->tree->root, (yaml_mark_t){0});
    }
    CPL_TRY(next(in));
    CPL_TRY(read_value(in, &in->tree->root, in->events.event.start_mark, 1));
    CPL_TRY(next(in)); /* the document's end */
    CPL_TRY(next(in));
    if (in->events.event.type != YAML_STREAM_END_EVENT)
        return FAIL_HERE(in, "one document is expected");
    return CPL_OK;
}

/* ---- trees ---- */

static int by_address(const void *a, const void *b)
{
    const json_t *x = ((const cpl_yaml_place *)a)->value, *y = ((const cpl_yaml_place *)b)->value;
    return (x > y) - (x < y);
}

cpl_status cpl_yaml_tree_parse(cpl_yaml_tree *tree, const char *name, const void *bytes,
                               size_t length)
{
    cpl_status status = CPL_OK;
    reader in         = {.tree = tree};
    memset(tree, 0, sizeof *tree);
    tree->name = cpl_text_copy(name);
    if (!tree->name) return CPL_ERR_MEMORY;
    if (length > CPL_YAML_MOST_BYTES) {
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: more than %d bytes", name, CPL_YAML_MOST_BYTES);
        goto done;
    }
    CPL_TRY_DONE(cpl_yaml_events_open(&in.events, tree->name, bytes, length));
    CPL_TRY_DONE(read_stream(&in));
    if (tree->n_places) qsort(tree->places, tree->n_places, sizeof *tree->places, by_address);
done:
    cpl_yaml_events_close(&in.events);
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

static const cpl_yaml_place *place_of(const cpl_yaml_tree *tree, const json_t *value)
{
    const cpl_yaml_place wanted = {.value = value};
    if (!value || !tree->n_places) return NULL;
    return bsearch(&wanted, tree->places, tree->n_places, sizeof *tree->places, by_address);
}

cpl_status cpl_yaml_tree_same_place(cpl_yaml_tree *tree, const json_t *made, const json_t *value)
{
    const cpl_yaml_place *place = place_of(tree, value);
    if (!place) return CPL_OK;
    CPL_TRY(note_place(tree, made,
                       (yaml_mark_t){.line = place->line - 1, .column = place->column - 1}));
    qsort(tree->places, tree->n_places, sizeof *tree->places, by_address);
    return CPL_OK;
}

cpl_status cpl_yaml_tree_fail(const cpl_yaml_tree *tree, const json_t *value, const char *format,
                              ...)
{
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    const cpl_yaml_place *place = place_of(tree, value);
    if (!place) place = place_of(tree, tree->root);
    if (!place) return CPL_FAIL(CPL_ERR_INPUT, "%s: %s", tree->name, sentence);
    return CPL_FAIL(CPL_ERR_INPUT, "%s:%zu:%zu: %s", tree->name, place->line, place->column,
                    sentence);
}

cpl_status cpl_yaml_tree_place(const cpl_yaml_tree *tree, const json_t *value, cpl_status status)
{
    char sentence[1024];
    if (status != CPL_ERR_INPUT) return status;
    snprintf(sentence, sizeof sentence, "%s", cpl_last_error());
    return cpl_yaml_tree_fail(tree, value, "%s", sentence);
}
