/* gguf.h - reads one GGUF file: checks its metadata and table of tensors, reads tensors in pieces.
 *
 * Room:    checkpoint. stored.h handles checkpoints of several files and of both containers.
 * Layout:  docs/formats.md, "GGUF", versions 2 and 3, little-endian.
 * Strict:  refuses all files that llama.cpp's loader refuses, and also a length or count that the
 *          file cannot hold, and tensors that overlap or extend beyond the file. Unknown tensor
 *          types are accepted, so that the other tensors can be read.
 * Shapes:  outermost dimension first, as in the rest of the library (reversed in the file).
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
    CPL_GGUF_VERSION   = 3,  /* version written; version 2 can be read too */
    CPL_GGUF_MAX_RANK  = 4,  /* dimensions of a tensor */
    CPL_GGUF_MAX_NAME  = 63, /* bytes of a tensor's name */
    CPL_GGUF_ALIGNMENT = 32  /* default alignment of the tensors' data, in bytes */
};

/* Lists the types of values of the metadata, by their codes in the file. */
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

/* These keys of the metadata are read and written. Keys of the last group follow
 * "{architecture}.". */
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
    const char *type_name; /* "Q4_K"; "type 23" for an unknown type */
    cpl_format format;     /* CPL_FORMAT_OTHER if it cannot be decoded */
    int rank;
    int64_t shape[CPL_GGUF_MAX_RANK];
    int64_t n_elements;
    uint64_t offset, bytes; /* position in the file (an unknown type extends to the next tensor) */
} cpl_gguf_entry;

/* Describes an open file. Callers only read it. */
typedef struct cpl_gguf {
    cpl_source *source;      /* owned */
    const char *path;        /* borrowed from it */
    cpl_gguf_entry *entries; /* (count) in the order of the file */
    int64_t count;
    json_t
        *metadata;  /* an object: numbers, booleans, strings, and arrays of at most 4,096 numbers or
                       booleans, under their keys. Longer arrays, arrays of strings (vocabularies)
                       or of arrays, strings of more than 1 MiB or not in UTF-8, and arrays beyond
                       2^20 elements in total are skipped. A u64 beyond int64 becomes a real. A
                       number that is not finite becomes null */
    cpl_text names; /* names of the tensors, each followed by the name of its type if unknown */
    uint64_t alignment, data_at; /* alignment of the data, and its position in the file */
} cpl_gguf;

/* Opens a file and reads its whole table, but no tensor data. The caller closes it with
 * cpl_gguf_close. `origin` is the location of the file, NULL for the local file system. Returns
 * CPL_ERR_MEMORY, before the table is made, if the table takes more than about `room` bytes
 * (INFINITY for no limit). */
CPL_NODISCARD cpl_status cpl_gguf_open(cpl_gguf **out, const cpl_origin *origin, const char *path,
                                       double room);
void cpl_gguf_close(cpl_gguf *file); /* does nothing for NULL */

#endif /* CPL_CHECKPOINT_GGUF_H */
