/* gguf.h - reading one GGUF file: its metadata and its table of tensors checked, its tensors read
 * in pieces.
 *
 * Room:    checkpoint. Several files as one checkpoint, and the other container: stored.h.
 * Layout:  docs/formats.md, "GGUF"; versions 2 and 3, little-endian.
 * Strict:  what llama.cpp's loader refuses, and besides: a length or count that the file cannot
 *          hold, tensors that overlap or end behind the file. One thing is allowed: a type of tensor
 *          that has no name here, so that the others can be read.
 * Shapes:  outermost first, as everywhere here (the file lists them the other way round).
 * Threads: after open, several threads may read one file. */
#ifndef CPL_CHECKPOINT_GGUF_H
#define CPL_CHECKPOINT_GGUF_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/formats.h"

enum { CPL_GGUF_MAX_RANK = 4 };

typedef struct cpl_gguf_entry {
    const char *name;      /* borrowed from the open file */
    uint32_t type;         /* the file's own code */
    const char *type_name; /* "Q4_K"; "type 23" for one that has no name here */
    cpl_format format;     /* CPL_FORMAT_OTHER: cannot be decoded here */
    int rank;
    int64_t shape[CPL_GGUF_MAX_RANK];
    int64_t n_elements;
    uint64_t offset, bytes; /* in the file, from its beginning; of a type without a name: as far as
                               the next tensor */
} cpl_gguf_entry;

typedef struct cpl_gguf cpl_gguf;

/* Reads the whole table and touches no tensor data. Owned until cpl_gguf_close. */
CPL_NODISCARD cpl_status cpl_gguf_open(cpl_gguf **out, const char *path);
void cpl_gguf_close(cpl_gguf *file); /* NULL: nothing to do */

const char *cpl_gguf_path(const cpl_gguf *file);
int64_t cpl_gguf_count(const cpl_gguf *file);
const cpl_gguf_entry *cpl_gguf_at(const cpl_gguf *file, int64_t i); /* in the order of the file */

/* Borrowed, for reading beside this. */
int cpl_gguf_descriptor(const cpl_gguf *file);

/* The metadata as an object: numbers, booleans and strings under their keys; arrays of at most
 * 4,096 numbers or booleans too. Passed over are longer arrays, those of strings (vocabularies) or
 * of arrays, strings of more than 1 MiB or that are not UTF-8, and arrays beyond 2^20 elements
 * together. A u64 beyond int64 is a real, a number that is not finite null. Borrowed. */
const json_t *cpl_gguf_metadata(const cpl_gguf *file);

/* Sets `out` to the bytes [first, first + bytes) of the tensor. */
CPL_NODISCARD cpl_status cpl_gguf_read(const cpl_gguf *file, const cpl_gguf_entry *entry, void *out,
                                       uint64_t first, size_t bytes);

#endif /* CPL_CHECKPOINT_GGUF_H */
