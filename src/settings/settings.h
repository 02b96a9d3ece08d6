/* settings.h - settings: lines of a room's .def file, read by all rooms.
 *
 * Room:   settings. Each room owns the settings it uses: one .def file a section (data/data.def,
 *         model/model.def, ...). A line of such a file is
 *
 *             CPL_SETTING(field, name, KIND, default, low, high, unit, sentence)
 *
 *         field    the member of struct cpl_<section>_settings
 *         KIND     INT FLOAT BOOL CHOICE STRING STRINGS WEIGHTS
 *         default  its text as in YAML, always in quotes; FLOAT "unset" is NaN, INT "unset" is
 *                  CPL_UNSET, STRING "unset" is NULL
 *         low,high bounds, both allowed (INT, FLOAT); -INFINITY and INFINITY for none
 *         unit     the noun that is counted, in the plural ("tokens", "steps", ...), or "", for a
 *                  path "path" or "paths", for CHOICE the words, "mean|sum", in the enum's order
 *
 *         The parser, --set, --help, --print-config, bounds checks, config.yaml of a run and the
 *         tests all read these lists. */
#ifndef CPL_SETTINGS_SETTINGS_H
#define CPL_SETTINGS_SETTINGS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef enum cpl_kind {
    CPL_KIND_INT,
    CPL_KIND_FLOAT,
    CPL_KIND_BOOL,
    CPL_KIND_CHOICE,
    CPL_KIND_STRING,
    CPL_KIND_STRINGS,
    CPL_KIND_WEIGHTS,
} cpl_kind;

enum { CPL_UNSET = INT32_MIN }; /* value of an INT that is unset */

/* Pairs of name and number, in the order given. All zero is an empty list. */
typedef struct cpl_weight_list {
    char **name;
    double *weight;
    int64_t count;
} cpl_weight_list;

/* The C types of a field, by kind. */
typedef int64_t cpl_field_INT;
typedef double cpl_field_FLOAT;
typedef int cpl_field_BOOL;
typedef int cpl_field_CHOICE;
typedef char *cpl_field_STRING; /* owned by the settings; NULL if unset */
typedef cpl_strings cpl_field_STRINGS;
typedef cpl_weight_list cpl_field_WEIGHTS;

typedef struct cpl_setting {
    const char *section, *name; /* dotted name: section.name */
    cpl_kind kind;
    size_t offset; /* bytes to the field in its section's struct */
    const char *default_value;
    double low, high;
    const char *unit, *help;
} cpl_setting;

/* Makes a line of a .def file a row of a list. */
#define CPL_SETTING_ROW(section, field, name, kind, standard, low, high, unit, sentence)           \
    {#section, #name, CPL_KIND_##kind, offsetof(cpl_##section##_settings, field), standard, low,   \
     high,     unit,  sentence},

