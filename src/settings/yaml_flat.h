/* yaml_flat.h - a YAML file of sections as a flat list: dotted names and texts, whatever they are.
 *
 * Room:   settings; libyaml. For configurations of other versions of this program, whose settings it need
 *         not know. What the program obeys is read by yaml.h, strictly.
 * Form:   one mapping; a mapping below it is a section: "train:" with "steps: 10" below it gives the
 *         name train.steps and the text 10. The value of a plain or quoted scalar is its content;
 *         a list, or what lies deeper, keeps the form of YAML on one line: [a, b], {web: 2}. What is
 *         not plain inside it is quoted.
 * Errors: "FILE:LINE:COLUMN: what is wrong". Aliases and nesting beyond CPL_YAML_FLAT_DEPTH are
 *         refused. */
#ifndef CPL_SETTINGS_YAML_FLAT_H
#define CPL_SETTINGS_YAML_FLAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CPL_YAML_FLAT_DEPTH = 64 };

typedef struct cpl_yaml_pair {
    char *name, *text; /* owned */
} cpl_yaml_pair;

/* All zero is an empty one. */
typedef struct cpl_yaml_flat {
    cpl_yaml_pair *pairs; /* (count) in the order of the file; owned */
    int64_t count, capacity;
} cpl_yaml_flat;

/* Reads the file at `path`, at most CPL_YAML_MOST_BYTES of it. After a failure `out` is empty. */
CPL_NODISCARD cpl_status cpl_yaml_flat_read(cpl_yaml_flat *out, const char *path);

/* The same of `length` bytes, which the sentences call `name`. */
CPL_NODISCARD cpl_status cpl_yaml_flat_parse(cpl_yaml_flat *out, const char *name,
                                             const void *bytes, size_t length);
void cpl_yaml_flat_free(cpl_yaml_flat *flat);

/* The text of a name, of the last one where it stands twice; NULL if it is not there. */
const char *cpl_yaml_flat_get(const cpl_yaml_flat *flat, const char *name);

#endif /* CPL_SETTINGS_YAML_FLAT_H */
