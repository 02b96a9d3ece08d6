/* scope.c - see scope.h: fields, and the values that they and templates make of a row */
#include "eval/tasks/scope.h"

#include <string.h>

#include "base/text.h"

typedef enum kind { PATHS, MADE, MADE_LIST, LOOK_UP } kind;

struct cpl_field {
    const char *name;
    kind kind;
    bool list; /* true if its value is a list */
    const cpl_path *paths;
    const cpl_template *made; /* (count) */
    int64_t count;            /* number of paths or templates */
    const char *looked_up;    /* name of the field */
    const json_t *table;
    const json_t *place;
};

/* ---- reading ---- */

static cpl_status parse_paths(cpl_field *field, cpl_pool *pool, const cpl_yaml_tree *tree,
                              const json_t *from)
{
    size_t n        = json_is_array(from) ? json_array_size(from) : 1;
    cpl_path *paths = cpl_pool_take(pool, n * sizeof *paths);
    if (!paths) return cpl_pool_status(pool);
    if (n == 0) return cpl_yaml_tree_fail(tree, from, "the field %s has no path", field->name);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(from) ? json_array_get(from, i) : from;
        if (!json_is_string(text))
            return cpl_yaml_tree_fail(tree, text, "a path is a text: question.stem");
        CPL_TRY(cpl_yaml_tree_place(tree, text,
                                    cpl_path_parse(&paths[i], pool, json_string_value(text))));
        if (cpl_path_makes_list(&paths[i]) != cpl_path_makes_list(&paths[0]))
            return cpl_yaml_tree_fail(tree, text, "the paths of %s are lists in part: %s and %s",
                                      field->name, paths[0].written, paths[i].written);
    }
    field->kind  = PATHS;
    field->paths = paths;
    field->count = (int64_t)n;
    field->list  = cpl_path_makes_list(&paths[0]);
    return CPL_OK;
}

static cpl_status parse_made(cpl_field *field, cpl_pool *pool, const cpl_yaml_tree *tree,
                             const json_t *from, kind wanted)
{
    bool list          = json_is_array(from);
    size_t n           = list || wanted == MADE_LIST ? json_array_size(from) : 1;
    cpl_template *made = cpl_pool_take(pool, (n + 1) * sizeof *made);
    if (!made) return cpl_pool_status(pool);
    if (list && !n)
        return cpl_yaml_tree_fail(tree, from, "a list of texts is needed: [\"{one}\", \"{two}\"]");
    for (size_t i = 0; i < n; i++) {
        const json_t *text = list ? json_array_get(from, i) : from;
        if (!json_is_string(text))
            return cpl_yaml_tree_fail(tree, text,
                                      "a text is missing here, for example \"{question}\"");
        CPL_TRY(cpl_yaml_tree_place(tree, text,
                                    cpl_template_parse(&made[i], pool, json_string_value(text))));
    }
    field->kind  = wanted;
    field->made  = made;
    field->count = (int64_t)n;
    field->list  = wanted == MADE_LIST;
    return CPL_OK;
}

static cpl_status parse_look_up(cpl_field *field, const cpl_yaml_tree *tree, const json_t *from)
{
    const json_t *name = json_object_get(from, "look_up"), *table = json_object_get(from, "in");
    const char *key;
    json_t *value;
    if (!json_is_string(name))
        return cpl_yaml_tree_fail(
            tree, name, "`look_up` must name a field: {look_up: asks, in: {cause: because}}");
    if (!json_object_size(table))
        return cpl_yaml_tree_fail(tree, from, "look_up needs a table: in: {cause: because}");
    json_object_foreach((json_t *)(uintptr_t)table, key, value) if (
        !json_is_string(value)) return cpl_yaml_tree_fail(tree, value,
                                                          "%.100s: a text is needed here", key);
    field->kind      = LOOK_UP;
    field->looked_up = json_string_value(name);
    field->table     = table;
    return CPL_OK;
}

static cpl_status check_members(const cpl_yaml_tree *tree, const json_t *from)
{
    static const char *const names[] = {"text", "list", "look_up", "in"};
    const char *key;
    json_t *value;
    size_t index;
    json_object_foreach((json_t *)(uintptr_t)from, key, value) CPL_TRY(
        cpl_yaml_tree_place(tree, value, cpl_lookup(&index, "kind of field", key, names, 4)));
    size_t wanted = json_object_get(from, "look_up") ? 2 : 1;
    if (json_object_size(from) != wanted)
        return cpl_yaml_tree_fail(tree, from,
                                  "a field must be {text: TEXT}, {list: [TEXT]} or {look_up: "
                                  "FIELD, in: {cause: because}}");
    return CPL_OK;
}

static cpl_status parse_field(cpl_field *field, cpl_pool *pool, const cpl_yaml_tree *tree,
                              const json_t *from)
{
    field->place = from;
    if (json_is_string(from) || json_is_array(from)) return parse_paths(field, pool, tree, from);
    CPL_TRY(check_members(tree, from));
    const json_t *text = json_object_get(from, "text"), *list = json_object_get(from, "list");
    if (text) return parse_made(field, pool, tree, text, MADE);
    if (list) return parse_made(field, pool, tree, list, MADE_LIST);
    return parse_look_up(field, tree, from);
}

