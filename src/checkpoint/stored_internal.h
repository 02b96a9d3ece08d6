/* stored_internal.h - the files of a checkpoint, opened as far as they can be, and their tensors told
 * apart.
 *
 * Room:   checkpoint, inside stored*.c only.
 * Slices: a file named ...-TP-002.safetensors holds the third slice of its tensors. An index names
 *         one file for each tensor, so all such files of the folder belong to the checkpoint. */
#ifndef CPL_CHECKPOINT_STORED_INTERNAL_H
#define CPL_CHECKPOINT_STORED_INTERNAL_H

#include "checkpoint/gguf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored.h"
#include "io/json.h"

/* The files of a safetensors checkpoint. All zero is empty. */
typedef struct cpl_stored_paths {
    char *path;    /* the index, or the only file; owned */
    json_t *index; /* the document, owned; NULL without one */
    json_t *map;   /* its weight_map, borrowed: tensor name -> file name, all checked */
    char **paths;  /* (count) the files, each once, in byte order; owned */
    int64_t count;
} cpl_stored_paths;

/* One file; safetensors or gguf, or neither and a fault. */
typedef struct cpl_stored_part {
    const char *path, *name; /* the name is the path's end; borrowed from the list of files */
    cpl_safetensors *safetensors;
    cpl_gguf *gguf;
    char *fault;        /* why it could not be opened, a sentence; owned */
    cpl_status failure; /* then of which kind */
    int slice;          /* by its name; -1: none */
    int stem;           /* then the length of what stands before "-TP-" */
} cpl_stored_part;

struct cpl_stored_files {
    char *path; /* as the user gave it */
    bool strict, is_gguf;
    cpl_stored_paths files; /* path: what the tensors are looked up in, or the only file */
    cpl_stored_part *parts; /* (n_parts), in the order of files.paths, which is that of bytes */
    int64_t n_parts;
    int n_slices;        /* one more than the largest slice of any file; 0: none */
    cpl_stored *tensors; /* (count), sorted by name and slice; the faults are owned */
    int64_t count;
    json_t *config;
};

/* Sets the file or index that `path` means, from cpl_alloc; NULL if it is a folder that has none of
 * the names of stored.h. */
CPL_NODISCARD cpl_status cpl_stored_paths_discover(char **found, const char *path);

/* Finds the files and checks the index. A folder that has none is an error that says what it has. */
CPL_NODISCARD cpl_status cpl_stored_paths_find(cpl_stored_paths *files, const char *path);
void cpl_stored_paths_free(cpl_stored_paths *files);

bool cpl_stored_ends_with(const char *text, const char *ending);

/* Sets is_gguf and files: which files there are, by their names. */
CPL_NODISCARD cpl_status cpl_stored_discover(cpl_stored_files *s);

/* Opens them. An error where none can be opened, or one of several without an index. */
CPL_NODISCARD cpl_status cpl_stored_open_parts(cpl_stored_files *s);
void cpl_stored_close_parts(cpl_stored_files *s);

/* Sets the tensors with their faults; says the first fault and their number to `log`. */
CPL_NODISCARD cpl_status cpl_stored_collect(cpl_stored_files *s, const cpl_log *log);

#endif /* CPL_CHECKPOINT_STORED_INTERNAL_H */
