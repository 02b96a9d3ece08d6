/* yaml.c - configuration files, see yaml.h
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
    cpl_yaml_tree tree;
    char *folder; /* folder of the file; owned */
    void *joint;
    const cpl_section *sections;
    size_t count;
    bool *given; /* may be NULL */
} reader;

#define FAIL_KEY(in, value, ...)   cpl_yaml_tree_fail(&(in)->tree, (value), __VA_ARGS__)
#define FAIL_VALUE(in, value, ...) cpl_yaml_tree_fail_value(&(in)->tree, (value), __VA_ARGS__)

static bool is_plain(const reader *in, const json_t *value)
{
    return cpl_yaml_tree_find(&in->tree, value)->plain;
}

static bool is_nothing(const reader *in, const json_t *value)
{
    return json_is_string(value) && !json_string_length(value) && is_plain(in, value);
}

/* Appends a text within a list or mapping in quotes, because a plain text may have another meaning
 * if a block becomes one line. `key` is the key of a mapping's member, else NULL. */
static cpl_status append_item(const reader *in, cpl_text *out, const char *key, const json_t *item)
{
    if (!json_is_string(item) || is_nothing(in, item))
        return FAIL_VALUE(in, item, "%s",
                          key ? "a number is expected here" : "a list here holds texts only");
    if (out->length > 1) cpl_text_append(out, ", ", 2);
    if (key) cpl_setting_quote(out, key);
    if (key) cpl_text_append(out, ": ", 2);
    cpl_setting_quote(out, json_string_value(item));
    return CPL_OK;
}

/* Appends a value in flow style, as cpl_setting_parse reads it. */
static cpl_status append_value(const reader *in, cpl_text *out, json_t *value,
                               const cpl_setting *setting)
{
    const bool list = json_is_array(value);
    const char *key, *text = json_string_value(value);
    json_t *item;
    size_t i;
    if (is_nothing(in, value)) {
        cpl_text_append(out, "unset", 5);
    } else if (text && is_plain(in, value)) {
        cpl_text_append(out, text, strlen(text));
    } else if (text) {
        cpl_setting_quote(out, text);
    } else if (setting->kind != (list ? CPL_KIND_STRINGS : CPL_KIND_WEIGHTS)) {
        return FAIL_VALUE(in, value, "%s.%s cannot be %s", setting->section, setting->name,
                          list ? "a list" : "a mapping");
    } else {
        cpl_text_char(out, list ? '[' : '{');
        json_array_foreach(value, i, item) CPL_TRY(append_item(in, out, NULL, item));
        json_object_foreach(value, key, item) CPL_TRY(append_item(in, out, key, item));
        cpl_text_char(out, list ? ']' : '}');
    }
    return CPL_OK;
}

static cpl_status read_value(const reader *in, json_t *value, const cpl_setting *setting,
                             void *field)
{
    cpl_text text     = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(append_value(in, &text, value, setting));
    CPL_TRY_DONE(cpl_text_status(&text));
    status = cpl_setting_parse(setting, field, text.bytes);
    if (status == CPL_OK) status = resolve_field(setting, field, in->folder);
    if (status == CPL_ERR_INPUT) status = FAIL_VALUE(in, value, "%s", cpl_last_error());
done:
    cpl_text_free(&text);
    return status;
}

static cpl_status read_setting(const reader *in, const char *section, const char *name,
                               json_t *value)
{
    char dotted[256];
    void *field = NULL;
    snprintf(dotted, sizeof dotted, "%s.%s", section, name);
    const cpl_setting *setting =
        cpl_settings_find(in->joint, in->sections, in->count, dotted, &field);
    if (!setting && cpl_settings_removed(dotted)) return CPL_OK;
    if (!setting)
        return cpl_yaml_tree_place(
            &in->tree, value, cpl_settings_unknown(CPL_ERR_INPUT, in->sections, in->count, dotted));
    if (in->given) in->given[cpl_settings_index(in->sections, in->count, setting)] = true;
    return read_value(in, value, setting, field);
}

static cpl_status unknown_section(const reader *in, const char *name, const json_t *value)
{
    const char *near = NULL;
    int limit        = cpl_text_near_limit(name);
    for (const cpl_section *s = in->sections; s < in->sections + in->count; s++)
        if (cpl_text_is_nearer(&limit, name, s->name)) near = s->name;
    const cpl_setting *setting = cpl_settings_find(in->joint, in->sections, in->count, name, NULL);
    if (setting)
        return FAIL_KEY(in, value,
                        "%s is in the section %s: write %s: and below it, indented, %s: VALUE",
                        name, setting->section, setting->section, setting->name);
    if (near)
        return FAIL_KEY(in, value, "there is no section %.200s; did you mean %s?", name, near);
    return FAIL_KEY(in, value, "there is no section %.200s", name);
}

static cpl_status read_section(const reader *in, const char *section, json_t *members)
{
    const char *name;
    json_t *value;
    size_t s = 0;
    while (s < in->count && strcmp(in->sections[s].name, section) != 0) s++;
    if (s == in->count) return unknown_section(in, section, members);
    if (is_nothing(in, members)) return CPL_OK;
    if (!json_is_object(members))
        return FAIL_VALUE(in, members, "the section %s must hold settings, NAME: VALUE", section);
    json_object_foreach(members, name, value) CPL_TRY(read_setting(in, section, name, value));
    return CPL_OK;
}

static cpl_status read_sections(const reader *in)
{
    const char *section;
    json_t *root = in->tree.root, *members;
    if (!json_is_object(root) && !is_nothing(in, root))
        return FAIL_KEY(in, root,
                        "a configuration is made of sections, NAME: and its settings below");
    json_object_foreach(root, section, members) CPL_TRY(read_section(in, section, members));
    return CPL_OK;
}

cpl_status cpl_yaml_parse(void *joint, const cpl_section *sections, size_t count, const char *name,
                          const void *bytes, size_t length, bool *given)
{
    cpl_status status = CPL_OK;
    reader in         = {.joint = joint, .sections = sections, .count = count, .given = given};
    CPL_TRY_DONE(cpl_yaml_tree_parse(&in.tree, name, bytes, length));
    in.folder = cpl_path_folder(name);
    if (!in.folder) CPL_TRY_DONE(CPL_ERR_MEMORY);
    status = read_sections(&in);
done:
    cpl_yaml_tree_free(&in.tree);
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
