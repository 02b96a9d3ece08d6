/* yaml.h - configuration files: YAML <-> the joint settings.
 *
 * Room:   settings. Reads the tree of yaml_tree.h by the lists of settings.h.
 * Form:   one mapping of sections, each a mapping of its settings:
 *
 *             train:
 *                 steps: 1000
 *             data:
 *                 train: [texts/wiki.jsonl, texts/books]
 *
 *         Settings of removed.def are ignored. Forms that yaml_tree.h refuses and any deeper
 *         nesting are errors. An empty file gives every setting its default.
 * Errors: "FILE:LINE:COLUMN: what is wrong", counted from 1. */
#ifndef CPL_SETTINGS_YAML_H
#define CPL_SETTINGS_YAML_H

#include <stdbool.h>

#include "settings/settings.h"
#include "settings/yaml_tree.h"

/* Reads the file at `path`, which the user named, into `joint`. It may be a pipe (for a file of a
 * folder the caller calls cpl_file_check first). The settings of `joint` hold values (their
 * defaults) before. Marks the settings that the file names in `given` (may be NULL, see
 * cpl_settings_index). A relative path in a setting whose unit is "path" or "paths" is taken from
 * the file's folder. After a failure some settings may have been set. `joint` can be freed. */
CPL_NODISCARD cpl_status cpl_yaml_read(void *joint, const cpl_section *sections, size_t count,
                                       const char *path, bool *given);

/* Reads `length` bytes as cpl_yaml_read reads a file. Errors name the file `name`. The folder of
 * `name` is the file's folder. */
CPL_NODISCARD cpl_status cpl_yaml_parse(void *joint, const cpl_section *sections, size_t count,
                                        const char *name, const void *bytes, size_t length,
                                        bool *given);

/* Appends the complete configuration, in the order of the lists. With `commented`, each setting
 * follows a comment with its sentence, its values and its default. cpl_yaml_parse, under a name
 * without a folder, reads equal settings from the text. The caller checks cpl_text_status. */
void cpl_yaml_write(cpl_text *out, const void *joint, const cpl_section *sections, size_t count,
                    bool commented);

/* Makes the paths among the settings absolute, from the current folder. A configuration that is
 * written to another folder then names the same files. */
CPL_NODISCARD cpl_status cpl_yaml_absolute(void *joint, const cpl_section *sections, size_t count);

#endif /* CPL_SETTINGS_YAML_H */