/* ---- names ---- */

static const cpl_field *find_field(const cpl_fields *fields, const char *name)
{
    for (int64_t i = 0; i < fields->count; i++)
        if (strcmp(fields->at[i].name, name) == 0) return &fields->at[i];
    return NULL;
}

cpl_status cpl_scope_names_find(bool *list, const cpl_scope_names *there, const char *name)
{
    const char *names[CPL_FIELDS_MOST + 64];
    size_t count           = 0, index;
    const cpl_field *field = find_field(there->fields, name);
    if (field) *list = field->list;
    if (field) return CPL_OK;
    for (int64_t i = 0; i < there->n_known && count < 64; i++) {
        names[count++] = there->known[i].name;
        *list          = there->known[i].list;
        if (strcmp(there->known[i].name, name) == 0) return CPL_OK;
    }
    for (int64_t i = 0; i < there->fields->count; i++) names[count++] = there->fields->at[i].name;
    return cpl_lookup(&index, "field", name, names, count);
}

cpl_status cpl_scope_names_check(const cpl_scope_names *there, const cpl_template *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        bool list;
        if (!t->pieces[i].name) continue;
        CPL_TRY(cpl_scope_names_find(&list, there, t->pieces[i].name));
        if (list)
            return CPL_FAIL(CPL_ERR_INPUT, "{%s} is a list, and a text is needed",
                            t->pieces[i].name);
    }
    return CPL_OK;
}

/* Checks that the names that a field is made of are in `there`. */
static cpl_status check_field(cpl_field *field, const cpl_scope_names *there)
{
    for (int64_t i = 0; field->made && i < field->count; i++)
        CPL_TRY(cpl_scope_names_check(there, &field->made[i]));
    if (field->kind == LOOK_UP)
        CPL_TRY(cpl_scope_names_find(&field->list, there, field->looked_up));
    return CPL_OK;
}

/* Puts each field after the fields that it is made of. If fields are left, the failure names what
 * the first lacks, or a field that is made of itself. */
static cpl_status order(cpl_field *at, int64_t count, const cpl_yaml_tree *tree,
                        const cpl_builtin_name *known, int64_t n_known)
{
    cpl_fields all = {at, count};
    for (int64_t done = 0; done < count;) {
        cpl_fields before     = {at, done};
        cpl_scope_names there = {&before, known, n_known};
        int64_t next          = done;
        while (next < count && check_field(&at[next], &there) != CPL_OK) next++;
        if (next == count) {
            there.fields = &all;
            CPL_TRY(cpl_yaml_tree_place(tree, at[done].place, check_field(&at[done], &there)));
            return cpl_yaml_tree_fail(tree, at[done].place,
                                      "the field %s is made of itself, or of one that is",
                                      at[done].name);
        }
        cpl_field field = at[next];
        at[next]        = at[done];
        at[done++]      = field;
    }
    return CPL_OK;
}

cpl_status cpl_fields_parse(cpl_fields *fields, cpl_pool *pool, const cpl_yaml_tree *tree,
                            const json_t *from, const cpl_builtin_name *known, int64_t n_known)
{
    size_t n      = json_object_size(from);
    cpl_field *at = cpl_pool_take(pool, (n + 1) * sizeof *at);
    const char *name;
    json_t *value;
    int64_t count = 0;
    if (!at) return cpl_pool_status(pool);
    if (n > CPL_FIELDS_MOST)
        return cpl_yaml_tree_fail(tree, from, "more than %d fields", CPL_FIELDS_MOST);
    json_object_foreach((json_t *)(uintptr_t)from, name, value)
    {
        for (int64_t i = 0; i < n_known; i++)
            if (strcmp(known[i].name, name) == 0)
                return cpl_yaml_tree_fail(tree, value, "a field cannot be called %s", name);
        at[count].name = name;
        CPL_TRY(parse_field(&at[count++], pool, tree, value));
    }
    CPL_TRY(order(at, count, tree, known, n_known));
    *fields = (cpl_fields){at, count};
    return CPL_OK;
}

/* ---- rows ---- */

cpl_status cpl_scope_start(cpl_scope *scope, const cpl_fields *fields, const json_t *row)
{
    *scope = (cpl_scope){.fields = fields, .row = row, .values = json_object()};
    return scope->values ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a row");
}

void cpl_scope_end(cpl_scope *scope)
{
    json_decref(scope->values);
    memset(scope, 0, sizeof *scope);
}

cpl_status cpl_scope_set(cpl_scope *scope, const char *name, json_t *value)
{
    if (json_object_set_new_nocheck(scope->values, name, value))
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for %s", name);
    return CPL_OK;
}

