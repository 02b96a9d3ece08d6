/* internal.h - shared by the files behind shards.h and shard_writer.h.
 *
 * Room:  data. */
#ifndef CPL_DATA_INTERNAL_H
#define CPL_DATA_INTERNAL_H

#include <zlib.h>

#include "data/shard_writer.h"
#include "data/shards.h"
#include "io/file.h"
#include "io/stream.h"

/* ---- shards.h: shard*.c ---- */

/* Opens a regular file. With `keep` it stays open. */
CPL_NODISCARD cpl_status cpl_shard_file_open(cpl_shard_file *file, const char *path, bool keep);
void cpl_shard_file_close(cpl_shard_file *file);

/* Reads `bytes` bytes from `offset` on to `out`. Returns CPL_ERR_IO if the file ends earlier. */
CPL_NODISCARD cpl_status cpl_shard_file_read(const cpl_shard_file *file, void *out, size_t bytes,
                                             uint64_t offset);

/* The position and width of the ids of a token file. */
typedef struct cpl_shard_format {
    size_t offset;  /* bytes before the first id */
    int item_bytes; /* 0 for a flat file, which does not record the width */
} cpl_shard_format;

/* Recognises a NumPy or llm.c header, which must fit the file. Any other file is flat. */
CPL_NODISCARD cpl_status cpl_shard_format_find(cpl_shard_format *format,
                                               const cpl_shard_file *file);

/* The documents of a token file, from its metadata <stem>.csv.gz. */
typedef struct cpl_shard_rows {
    char *path;
    cpl_stream *stream;
    cpl_pieces lines;
    int64_t n_tokens, row, end;
} cpl_shard_rows;

/* Returns the name of a companion of a token file, from cpl_alloc: its path without ".npy" or
 * ".bin", then `extension`. Returns NULL if memory is not available. */
char *cpl_shard_companion(const char *token_file, const char *extension);

/* Opens the metadata of a token file of `n_tokens` tokens. Sets `*present` to false if the file has
 * no metadata. The rows need no close then. */
CPL_NODISCARD cpl_status cpl_shard_rows_open(cpl_shard_rows *rows, const char *token_file,
                                             int64_t n_tokens, bool *present);
void cpl_shard_rows_close(cpl_shard_rows *rows);

/* Sets the next document's tokens [start, end), or `*more` to false. Returns CPL_ERR_INPUT if the
 * rows do not cover 0 to the number of tokens without gaps. */
CPL_NODISCARD cpl_status cpl_shard_rows_next(cpl_shard_rows *rows, int64_t *start, int64_t *end,
                                             bool *more);

/* Checks that the token files found are complete. shards.json, which `tokenize encode` writes last,
 * lists its files and their tokens. Names with ".tmp-" are unfinished files. Other programs write
 * neither. `found` holds the files that `path` (a file, a folder or a pattern) names, sorted by
 * bytes. `files` are these files, open. Returns CPL_ERR_INPUT if the number of tokens of a file
 * differs from shards.json, a listed file below the folder `path` was not found, or the folder
 * holds unfinished files that no shards.json covers. Warns about files with the sidecars of
 * `tokenize encode` that no shards.json lists. */
CPL_NODISCARD cpl_status cpl_shards_check_whole(const cpl_strings *found, const cpl_shard *files,
                                                const char *path, const cpl_log *log);

/* ---- shard_writer.c and shard_part.c ---- */

/* A token file being written, and its companions:
 *     <stem>.npy          the ids, little-endian (OLMo; without a NumPy header)
 *     <stem>.csv.gz       one row per document: start,end,id,src,loc, ended by "\r\n"
 *     <stem>.sources.tsv  one line per label: index, tab, label, in order of first appearance
 *     <stem>.sources.u8   the label of each document, in the order of the rows (.u16,
 *                         little-endian, for more than 256 labels)
 * cpl_shard_part_commit gives all files their names, the token file last. */

typedef struct cpl_shard_part {
    char *stem;     /* folder and name without an extension; owned */
    int item_bytes; /* 2 or 4 */
    int64_t n_tokens, n_documents;
    cpl_writer tokens, rows;
    z_stream gzip; /* compression of the rows */
    bool gzip_ready;
    cpl_strings labels;
    cpl_text document_labels; /* one uint16_t per document */
    cpl_text row;
} cpl_shard_part;

/* Begins <stem>.npy and its companions. A closed part is all zero. An open part must not be moved
 * in memory. */
CPL_NODISCARD cpl_status cpl_shard_part_open(cpl_shard_part *part, const char *stem,
                                             int item_bytes);

/* Adds a document of `n_ids` (> 0) ids below 2^(8 item_bytes), followed by `eos` unless `eos` is
 * -1. `src` is the path for the row. */
CPL_NODISCARD cpl_status cpl_shard_part_add(cpl_shard_part *part, const cpl_document *document,
                                            const char *src, const int32_t *ids, int64_t n_ids,
                                            int64_t eos);

/* Gives the files their names and closes the part. On failure the part is closed too. */
CPL_NODISCARD cpl_status cpl_shard_part_commit(cpl_shard_part *part);
void cpl_shard_part_abort(cpl_shard_part *part); /* removes all files */

/* Removes the files of a committed part, as far as they exist. */
void cpl_shard_part_remove(const char *stem);

#endif /* CPL_DATA_INTERNAL_H */
