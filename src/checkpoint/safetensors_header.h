/* safetensors_header.h - the header of a safetensors file, from text to a checked table.
 *
 * Room:  checkpoint, inside safetensors.c only: opening a file is its caller's work. */
#ifndef CPL_CHECKPOINT_SAFETENSORS_HEADER_H
#define CPL_CHECKPOINT_SAFETENSORS_HEADER_H

#include "base/text.h"
#include "checkpoint/safetensors.h"

/* All zero is empty. The names and metadata point into the header's text, which the caller keeps.
 */
typedef struct cpl_safetensors_header {
    cpl_safetensors_entry *entries;        /* (count), in order of (begin, end) */
    const cpl_safetensors_entry **by_name; /* (count), sorted by name */
    int64_t count;
    const char **metadata; /* (2 n_metadata), key and value in turn, sorted by key */
    int64_t n_metadata;
    uint64_t *dims; /* all shapes, one after the other */
} cpl_safetensors_header;

/* Checks of the format from "valid UTF-8" to "the data end with the file", of which `data_bytes`
 * follow the header. Changes `text` (strings are decoded in place). On failure `header` is empty.
 * `path` is for the sentence. Cost: n log n in the number of tensors. */
CPL_NODISCARD cpl_status cpl_safetensors_header_parse(cpl_safetensors_header *header, char *text,
                                                      size_t length, uint64_t data_bytes,
                                                      const char *path);
void cpl_safetensors_header_free(cpl_safetensors_header *header);

#endif /* CPL_CHECKPOINT_SAFETENSORS_HEADER_H */
