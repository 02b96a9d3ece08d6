/* shards.c - reads, labels and hashes token files, see shards.h. */
#include "data/internal.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/arena.h"
#include "base/text.h"
#include "io/file.h"

/* ---- reading ---- */

enum { RAW_BYTES = 1 << 15 }; /* bytes read at a time */

static cpl_status read_raw(const cpl_shard *file, int64_t first, int64_t count, unsigned char *raw)
{
    uint64_t item = (uint64_t)file->item_bytes;
    return cpl_shard_file_read(&file->ids, raw, (size_t)count * item,
                               file->offset + (uint64_t)first * item);
}

static int64_t at_once(const cpl_shard *file, int64_t left)
{
    int64_t most = RAW_BYTES / file->item_bytes;
    return left < most ? left : most;
}

static uint64_t item_at(const unsigned char *raw, int64_t i, int item_bytes)
{
    const unsigned char *b = raw + i * item_bytes;
    uint64_t id            = 0;
    for (int k = item_bytes - 1; k >= 0; k--) id = id << 8 | b[k];
    return id;
}

cpl_status cpl_shard_tokens(const cpl_shard *file, int64_t first, int64_t count, uint64_t *ids)
{
    unsigned char raw[RAW_BYTES];
    CPL_ASSERT(first >= 0 && count >= 0 && first <= file->n_tokens - count);
    for (int64_t done = 0, now; done < count; done += now) {
        now = at_once(file, count - done);
        CPL_TRY(read_raw(file, first + done, now, raw));
        for (int64_t i = 0; i < now; i++) ids[done + i] = item_at(raw, i, file->item_bytes);
    }
    return CPL_OK;
}

/* Converts the items of `raw` to `ids` and returns the largest. */
static uint64_t widen(int32_t *ids, const unsigned char *raw, int64_t count, int item_bytes)
{
    uint64_t most = 0;
    int32_t wide  = 0;
    if (item_bytes == 2) {
        for (int64_t i = 0; i < count; i++) {
            ids[i] = raw[2 * i] | raw[2 * i + 1] << 8;
            wide   = ids[i] > wide ? ids[i] : wide;
        }
        return (uint64_t)wide;
    }
    for (int64_t i = 0; i < count; i++) {
        uint64_t id = item_at(raw, i, item_bytes);
        ids[i]      = (int32_t)(uint32_t)id;
        most        = id > most ? id : most;
    }
    return most;
}

/* Returns the error for the first of `count` ids, from `first` on, that is not below `bound`. */
static cpl_status out_of_bounds(const cpl_shard *file, const unsigned char *raw, int64_t first,
                                int64_t count, uint64_t bound)
{
    int64_t i = 0;
    while (i + 1 < count && item_at(raw, i, file->item_bytes) < bound) i++;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: token %lld is the id %llu, the vocabulary has %llu: another tokenizer, or "
                    "another item type than %d bytes",
                    file->path, (long long)(first + i),
                    (unsigned long long)item_at(raw, i, file->item_bytes),
                    (unsigned long long)bound, file->item_bytes);
}

cpl_status cpl_shards_read(const cpl_shards *shards, int64_t file, int64_t first, int64_t count,
                           int32_t *ids)
{
    unsigned char raw[RAW_BYTES];
    CPL_ASSERT(file >= 0 && file < shards->n_files);
    const cpl_shard *f = &shards->file[file];
    CPL_ASSERT(first >= 0 && count >= 0 && first <= f->n_tokens - count);
    uint64_t bound = shards->vocab_size ? (uint64_t)shards->vocab_size : (uint64_t)1 << 31;
    for (int64_t done = 0, now; done < count; done += now) {
        now = at_once(f, count - done);
        CPL_TRY(read_raw(f, first + done, now, raw));
        if (widen(ids + done, raw, now, f->item_bytes) >= bound)
            return out_of_bounds(f, raw, first + done, now, bound);
    }
    return CPL_OK;
}

