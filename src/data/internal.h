/* internal.h - what the files of shards.h share, and those of shard_writer.h.
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

/* Opens a regular file; `keep`: it stays open. */
CPL_NODISCARD cpl_status cpl_shard_file_open(cpl_shard_file *file, const char *path, bool keep);
void cpl_shard_file_close(cpl_shard_file *file);

/* Sets `bytes` bytes of `out` from position `offset` on. A file that ends earlier is an error. */
CPL_NODISCARD cpl_status cpl_shard_file_read(const cpl_shard_file *file, void *out, size_t bytes,
                                             uint64_t offset);

/* Where the ids of a token file begin, and how wide they are. */
typedef struct cpl_shard_format {
    size_t offset;  /* bytes before the first id */
    int item_bytes; /* 0: flat, the file does not record it */
} cpl_shard_format;

/* Recognises a NumPy or llm.c header, which must then fit the file; anything else is flat. */
CPL_NODISCARD cpl_status cpl_shard_format_find(cpl_shard_format *format,
                                               const cpl_shard_file *file);

/* The documents of a token file, from its metadata <stem>.csv.gz. */
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

/* Whether the token files that were found are all that were written. shards.json, which `tokenize
 * encode` writes last, lists its files and their tokens; names with ".tmp-" are files that were not
 * finished. Other programs leave neither. `found` holds the files that `path` (a file, a folder or
 * a pattern) names, sorted by bytes; `files` are the same files, open. Errors: the tokens of a file
 * are not those that its shards.json lists; a file below the folder `path` is listed and was not
 * found; the folder holds unfinished files that no shards.json covers. Warns about files with the
 * sidecars of `tokenize encode` that no shards.json lists. */
CPL_NODISCARD cpl_status cpl_shards_check_whole(const cpl_strings *found, const cpl_shard *files,
                                                const char *path, const cpl_log *log);

/* ---- shard_writer.c and shard_part.c ---- */

/* One token file being written, with what belongs to it:
 *     <stem>.npy          the ids, little-endian, nothing else (OLMo; no NumPy header)
 *     <stem>.csv.gz       a row a document: start,end,id,src,loc, ended by "\r\n"
 *     <stem>.sources.tsv  a line a label: index, tab, label, in order of first appearance
 *     <stem>.sources.u8   the label of each document, in the order of the rows; .u16
 *                         (little-endian) if there are more than 256 labels
 * All appear together at commit, the token file last. */

typedef struct cpl_shard_part {
    char *stem;     /* folder and name without an extension; owned */
    int item_bytes; /* 2 or 4 */
    int64_t n_tokens, n_documents;
    cpl_writer tokens, rows;
    z_stream gzip; /* of the rows */
    bool gzip_ready;
    cpl_strings labels;
    cpl_text document_labels; /* an uint16_t a document */
    cpl_text row;
} cpl_shard_part;

/* Begins <stem>.npy and its companions. All zero is a closed part; an open one must not be moved.
 */
CPL_NODISCARD cpl_status cpl_shard_part_open(cpl_shard_part *part, const char *stem,
                                             int item_bytes);

/* Adds a document of `n_ids` (> 0) ids below 2^(8 item_bytes), followed by `eos` unless that is -1.
 * `src` is the path for the row. */
CPL_NODISCARD cpl_status cpl_shard_part_add(cpl_shard_part *part, const cpl_document *document,
                                            const char *src, const int32_t *ids, int64_t n_ids,
                                            int64_t eos);

/* Gives the files their names and closes the part. On failure the part is closed too. */
CPL_NODISCARD cpl_status cpl_shard_part_commit(cpl_shard_part *part);
void cpl_shard_part_abort(cpl_shard_part *part); /* leaves no file */

/* Removes the files of a committed part, as far as they exist. */
void cpl_shard_part_remove(const char *stem);

#endif /* CPL_DATA_INTERNAL_H */