/* Makes the list <name>_list a section. `sentence` is its short description. */
/* clang-format off */
#define CPL_SECTION(name, sentence)                                                                \
    {#name, name##_list, sizeof name##_list / sizeof *name##_list, 0, sentence,                      \
     sizeof(cpl_##name##_settings)}
/* clang-format on */

/* A section of settings and the offset of its struct in a larger struct. */
typedef struct cpl_section {
    const char *name;
    const cpl_setting *list;
    size_t count;
    size_t offset;    /* bytes to the section's struct in the joint struct */
    const char *help; /* description: no capital, no full stop */
    size_t bytes;     /* size of the section's struct */
} cpl_section;

enum {
    CPL_SETTING_NAME_BYTES = 80,   /* longest dotted name, with its NUL */
    CPL_WEIGHTS_MOST       = 4096, /* pairs of one WEIGHTS */
    CPL_WEIGHT_NAME_BYTES  = 200   /* longest name in a WEIGHTS: YAML bounds the length of a key */
};

/* The list --------------------------------------------------------------------------------------*/

/* Sets every field of every section to its default and all other bytes to zero. Earlier values are
 * not read or freed. */
CPL_NODISCARD cpl_status cpl_settings_init(void *joint, const cpl_section *sections, size_t count);

/* Frees the memory of the fields and sets them to zero. Zeroed fields are allowed. */
void cpl_settings_free(void *joint, const cpl_section *sections, size_t count);

/* Returns the position of `setting` among all settings of the sections: the index into an array
 * `given`, which is true for values that were given and false for defaults. */
size_t cpl_settings_index(const cpl_section *sections, size_t count, const cpl_setting *setting);

/* Returns the setting with this dotted name, or NULL. Sets `*field` to point to its value. `joint`
 * and `field` may each be NULL. */
const cpl_setting *cpl_settings_find(void *joint, const cpl_section *sections, size_t count,
                                     const char *dotted, void **field);

/* Returns the setting whose name is nearest, or NULL if no name is near. A setting with an equal
 * name in another section is nearer than a similar name. */
const cpl_setting *cpl_settings_nearest(const cpl_section *sections, size_t count,
                                        const char *dotted);

/* Returns the sentence on the replacement of a removed setting, or NULL for any other name. */
const char *cpl_settings_removed(const char *dotted);

/* Records "there is no setting DOTTED" with the nearest name, if one is near, or the sentence on
 * the replacement of a removed setting. Returns `code`. */
cpl_status cpl_settings_unknown(cpl_status code, const cpl_section *sections, size_t count,
                                const char *dotted);

/* Sets one setting from "section.name=value", the value of --set, and marks it in `given` (may be
 * NULL). Returns CPL_ERR_USAGE for an unknown setting, with the nearest name, or for a value that
 * does not fit, with the bounds. */
CPL_NODISCARD cpl_status cpl_settings_set(void *joint, const cpl_section *sections, size_t count,
                                          const char *assignment, bool *given);

/* One setting -----------------------------------------------------------------------------------*/

/* Writes "section.name", or only the name without a section, into `out`, and returns `out`. */
const char *cpl_setting_dotted(char out[CPL_SETTING_NAME_BYTES], const cpl_setting *setting);

/* Returns whether the setting may be unset: its default is "unset". */
bool cpl_setting_may_be_unset(const cpl_setting *setting);

/* Parses `text` into `field`, checking kind and bounds. `text` is a YAML scalar, for STRINGS "a, b"
 * or "[a, b]", for WEIGHTS "{a: 1, b: 0.5}". `field` holds a value before, which is kept if this
 * fails. Numbers are decimal. A whole number may be written 1e6. Strings are plain or in quotes and
 * are UTF-8. "unset", "null" and "~" unset a setting that may be unset. The sentence of
 * CPL_ERR_INPUT names the setting, the value and the bounds or choices. */
CPL_NODISCARD cpl_status cpl_setting_parse(const cpl_setting *setting, void *field,
                                           const char *text);

size_t cpl_setting_bytes(const cpl_setting *setting); /* size of the field */

/* Frees the memory of the field and zeroes it. */
void cpl_setting_free(const cpl_setting *setting, void *field);

/* Appends the value as YAML that cpl_setting_parse reads back to the same value. */
void cpl_setting_print(cpl_text *out, const cpl_setting *setting, const void *field);

/* Appends the string in double quotes, with YAML's escapes. */
void cpl_setting_quote(cpl_text *out, const char *string);

/* Appends the allowed values: "a whole number of tokens from 2 to 16777216", "mean or sum". */
void cpl_setting_allowed(cpl_text *out, const cpl_setting *setting);

/* Appends "SENTENCE (allowed values; default X)", for help and comments. */
void cpl_setting_describe(cpl_text *out, const cpl_setting *setting);

/* Returns whether both fields hold equal values. */
int cpl_setting_equal(const cpl_setting *setting, const void *a, const void *b);

#endif /* CPL_SETTINGS_SETTINGS_H */
