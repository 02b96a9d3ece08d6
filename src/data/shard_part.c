/* shard_part.c - writes one token file, see shard_writer.h. */

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "data/internal.h"
#include "io/paths.h"
#include "io/stream.h"

enum { MAX_LABELS = 65536 };

/* ---- rows ---- */

/* Compresses `length` bytes into the file of rows. With Z_FINISH also flushes zlib's buffer. */
static void put_rows(cpl_shard_part *part, const void *bytes, size_t length, int flush)
{
    unsigned char out[8192];
    int result          = Z_OK;
    part->gzip.next_in  = (unsigned char *)(uintptr_t)bytes;
    part->gzip.avail_in = (unsigned)length;
    do {
        part->gzip.next_out  = out;
        part->gzip.avail_out = sizeof out;
        result               = deflate(&part->gzip, flush);
        CPL_ASSERT(result != Z_STREAM_ERROR);
        cpl_writer_put(&part->rows, out, sizeof out - part->gzip.avail_out);
    } while (part->gzip.avail_out == 0);
    CPL_ASSERT(part->gzip.avail_in == 0 && (flush != Z_FINISH || result == Z_STREAM_END));
}

/* Appends a field, quoted if necessary. */
static void put_field(cpl_text *row, const char *field)
{
    if (!strpbrk(field, ",\"\r\n")) {
        cpl_text_append(row, field, strlen(field));
        return;
    }
    cpl_text_char(row, '"');
    for (; *field; field++) {
        if (*field == '"') cpl_text_char(row, '"');
        cpl_text_char(row, *field);
    }
    cpl_text_char(row, '"');
}

static cpl_status add_row(cpl_shard_part *part, const cpl_document *document, const char *src,
                          int64_t n_tokens)
{
    cpl_text *row = &part->row;
    cpl_text_clear(row);
    cpl_text_printf(row, "%lld,%lld,", (long long)part->n_tokens,
                    (long long)(part->n_tokens + n_tokens));
    put_field(row, document->id);
    cpl_text_char(row, ',');
    put_field(row, src);
    cpl_text_printf(row, ",%lld\r\n", (long long)document->line);
    CPL_TRY(cpl_text_status(row));
    for (size_t at = 0; at < row->length;) { /* zlib counts in unsigned */
        size_t left = row->length - at, n = left < (1u << 30) ? left : 1u << 30;
        put_rows(part, row->bytes + at, n, Z_NO_FLUSH);
        at += n;
    }
    return CPL_OK;
}

/* ---- labels ---- */

static cpl_status label_index(cpl_shard_part *part, const char *label, uint16_t *index)
{
    cpl_strings *labels = &part->labels;
    for (int64_t i = labels->count - 1; i >= 0; i--)
        if (strcmp(labels->at[i], label) == 0) {
            *index = (uint16_t)i;
            return CPL_OK;
        }
    if (labels->count == MAX_LABELS)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: more than %d different sources: data.source_field must name the source, "
            "the last was \"%.64s\"",
            part->stem, MAX_LABELS, label);
    *index = (uint16_t)labels->count;
    return cpl_paths_add(labels, label);
}

static void list_labels(const cpl_shard_part *part, cpl_text *out)
{
    for (int64_t i = 0; i < part->labels.count; i++) {
        cpl_text_printf(out, "%lld\t", (long long)i);
        for (const char *c = part->labels.at[i]; *c; c++)
            cpl_text_char(out, (unsigned char)*c < 0x20 ? ' ' : *c);
        cpl_text_char(out, '\n');
    }
}

static void list_document_labels(const cpl_shard_part *part, cpl_text *out, bool wide)
{
    for (int64_t i = 0; i < part->n_documents; i++) {
        uint16_t label = 0;
        memcpy(&label, part->document_labels.bytes + 2 * i, sizeof label);
        cpl_text_char(out, (char)(label & 0xFF));
        if (wide) cpl_text_char(out, (char)(label >> 8));
    }
}

/* Writes the companion with this ending. */
static cpl_status write_companion(const cpl_shard_part *part, const char *ending,
                                  const cpl_text *bytes)
{
    char *name        = cpl_shard_companion(part->stem, ending);
    cpl_status status = name ? cpl_text_status(bytes) : CPL_ERR_MEMORY;
    if (status == CPL_OK) status = cpl_file_write_atomic(name, bytes->bytes, bytes->length);
    cpl_free(name);
    return status;
}