cpl_status cpl_shards_read_mask(const cpl_shards *shards, int64_t file, int64_t first,
                                int64_t count, uint8_t *mask)
{
    CPL_ASSERT(file >= 0 && file < shards->n_files);
    const cpl_shard *f = &shards->file[file];
    CPL_ASSERT(first >= 0 && count >= 0 && first <= f->n_tokens - count);
    memset(mask, 1, (size_t)count);
    if (!f->mask.path) return CPL_OK;
    CPL_TRY(cpl_shard_file_read(&f->mask, mask, (size_t)count, (uint64_t)first));
    for (int64_t i = 0; i < count; i++)
        if (mask[i] > 1)
            return CPL_FAIL(CPL_ERR_INPUT, "label mask of %s: byte %lld is %d, it must be 0 or 1",
                            f->path, (long long)(first + i), mask[i]);
    return CPL_OK;
}

/* ---- labels ---- */

int64_t cpl_shards_find_label(const cpl_shards *shards, const char *label)
{
    char **at = shards->labels.count
                    ? bsearch(&label, shards->labels.at, (size_t)shards->labels.count, sizeof label,
                              cpl_order_strings)
                    : NULL;
    return at ? at - shards->labels.at : -1;
}

/* Sets the label numbers of the documents from the sidecar and checks them. */
static cpl_status number_documents(const cpl_shard *file, const cpl_text *sidecar, int item_bytes,
                                   int32_t *labels, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t own = item_at((const unsigned char *)sidecar->bytes, i, item_bytes);
        if (own >= (uint64_t)file->own_labels.count)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: document %lld has the source %llu, its .sources.tsv names %lld",
                            file->path, (long long)(i + 1), (unsigned long long)own,
                            (long long)file->own_labels.count);
        labels[i] = file->label[own];
    }
    return CPL_OK;
}

/* Sets a new array with the label number of each document of a file, from its sidecar. */
static cpl_status document_labels(const cpl_shard *file, int32_t **labels, int64_t *count)
{
    int item_bytes = file->own_labels.count > 256 ? 2 : 1;
    char *name = cpl_shard_companion(file->path, item_bytes == 2 ? ".sources.u16" : ".sources.u8");
    cpl_text sidecar  = {0};
    cpl_status status = name ? CPL_OK : CPL_ERR_MEMORY;
    *labels           = NULL;
    if (status == CPL_OK) /* a document has at least one token */
        status = cpl_file_read(&sidecar, name, (size_t)file->n_tokens * (size_t)item_bytes);
    if (status == CPL_OK) {
        *count  = (int64_t)(sidecar.length / (size_t)item_bytes);
        *labels = cpl_alloc(((size_t)*count + 1) * sizeof **labels);
        status  = *labels ? number_documents(file, &sidecar, item_bytes, *labels, *count)
                          : CPL_ERR_MEMORY;
    }
    if (status != CPL_OK) {
        cpl_free(*labels);
        *labels = NULL;
    }
    cpl_text_free(&sidecar);
    cpl_free(name);
    return status;
}

cpl_status cpl_shards_documents(const cpl_shards *shards, int64_t f, bool *present,
                                void (*each)(void *ctx, int32_t label, int64_t start, int64_t end),
                                void *ctx)
{
    const cpl_shard *file = &shards->file[f];
    cpl_status status     = CPL_OK;
    cpl_shard_rows rows   = {0};
    int32_t *labels       = NULL; /* labels of the documents, if they differ */
    int64_t count = 0, start = 0, end = 0;
    bool more = true;
    *present  = false;
    if (file->own_labels.count > 1) CPL_TRY(document_labels(file, &labels, &count));
    CPL_TRY_DONE(cpl_shard_rows_open(&rows, file->path, file->n_tokens, present));
    while (*present) {
        CPL_TRY_DONE(cpl_shard_rows_next(&rows, &start, &end, &more));
        if (!more) break;
        if (labels && rows.row > count)
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT,
                                  "%s: its metadata has more documents than its sources, %lld",
                                  file->path, (long long)count));
        each(ctx, labels ? labels[rows.row - 1] : file->label[0], start, end);
    }
done:
    cpl_shard_rows_close(&rows);
    cpl_free(labels);
    return status;
}

/* Counts tokens by label and labels each piece when it is full. */
typedef struct vote {
    int64_t *tokens; /* tokens of the current piece by label number */
    int64_t n_labels, piece_tokens, position, n_pieces;
    int32_t *label; /* labels of the completed pieces */
} vote;

static void label_piece(vote *v)
{
    int32_t best = 0;
    for (int32_t l = 1; l < v->n_labels; l++)
        if (v->tokens[l] > v->tokens[best]) best = l;
    int64_t piece = v->position / v->piece_tokens - 1;
    if (piece < v->n_pieces) v->label[piece] = best;
    memset(v->tokens, 0, (size_t)v->n_labels * sizeof *v->tokens);
}