static cpl_status read_paths(json_t **value, const cpl_field *field, const json_t *row)
{
    enum { SHOWN = 12 };
    cpl_text all = {0}, there = {0};
    const char *name;
    json_t *member;
    int shown = 0;
    for (int64_t i = 0; i < field->count; i++) {
        CPL_TRY(cpl_path_value(value, &field->paths[i], row));
        if (*value) return CPL_OK;
    }
    for (int64_t i = 0; i < field->count; i++) { /* the path without its transformations */
        const char *written = field->paths[i].written;
        cpl_text_printf(&all, "%s%.*s", i ? " or " : "", (int)strcspn(written, "|"), written);
    }
    json_object_foreach((json_t *)(uintptr_t)row, name, member) if (shown++ < SHOWN)
        cpl_text_printf(&there, "%s%.40s", shown > 1 ? ", " : "", name);
    cpl_status status =
        CPL_FAIL(CPL_ERR_INPUT, "there is no %s at %s; the row has %s%s",
                 field->list ? "list" : "text", all.bytes ? all.bytes : "a path",
                 there.bytes ? there.bytes : "no names", shown > SHOWN ? ", ..." : "");
    cpl_text_free(&there);
    cpl_text_free(&all);
    return status;
}

cpl_status cpl_template_make(cpl_text *out, const cpl_template *t, struct cpl_scope *scope)
{
    for (int64_t i = 0; i < t->count; i++) {
        const cpl_template_part *piece = &t->pieces[i];
        json_t *value = NULL, *made = NULL;
        if (!piece->name) {
            cpl_text_append(out, piece->text, piece->length);
            continue;
        }
        CPL_TRY(cpl_scope_value(&value, scope, piece->name));
        CPL_TRY(cpl_chain_apply(&made, &piece->chain, value));
        cpl_text_append(out, json_string_value(made), json_string_length(made));
        json_decref(made);
    }
    return cpl_text_status(out);
}

cpl_status cpl_template_string(json_t **value, const cpl_template *t, cpl_scope *scope)
{
    cpl_text text     = {0};
    cpl_status status = cpl_template_make(&text, t, scope);
    if (status == CPL_OK) *value = json_stringn(text.bytes ? text.bytes : "", text.length);
    if (status == CPL_OK && !*value) status = CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a text");
    cpl_text_free(&text);
    return status;
}

/* Sets the output of the first template whose fields have values. */
static cpl_status make_first(json_t **value, const cpl_field *field, cpl_scope *scope)
{
    cpl_status status = CPL_ERR_INPUT;
    for (int64_t i = 0; status == CPL_ERR_INPUT && i < field->count; i++)
        status = cpl_template_string(value, &field->made[i], scope);
    return status;
}

static cpl_status look_up_one(json_t **value, const cpl_field *field, const json_t *text)
{
    const char *word = json_string_value(text);
    json_t *hit      = json_object_get(field->table, word);
    if (!hit)
        return CPL_FAIL(CPL_ERR_INPUT, "\"%.100s\" is not in the table of %s", word, field->name);
    *value = json_incref(hit);
    return CPL_OK;
}

/* Makes a list of the texts of the templates, or of the entries of the table for the texts of
 * `from`. */
static cpl_status make_list(json_t **value, const cpl_field *field, cpl_scope *scope,
                            const json_t *from)
{
    cpl_status status = CPL_OK;
    const size_t n    = from ? json_array_size(from) : (size_t)field->count;
    *value            = json_array();
    if (!*value) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    for (size_t i = 0; i < n; i++) {
        json_t *text = NULL;
        CPL_TRY_DONE(from ? look_up_one(&text, field, json_array_get(from, i))
                          : cpl_template_string(&text, &field->made[i], scope));
        if (json_array_append_new(*value, text))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list"));
    }
    return CPL_OK;
done:
    json_decref(*value);
    *value = NULL;
    return status;
}

static cpl_status look_up(json_t **value, const cpl_field *field, cpl_scope *scope)
{
    json_t *from = NULL;
    CPL_TRY(cpl_scope_value(&from, scope, field->looked_up));
    if (json_is_array(from)) return make_list(value, field, scope, from);
    return look_up_one(value, field, from);
}

static cpl_status read_field(json_t **value, const cpl_field *field, cpl_scope *scope)
{
    if (field->kind == PATHS) return read_paths(value, field, scope->row);
    if (field->kind == MADE) return make_first(value, field, scope);
    if (field->kind == MADE_LIST) return make_list(value, field, scope, NULL);
    return look_up(value, field, scope);
}

/* Reads the value of a name once. The recursion ends, since a field comes after its fields. */
cpl_status cpl_scope_value(json_t **value, cpl_scope *scope, const char *name)
{
    *value = json_object_get(scope->values, name);
    if (*value) return CPL_OK;
    const cpl_field *field = find_field(scope->fields, name);
    if (!field) return CPL_FAIL(CPL_ERR_INPUT, "there is no value of %s", name);
    cpl_status status = read_field(value, field, scope);
    if (status == CPL_ERR_INPUT) {
        char sentence[600];
        snprintf(sentence, sizeof sentence, "%s", cpl_last_error());
        return CPL_FAIL(status, "the field %s: %s", name, sentence);
    }
    if (status != CPL_OK) return status;
    return cpl_scope_set(scope, name, *value);
}
