/* yaml.c - configuration files; see yaml.h
 *
 * A value is written again in flow style, its strings quoted, for cpl_setting_parse: only that
 * function decides the form and bounds of numbers. */
#include "settings/yaml.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"

/* ---- relative paths ---- */

static cpl_status resolve_path(char **path, const char *folder)
{
    if (!*path || **path == '/' || **path == '\0') return CPL_OK;
    const char *relative = *path;
    while (strncmp(relative, "./", 2) == 0) relative += 2;
    char *whole = cpl_path_join(folder, relative);
    if (!whole) return CPL_ERR_MEMORY;
    cpl_free(*path);
    *path = whole;
    return CPL_OK;
}

/* Puts `folder` before the relative paths in `field`, if the setting's unit is "path" or "paths".
 * The folder "." changes nothing. */
static cpl_status resolve_field(const cpl_setting *setting, void *field, const char *folder)
{
    if (strcmp(folder, ".") == 0) return CPL_OK;
    if (setting->kind == CPL_KIND_STRING && strcmp(setting->unit, "path") == 0)
        return resolve_path(field, folder);
    if (setting->kind == CPL_KIND_STRINGS && strcmp(setting->unit, "paths") == 0) {
        cpl_strings *paths = field;
        for (int64_t i = 0; i < paths->count; i++) CPL_TRY(resolve_path(&paths->at[i], folder));
    }
    return CPL_OK;
}

cpl_status cpl_yaml_absolute(void *joint, const cpl_section *sections, size_t count)
{
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here))
        return CPL_FAIL(CPL_ERR_IO, "the current folder has no name: %s", strerror(errno));
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++)
            CPL_TRY(
                resolve_field(&s->list[i], (char *)joint + s->offset + s->list[i].offset, here));
    return CPL_OK;
}

/* ---- reading ---- */

typedef struct reader {
    cpl_yaml_doc doc;
    char *folder; /* of the file; owned */
    void *joint;
    const cpl_section *sections;
    size_t count;
    bool *given; /* may be NULL */
} reader;

#define FAIL_AT(in, node, ...) cpl_yaml_doc_fail(&(in)->doc, (node), __VA_ARGS__)

/* The last sentence with the node's position before it. */
static cpl_status place(const reader *in, const cpl_yaml_node *node, cpl_status status)
{
    return CPL_FAIL(status, "%s:%zu:%zu: %s", in->doc.name, node->line, node->column,
                    cpl_last_error());
}

/* Whether a member of `parent` before `node` has its name. */
static bool is_repeated(const cpl_yaml_node *parent, const cpl_yaml_node *node)
{
    const cpl_yaml_node *n = parent->first;
    while (n != node && strcmp(n->key->text, node->key->text) != 0) n = n->next;
    return n != node;
}

static bool is_nothing(const cpl_yaml_node *node)
{
    return node->kind == CPL_YAML_SCALAR && node->plain && !*node->text;
}

/* Appends a value in flow style. Scalars within a list or mapping are quoted: those that were, or
 * `all`, as a plain one may have another meaning if a block becomes one line. */
static void append_flow(cpl_text *out, const cpl_yaml_node *node, bool all)
{
    const bool list = node->kind == CPL_YAML_LIST;
    if (node->kind == CPL_YAML_SCALAR) {
        if (all || !node->plain)
            cpl_setting_quote(out, node->text);
        else
            cpl_text_append(out, node->text, strlen(node->text));
        return;
    }
    cpl_text_char(out, list ? '[' : '{');
    for (const cpl_yaml_node *n = node->first; n; n = n->next) {
        if (n != node->first) cpl_text_append(out, ", ", 2);
        if (n->key) append_flow(out, n->key, all);
        if (n->key) cpl_text_append(out, ": ", 2);
        append_flow(out, n, all);
    }
    cpl_text_char(out, list ? ']' : '}');
}

static cpl_status append_value(const reader *in, cpl_text *value, const cpl_yaml_node *node,
                               const cpl_setting *setting)
{
    if (is_nothing(node)) {
        cpl_text_append(value, "unset", 5);
    } else if (node->kind == CPL_YAML_SCALAR) {
        append_flow(value, node, false);
    } else if ((node->kind == CPL_YAML_LIST && setting->kind == CPL_KIND_STRINGS) ||
               (node->kind == CPL_YAML_MAPPING && setting->kind == CPL_KIND_WEIGHTS)) {
        for (const cpl_yaml_node *n = node->first; n; n = n->next)
            if (n->kind != CPL_YAML_SCALAR || is_nothing(n))
                return FAIL_AT(in, n, "%s",
                               n->key ? "a number is expected here"
                                      : "a list here holds texts only");
        append_flow(value, node, true);
    } else {
        return FAIL_AT(in, node, "%s.%s cannot be %s", setting->section, setting->name,
                       node->kind == CPL_YAML_LIST ? "a list" : "a mapping");
    }
    return CPL_OK;
}

