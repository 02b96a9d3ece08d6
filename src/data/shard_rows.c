/* shard_rows.c - see shards.h */
#include "data/shards.h"

#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"

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
