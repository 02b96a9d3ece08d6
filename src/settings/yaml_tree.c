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
    yaml_event_t event; /* the current one; owned while `holds` */
    bool holds;
    bool lenient; /* anchors and tags are skipped */
    const char *bytes;
    size_t length;
    cpl_yaml_doc *doc;
} reader;

static cpl_status fail_at(const char *name, size_t line, size_t column, const char *format,
                          va_list arguments)
{
    char sentence[1024];
    vsnprintf(sentence, sizeof sentence, format, arguments);
    return CPL_FAIL(CPL_ERR_INPUT, "%s:%zu:%zu: %s", name, line, column, sentence);
}

/* At a mark of libyaml, which counts from 0. */
#define FAIL_MARK(in, mark, ...)                                                                   \
    cpl_yaml_doc_fail((in)->doc,                                                                   \
                      &(cpl_yaml_node){.line = (mark).line + 1, .column = (mark).column + 1},      \
                      __VA_ARGS__)
#define FAIL_HERE(in, ...) FAIL_MARK(in, (in)->event.start_mark, __VA_ARGS__)

static cpl_status no_memory(const char *name)
{
    return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory to read it", name);
}

/* Whether a tab is among the blanks that line `line`, counted from 0, begins with. */
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
    if (p->error == YAML_MEMORY_ERROR) return no_memory(in->doc->name);
    if (p->error == YAML_READER_ERROR)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: byte %zu: %s", in->doc->name, p->problem_offset,
                        problem);
    if (is_indented_with_tab(in, p->problem_mark.line))
        return FAIL_MARK(in, p->problem_mark,
                         "this line is indented with a tab, which YAML does not allow: use spaces");
    return FAIL_MARK(in, p->problem_mark, "%s", problem);
}

/* Anchors, aliases and tags make a file hard to read, or its content larger than its text. */
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
    if (in->lenient) return CPL_OK;
    if (anchor) return FAIL_HERE(in, "anchors (&%s) are not used here", (const char *)anchor);
    if (tag) return FAIL_HERE(in, "tags (%s) are not used here", (const char *)tag);
    return CPL_OK;
}

static void drop_event(reader *in)
{
    if (in->holds) yaml_event_delete(&in->event);
    in->holds = false;
}

/* Reads the next event in place of the current one. */
static cpl_status next(reader *in)
{
    drop_event(in);
    if (!yaml_parser_parse(&in->parser, &in->event)) return syntax_error(in);
    in->holds = true;
    return refuse_extras(in);
}

/* ---- nodes ---- */

static cpl_status read_node(reader *in, cpl_yaml_node **out, int depth);

/* The members of a list or mapping, whose opening is the current event; then its end is. */
static cpl_status read_members(reader *in, cpl_yaml_node *parent, yaml_event_type_t end, int depth)
{
    const cpl_yaml_node **last = &parent->first;
    CPL_TRY(next(in));
    while (in->event.type != end) {
        cpl_yaml_node *key = NULL, *value = NULL;
        if (parent->kind == CPL_YAML_MAPPING) {
            if (in->event.type != YAML_SCALAR_EVENT)
                return FAIL_HERE(in, "a name is expected here");
            CPL_TRY(read_node(in, &key, depth + 1));
            CPL_TRY(next(in));
        }
        CPL_TRY(read_node(in, &value, depth + 1));
        value->key = key;
        *last      = value;
        last       = &value->next;
        CPL_TRY(next(in));
    }
    return CPL_OK;
}

static cpl_status read_scalar(reader *in, cpl_yaml_node *node)
{
    const char *text = (const char *)in->event.data.scalar.value;
    size_t length    = in->event.data.scalar.length;
    if (strlen(text) != length) return FAIL_HERE(in, "a text holds a NUL character");
    node->text  = cpl_pool_copy(&in->doc->pool, text, length);
    node->plain = in->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return CPL_OK;
}

