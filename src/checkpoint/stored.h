/* stored.h - the tensors of any checkpoint under their names, whatever files they lie in.
 *
 * Room:    checkpoint. Knows names, shapes and number formats, nothing of models. Where only safetensors
 *          will do (training), weights.h is the stricter and simpler door.
 * Where:   a folder or file as in weights.h (safetensors, with or without index); a .gguf file, with
 *          the other parts of a split one (-00001-of-00003.gguf) beside it; a folder that has no
 *          safetensors and exactly one .gguf (or one split one). Files named ...-TP-00x.safetensors
 *          hold slices: all of the folder belong to it, with an index or without.
 * Faults:  a shard that is missing or damaged, a tensor in two files or in another than the index
 *          says: a fault of those tensors, told where one of them is read and nowhere else.
 * Threads: after open, several threads may find and read. */
#ifndef CPL_CHECKPOINT_STORED_H
#define CPL_CHECKPOINT_STORED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "tensor/formats.h"

enum { CPL_STORED_MAX_RANK = 6 };

typedef struct cpl_stored_files cpl_stored_files;

/* One tensor; borrowed from the open checkpoint. */
typedef struct cpl_stored {
    const char *name;
    const char *type_name; /* as the file says: "F8_E4M3", "I32", "Q4_K" */
    cpl_format format; /* of the numbers where type_name alone tells it; I8, U8, I32, ...: OTHER */
    int rank;
    int64_t shape[CPL_STORED_MAX_RANK]; /* outermost first; 1 behind `rank` */
    int64_t n_elements;
    uint64_t bytes;
    const char *path; /* of the file it lies in, or should lie in */
    const char
        *fault; /* NULL, or why it cannot be read: a sentence that names file and tensor; then
                          rank and shape may be unknown (rank -1) */
    int slice, n_slices; /* of a tensor cut over several files named ...-TP-00x...: which, of how
                            many with this name; 0 of 1 otherwise */
    const void *file;    /* inner */
    uint64_t offset;     /* inner */
} cpl_stored;

/* Opens and checks the headers of all files, as far as they can be read. An error only where
 * nothing can be read at all (no such file, no weights in the folder, an index that is not one or
 * that names a file outside its folder, a damaged file that is the only one or of which no index
 * tells what is in it). `log` may be NULL. */
CPL_NODISCARD cpl_status cpl_stored_open(cpl_stored_files **out, const char *path,
                                         const cpl_log *log);
void cpl_stored_close(cpl_stored_files *files); /* NULL: nothing to do */

const char *cpl_stored_path(const cpl_stored_files *files); /* as the user gave it */
bool cpl_stored_is_gguf(const cpl_stored_files *files);
int64_t cpl_stored_n_files(const cpl_stored_files *files);

/* config.json, or where there is none params.json, of the folder; the metadata of a GGUF file; an
 * empty object where there is nothing. Borrowed. A damaged config.json is an error of open. */
const json_t *cpl_stored_config(const cpl_stored_files *files);

/* Every tensor once, sorted by name (slices of one name: by slice); `i` in [0, count). */
int64_t cpl_stored_count(const cpl_stored_files *files);
const cpl_stored *cpl_stored_at(const cpl_stored_files *files, int64_t i);

/* NULL if there is no such tensor. Of a sliced one: slice 0; the others follow it in memory. */
const cpl_stored *cpl_stored_find(const cpl_stored_files *files, const char *name);

/* Sets `out` to the bytes [first, first + bytes) of the tensor as they stand. A tensor with a fault
 * is an error with that sentence. */
CPL_NODISCARD cpl_status cpl_stored_read(const cpl_stored *tensor, void *out, uint64_t first,
                                         size_t bytes);

/* Tells the system that these bytes will be wanted soon. */
void cpl_stored_prefetch(const cpl_stored *tensor, uint64_t first, size_t bytes);

#endif /* CPL_CHECKPOINT_STORED_H */
