/* paths.h - expands files, folders and patterns that a user names, and finds the program's modules.
 *
 * Room:  io. */
#ifndef CPL_IO_PATHS_H
#define CPL_IO_PATHS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Appends a copy of `path`. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_paths_add(cpl_strings *paths, const char *path);
void cpl_paths_free(cpl_strings *paths); /* leaves an empty list */

/* Sorts by bytes and removes repeats. */
void cpl_paths_sort(cpl_strings *paths);

/* Returns the label of a file's content: the name of the folder in `path`, or "default" without a
 * folder. The caller frees the label with cpl_free. Returns NULL if memory is not available. */
char *cpl_path_label(const char *path);

/* Appends every file below `folder`, at any depth, whose name `wanted` accepts. Names that begin
 * with a dot are skipped. Returns CPL_ERR_INPUT if an accepted name is a pipe, a device or a
 * dangling link. */
CPL_NODISCARD cpl_status cpl_paths_below(cpl_strings *paths, const char *folder,
                                         bool (*wanted)(const char *name));

/* Appends the files that `input` names. A file names itself. A folder names the files that
 * cpl_paths_below finds. Any other `input` is a pattern of glob(3), each match a file or a folder.
 * Returns CPL_ERR_INPUT if no file results. */
CPL_NODISCARD cpl_status cpl_paths_expand(cpl_strings *paths, const char *input,
                                          bool (*wanted)(const char *name), const char *what);

/* Returns whether `path` ends in a nonempty name and `extension`, optionally followed by .gz or
 * .zst. */
bool cpl_path_has_extension(const char *path, const char *extension);

/* Sets the document files that `inputs` name, sorted by bytes, each once. Document files end in
 * .txt, .json or .jsonl, optionally followed by .gz or .zst. A folder "attributes" with a sibling
 * folder "documents" is skipped (Dolma). The caller frees `*paths` with cpl_paths_free. */
CPL_NODISCARD cpl_status cpl_documents_expand(cpl_strings *paths, const char *const *inputs,
                                              int64_t n_inputs);

enum { CPL_MODULE_PATH = PATH_MAX + 64 };

/* Sets `path` to the file of the program's module `name`, a shared object loaded on demand: beside
 * the program, in ../lib/couplet (an installation that was moved), or in the library folder of the
 * installation. Returns false if all three lack the file. `path` is the last of them then. */
bool cpl_module_find(char path[CPL_MODULE_PATH], const char *name);

#endif /* CPL_IO_PATHS_H */
