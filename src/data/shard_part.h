/* shard_part.h - one token file being written, with what belongs to it.
 *
 * Room:  data, behind shard_writer.h.
 * Files: <stem>.npy          the ids, little-endian, nothing else (OLMo; no NumPy header)
 *        <stem>.csv.gz       a row a document: start,end,id,src,loc with "\r\n" behind
 *        <stem>.sources.tsv  a line a label: index, tab, label, in order of first appearance
 *        <stem>.sources.u8   the label of each document, in the order of the rows; .u16 (little-
 *                            endian) if there are more than 256 labels
 *        All appear together at commit, the token file last. */
#ifndef CPL_DATA_SHARD_PART_H
#define CPL_DATA_SHARD_PART_H

#include <stdbool.h>
#include <stdint.h>
#include <zlib.h>

#include "base/status.h"
#include "base/text.h"
#include "data/documents.h"
#include "io/file.h"
#include "settings/settings.h"

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

/* Adds a document of `n_ids` (> 0) ids below 2^(8 item_bytes), with `eos` behind it unless that is
 * -1. `src` is the path for the row. */
CPL_NODISCARD cpl_status cpl_shard_part_add(cpl_shard_part *part, const cpl_document *document,
                                            const char *src, const int32_t *ids, int64_t n_ids,
                                            int64_t eos);

/* Gives the files their names and closes the part. On failure the part is closed too. */
CPL_NODISCARD cpl_status cpl_shard_part_commit(cpl_shard_part *part);
void cpl_shard_part_abort(cpl_shard_part *part); /* leaves nothing behind */

/* Removes the files of a part that was committed, as far as they are there. */
void cpl_shard_part_remove(const char *stem);

#endif /* CPL_DATA_SHARD_PART_H */