/* Reads the value that begins with the current event; then its last event is current. */
static cpl_status read_node(reader *in, cpl_yaml_node **out, int depth)
{
    yaml_event_type_t type = in->event.type;
    cpl_yaml_node *node    = cpl_pool_take(&in->doc->pool, sizeof *node);
    if (!node) return no_memory(in->doc->name);
    if (depth > CPL_YAML_DEPTH) return FAIL_HERE(in, "values are nested too deep");
    node->line   = in->event.start_mark.line + 1;
    node->column = in->event.start_mark.column + 1;
    *out         = node;
    if (type == YAML_SCALAR_EVENT) return read_scalar(in, node);
    if (type == YAML_SEQUENCE_START_EVENT) {
        node->kind = CPL_YAML_LIST;
        return read_members(in, node, YAML_SEQUENCE_END_EVENT, depth);
    }
    if (type != YAML_MAPPING_START_EVENT) return FAIL_HERE(in, "a value is expected here");
    node->kind = CPL_YAML_MAPPING;
    return read_members(in, node, YAML_MAPPING_END_EVENT, depth);
}

static cpl_status read_stream(reader *in)
{
    cpl_yaml_node *root = NULL;
    CPL_TRY(next(in)); /* the stream's start */
    CPL_TRY(next(in));
    if (in->event.type == YAML_STREAM_END_EVENT) return CPL_OK;
    CPL_TRY(next(in));
    CPL_TRY(read_node(in, &root, 1));
    in->doc->root = root;
    CPL_TRY(next(in)); /* the document's end */
    CPL_TRY(next(in));
    if (in->event.type == YAML_STREAM_END_EVENT) return CPL_OK;
    in->doc->more_line   = in->event.start_mark.line + 1;
    in->doc->more_column = in->event.start_mark.column + 1;
    return CPL_OK;
}

cpl_status cpl_yaml_doc_parse(cpl_yaml_doc *doc, const char *name, const void *bytes, size_t length,
                              bool lenient)
{
    reader in = {.lenient = lenient, .bytes = bytes, .length = length, .doc = doc};
    *doc      = (cpl_yaml_doc){.name = name};
    if (length > CPL_YAML_MOST_BYTES)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: more than %d bytes", name, CPL_YAML_MOST_BYTES);
    if (!yaml_parser_initialize(&in.parser)) return no_memory(name);
    yaml_parser_set_input_string(&in.parser, length ? bytes : (const void *)"", length);
    cpl_status status = read_stream(&in);
    if (status == CPL_OK && doc->pool.failed) status = no_memory(name);
    drop_event(&in);
    yaml_parser_delete(&in.parser);
    if (status != CPL_OK) cpl_yaml_doc_free(doc);
    return status;
}

void cpl_yaml_doc_free(cpl_yaml_doc *doc)
{
    cpl_pool_free(&doc->pool);
    *doc = (cpl_yaml_doc){0};
}

