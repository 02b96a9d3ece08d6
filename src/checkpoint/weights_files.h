/* weights_files.h - which files a checkpoint consists of.
 *
 * Room:  checkpoint, inside weights.c and stored*.c only. The rules are those in the head of weights.h. */
#ifndef CPL_CHECKPOINT_WEIGHTS_FILES_H
#define CPL_CHECKPOINT_WEIGHTS_FILES_H

#include <stdint.h>

#include "base/status.h"
#include "io/json.h"

/* All zero is empty. */
typedef struct cpl_weights_files {
    char *path;    /* the index, or the only file; owned */
    json_t *index; /* the document, owned; NULL without one */
    json_t *map;   /* its weight_map, borrowed: tensor name -> file name, all checked */
    char **paths;  /* (count) the files, each once, in byte order; owned */
    int64_t count;
} cpl_weights_files;

/* Sets the file or index that `path` means, from cpl_alloc; NULL if it is a folder that has none of
 * the names of weights.h. */
CPL_NODISCARD cpl_status cpl_weights_files_discover(char **found, const char *path);

/* Finds the files and checks the index. A folder that has none is an error that says what it has. */
CPL_NODISCARD cpl_status cpl_weights_files_find(cpl_weights_files *files, const char *path);
void cpl_weights_files_free(cpl_weights_files *files);

#endif /* CPL_CHECKPOINT_WEIGHTS_FILES_H */
