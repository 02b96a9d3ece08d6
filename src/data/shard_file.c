/* shard_file.c - reads a token file, its header, and the rows of its metadata, see shards.h */
#include "data/internal.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"

/* Opens a file for reads in random order, for which the system should not read ahead. */
static cpl_status open_random(int *descriptor, uint64_t *length, const char *path)
{
    CPL_TRY(cpl_file_open(descriptor, length, path));
    (void)posix_fadvise(*descriptor, 0, 0, POSIX_FADV_RANDOM);
    return CPL_OK;
}

cpl_status cpl_shard_file_open(cpl_shard_file *file, const char *path, bool keep)
{
    int descriptor = -1;
    memset(file, 0, sizeof *file);
    CPL_TRY(open_random(&descriptor, &file->length, path));
    file->path = cpl_text_copy(path);
    if (file->path && keep) {
        file->descriptor = descriptor;
        file->kept       = true;
        return CPL_OK;
    }
    close(descriptor);
    return file->path ? CPL_OK : CPL_ERR_MEMORY;
}

void cpl_shard_file_close(cpl_shard_file *file)
{
    if (file->kept) close(file->descriptor);
    cpl_free(file->path);
    memset(file, 0, sizeof *file);
}

cpl_status cpl_shard_file_read(const cpl_shard_file *file, void *out, size_t bytes, uint64_t offset)
{
    if (file->kept) return cpl_file_read_at(file->descriptor, out, bytes, offset, file->path);
    int descriptor    = -1;
    uint64_t length   = 0;
    cpl_status status = CPL_OK;
    CPL_TRY(open_random(&descriptor, &length, file->path));
    if (length != file->length)
        status = CPL_FAIL(CPL_ERR_IO, "%s: has %llu bytes, it had %llu: it changed while in use",
                          file->path, (unsigned long long)length, (unsigned long long)file->length);
    if (status == CPL_OK) status = cpl_file_read_at(descriptor, out, bytes, offset, file->path);
    close(descriptor);
    return status;
}

/* ---- headers ---- */

enum { NUMPY_LONGEST = 4096 }; /* bytes of a NumPy dictionary */

/* The first bytes of a file. */
typedef struct head {
    const char *path;
    uint64_t file_bytes;
    size_t length;
    unsigned char bytes[NUMPY_LONGEST + 16];
} head;

static uint32_t le32(const unsigned char *b)
{
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* ---- NumPy ---- */

/* Returns whether the file has a NumPy header. In flat data these bytes would be the ids 20115,
 * 19797, 22861, a small id and the bytes "{'", which is very unlikely. */
static bool is_numpy(const head *h, size_t *text)
{
    const unsigned char *b = h->bytes;
    if (h->length < 14 || memcmp(b, "\x93NUMPY", 6) != 0) return false;
    if (b[6] < 1 || b[6] > 3 || b[7] != 0) return false;
    *text = b[6] == 1 ? 10 : 12;
    return b[*text] == '{' && b[*text + 1] == '\'';
}

/* Returns the text after `'key':` in the header's dictionary, or NULL. */
static const char *entry(const char *dictionary, const char *key)
{
    const char *at = strstr(dictionary, key);
    if (!at) return NULL;
    at += strlen(key);
    while (*at == ' ') at++;
    return at;
}

/* Returns the bytes of an item of a type such as `'<u2'`, or 0 for any type but unsigned
 * little-endian integers. */
static int item_bytes(const char *descr)
{
    if (descr[0] != '\'' || (descr[1] != '<' && descr[1] != '|') || descr[2] != 'u') return 0;
    if (descr[3] == '\0' || descr[4] != '\'') return 0;
    if (descr[1] == '|') return descr[3] == '1' ? 1 : 0;
    return strchr("1248", descr[3]) ? descr[3] - '0' : 0;
}

/* Returns the number in `(<n>,)`, or -1. */
static long long one_dimension(const char *shape)
{
    char *end = NULL;
    if (shape[0] != '(' || shape[1] < '0' || shape[1] > '9') return -1;
    long long n = strtoll(shape + 1, &end, 10);
    return strncmp(end, ",)", 2) == 0 ? n : -1;
}

static cpl_status numpy(cpl_shard_format *format, const head *h, size_t text)
{
    char dictionary[NUMPY_LONGEST];
    const unsigned char *b = h->bytes;
    size_t length          = text == 10 ? b[8] | (size_t)b[9] << 8 : le32(b + 8);
    if (length >= NUMPY_LONGEST || text + length > h->length)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its NumPy header of %zu bytes does not fit", h->path,
                        length);
    memcpy(dictionary, b + text, length);
    dictionary[length] = '\0';
    const char *descr  = entry(dictionary, "'descr':");
    const char *order  = entry(dictionary, "'fortran_order':");
    const char *shape  = entry(dictionary, "'shape':");
    if (!descr || !order || !shape || strncmp(order, "False", 5) != 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its NumPy header is not one of a plain array", h->path);
    format->offset     = text + length;
    format->item_bytes = item_bytes(descr);
    if (!format->item_bytes)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its NumPy type is %.16s, token ids are '<u2' or '<u4'",
                        h->path, descr);
    long long n   = one_dimension(shape);
    uint64_t left = h->file_bytes - format->offset, item = (uint64_t)format->item_bytes;
    if (n < 0 || left % item != 0 || (uint64_t)n != left / item)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its NumPy shape %.32s does not fit the %llu bytes that follow",
                        h->path, shape, (unsigned long long)left);
    return CPL_OK;
}

