/* safetensors.h - reads one safetensors file: checks its header, reads tensors in pieces.
 *
 * Room:    checkpoint. stored.h handles checkpoints of several files, safetensors_writer.h writes.
 * Layout:  8 bytes N, little-endian, then N bytes of JSON, then the data, without gaps, in C order,
 *          ending with the file. Offsets are in bytes from the beginning of the data.
 * Strict:  refuses all files that the reference implementation refuses, and also a tensor name or
 *          metadata key that occurs twice, an entry written as an array, a NUL in a name.
 * Threads: after open, several threads may read one file. */
#ifndef CPL_CHECKPOINT_SAFETENSORS_H
#define CPL_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "io/source.h"
#include "tensor/formats.h"

enum { CPL_SAFETENSORS_MAX_HEADER = 100000000 }; /* bytes, the limit of the format */

/* DTYPE(name, bits of an element, format of the numbers if the dtype alone gives it), in the order
 * in which a writer lays out dtypes (largest alignment first). C64 is a pair of f32 */
#define CPL_SAFETENSORS_DTYPES(DTYPE)                                                              \
    DTYPE(U64, 64, OTHER)                                                                          \
    DTYPE(I64, 64, OTHER)                                                                          \
    DTYPE(F64, 64, F64)                                                                            \
    DTYPE(C64, 64, OTHER)                                                                          \
    DTYPE(F32, 32, F32)                                                                            \
    DTYPE(U32, 32, OTHER)                                                                          \
    DTYPE(I32, 32, OTHER)                                                                          \
    DTYPE(BF16, 16, BF16)                                                                          \
    DTYPE(F16, 16, F16)                                                                            \
    DTYPE(U16, 16, OTHER)                                                                          \
    DTYPE(I16, 16, OTHER)                                                                          \
    DTYPE(F8_E5M2FNUZ, 8, OTHER)                                                                   \
    DTYPE(F8_E4M3FNUZ, 8, OTHER)                                                                   \
    DTYPE(F8_E8M0, 8, F8_E8M0)                                                                     \
    DTYPE(F8_E4M3, 8, F8_E4M3)                                                                     \
    DTYPE(F8_E5M2, 8, F8_E5M2)                                                                     \
    DTYPE(I8, 8, OTHER)                                                                            \
    DTYPE(U8, 8, OTHER)                                                                            \
    DTYPE(F6_E3M2, 6, OTHER)                                                                       \
    DTYPE(F6_E2M3, 6, OTHER)                                                                       \
    DTYPE(F4, 4, F4_PAIR)                                                                          \
    DTYPE(BOOL, 8, OTHER)

typedef enum cpl_safetensors_dtype {
#define CPL_SAFETENSORS_ENUM(name, bits, format) CPL_SAFETENSORS_##name,
    CPL_SAFETENSORS_DTYPES(CPL_SAFETENSORS_ENUM)
#undef CPL_SAFETENSORS_ENUM
        CPL_SAFETENSORS_N_DTYPES
} cpl_safetensors_dtype;

const char *cpl_safetensors_dtype_name(cpl_safetensors_dtype dtype); /* "BF16" */
int cpl_safetensors_dtype_bits(cpl_safetensors_dtype dtype);         /* bits of one element */
cpl_format cpl_safetensors_dtype_format(cpl_safetensors_dtype dtype);

typedef struct cpl_safetensors_entry {
    const char *name; /* UTF-8; name and shape are borrowed from the open file */
    cpl_safetensors_dtype dtype;
    int rank;              /* 0 for a scalar, which has one element */
    const uint64_t *shape; /* outermost first, above INT64_MAX only if an earlier dimension is 0 */
    int64_t n_elements;
    uint64_t begin, end; /* bytes [begin, end) of the data */
} cpl_safetensors_entry;

/* Returns whether the tensor has exactly these dimensions. */
bool cpl_safetensors_has_shape(const cpl_safetensors_entry *entry, int rank, const int64_t *shape);

/* Writes the shape, such as "[2,3]", to `out`, shortened with "..." if too long. Returns `out`. */
const char *cpl_safetensors_shape_text(char out[128], const cpl_safetensors_entry *entry);

/* Describes an open file. Callers only read it. */
typedef struct cpl_safetensors {
    cpl_source *source;                    /* owned */
    const char *path;                      /* borrowed from the source */
    uint64_t data_at;                      /* position of the data in the file */
    cpl_safetensors_entry *entries;        /* (count) in the order of their data */
    const cpl_safetensors_entry **by_name; /* (count) sorted by name */
    int64_t count;
    char *text;            /* the header, with its strings decoded in place */
    const char **metadata; /* (2 n_metadata) `__metadata__`: key and value in turn, sorted by key */
    int64_t n_metadata;
    uint64_t *dims; /* all shapes, one after the other */
} cpl_safetensors;

/* Opens a file and checks its whole header, but reads no data. The error names the violated rule,
 * and the kind of the file if it is a Git LFS pointer, a PyTorch file or a web page. The caller
 * closes it with cpl_safetensors_close. */
CPL_NODISCARD cpl_status cpl_safetensors_open(cpl_safetensors **out, const char *path);

/* Opens a file at the location `origin` (NULL for the local file system) as cpl_safetensors_open
 * does. Returns CPL_ERR_MEMORY, before the tables are made, if the tables take more than about
 * `room` bytes (INFINITY for no limit). */
CPL_NODISCARD cpl_status cpl_safetensors_open_from(cpl_safetensors **out, const cpl_origin *origin,
                                                   const char *path, double room);
void cpl_safetensors_close(cpl_safetensors *file); /* does nothing for NULL */

/* Returns the tensor `name`, or NULL if the file does not have it. */
const cpl_safetensors_entry *cpl_safetensors_find(const cpl_safetensors *file, const char *name);

/* Sets `out` to the elements [first, first + count) as f32. Supports F64 (rounded), F32, F16,
 * BF16, F8_E4M3, F8_E5M2 and F8_E8M0. Any other dtype gives CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_safetensors_read_f32(const cpl_safetensors *file,
                                                  const cpl_safetensors_entry *entry, float *out,
                                                  int64_t first, int64_t count);

/* Sets `out` to the tensor's bytes [first_byte, first_byte + bytes) as stored. */
CPL_NODISCARD cpl_status cpl_safetensors_read_raw(const cpl_safetensors *file,
                                                  const cpl_safetensors_entry *entry, void *out,
                                                  uint64_t first_byte, size_t bytes);

#endif /* CPL_CHECKPOINT_SAFETENSORS_H */
