/* stored.h - access to the tensors of a checkpoint by name, independent of its files.
 *
 * Room:    checkpoint. Handles names, shapes and number formats. Is independent of models.
 * Paths:   a path to a file means that file (an index if it ends in .json). A folder means the
 *          first of model.safetensors, model.safetensors.index.json (the order of Transformers,
 *          with a warning if both exist and the index names other files), consolidated.safetensors
 *          and consolidated.safetensors.index.json. A .gguf file includes the other parts of a
 *          split file (-00001-of-00003.gguf) in its folder. A folder without safetensors files may
 *          have exactly one .gguf file, or the parts of one split file. Files named
 *          ...-TP-00x.safetensors hold slices. All slices in the folder belong to the checkpoint,
 *          with or without an index.
 * Index:   {"weight_map": {tensor: file}}. A file is a bare name in the index's folder of a regular
 *          file or a link to a regular file. The index determines the files. A tensor is read from
 *          the file that contains it.
 * Faults:  a missing or damaged shard, and a tensor in two files or in no file, are faults of the
 *          affected tensors, and an error only when such a tensor is read.
 * Strict:  for training. Accepts only safetensors files, without slices, all of which must open.
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

/* Describes one file of a checkpoint. Either safetensors or gguf is set, or neither and `fault`. */
typedef struct cpl_stored_part {
    const char *path, *name; /* name is the end of path; both are borrowed from the list of files */
    cpl_safetensors *safetensors;
    cpl_gguf *gguf;
    char *fault;        /* the reason why the file was not opened, or NULL; owned */
    cpl_status failure; /* status of the fault */
    int slice;          /* number in a name ...-TP-002.safetensors, from 0; -1 if no slice */
    int stem;           /* for a slice the length of the name before "-TP-" */
} cpl_stored_part;

/* Describes one tensor. It is borrowed from the open checkpoint. */
typedef struct cpl_stored {
    const char *name;
    const char *type_name; /* as in the file: "F8_E4M3", "I32", "Q4_K" */
    cpl_format format;     /* format, if type_name determines it, else OTHER: I8, U8, I32, ... */
    int rank;
    int64_t shape[CPL_STORED_MAX_RANK]; /* outermost first; 1 from `rank` on */
    int64_t n_elements;
    uint64_t bytes;
    const char *path; /* path of the file that contains it, or should contain it */
    const char
        *fault; /* NULL, or the reason why the tensor cannot be read, with file and tensor; rank may
                   be -1 (unknown) then */
    int slice, n_slices; /* index of the slice, and number of slices of this tensor (files named
                            ...-TP-00x...), else 0 and 1 */
    const cpl_safetensors_entry *entry; /* entry of the safetensors file, NULL for GGUF */
    const cpl_stored_part *file;
    uint64_t offset; /* position in the file */
} cpl_stored;

/* Describes an open checkpoint. Callers only read it. */
typedef struct cpl_stored_files {
    const cpl_origin *origin; /* location of the files, NULL for the local file system */
    char *path;               /* path given by the user */
    char *source;             /* the file or index found there */
    char *notice;             /* a warning about an ignored index, or NULL; all three are owned */
    bool strict, is_gguf;
    double room;            /* bytes that the tables of tensors may take */
    int64_t held;           /* bytes in use (cpl_alloc_in_use) before the tables were made */
    json_t *index;          /* the index, or NULL */
    json_t *map;            /* weight_map of the index, borrowed: tensor name -> file name,
                               checked */
    cpl_strings paths;      /* paths of the files, each once, in byte order */
    cpl_stored_part *parts; /* (n_parts) the files in the order of paths */
    int64_t n_parts;
    int n_slices;        /* one more than the largest slice of any file, 0 without slices */
    cpl_stored *tensors; /* (count) sorted by name, slices of one name by slice */
    int64_t count;
    json_t *config; /* config.json or else params.json of the folder, or the metadata of a GGUF
                       file, or an empty object */
} cpl_stored_files;

/* Opens all files and checks their headers, as far as they can be read. Returns CPL_ERR_INPUT only
 * if the checkpoint cannot be read at all: a missing file, no weights in the folder, an invalid
 * index or an index that names a file outside its folder, a damaged file that is the only file or
 * whose content no index lists, a damaged config.json. `origin` is the location of the files, NULL
 * for the local file system. It must outlive the files. Returns CPL_ERR_MEMORY if the tables of
 * tensors take more than about `room` bytes in total (INFINITY for no limit). `log` may be NULL. */
CPL_NODISCARD cpl_status cpl_stored_open(cpl_stored_files **out, const cpl_origin *origin,
                                         const char *path, double room, const cpl_log *log);

/* Opens strictly (see above): an unreadable file gives CPL_ERR_INPUT. The config is empty. */
CPL_NODISCARD cpl_status cpl_stored_open_strict(cpl_stored_files **out, const char *path,
                                                const cpl_log *log);
void cpl_stored_close(cpl_stored_files *files); /* does nothing for NULL */

/* Returns the tensor `name`, or NULL. For a sliced tensor it returns slice 0, and the other slices
 * follow in memory. */
const cpl_stored *cpl_stored_find(const cpl_stored_files *files, const char *name);

/* Sets the tensor, or NULL if neither a file nor the index has it. A tensor with a fault gives
 * CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_stored_find_sound(const cpl_stored **out,
                                               const cpl_stored_files *files, const char *name);

/* Sets the tensor `name`, which must exist without a fault and with exactly this shape. Supports
 * safetensors files only. */
CPL_NODISCARD cpl_status cpl_stored_find_shaped(const cpl_stored **out,
                                                const cpl_stored_files *files, const char *name,
                                                int rank, const int64_t *shape);

/* Sets `out` to the elements [first, first + count) of the tensor. Supports safetensors files only,
 * with the types of cpl_safetensors_read_f32. */
CPL_NODISCARD cpl_status cpl_stored_read_part_f32(const cpl_stored *tensor, float *out,
                                                  int64_t first, int64_t count);

/* Sets a hash that identifies the checkpoint: XXH3 over name, dtype and shape of every tensor of
 * the files and over CPL_STORED_SAMPLE bytes of its beginning, middle and end (all bytes of a short
 * tensor). The hash does not depend on the division into files or on their names. Sets `bytes` to
 * the bytes of all tensors. Supports safetensors files only. Returns CPL_ERR_IO if a read fails. */
enum { CPL_STORED_SAMPLE = 1024 };
CPL_NODISCARD cpl_status cpl_stored_sampled_hash(uint64_t *hash, uint64_t *bytes,
                                                 const cpl_stored_files *files);

/* Sets `out` to the bytes [first, first + bytes) of the tensor as stored. A tensor
 * with a fault is an error, with the fault's message. */
CPL_NODISCARD cpl_status cpl_stored_read(const cpl_stored *tensor, void *out, uint64_t first,
                                         size_t bytes);

/* Returns the file that holds the tensor at `offset`. The tensor must have no fault. */
const cpl_source *cpl_stored_source(const cpl_stored *tensor);

/* Advises the system that these bytes will be read soon. */
void cpl_stored_prefetch(const cpl_stored *tensor, uint64_t first, size_t bytes);

#endif /* CPL_CHECKPOINT_STORED_H */
