/* gguf_internal.h - what reading a GGUF file consists of.
 *
 * Room:   checkpoint, inside gguf*.c only.
 * Memory: nothing is allocated for a length or count before the file is known to be long enough to
 *         hold it, and nothing for what is passed over. */
#ifndef CPL_CHECKPOINT_GGUF_INTERNAL_H
#define CPL_CHECKPOINT_GGUF_INTERNAL_H

#include <stdbool.h>

#include "base/text.h"
#include "checkpoint/gguf.h"

/* Types of tensors ------------------------------------------------------------------------------*/

typedef struct cpl_gguf_type {
    const char *name;
    int64_t block_numbers, block_bytes;
    cpl_format format;
} cpl_gguf_type;

const cpl_gguf_type *cpl_gguf_type_of(uint32_t code); /* NULL: a code that has no name here */

/* The file from front to back -------------------------------------------------------------------*/

enum { CPL_GGUF_BUFFER = 1 << 16 }; /* bytes read at once */

typedef struct cpl_gguf_source {
    const char *path; /* borrowed, for sentences */
    const char *what; /* borrowed: what is being read, for sentences; "the metadata" */
    int descriptor;
    uint64_t at, size;     /* position of the next byte; length of the file */
    uint64_t begins;       /* position of the buffer */
    size_t held;           /* bytes in it */
    unsigned char *buffer; /* CPL_GGUF_BUFFER bytes */
} cpl_gguf_source;

/* An error unless `count` things of at least `bytes` bytes each can still follow. */
CPL_NODISCARD cpl_status cpl_gguf_source_holds(const cpl_gguf_source *source, uint64_t count,
                                               uint64_t bytes);

/* The next `bytes` bytes; a number; nothing, but `bytes` further on. */
CPL_NODISCARD cpl_status cpl_gguf_source_take(cpl_gguf_source *source, void *out, size_t bytes);
CPL_NODISCARD cpl_status cpl_gguf_source_u32(cpl_gguf_source *source, uint32_t *value);
CPL_NODISCARD cpl_status cpl_gguf_source_u64(cpl_gguf_source *source, uint64_t *value);
CPL_NODISCARD cpl_status cpl_gguf_source_skip(cpl_gguf_source *source, uint64_t bytes);

/* Appends a string of at most `longest` bytes; sets its length. */
CPL_NODISCARD cpl_status cpl_gguf_source_string(cpl_gguf_source *source, cpl_text *out,
                                                uint64_t longest, size_t *length);

/* The same for a name, which has at least one byte, is UTF-8 and holds no NUL; a NUL is appended
 * behind it. */
CPL_NODISCARD cpl_status cpl_gguf_source_name(cpl_gguf_source *source, cpl_text *out,
                                              uint64_t longest);

/* Sorts the names; one that stands twice is an error. */
CPL_NODISCARD cpl_status cpl_gguf_unique(const cpl_gguf_source *source, const char **names,
                                         int64_t count);

/* Metadata --------------------------------------------------------------------------------------*/

/* Sets a new object of what is kept of `count` keys and their values, and the alignment. */
CPL_NODISCARD cpl_status cpl_gguf_metadata_read(json_t **metadata, uint64_t *alignment,
                                                cpl_gguf_source *source, uint64_t count);

#endif /* CPL_CHECKPOINT_GGUF_INTERNAL_H */
