/* stored.h - the tensors of any checkpoint by name, independent of the files that contain them.
 *
 * Room:    checkpoint. Handles names, shapes and number formats; independent of models.
 * Where:   a path to a file is that file (an index if it ends in .json); of a folder the first of
 *          model.safetensors, model.safetensors.index.json (Transformers' order; a warning if both
 *          are there and the index is for other files), consolidated.safetensors and
 *          consolidated.safetensors.index.json; a .gguf file, with the other parts of a split one
 *          (-00001-of-00003.gguf) in the same folder; a folder that has no safetensors and exactly
 *          one .gguf (or one split one). Files named ...-TP-00x.safetensors hold slices: all of the
 *          folder belong to the checkpoint, with an index or without.
 * Index:   {"weight_map": {tensor: file}}; a file is a bare name in the index's folder and leads,
 *          also through symbolic links, to a regular file. It says which files there are; a tensor
 *          is read from the one that has it.
 * Faults:  a shard that is missing or damaged, a tensor in two files or in none: a fault of those
 *          tensors, an error only if one of them is read.
 * Strict:  for training. Only safetensors files, without slices, and each of them must open.
 * Threads: after open, several threads may find and read. */
#ifndef CPL_CHECKPOINT_STORED_H
#define CPL_CHECKPOINT_STORED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "checkpoint/gguf.h"
#include "checkpoint/safetensors.h"
#include "io/source.h"
#include "tensor/formats.h"

enum { CPL_STORED_MAX_RANK = 6 };

/* One file of a checkpoint; safetensors or gguf, or neither and a fault. */
typedef struct cpl_stored_part {
    const char *path, *name; /* the name is the path's end; borrowed from the list of files */
    cpl_safetensors *safetensors;
    cpl_gguf *gguf;
    char *fault;        /* why it could not be opened, a sentence; owned */
    cpl_status failure; /* then of which kind */
    int slice;          /* of a name ...-TP-002.safetensors: 2, the third; -1: none */
    int stem;           /* then the length of what is before "-TP-" */
} cpl_stored_part;

/* One tensor; borrowed from the open checkpoint. */
typedef struct cpl_stored {
    const char *name;
    const char *type_name; /* as in the file: "F8_E4M3", "I32", "Q4_K" */
    cpl_format format; /* of the numbers, if type_name alone gives it; I8, U8, I32, ...: OTHER */
    int rank;
    int64_t shape[CPL_STORED_MAX_RANK]; /* outermost first; 1 from `rank` on */
    int64_t n_elements;
    uint64_t bytes;
    const char *path; /* of the file that contains it, or should contain it */
    const char
        *fault; /* NULL, or why it cannot be read: a sentence that names file and tensor; then
                          rank and shape may be unknown (rank -1) */
    int slice, n_slices; /* of a tensor cut over several files named ...-TP-00x...: which, of how
                            many with this name; 0 of 1 otherwise */
    const cpl_safetensors_entry *entry; /* its row in a safetensors file; else NULL */
    const cpl_stored_part *file;
    uint64_t offset; /* in the file, from its beginning */
} cpl_stored;

/* An open checkpoint; read-only for callers. */
typedef struct cpl_stored_files {
    const cpl_origin *origin; /* where its files are; NULL: the local file system */
    char *path;               /* as the user gave it */
    char *source;             /* the file or index found there */
    char *
        notice; /* what is said of an index that is passed over, a sentence; NULL: none; all owned */
    bool strict, is_gguf;
    double room;            /* bytes that the tables of tensors may take */
    int64_t held;           /* bytes in use (cpl_alloc_in_use) before they were made */
    json_t *index;          /* the document; NULL without one */
    json_t *map;            /* its weight_map, borrowed: tensor name -> file name, all checked */
    cpl_strings paths;      /* of the files, each once, in byte order */
    cpl_stored_part *parts; /* (n_parts) in the same order */
    int64_t n_parts;
    int n_slices;        /* one more than the largest slice of any file; 0: none */
    cpl_stored *tensors; /* (count) every one once, sorted by name (slices of one name: by slice) */
    int64_t count;
    json_t *config; /* config.json, or if there is none params.json, of the folder; the metadata of
                       a GGUF file; an empty object if there is none of these */
} cpl_stored_files;

/* Opens and checks the headers of all files, as far as they can be read. An error only if nothing
 * can be read at all (no such file, no weights in the folder, an invalid index or one that names a
 * file outside its folder, a damaged file that is the only one or whose content no index lists, a
 * damaged config.json). The files lie where `origin` says, which must outlive them; NULL: the local
 * file system. Tables of tensors that take more than `room` bytes together, about, are not read on:
 * CPL_ERR_MEMORY. INFINITY: all. `log` may be NULL. */
CPL_NODISCARD cpl_status cpl_stored_open(cpl_stored_files **out, const cpl_origin *origin,
                                         const char *path, double room, const cpl_log *log);

/* As cpl_stored_open, strictly (see above): a file that cannot be read is an error. The config is empty. */
CPL_NODISCARD cpl_status cpl_stored_open_strict(cpl_stored_files **out, const char *path,
                                                const cpl_log *log);
void cpl_stored_close(cpl_stored_files *files); /* NULL: nothing to do */

/* NULL if there is no such tensor. Of a sliced one: slice 0; the others follow it in memory. */
const cpl_stored *cpl_stored_find(const cpl_stored_files *files, const char *name);

/* Sets the tensor, NULL if neither a file nor the index has it. One with a fault is an error. */
CPL_NODISCARD cpl_status cpl_stored_find_sound(const cpl_stored **out,
                                               const cpl_stored_files *files, const char *name);

/* "[2,3]" into `out`, which is returned. */
const char *cpl_stored_shape(char out[128], const cpl_stored *tensor);

/* Sets the tensor `name`, which must be there, sound and of exactly this shape. Of safetensors files
 * only. */
CPL_NODISCARD cpl_status cpl_stored_find_shaped(const cpl_stored **out,
                                                const cpl_stored_files *files, const char *name,
                                                int rank, const int64_t *shape);

/* Sets `out` to the elements [first, first + count) of the tensor. Of safetensors files only, from
 * the types of cpl_safetensors_read_f32. */
CPL_NODISCARD cpl_status cpl_stored_read_part_f32(const cpl_stored *tensor, float *out,
                                                  int64_t first, int64_t count);

/* Sets a hash that identifies the checkpoint: XXH3 over name, dtype and shape of every tensor of
 * the files and over CPL_STORED_SAMPLE bytes of its beginning, middle and end (all of it if it is
 * no longer). It does not depend on how the tensors are spread over files, or on the files' names.
 * `bytes`: of all tensors. Of safetensors files only. CPL_ERR_IO. */
enum { CPL_STORED_SAMPLE = 1024 };
CPL_NODISCARD cpl_status cpl_stored_sampled_hash(uint64_t *hash, uint64_t *bytes,
                                                 const cpl_stored_files *files);

/* Sets `out` to the bytes [first, first + bytes) of the tensor as stored. For a tensor with a
 * fault: an error with the fault's text. */
CPL_NODISCARD cpl_status cpl_stored_read(const cpl_stored *tensor, void *out, uint64_t first,
                                         size_t bytes);

/* The file that holds the tensor, which has no fault, at `offset`. */
const cpl_source *cpl_stored_source(const cpl_stored *tensor);

/* Advises that these bytes will be read soon. */
void cpl_stored_prefetch(const cpl_stored *tensor, uint64_t first, size_t bytes);

#endif /* CPL_CHECKPOINT_STORED_H */