/* ---- llm.c ---- */

static cpl_status llm_c(cpl_shard_format *format, const head *h)
{
    enum { HEADER = 1024 };
    uint32_t version = le32(h->bytes + 4), count = le32(h->bytes + 8);
    if (version != 1)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: version %u of llm.c's token files is not known",
                        h->path, version);
    if (h->file_bytes != HEADER + 2 * (uint64_t)count)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its llm.c header says %u tokens, its %llu bytes do not fit that",
                        h->path, count, (unsigned long long)h->file_bytes);
    *format = (cpl_shard_format){HEADER, 2};
    return CPL_OK;
}

cpl_status cpl_shard_format_find(cpl_shard_format *format, const cpl_shard_file *file)
{
    enum { LLM_C = 20240520 };
    size_t text = 0;
    head h      = {.path = file->path, .file_bytes = file->length};
    h.length    = file->length < sizeof h.bytes ? (size_t)file->length : sizeof h.bytes;
    *format     = (cpl_shard_format){0, 0};
    CPL_TRY(cpl_shard_file_read(file, h.bytes, h.length, 0));
    if (is_numpy(&h, &text)) return numpy(format, &h, text);
    /* Flat data would begin with the ids 55432 and 308 and a small number, which is very
     * unlikely. */
    if (h.length >= 1024 && le32(h.bytes) == LLM_C && le32(h.bytes + 4) < 256)
        return llm_c(format, &h);
    return CPL_OK;
}

/* ---- the documents of a file ---- */

char *cpl_shard_companion(const char *token_file, const char *extension)
{
    size_t length   = strlen(token_file);
    const char *end = length > 4 ? token_file + length - 4 : "";
    if (strcmp(end, ".npy") == 0 || strcmp(end, ".bin") == 0) length -= 4;
    size_t n   = strlen(extension);
    char *name = cpl_alloc(length + n + 1);
    if (!name) return NULL;
    memcpy(name, token_file, length);
    memcpy(name + length, extension, n + 1);
    return name;
}

cpl_status cpl_shard_rows_open(cpl_shard_rows *rows, const char *token_file, int64_t n_tokens,
                               bool *present)
{
    enum { LONGEST_LINE = 1 << 24 };
    memset(rows, 0, sizeof *rows);
    *present   = false;
    rows->path = cpl_shard_companion(token_file, ".csv.gz");
    if (!rows->path) return CPL_ERR_MEMORY;
    rows->n_tokens    = n_tokens;
    cpl_status status = CPL_OK;
    if (access(rows->path, F_OK) != 0) goto done;
    CPL_TRY_DONE(cpl_stream_open(&rows->stream, rows->path, CPL_ZSTD_WINDOW_LOG));
    CPL_TRY_DONE(cpl_pieces_init(&rows->lines, rows->stream, "\n", LONGEST_LINE));
    *present = true;
done:
    if (!*present) cpl_shard_rows_close(rows);
    return status;
}

void cpl_shard_rows_close(cpl_shard_rows *rows)
{
    cpl_pieces_free(&rows->lines);
    cpl_stream_close(rows->stream);
    cpl_free(rows->path);
    memset(rows, 0, sizeof *rows);
}

/* Reads digits up to a comma. */
static bool number(const char **at, const char *end, int64_t *value)
{
    const char *first = *at;
    *value            = 0;
    while (*at < end && **at >= '0' && **at <= '9' && *at - first < 18)
        *value = *value * 10 + (*(*at)++ - '0');
    if (*at == first || *at == end || **at != ',') return false;
    ++*at;
    return true;
}

static size_t quotes(const cpl_piece *line)
{
    size_t n = 0;
    for (size_t i = 0; i < line->length; i++) n += line->bytes[i] == '"';
    return n;
}

static cpl_status bad_row(const cpl_shard_rows *rows, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: row %lld %s", rows->path, (long long)rows->row, why);
}

cpl_status cpl_shard_rows_next(cpl_shard_rows *rows, int64_t *start, int64_t *end, bool *more)
{
    cpl_piece line;
    rows->row++;
    CPL_TRY(cpl_pieces_next(&rows->lines, &line));
    *more = !line.end;
    if (line.end) {
        if (rows->end == rows->n_tokens) return CPL_OK;
        return CPL_FAIL(CPL_ERR_INPUT, "%s: the rows end at token %lld, the token file has %lld",
                        rows->path, (long long)rows->end, (long long)rows->n_tokens);
    }
    const char *at = line.bytes, *stop = line.bytes + line.length;
    if (line.too_long || !number(&at, stop, start) || !number(&at, stop, end))
        return bad_row(rows, "does not begin with two numbers");
    if (*start != rows->end || *end < *start || *end > rows->n_tokens)
        return bad_row(rows, "does not follow on the one before within the token file");
    rows->end   = *end;
    size_t open = quotes(&line) % 2; /* a quoted field may hold line ends */
    while (open) {
        CPL_TRY(cpl_pieces_next(&rows->lines, &line));
        if (line.end || line.too_long) return bad_row(rows, "has a quote that does not end");
        open = (open + quotes(&line)) % 2;
    }
    return CPL_OK;
}