static cpl_status read_value(const reader *in, const cpl_yaml_node *node,
                             const cpl_setting *setting, void *field)
{
    cpl_text value    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(append_value(in, &value, node, setting));
    CPL_TRY_DONE(cpl_text_status(&value));
    status = cpl_setting_parse(setting, field, value.bytes);
    if (status == CPL_OK) status = resolve_field(setting, field, in->folder);
    if (status != CPL_OK) status = place(in, node, status);
done:
    cpl_text_free(&value);
    return status;
}

static cpl_status read_setting(const reader *in, const cpl_yaml_node *parent,
                               const cpl_yaml_node *node)
{
    char dotted[256];
    void *field = NULL;
    snprintf(dotted, sizeof dotted, "%s.%s", parent->key->text, node->key->text);
    const cpl_setting *setting =
        cpl_settings_find(in->joint, in->sections, in->count, dotted, &field);
    if (!setting && cpl_settings_removed(dotted)) return CPL_OK;
    if (!setting)
        return place(in, node->key,
                     cpl_settings_unknown(CPL_ERR_INPUT, in->sections, in->count, dotted));
    if (is_repeated(parent, node)) return FAIL_AT(in, node->key, "%s is given twice", dotted);
    if (in->given) in->given[cpl_settings_index(in->sections, in->count, setting)] = true;
    return read_value(in, node, setting, field);
}

static cpl_status unknown_section(const reader *in, const cpl_yaml_node *at)
{
    const char *near = NULL;
    int limit        = cpl_text_near_limit(at->text);
    for (const cpl_section *s = in->sections; s < in->sections + in->count; s++)
        if (cpl_text_is_nearer(&limit, at->text, s->name)) near = s->name;
    const cpl_setting *setting =
        cpl_settings_find(in->joint, in->sections, in->count, at->text, NULL);
    if (setting)
        return FAIL_AT(in, at,
                       "%s is in the section %s: write %s: and below it, indented, %s: VALUE",
                       at->text, setting->section, setting->section, setting->name);
    if (near)
        return FAIL_AT(in, at, "there is no section %.200s; did you mean %s?", at->text, near);
    return FAIL_AT(in, at, "there is no section %.200s", at->text);
}

static cpl_status read_section(const reader *in, const cpl_yaml_node *node)
{
    size_t s = 0;
    while (s < in->count && strcmp(in->sections[s].name, node->key->text) != 0) s++;
    if (s == in->count) return unknown_section(in, node->key);
    if (is_repeated(in->doc.root, node))
        return FAIL_AT(in, node->key, "the section %s is given twice", node->key->text);
    if (is_nothing(node)) return CPL_OK;
    if (node->kind != CPL_YAML_MAPPING)
        return FAIL_AT(in, node, "the section %s must hold settings, NAME: VALUE",
                       in->sections[s].name);
    for (const cpl_yaml_node *n = node->first; n; n = n->next) CPL_TRY(read_setting(in, node, n));
    return CPL_OK;
}

/* CPL_ERR_INPUT unless the document is a mapping, or nothing. */
static cpl_status check_sections(const cpl_yaml_doc *doc)
{
    if (!doc->root || doc->root->kind == CPL_YAML_MAPPING) return CPL_OK;
    return cpl_yaml_doc_fail(doc, doc->root,
                             "a configuration is made of sections, NAME: and its settings below");
}

static cpl_status read_document(const reader *in)
{
    const cpl_yaml_node more = {.line = in->doc.more_line, .column = in->doc.more_column};
    if (in->doc.root && !is_nothing(in->doc.root)) {
        CPL_TRY(check_sections(&in->doc));
        for (const cpl_yaml_node *n = in->doc.root->first; n; n = n->next)
            CPL_TRY(read_section(in, n));
    }
    return more.line ? FAIL_AT(in, &more, "a configuration is one document") : CPL_OK;
}

cpl_status cpl_yaml_parse(void *joint, const cpl_section *sections, size_t count, const char *name,
                          const void *bytes, size_t length, bool *given)
{
    cpl_status status = CPL_OK;
    reader in         = {.joint = joint, .sections = sections, .count = count, .given = given};
    CPL_TRY_DONE(cpl_yaml_doc_parse(&in.doc, name, bytes, length, false));
    in.folder = cpl_path_folder(name);
    if (!in.folder) CPL_TRY_DONE(CPL_ERR_MEMORY);
    status = read_document(&in);
done:
    cpl_yaml_doc_free(&in.doc);
    cpl_free(in.folder);
    return status;
}

