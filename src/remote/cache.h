/* cache.h - ranges of files kept in a folder, so that an interrupted inspection goes on.
 *
 * Room: remote.
 * Key: URL, tag, X-Linked-ETag and range. A file that has changed has another key. A file whose
 *   server gives neither a strong ETag nor Last-Modified is not kept.
 * File format: each range is a file: "couplet range 1\n", the key as a line, XXH3 of the bytes as
 *   16 hex digits and a line end, the bytes. Its name is XXH3 (128 bits) of the two lines, and
 *   ".range". A damaged file counts as absent. */
#ifndef CPL_REMOTE_CACHE_H
#define CPL_REMOTE_CACHE_H

#include <stdbool.h>

#include "remote/fetch.h"

/* Returns whether the folder has a file of the range [begin, end). Its content is not read. */
bool cpl_cache_has(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end);

/* Sets `out` [end - begin] and returns true if the range is in the folder and undamaged. */
bool cpl_cache_load(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end,
                    void *out);

/* Writes the range into the folder. CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_cache_store(const char *folder, const cpl_fetch_file *file,
                                         uint64_t begin, uint64_t end, const void *bytes);

#endif /* CPL_REMOTE_CACHE_H */
