/* shard_format.h - where the ids of a token file begin and how wide they are.
 *
 * Room:  data, behind shards.h. */
#ifndef CPL_DATA_SHARD_FORMAT_H
#define CPL_DATA_SHARD_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/shard_file.h"

typedef struct cpl_shard_format {
    size_t offset;  /* bytes before the first id */
    int item_bytes; /* 0: flat, the file does not say */
} cpl_shard_format;

/* Recognises a NumPy or llm.c header, which must then fit the file; anything else is flat. */
CPL_NODISCARD cpl_status cpl_shard_format_find(cpl_shard_format *format,
                                               const cpl_shard_file *file);

#endif /* CPL_DATA_SHARD_FORMAT_H */
