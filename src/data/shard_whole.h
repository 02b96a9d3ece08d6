/* shard_whole.h - whether the token files that were found are all that were written.
 *
 * Room:  data, behind shards.h.
 * Signs: shards.json, which `tokenize encode` writes last, lists its files and their tokens; names
 *        with ".tmp-" are files that were not finished. Other programs leave neither. */
#ifndef CPL_DATA_SHARD_WHOLE_H
#define CPL_DATA_SHARD_WHOLE_H

#include "base/log.h"
#include "base/status.h"
#include "data/shards.h"

/* `found` is what `path` (a file, a folder or a pattern) stands for, sorted by bytes: `files`, open.
 * Errors: a file has not the tokens that its shards.json says; a file below the folder `path` is
 * listed and was not found; the folder holds unfinished files that no shards.json covers. Warns of
 * files with the sidecars of `tokenize encode` that no shards.json lists. */
CPL_NODISCARD cpl_status cpl_shards_check_whole(const cpl_strings *found, const cpl_shard *files,
                                                const char *path, const cpl_log *log);

#endif /* CPL_DATA_SHARD_WHOLE_H */
