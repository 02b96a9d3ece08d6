/* rows.c - see rows.h: opening and closing, JSON lines and plain lines */
#include <string.h>

#include "base/arena.h"
#include "eval/prompts/internal.h"
#include "io/file.h"

enum { HEAD_BYTES = 64 };

/* ---- lines ---- */

/* Keeps the next line without its end. Returns false at the end of the file. */
static bool next_line(cpl_rows *r)
{
    if (cpl_rows_peek(r) < 0) return false;
    cpl_rows_begin(r, r->line);
    for (int c; (c = cpl_rows_peek(r)) >= 0 && c != '\n';) cpl_rows_take(r);
    if (cpl_rows_peek(r) == '\n') cpl_rows_pass(r);
    return true;
}

static json_t *next_plain(cpl_rows *r)
{
    if (!next_line(r) || r->message.length || r->text.failed) return NULL;
    size_t length = r->text.length;
    if (length && r->text.bytes[length - 1] == '\r') length--;
    json_t *row = json_object();
    if (!row) cpl_rows_no_memory(r);
    cpl_rows_set(r, row, "line", cpl_rows_string(r, r->row_line, r->text.bytes, length));
    return row;
}

static bool is_blank(const cpl_text *text)
{
    return strspn(text->length ? text->bytes : "", " \t\r") == text->length;
}

static json_t *next_json_line(cpl_rows *r)
{
    do {
        r->row_line = 0;
        if (!next_line(r)) return NULL;
    } while (!r->message.length && !r->text.failed && is_blank(&r->text));
    return cpl_rows_parse(r, r->row_line, 1);
}

/* ---- opening, closing, reading ---- */

static json_t *(*const readers[])(cpl_rows *) = {
    [CPL_ROWS_JSONL] = next_json_line,      [CPL_ROWS_JSON] = cpl_rows_next_json,
    [CPL_ROWS_CSV] = cpl_rows_next_columns, [CPL_ROWS_TSV] = cpl_rows_next_columns,
    [CPL_ROWS_LINES] = next_plain,
};

/* Passes a byte order mark, and refuses a pointer file of Git LFS. */
static cpl_status look_at_head(cpl_rows *r)
{
    size_t more = 1;
    while (r->got < HEAD_BYTES && more) {
        CPL_TRY(
            cpl_stream_read(r->stream, r->chunk + r->got, CPL_ROWS_CHUNK_BYTES - r->got, &more));
        r->got += more;
    }
    if (cpl_file_is_lfs_pointer(r->chunk, r->got))
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`", r->path);
    if (r->got >= 3 && memcmp(r->chunk, "\xEF\xBB\xBF", 3) == 0) r->at = 3;
    return CPL_OK;
}

static cpl_status start(cpl_rows *r, const char *path)
{
    r->path  = cpl_text_copy(path);
    r->chunk = cpl_alloc(CPL_ROWS_CHUNK_BYTES);
    if (!r->path || !r->chunk) return CPL_ERR_MEMORY;
    CPL_TRY(cpl_stream_open(&r->stream, path, CPL_ZSTD_WINDOW_LOG));
    cpl_stream_limit(r->stream, CPL_ROWS_MAX_FILE);
    return look_at_head(r);
}

cpl_status cpl_rows_open(cpl_rows **rows, const char *path, const cpl_rows_kind *kind)
{
    *rows       = NULL;
    cpl_rows *r = cpl_alloc(sizeof *r);
    if (!r) return CPL_ERR_MEMORY;
    memset(r, 0, sizeof *r);
    r->kind = *kind;
    r->line = r->column = 1;
    if (!r->kind.max_bytes) r->kind.max_bytes = CPL_ROWS_MAX_BYTES;
    cpl_status status = start(r, path);
    if (status != CPL_OK)
        cpl_rows_close(r);
    else
        *rows = r;
    return status;
}

void cpl_rows_close(cpl_rows *r)
{
    if (!r) return;
    json_decref(r->names);
    cpl_stream_close(r->stream);
    cpl_text_free(&r->message);
    cpl_text_free(&r->text);
    cpl_free(r->chunk);
    cpl_free(r->path);
    cpl_free(r);
}

/* Sets the next row: the values of the whole row, the reason why it is bad, or neither. */
cpl_status cpl_rows_next(cpl_rows *r, cpl_row *row)
{
    memset(row, 0, sizeof *row);
    if (r->status != CPL_OK)
        return CPL_FAIL(r->status, "%s: could not be read further than to line %lld", r->path,
                        (long long)r->line);
    cpl_text_clear(&r->message);
    r->row_line    = 0;
    json_t *values = readers[r->kind.format](r);
    if (r->status == CPL_OK) r->status = cpl_text_status(&r->text);
    if (r->status == CPL_OK) r->status = cpl_text_status(&r->message);
    if (r->status != CPL_OK || r->message.length) {
        json_decref(values);
        values = NULL;
    }
    row->values = values;
    row->line   = r->row_line;
    if (r->status == CPL_OK && r->message.length) row->bad = r->message.bytes;
    return r->status;
}
