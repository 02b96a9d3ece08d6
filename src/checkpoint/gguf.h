/* gguf.h - reading one GGUF file: its metadata and its table of tensors checked, its tensors read
 * in pieces.
 *
 * Room:    checkpoint. Several files as one checkpoint, and the other container: stored.h.
 * Layout:  docs/formats.md, "GGUF"; versions 2 and 3, little-endian.
 * Strict:  what llama.cpp's loader refuses, and also: a length or count that the file cannot hold,
 *          tensors that overlap or end after the end of the file. One thing is allowed: a tensor
 *          type that has no name here, so that the other tensors can be read.
 * Shapes:  outermost first, as everywhere here (the file lists them the other way round).
 * Threads: after open, several threads may read one file. */
#ifndef CPL_CHECKPOINT_GGUF_H
#define CPL_CHECKPOINT_GGUF_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "io/source.h"
#include "tensor/formats.h"

enum {
    CPL_GGUF_VERSION   = 3,  /* as written; 2 is read too */
    CPL_GGUF_MAX_RANK  = 4,  /* dimensions of a tensor */
    CPL_GGUF_MAX_NAME  = 63, /* bytes of a tensor's name */
    CPL_GGUF_ALIGNMENT = 32  /* of the tensors' data, if the file gives none */
};

/* What a value of the metadata is, by its code in the file. */
typedef enum cpl_gguf_value {
    CPL_GGUF_U8,
    CPL_GGUF_I8,
    CPL_GGUF_U16,
    CPL_GGUF_I16,
    CPL_GGUF_U32,
    CPL_GGUF_I32,
    CPL_GGUF_F32,
    CPL_GGUF_BOOL,
    CPL_GGUF_STRING,
    CPL_GGUF_ARRAY,
    CPL_GGUF_U64,
    CPL_GGUF_I64,
    CPL_GGUF_F64,
    CPL_GGUF_N_VALUES
} cpl_gguf_value;

/* Keys of the metadata that are read and written; the last ones follow "{architecture}.". */
#define CPL_GGUF_KEY_ALIGNMENT    "general.alignment"
#define CPL_GGUF_KEY_ARCHITECTURE "general.architecture"
#define CPL_GGUF_KEY_WIDTH        "embedding_length"
#define CPL_GGUF_KEY_LAYERS       "block_count"
#define CPL_GGUF_KEY_EXPERTS      "expert_count"
#define CPL_GGUF_KEY_TOP_K        "expert_used_count"
#define CPL_GGUF_KEY_EXPERT_WIDTH "expert_feed_forward_length"

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

/* An open file; read-only for callers. */
typedef struct cpl_gguf {
    cpl_source *source;      /* owned */
    const char *path;        /* borrowed from it */
    cpl_gguf_entry *entries; /* (count) in the order of the file */
    int64_t count;
    json_t
        *metadata;  /* an object: numbers, booleans and strings under their keys; arrays of at most
                         4,096 numbers or booleans too. Passed over are longer arrays, those of
                         strings (vocabularies) or of arrays, strings of more than 1 MiB or that are
                         not UTF-8, and arrays beyond 2^20 elements together. A u64 beyond int64 is
                         a real, a number that is not finite null */
    cpl_text names; /* of the tensors; the name of an unknown type follows the tensor's */
    uint64_t alignment, data_at; /* of the data; their position in the file */
} cpl_gguf;

/* Reads the whole table and touches no tensor data. Owned until cpl_gguf_close. The file lies where
 * `origin` says; NULL: the local file system. A table of tensors that takes more than `room` bytes,
 * about, is refused before it is made: CPL_ERR_MEMORY. INFINITY: all. */
CPL_NODISCARD cpl_status cpl_gguf_open(cpl_gguf **out, const cpl_origin *origin, const char *path,
                                       double room);
void cpl_gguf_close(cpl_gguf *file); /* NULL: nothing to do */

#endif /* CPL_CHECKPOINT_GGUF_H */
