/* yaml.h - configuration files: YAML <-> the joint settings.
 *
 * Room:   settings; libyaml's event stream against the lists of settings/settings.h.
 * Form:   one mapping of sections, each a mapping of its settings:
 *
 *             train:
 *                 steps: 1000
 *             data:
 *                 train: [texts/wiki.jsonl, texts/books]
 *
 *         Anchors, aliases, tags, several documents and whatever is deeper are refused. An empty
 *         file gives every setting its default.
 * Errors: "FILE:LINE:COLUMN: what is wrong", counted from 1. */
#ifndef CPL_SETTINGS_YAML_H
#define CPL_SETTINGS_YAML_H

#include <stdbool.h>

#include "settings/settings.h"

enum { CPL_YAML_MOST_BYTES = 16 << 20 }; /* of a configuration file */

/* Reads the file at `path`, a file of a folder, into `joint`, whose settings hold values (their defaults), and marks in
 * `given` (see cpl_settings_index; NULL: nowhere) those that the file names. A relative path in a
 * setting whose unit is "path" or "paths" is taken from the file's folder. After a failure some
 * settings may have been set; `joint` can be freed as ever. */
CPL_NODISCARD cpl_status cpl_yaml_read(void *joint, const cpl_section *sections, size_t count,
                                       const char *path, bool *given);

/* The same of a file that the user named; it may be a pipe. */
CPL_NODISCARD cpl_status cpl_yaml_read_given(void *joint, const cpl_section *sections, size_t count,
                                             const char *path, bool *given);

/* The same of `length` bytes, which the sentences call `name`; the folder is that of `name`. */
CPL_NODISCARD cpl_status cpl_yaml_parse(void *joint, const cpl_section *sections, size_t count,
                                        const char *name, const void *bytes, size_t length,
                                        bool *given);

/* Appends the complete configuration, in the order of the lists; `commented`: each setting with its
 * sentence, what it may be, and its default. What cpl_yaml_parse reads from it (under a name
 * without a folder) is the same. The caller checks cpl_text_status. */
void cpl_yaml_write(cpl_text *out, const void *joint, const cpl_section *sections, size_t count,
                    bool commented);

/* Makes the paths among the settings absolute, from the current folder: a configuration that is
 * written elsewhere then means the same. */
CPL_NODISCARD cpl_status cpl_yaml_absolute(void *joint, const cpl_section *sections, size_t count);

#endif /* CPL_SETTINGS_YAML_H */
