/* shard_file.h - the bytes of a token file or label mask, read by position.
 *
 * Room:    data, behind shards.h.
 * Reading: with pread, not mapped: a file that became shorter, and a disk that fails, are a
 *          sentence and not a signal.
 * Threads: a file that is open is only read, and may be read by several threads. */
#ifndef CPL_DATA_SHARD_FILE_H
#define CPL_DATA_SHARD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* All zero is a closed file. */
typedef struct cpl_shard_file {
    char *path;      /* owned */
    uint64_t length; /* bytes when it was opened */
    int descriptor;  /* if `kept` */
    bool kept;       /* open; otherwise each read opens the file, so that a data set may have more
                        files than a process may have open */
} cpl_shard_file;

/* Opens a regular file; `keep` says whether it stays open. */
CPL_NODISCARD cpl_status cpl_shard_file_open(cpl_shard_file *file, const char *path, bool keep);
void cpl_shard_file_close(cpl_shard_file *file);

/* Sets `bytes` bytes of `out` from position `offset` on. A file that ends earlier is an error. */
CPL_NODISCARD cpl_status cpl_shard_file_read(const cpl_shard_file *file, void *out, size_t bytes,
                                             uint64_t offset);

/* Where the ids of a token file begin, and how wide they are. */
typedef struct cpl_shard_format {
    size_t offset;  /* bytes before the first id */
    int item_bytes; /* 0: flat, the file does not say */
} cpl_shard_format;

/* Recognises a NumPy or llm.c header, which must then fit the file; anything else is flat. */
CPL_NODISCARD cpl_status cpl_shard_format_find(cpl_shard_format *format,
                                               const cpl_shard_file *file);

#endif /* CPL_DATA_SHARD_FILE_H */