static void count_tokens(void *ctx, int32_t label, int64_t start, int64_t end)
{
    vote *v = ctx;
    (void)start; /* equal to the end of the previous document */
    while (v->position < end) {
        int64_t edge = (v->position / v->piece_tokens + 1) * v->piece_tokens;
        int64_t stop = end < edge ? end : edge;
        v->tokens[label] += stop - v->position;
        v->position = stop;
        if (stop == edge) label_piece(v);
    }
}

cpl_status cpl_shards_piece_labels(const cpl_shards *shards, int64_t file, int64_t piece_tokens,
                                   int32_t *label)
{
    const cpl_shard *f = &shards->file[file];
    int64_t n_pieces   = f->n_tokens / piece_tokens;
    if (f->own_labels.count == 1) {
        for (int64_t k = 0; k < n_pieces; k++) label[k] = f->label[0];
        return CPL_OK;
    }
    bool present = false;
    vote v       = {NULL, shards->labels.count, piece_tokens, 0, n_pieces, label};
    v.tokens     = cpl_alloc((size_t)v.n_labels * sizeof *v.tokens);
    if (!v.tokens) return CPL_ERR_MEMORY;
    memset(v.tokens, 0, (size_t)v.n_labels * sizeof *v.tokens);
    cpl_status status = cpl_shards_documents(shards, file, &present, count_tokens, &v);
    if (status == CPL_OK && !present)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: it has several sources, and without its .csv.gz it is unknown where "
                          "its documents end",
                          f->path);
    cpl_free(v.tokens);
    return status;
}

/* ---- fingerprint ---- */

/* Returns the last two names of a path. */
static const char *file_and_folder(const char *path)
{
    const char *slash = strrchr(path, '/'), *begin = slash;
    while (begin && begin > path && begin[-1] != '/') begin--;
    return begin ? begin : path;
}

/* Continues `hash` over the name, the size, and the beginning and end of a file. */
static cpl_status hash_file(uint64_t *hash, const cpl_shard *file)
{
    enum { EDGE = 1 << 16 };
    unsigned char edge[EDGE];
    const char *name = file_and_folder(file->path);
    uint64_t size    = file->ids.length;
    size_t n         = size < EDGE ? (size_t)size : EDGE;
    *hash            = XXH3_64bits_withSeed(name, strlen(name), *hash);
    *hash            = XXH3_64bits_withSeed(&size, sizeof size, *hash);
    if (!n) return CPL_OK;
    CPL_TRY(cpl_shard_file_read(&file->ids, edge, n, 0));
    *hash = XXH3_64bits_withSeed(edge, n, *hash);
    CPL_TRY(cpl_shard_file_read(&file->ids, edge, n, size - n));
    *hash = XXH3_64bits_withSeed(edge, n, *hash);
    return CPL_OK;
}

cpl_status cpl_shards_fingerprint(uint64_t *hash, const cpl_shards *shards, int64_t eos,
                                  int64_t seq_len)
{
    int64_t numbers[2] = {eos, seq_len};
    *hash              = XXH3_64bits("couplet data 1", 14);
    for (int64_t i = 0; i < shards->n_files; i++) CPL_TRY(hash_file(hash, &shards->file[i]));
    *hash = XXH3_64bits_withSeed(numbers, sizeof numbers, *hash);
    return CPL_OK;
}

cpl_status cpl_shards_content(uint64_t *hash, const cpl_shards *shards)
{
    enum { CHUNK = 4096 };
    uint64_t raw[CHUNK];
    uint32_t ids[CHUNK];
    *hash = XXH3_64bits("couplet tokens 1", 16);
    for (int64_t i = 0; i < shards->n_files; i++) {
        const cpl_shard *f = &shards->file[i];
        for (int64_t first = 0; first < f->n_tokens; first += CHUNK) {
            int64_t count = f->n_tokens - first < CHUNK ? f->n_tokens - first : CHUNK;
            CPL_TRY(cpl_shard_tokens(f, first, count, raw));
            for (int64_t k = 0; k < count; k++) ids[k] = (uint32_t)raw[k];
            *hash = XXH3_64bits_withSeed(ids, (size_t)count * sizeof *ids, *hash);
        }
    }
    return CPL_OK;
}
