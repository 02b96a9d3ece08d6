/* internal.h - shared by the files of this folder.
 *
 * Room:  checkpoint. */
#ifndef CPL_CHECKPOINT_INTERNAL_H
#define CPL_CHECKPOINT_INTERNAL_H

#include "base/arena.h"
#include "checkpoint/gguf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored.h"

/* ---- safetensors*.c ---- */

/* Checks the header file->text [length] completely and sets the tables. `data_bytes` bytes follow
 * the header in the file. Time: O(n log n) in the number of tensors. */
CPL_NODISCARD cpl_status cpl_safetensors_parse_header(cpl_safetensors *file, size_t length,
                                                      uint64_t data_bytes);

/* ---- gguf*.c ----
 *
 * Memory for a length or count is allocated only after a check that the file is long enough.
 * Skipped values take no memory. */

typedef struct cpl_gguf_type {
    const char *name;
    int64_t block_numbers, block_bytes;
    cpl_format format;
} cpl_gguf_type;

const cpl_gguf_type *cpl_gguf_type_of(uint32_t code); /* returns NULL for an unknown code */
uint32_t cpl_gguf_code_of(cpl_format format);         /* the format must have a code (assert) */

enum { CPL_GGUF_BUFFER = 1 << 16 }; /* bytes read at once */

/* Reads a file front to back. */
typedef struct cpl_gguf_source {
    const char *path;       /* borrowed, for error messages */
    const char *what;       /* borrowed name of the part being read, such as "the metadata" */
    const cpl_source *file; /* borrowed */
    uint64_t at, size;      /* position of the next byte, and length of the file */
    uint64_t begins;        /* position of the buffer */
    size_t held;            /* bytes in the buffer */
    unsigned char *buffer;  /* CPL_GGUF_BUFFER bytes */
} cpl_gguf_source;

/* Fails with CPL_ERR_INPUT if the file has no room for `count` more entries of `bytes` bytes or
 * more. */
CPL_NODISCARD cpl_status cpl_gguf_source_holds(const cpl_gguf_source *source, uint64_t count,
                                               uint64_t bytes);

/* cpl_gguf_source_take reads the next `bytes` bytes to `out`. cpl_gguf_source_skip skips them. */
CPL_NODISCARD cpl_status cpl_gguf_source_take(cpl_gguf_source *source, void *out, size_t bytes);
CPL_NODISCARD cpl_status cpl_gguf_source_skip(cpl_gguf_source *source, uint64_t bytes);

/* Appends a string of at most `longest` bytes and sets its length. */
CPL_NODISCARD cpl_status cpl_gguf_source_string(cpl_gguf_source *source, cpl_text *out,
                                                uint64_t longest, size_t *length);

/* Appends a name as cpl_gguf_source_string does, and a NUL. A name must have at least one byte, be
 * UTF-8 and hold no NUL. */
CPL_NODISCARD cpl_status cpl_gguf_source_name(cpl_gguf_source *source, cpl_text *out,
                                              uint64_t longest);

/* Sorts the names. A name that occurs twice gives CPL_ERR_INPUT. */
CPL_NODISCARD cpl_status cpl_gguf_unique(const cpl_gguf_source *source, const char **names,
                                         int64_t count);

/* Reads `count` keys and values. Sets a new object with the values kept, and the alignment. */
CPL_NODISCARD cpl_status cpl_gguf_metadata_read(json_t **metadata, uint64_t *alignment,
                                                cpl_gguf_source *source, uint64_t count);

/* ---- stored*.c ---- */

/* Returns the bytes of `room` that are not in use. */
static inline double cpl_stored_room(const cpl_stored_files *files)
{
    return files->room - (double)(cpl_alloc_in_use() - files->held);
}

/* Finds and opens the files of `path`. Returns CPL_ERR_INPUT if no file can be opened, or if one of
 * several files without an index cannot be opened. */
CPL_NODISCARD cpl_status cpl_stored_open_parts(cpl_stored_files *files);
void cpl_stored_close_parts(cpl_stored_files *files);

/* Sets the tensors with their faults. Logs the first fault and the number of faults. */
CPL_NODISCARD cpl_status cpl_stored_collect(cpl_stored_files *files, const cpl_log *log);

#endif /* CPL_CHECKPOINT_INTERNAL_H */