static cpl_status write_sources(const cpl_shard_part *part)
{
    bool wide    = part->labels.count > 256;
    cpl_text out = {0};
    list_labels(part, &out);
    cpl_status status = write_companion(part, ".sources.tsv", &out);
    cpl_text_clear(&out);
    list_document_labels(part, &out, wide);
    if (status == CPL_OK)
        status = write_companion(part, wide ? ".sources.u16" : ".sources.u8", &out);
    cpl_text_free(&out);
    return status;
}

/* ---- tokens ---- */

static void put_ids(cpl_shard_part *part, const int32_t *ids, int64_t n_ids)
{
    unsigned char out[4096];
    size_t used = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        for (int b = 0; b < part->item_bytes; b++)
            out[used++] = (unsigned char)((uint32_t)ids[i] >> 8 * b);
        if (used == sizeof out) {
            cpl_writer_put(&part->tokens, out, used);
            used = 0;
        }
    }
    cpl_writer_put(&part->tokens, out, used);
}

static cpl_status open_writer(cpl_writer *writer, const char *stem, const char *ending)
{
    char *name        = cpl_shard_companion(stem, ending);
    cpl_status status = name ? cpl_writer_open(writer, name) : CPL_ERR_MEMORY;
    cpl_free(name);
    return status;
}

cpl_status cpl_shard_part_open(cpl_shard_part *part, const char *stem, int item_bytes)
{
    cpl_status status = CPL_OK;
    memset(part, 0, sizeof *part);
    part->item_bytes = item_bytes;
    part->stem       = cpl_text_copy(stem);
    if (!part->stem) CPL_TRY_DONE(CPL_ERR_MEMORY);
    CPL_TRY_DONE(open_writer(&part->tokens, stem, ".npy"));
    CPL_TRY_DONE(open_writer(&part->rows, stem, ".csv.gz"));
    cpl_stream_gzip_memory(&part->gzip);
    part->gzip_ready = deflateInit2(&part->gzip, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + 16,
                                    8, Z_DEFAULT_STRATEGY) == Z_OK;
    if (!part->gzip_ready) status = CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for gzip", stem);
done:
    if (status != CPL_OK) cpl_shard_part_abort(part);
    return status;
}

cpl_status cpl_shard_part_add(cpl_shard_part *part, const cpl_document *document, const char *src,
                              const int32_t *ids, int64_t n_ids, int64_t eos)
{
    uint16_t label   = 0;
    int32_t end      = (int32_t)eos;
    int64_t n_tokens = n_ids + (eos >= 0);
    CPL_TRY(label_index(part, document->source, &label));
    cpl_text_append(&part->document_labels, &label, sizeof label);
    CPL_TRY(cpl_text_status(&part->document_labels));
    CPL_TRY(add_row(part, document, src, n_tokens));
    put_ids(part, ids, n_ids);
    if (eos >= 0) put_ids(part, &end, 1);
    part->n_tokens += n_tokens;
    part->n_documents++;
    CPL_TRY(cpl_writer_status(&part->rows));
    return cpl_writer_status(&part->tokens);
}

cpl_status cpl_shard_part_commit(cpl_shard_part *part)
{
    cpl_status status = CPL_OK;
    put_rows(part, NULL, 0, Z_FINISH);
    CPL_TRY_DONE(write_sources(part));
    CPL_TRY_DONE(cpl_writer_commit(&part->rows));
    CPL_TRY_DONE(cpl_writer_commit(&part->tokens));
done:
    cpl_shard_part_abort(part);
    return status;
}

void cpl_shard_part_abort(cpl_shard_part *part)
{
    cpl_writer_abort(&part->tokens);
    cpl_writer_abort(&part->rows);
    if (part->gzip_ready) deflateEnd(&part->gzip);
    cpl_paths_free(&part->labels);
    cpl_text_free(&part->document_labels);
    cpl_text_free(&part->row);
    cpl_free(part->stem);
    memset(part, 0, sizeof *part);
}

void cpl_shard_part_remove(const char *stem)
{
    static const char *const endings[] = {".npy", ".csv.gz", ".sources.tsv", ".sources.u8",
                                          ".sources.u16"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char *name = cpl_shard_companion(stem, endings[i]);
        if (name) (void)unlink(name);
        cpl_free(name);
    }
}
