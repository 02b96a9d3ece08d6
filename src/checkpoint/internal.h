/* internal.h - what the files of one format share.
 *
 * Room:  checkpoint. */
#ifndef CPL_CHECKPOINT_INTERNAL_H
#define CPL_CHECKPOINT_INTERNAL_H

#include "base/arena.h"
#include "checkpoint/gguf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored.h"

/* ---- safetensors*.c ---- */

/* Checks the header `text` [length], from "valid UTF-8" to "the data end with the file", of which
 * `data_bytes` follow the header, and sets the tables. Cost: n log n in the number of tensors. */
CPL_NODISCARD cpl_status cpl_safetensors_parse_header(cpl_safetensors *file, size_t length,
                                                      uint64_t data_bytes);

/* ---- gguf*.c: nothing is allocated for a length or count before the file is known to be long enough to
 * hold it, and nothing for skipped values ---- */

typedef struct cpl_gguf_type {
    const char *name;
    int64_t block_numbers, block_bytes;
    cpl_format format;
} cpl_gguf_type;

const cpl_gguf_type *cpl_gguf_type_of(uint32_t code); /* NULL: a code that has no name here */
uint32_t cpl_gguf_code_of(cpl_format format);         /* of a format that has one (assert) */

enum { CPL_GGUF_BUFFER = 1 << 16 }; /* bytes read at once */

/* The file from front to back. */
typedef struct cpl_gguf_source {
    const char *path;       /* borrowed, for sentences */
    const char *what;       /* borrowed: what is being read, for sentences; "the metadata" */
    const cpl_source *file; /* borrowed */
    uint64_t at, size;      /* position of the next byte; length of the file */
    uint64_t begins;        /* position of the buffer */
    size_t held;            /* bytes in it */
    unsigned char *buffer;  /* CPL_GGUF_BUFFER bytes */
} cpl_gguf_source;

/* An error unless `count` things of at least `bytes` bytes each can still follow. */
CPL_NODISCARD cpl_status cpl_gguf_source_holds(const cpl_gguf_source *source, uint64_t count,
                                               uint64_t bytes);

/* The first reads the next `bytes` bytes, for example of a number; the second skips `bytes`
 * bytes. */
CPL_NODISCARD cpl_status cpl_gguf_source_take(cpl_gguf_source *source, void *out, size_t bytes);
CPL_NODISCARD cpl_status cpl_gguf_source_skip(cpl_gguf_source *source, uint64_t bytes);

/* Appends a string of at most `longest` bytes; sets its length. */
CPL_NODISCARD cpl_status cpl_gguf_source_string(cpl_gguf_source *source, cpl_text *out,
                                                uint64_t longest, size_t *length);

/* The same for a name, which has at least one byte, is UTF-8 and holds no NUL; a NUL is
 * appended. */
CPL_NODISCARD cpl_status cpl_gguf_source_name(cpl_gguf_source *source, cpl_text *out,
                                              uint64_t longest);

/* Sorts the names; one that occurs twice is an error. */
CPL_NODISCARD cpl_status cpl_gguf_unique(const cpl_gguf_source *source, const char **names,
                                         int64_t count);

/* Sets a new object of what is kept of `count` keys and their values, and the alignment. */
CPL_NODISCARD cpl_status cpl_gguf_metadata_read(json_t **metadata, uint64_t *alignment,
                                                cpl_gguf_source *source, uint64_t count);

/* ---- stored*.c ---- */

/* What is left of `room`. */
static inline double cpl_stored_room(const cpl_stored_files *files)
{
    return files->room - (double)(cpl_alloc_in_use() - files->held);
}

/* Finds and opens the files of `path`. An error if none can be opened, or if one of several without
 * an index cannot. */
CPL_NODISCARD cpl_status cpl_stored_open_parts(cpl_stored_files *files);
void cpl_stored_close_parts(cpl_stored_files *files);

/* Sets the tensors with their faults; reports the first fault and their number to `log`. */
CPL_NODISCARD cpl_status cpl_stored_collect(cpl_stored_files *files, const cpl_log *log);

#endif /* CPL_CHECKPOINT_INTERNAL_H */