cpl_status cpl_yaml_doc_fail(const cpl_yaml_doc *doc, const cpl_yaml_node *node, const char *format,
                             ...)
{
    va_list arguments;
    va_start(arguments, format);
    cpl_status status = fail_at(doc->name, node->line, node->column, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- JSON values ---- */

static cpl_status note_place(cpl_yaml_tree *tree, const json_t *value, size_t line, size_t column)
{
    if (tree->n_places == tree->room) {
        size_t room           = tree->room ? 2 * tree->room : 64;
        cpl_yaml_place *grown = cpl_realloc(tree->places, room * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        tree->places = grown;
        tree->room   = room;
    }
    tree->places[tree->n_places++] = (cpl_yaml_place){value, line, column};
    return CPL_OK;
}

static cpl_status make_value(cpl_yaml_tree *tree, const cpl_yaml_doc *doc,
                             const cpl_yaml_node *node, int depth, json_t **out);

static cpl_status add_members(cpl_yaml_tree *tree, const cpl_yaml_doc *doc,
                              const cpl_yaml_node *node, int depth, json_t *whole)
{
    for (const cpl_yaml_node *n = node->first; n; n = n->next) {
        json_t *value = NULL;
        if (n->key && json_object_get(whole, n->key->text))
            return cpl_yaml_doc_fail(doc, n->key, "%.100s is here twice", n->key->text);
        CPL_TRY(make_value(tree, doc, n, depth + 1, &value));
        if (n->key ? json_object_set_new_nocheck(whole, n->key->text, value)
                   : json_array_append_new(whole, value))
            return no_memory(doc->name);
    }
    return CPL_OK;
}

static cpl_status make_value(cpl_yaml_tree *tree, const cpl_yaml_doc *doc,
                             const cpl_yaml_node *node, int depth, json_t **out)
{
    const cpl_yaml_node *at = node->key ? node->key : node;
    if (depth > CPL_YAML_TREE_DEPTH)
        return cpl_yaml_doc_fail(doc, node, "more than %d levels", CPL_YAML_TREE_DEPTH);
    json_t *value     = node->kind == CPL_YAML_SCALAR ? json_string_nocheck(node->text)
                        : node->kind == CPL_YAML_LIST ? json_array()
                                                      : json_object();
    cpl_status status = value ? add_members(tree, doc, node, depth, value) : no_memory(doc->name);
    if (status == CPL_OK) status = note_place(tree, value, at->line, at->column);
    if (status != CPL_OK) {
        json_decref(value);
        value = NULL;
    }
    *out = value;
    return status;
}

static cpl_status make_tree(cpl_yaml_tree *tree, const cpl_yaml_doc *doc)
{
    const cpl_yaml_node nothing = {.line = 1, .column = 1, .text = ""};
    const cpl_yaml_node more    = {.line = doc->more_line, .column = doc->more_column};
    if (more.line) return cpl_yaml_doc_fail(doc, &more, "one document is expected");
    return make_value(tree, doc, doc->root ? doc->root : &nothing, 1, &tree->root);
}

static int by_address(const void *a, const void *b)
{
    const json_t *x = ((const cpl_yaml_place *)a)->value, *y = ((const cpl_yaml_place *)b)->value;
    return (x > y) - (x < y);
}

cpl_status cpl_yaml_tree_parse(cpl_yaml_tree *tree, const char *name, const void *bytes,
                               size_t length)
{
    cpl_yaml_doc doc  = {0};
    cpl_status status = CPL_OK;
    *tree             = (cpl_yaml_tree){.name = cpl_text_copy(name)};
    if (!tree->name) return CPL_ERR_MEMORY;
    CPL_TRY_DONE(cpl_yaml_doc_parse(&doc, tree->name, bytes, length, false));
    CPL_TRY_DONE(make_tree(tree, &doc));
    qsort(tree->places, tree->n_places, sizeof *tree->places, by_address);
done:
    cpl_yaml_doc_free(&doc);
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
    CPL_TRY(note_place(tree, made, place->line, place->column));
    qsort(tree->places, tree->n_places, sizeof *tree->places, by_address);
    return CPL_OK;
}

cpl_status cpl_yaml_tree_fail(const cpl_yaml_tree *tree, const json_t *value, const char *format,
                              ...)
{
    const cpl_yaml_place *place = place_of(tree, value);
    const cpl_yaml_place whole  = {tree->root, 1, 1};
    va_list arguments;
    if (!place) place = place_of(tree, tree->root);
    if (!place) place = &whole;
    va_start(arguments, format);
    cpl_status status = fail_at(tree->name, place->line, place->column, format, arguments);
    va_end(arguments);
    return status;
}

cpl_status cpl_yaml_tree_place(const cpl_yaml_tree *tree, const json_t *value, cpl_status status)
{
    char sentence[1024];
    if (status != CPL_ERR_INPUT) return status;
    snprintf(sentence, sizeof sentence, "%s", cpl_last_error());
    return cpl_yaml_tree_fail(tree, value, "%s", sentence);
}
