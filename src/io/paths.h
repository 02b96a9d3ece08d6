/* paths.h - lists of the files that a user's files, folders and patterns name; paths of the
 * program's modules.
 *
 * Room:  io. */
#ifndef CPL_IO_PATHS_H
#define CPL_IO_PATHS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Appends a copy of `path`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_paths_add(cpl_strings *paths, const char *path);
void cpl_paths_free(cpl_strings *paths); /* leaves an empty list */

/* Sorts by bytes and removes repeats. */
void cpl_paths_sort(cpl_strings *paths);

/* Returns the label of a file's content: the name of the folder in `path`, or "default" if there is
 * no folder. The caller frees it with cpl_free; NULL: no memory. */
char *cpl_path_label(const char *path);

/* Appends every file below `folder`, at any depth, whose name `wanted` accepts. Names that begin
 * with a dot are skipped. CPL_ERR_INPUT if an accepted name is a pipe, a device or a link to
 * nothing. */
CPL_NODISCARD cpl_status cpl_paths_below(cpl_strings *paths, const char *folder,
                                         bool (*wanted)(const char *name));

/* Appends the files that `input` names. A file names itself; a folder names what cpl_paths_below
 * finds; else `input` is a pattern of glob(3), each match a file or a folder. CPL_ERR_INPUT if no
 * file results. */
CPL_NODISCARD cpl_status cpl_paths_expand(cpl_strings *paths, const char *input,
                                          bool (*wanted)(const char *name), const char *what);

/* Returns true if `path` ends in a nonempty name and `extension`, optionally followed by .gz or
 * .zst. */
bool cpl_path_has_extension(const char *path, const char *extension);

/* Sets the document files (.txt, .json, .jsonl; also with .gz, .zst) that `inputs` name, sorted by
 * bytes, each once. A folder "attributes" with a sibling folder "documents" is skipped (Dolma). The
 * caller frees `*paths` with cpl_paths_free. */
CPL_NODISCARD cpl_status cpl_documents_expand(cpl_strings *paths, const char *const *inputs,
                                              int64_t n_inputs);

enum { CPL_MODULE_PATH = PATH_MAX + 64 };

/* Sets `path` to the file of the program's module `name`, a shared object loaded on demand: beside
 * the program, in ../lib/couplet (an installation that was moved), or in the library folder of the
 * installation. false: it is in none of these; `path` is then the last. */
bool cpl_module_find(char path[CPL_MODULE_PATH], const char *name);

#endif /* CPL_IO_PATHS_H */
