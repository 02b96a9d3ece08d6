/* cache.h - ranges of files kept in a folder, so that an interrupted inspection goes on.
 *
 * Room:   remote.
 * Key:    URL, ETag (with X-Linked-ETag) and range: a file that has changed is another key. A file
 *         whose server gives neither ETag nor Last-Modified is not kept.
 * Form:   one file a range: "couplet range 1\n", the key as a line, XXH3 of the bytes as 16 hex
 *         digits and a line end, the bytes. Its name is XXH3 (128 bits) of the key, and ".range".
 *         What is damaged counts as not there. */
#ifndef CPL_REMOTE_CACHE_H
#define CPL_REMOTE_CACHE_H

#include <stdbool.h>

#include "remote/fetch.h"

/* Whether the range [begin, end) of the file seems to be in the folder. */
bool cpl_cache_has(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end);

/* Sets `out` [end - begin] and returns true if the range is there and whole. */
bool cpl_cache_load(const char *folder, const cpl_fetch_file *file, uint64_t begin, uint64_t end,
                    void *out);

/* Puts it there. CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_cache_store(const char *folder, const cpl_fetch_file *file,
                                         uint64_t begin, uint64_t end, const void *bytes);

#endif /* CPL_REMOTE_CACHE_H */
