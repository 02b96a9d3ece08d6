/* shard_rows.h - the documents of a token file, from its metadata <stem>.csv.gz.
 *
 * Room:  data, behind shards.h. */
#ifndef CPL_DATA_SHARD_ROWS_H
#define CPL_DATA_SHARD_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "io/stream.h"

typedef struct cpl_shard_rows {
    char *path;
    cpl_stream *stream;
    cpl_pieces lines;
    int64_t n_tokens, row, end;
} cpl_shard_rows;

/* The name that belongs to a token file: its path without ".npy" or ".bin", and `extension`. From
 * cpl_alloc, NULL if there is no memory. */
char *cpl_shard_companion(const char *token_file, const char *extension);

/* Opens the metadata of a token file of `n_tokens` tokens; `*present` is false, and the rows need
 * no close, if there is none. */
CPL_NODISCARD cpl_status cpl_shard_rows_open(cpl_shard_rows *rows, const char *token_file,
                                             int64_t n_tokens, bool *present);
void cpl_shard_rows_close(cpl_shard_rows *rows);

/* Sets the next document's tokens [start, end), or `*more` to false. Rows that do not follow on
 * each other from 0 to the number of tokens are an error. */
CPL_NODISCARD cpl_status cpl_shard_rows_next(cpl_shard_rows *rows, int64_t *start, int64_t *end,
                                             bool *more);

#endif /* CPL_DATA_SHARD_ROWS_H */