cpl_status cpl_yaml_read(void *joint, const cpl_section *sections, size_t count, const char *path,
                         bool *given)
{
    cpl_text bytes    = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_file_read_given(&bytes, path, CPL_YAML_MOST_BYTES));
    CPL_TRY_DONE(cpl_yaml_parse(joint, sections, count, path, bytes.bytes, bytes.length, given));
done:
    cpl_text_free(&bytes);
    return status;
}

/* ---- writing ---- */

enum { LINE_BYTES = 100 };

/* Appends `sentence` as comment lines of at most LINE_BYTES, broken between words. */
static void write_comment(cpl_text *out, const char *sentence)
{
    static const char head[] = "    #";
    size_t column            = sizeof head - 1;
    cpl_text_append(out, head, column);
    while (*sentence) {
        size_t word = strcspn(sentence, " ");
        if (column + 1 + word > LINE_BYTES && column > sizeof head) {
            column = sizeof head - 1;
            cpl_text_char(out, '\n');
            cpl_text_append(out, head, column);
        }
        cpl_text_char(out, ' ');
        cpl_text_append(out, sentence, word);
        column += 1 + word;
        sentence += word + strspn(sentence + word, " ");
    }
    cpl_text_char(out, '\n');
}

static void write_setting(cpl_text *out, const cpl_setting *setting, const void *field,
                          bool commented)
{
    cpl_text sentence = {0};
    if (commented) {
        cpl_setting_describe(&sentence, setting);
        write_comment(out, sentence.bytes ? sentence.bytes : "");
        out->failed |= sentence.failed;
        cpl_text_free(&sentence);
    }
    cpl_text_printf(out, "    %s: ", setting->name);
    cpl_setting_print(out, setting, field);
    cpl_text_char(out, '\n');
}

void cpl_yaml_write(cpl_text *out, const void *joint, const cpl_section *sections, size_t count,
                    bool commented)
{
    for (const cpl_section *s = sections; s < sections + count; s++) {
        cpl_text_printf(out, "%s%s:\n", s == sections ? "" : "\n", s->name);
        for (size_t i = 0; i < s->count; i++)
            write_setting(out, &s->list[i], (const char *)joint + s->offset + s->list[i].offset,
                          commented);
    }
}

/* ---- flat lists ---- */

static void add_value(cpl_yaml_flat *flat, const cpl_yaml_node *section, const cpl_yaml_node *node)
{
    cpl_yaml_pair *pair = flat->pairs ? &flat->pairs[flat->count] : NULL;
    cpl_text text       = {0};
    flat->count++;
    if (!pair) return;
    if (section) cpl_text_printf(&text, "%s.", section->key->text);
    cpl_text_append(&text, node->key->text, strlen(node->key->text));
    pair->name = cpl_pool_copy(&flat->pool, text.bytes, text.length);
    cpl_text_clear(&text);
    if (node->kind == CPL_YAML_SCALAR)
        cpl_text_append(&text, node->text, strlen(node->text));
    else
        append_flow(&text, node, false);
    pair->text = cpl_pool_copy(&flat->pool, text.bytes, text.length);
    flat->pool.failed |= text.failed;
    cpl_text_free(&text);
}

/* Adds all values of a configuration; if there is no memory for pairs yet, it only counts them. */
static void add_values(cpl_yaml_flat *flat, const cpl_yaml_doc *doc)
{
    flat->count = 0;
    for (const cpl_yaml_node *n = doc->root ? doc->root->first : NULL; n; n = n->next) {
        if (n->kind != CPL_YAML_MAPPING) add_value(flat, NULL, n);
        for (const cpl_yaml_node *m = n->kind == CPL_YAML_MAPPING ? n->first : NULL; m; m = m->next)
            add_value(flat, n, m);
    }
}

cpl_status cpl_yaml_flat_parse(cpl_yaml_flat *out, const char *name, const void *bytes,
                               size_t length)
{
    cpl_yaml_doc doc  = {0};
    cpl_status status = CPL_OK;
    *out              = (cpl_yaml_flat){0};
    CPL_TRY_DONE(cpl_yaml_doc_parse(&doc, name, bytes, length, true));
    CPL_TRY_DONE(check_sections(&doc));
    add_values(out, &doc);
    out->pairs = cpl_pool_take(&out->pool, (size_t)out->count * sizeof *out->pairs);
    if (out->pairs) add_values(out, &doc);
    if (out->pool.failed) status = CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a configuration");
done:
    cpl_yaml_doc_free(&doc);
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
    cpl_pool_free(&flat->pool);
    *flat = (cpl_yaml_flat){0};
}

const char *cpl_yaml_flat_get(const cpl_yaml_flat *flat, const char *name)
{
    for (int64_t i = flat->count; i-- > 0;)
        if (strcmp(flat->pairs[i].name, name) == 0) return flat->pairs[i].text;
    return NULL;
}
