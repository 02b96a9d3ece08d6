/* stream.c - see stream.h */
#include "io/stream.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/arena.h"
#include "io/file.h"

enum { INPUT_BYTES = 1 << 17, PEEK_BYTES = 1 << 12, HEAD_BYTES = 512, CHUNK_BYTES = 1 << 18 };

typedef enum stream_kind { PLAIN, GZIP, ZSTANDARD } stream_kind;

struct cpl_stream {
    char *path;
    int file;
    stream_kind kind;
    unsigned char *in; /* [in_at, in_length) is read from the file and not yet decoded */
    size_t in_at, in_length;
    uint64_t taken; /* bytes read from the file */
    bool given;     /* the user named the file */
    bool file_end;
    uint64_t given_out, limit; /* bytes of plain content returned so far, and their limit or 0 */
    z_stream gzip;
    bool gzip_ready, inside_member;
    ZSTD_DCtx *zstd;
    size_t zstd_wants; /* 0 between frames */
    char *peeked;      /* [peek_at, peek_length) is decoded and not yet returned */
    size_t peek_at, peek_length;
};

static long long position(const cpl_stream *s)
{
    return (long long)(s->taken - (s->in_length - s->in_at));
}

static cpl_status read_regular(cpl_stream *s, size_t from, size_t *got)
{
    ssize_t n = 0;
    do {
        n = read(s->file, s->in + from, INPUT_BYTES - from);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return CPL_FAIL(CPL_ERR_IO, "%s: cannot be read at byte %lld: %s", s->path, position(s),
                        strerror(errno));
    *got = (size_t)n;
    return CPL_OK;
}

static cpl_status read_file(cpl_stream *s, size_t from)
{
    size_t got = 0;
    if (s->given)
        CPL_TRY(cpl_file_read_next(s->file, s->in + from, INPUT_BYTES - from, &got, s->path));
    else
        CPL_TRY(read_regular(s, from, &got));
    s->file_end  = got == 0;
    s->in_length = from + got;
    s->taken += got;
    return CPL_OK;
}

/* Makes input available unless the file has ended. */
static cpl_status fill(cpl_stream *s)
{
    if (s->in_at < s->in_length || s->file_end) return CPL_OK;
    s->in_at = 0;
    return read_file(s, 0);
}

static cpl_status truncated(const cpl_stream *s, const char *format)
{
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: the %s data ends too early, at byte %lld of the compressed file: it is "
                    "truncated",
                    s->path, format, position(s));
}

static cpl_status corrupt(const cpl_stream *s, const char *format, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: corrupt %s data near byte %lld of the compressed file: %s",
                    s->path, format, position(s), why);
}

/* ---- gzip ---- */

static void *zlib_alloc(void *unused, unsigned count, unsigned size)
{
    (void)unused;
    void *memory = cpl_alloc((size_t)count * size);
    if (memory) memset(memory, 0, (size_t)count * size);
    return memory;
}

static void zlib_free(void *unused, void *memory)
{
    (void)unused;
    cpl_free(memory);
}

void cpl_stream_gzip_memory(struct z_stream_s *gzip)
{
    gzip->zalloc = zlib_alloc;
    gzip->zfree  = zlib_free;
}

static cpl_status gzip_open(cpl_stream *s)
{
    enum { GZIP_ONLY = 16 };
    cpl_stream_gzip_memory(&s->gzip);
    if (inflateInit2(&s->gzip, MAX_WBITS + GZIP_ONLY) != Z_OK)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for gzip", s->path);
    s->gzip_ready    = true;
    s->inside_member = true;
    return CPL_OK;
}

/* Moves to the next member, skipping zero bytes of padding. `*more` is false at the end of the
 * file. */
static cpl_status next_member(cpl_stream *s, bool *more)
{
    for (;;) {
        CPL_TRY(fill(s));
        if (s->in_at == s->in_length) {
            *more = false;
            return CPL_OK;
        }
        if (s->in[s->in_at] != 0) break;
        s->in_at++;
    }
    *more            = true;
    s->inside_member = true;
    if (inflateReset(&s->gzip) != Z_OK) return corrupt(s, "gzip", "the decoder cannot be reset");
    return CPL_OK;
}

static cpl_status gzip_step(cpl_stream *s)
{
    CPL_TRY(fill(s));
    bool dry         = s->in_at == s->in_length;
    s->gzip.next_in  = s->in + s->in_at;
    s->gzip.avail_in = (unsigned)(s->in_length - s->in_at);
    int result       = inflate(&s->gzip, Z_NO_FLUSH);
    s->in_at         = s->in_length - s->gzip.avail_in;
    if (result == Z_STREAM_END) {
        s->inside_member = false;
        return CPL_OK;
    }
    if (result == Z_MEM_ERROR)
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for gzip", s->path);
    if (result == Z_BUF_ERROR && dry) return truncated(s, "gzip");
    if (result != Z_OK && result != Z_BUF_ERROR)
        return corrupt(s, "gzip", s->gzip.msg ? s->gzip.msg : "it needs a dictionary");
    return CPL_OK;
}

static cpl_status gzip_read(cpl_stream *s, char *out, size_t capacity, size_t *got)
{
    s->gzip.next_out  = (unsigned char *)out;
    s->gzip.avail_out = (unsigned)capacity;
    bool more         = true;
    while (s->gzip.avail_out && more) {
        if (s->inside_member)
            CPL_TRY(gzip_step(s));
        else
            CPL_TRY(next_member(s, &more));
    }
    *got = capacity - s->gzip.avail_out;
    return CPL_OK;
}

/* ---- Zstandard ---- */

static cpl_status zstd_open(cpl_stream *s, int window_log)
{
    s->zstd = ZSTD_createDCtx();
    if (!s->zstd) return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for Zstandard", s->path);
    if (ZSTD_isError(ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, window_log)))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: a Zstandard window of 2^%d bytes is not possible here",
                        s->path, window_log);
    s->zstd_wants = 1;
    return CPL_OK;
}

static cpl_status zstd_failed(const cpl_stream *s, size_t result)
{
    switch (ZSTD_getErrorCode(result)) {
    case ZSTD_error_frameParameter_windowTooLarge:
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its Zstandard window (near byte %lld) is larger than allowed: raise "
                        "zstd_window_log, at most %d",
                        s->path, position(s), CPL_ZSTD_WINDOW_LOG_MAX);
    case ZSTD_error_memory_allocation:
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for its Zstandard window", s->path);
    default:
        return corrupt(s, "Zstandard", ZSTD_getErrorName(result));
    }
}

static cpl_status zstd_read(cpl_stream *s, char *out, size_t capacity, size_t *got)
{
    ZSTD_outBuffer output = {out, capacity, 0};
    while (output.pos < output.size) {
        CPL_TRY(fill(s));
        bool dry = s->in_at == s->in_length;
        if (dry && s->zstd_wants == 0) break;
        size_t before       = output.pos;
        ZSTD_inBuffer input = {s->in, s->in_length, s->in_at};
        size_t result       = ZSTD_decompressStream(s->zstd, &output, &input);
        s->in_at            = input.pos;
        if (ZSTD_isError(result)) return zstd_failed(s, result);
        s->zstd_wants = result;
        if (dry && result != 0 && output.pos == before) return truncated(s, "Zstandard");
    }
    *got = output.pos;
    return CPL_OK;
}

/* ---- the format of a file ---- */

static bool is_gzip(const unsigned char *b, size_t n)
{
    return n >= 2 && b[0] == 0x1F && b[1] == 0x8B;
}

static bool is_zstd(const unsigned char *b, size_t n)
{
    static const unsigned char frame[4] = {0x28, 0xB5, 0x2F, 0xFD};
    if (n < 4) return false;
    return memcmp(b, frame, 4) == 0 ||
           ((b[0] & 0xF0) == 0x50 && memcmp(b + 1, "\x2A\x4D\x18", 3) == 0);
}

/* Returns whether the first bytes of a file may be text. The last sequence may be cut. */
static bool looks_like_text(const unsigned char *b, size_t n)
{
    for (size_t i = 0; i < n;) {
        int step = cpl_utf8_length(b + i, n - i);
        if (!step && i + 4 > n) return true;
        if (!step || (b[i] < 0x20 && !memchr("\t\n\v\f\r", b[i], 5))) return false;
        i += (size_t)step;
    }
    return true;
}

static cpl_status recognise(cpl_stream *s)
{
    bool named_gzip = cpl_path_ends_in(s->path, ".gz"),
         named_zstd = cpl_path_ends_in(s->path, ".zst");
    while (s->in_length < HEAD_BYTES && !s->file_end) CPL_TRY(read_file(s, s->in_length));
    s->kind = is_gzip(s->in, s->in_length)   ? GZIP
              : is_zstd(s->in, s->in_length) ? ZSTANDARD
                                             : PLAIN;
    if (s->kind != PLAIN || (!named_gzip && !named_zstd)) return CPL_OK;
    if (s->in_length < (named_gzip ? 2 : 4)) {
        s->in_at = s->in_length;
        return truncated(s, named_gzip ? "gzip" : "Zstandard");
    }
    if (!looks_like_text(s->in, s->in_length < HEAD_BYTES ? s->in_length : HEAD_BYTES))
        return corrupt(s, named_gzip ? "gzip" : "Zstandard",
                       "the name says it is compressed, the first bytes do not");
    return CPL_OK;
}

/* ---- the stream ---- */

static cpl_status open_file(cpl_stream *s, const char *path)
{
    uint64_t length;
    s->path = cpl_text_copy(path);
    s->in   = cpl_alloc(INPUT_BYTES);
    if (!s->path || !s->in) return CPL_ERR_MEMORY;
    cpl_status status =
        s->given ? cpl_file_open_given(&s->file, path) : cpl_file_open(&s->file, &length, path);
    if (status != CPL_OK) s->file = -1;
    return status;
}

static cpl_status open_stream(cpl_stream **stream, const char *path, int zstd_window_log,
                              bool given)
{
    cpl_status status = CPL_OK;
    cpl_stream *s     = cpl_alloc(sizeof *s);
    *stream           = NULL;
    if (!s) return CPL_ERR_MEMORY;
    memset(s, 0, sizeof *s);
    s->file  = -1;
    s->given = given;
    CPL_TRY_DONE(open_file(s, path));
    CPL_TRY_DONE(recognise(s));
    if (s->kind == GZIP) CPL_TRY_DONE(gzip_open(s));
    if (s->kind == ZSTANDARD) CPL_TRY_DONE(zstd_open(s, zstd_window_log));
    *stream = s;
done:
    if (status != CPL_OK) cpl_stream_close(s);
    return status;
}

cpl_status cpl_stream_open(cpl_stream **stream, const char *path, int zstd_window_log)
{
    return open_stream(stream, path, zstd_window_log, false);
}

cpl_status cpl_stream_open_given(cpl_stream **stream, const char *path, int zstd_window_log)
{
    return open_stream(stream, path, zstd_window_log, true);
}

void cpl_stream_limit(cpl_stream *s, uint64_t max_bytes)
{
    s->limit = max_bytes;
}

void cpl_stream_close(cpl_stream *s)
{
    if (!s) return;
    if (s->file >= 0) close(s->file);
    if (s->gzip_ready) inflateEnd(&s->gzip);
    ZSTD_freeDCtx(s->zstd);
    cpl_free(s->peeked);
    cpl_free(s->in);
    cpl_free(s->path);
    cpl_free(s);
}

static cpl_status plain_read(cpl_stream *s, char *out, size_t capacity, size_t *got)
{
    CPL_TRY(fill(s));
    size_t have = s->in_length - s->in_at;
    *got        = have < capacity ? have : capacity;
    memcpy(out, s->in + s->in_at, *got);
    s->in_at += *got;
    return CPL_OK;
}

static cpl_status decode_some(cpl_stream *s, char *out, size_t capacity, size_t *got)
{
    enum { AT_ONCE = 1 << 30 }; /* zlib counts bytes in unsigned */
    if (capacity > AT_ONCE) capacity = AT_ONCE;
    switch (s->kind) {
    case GZIP:
        return gzip_read(s, out, capacity, got);
    case ZSTANDARD:
        return zstd_read(s, out, capacity, got);
    case PLAIN:
        break;
    }
    return plain_read(s, out, capacity, got);
}

static cpl_status decode(cpl_stream *s, char *out, size_t capacity, size_t *got)
{
    CPL_TRY(decode_some(s, out, capacity, got));
    s->given_out += *got;
    if (!s->limit || s->given_out <= s->limit) return CPL_OK;
    *got = 0;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: is longer than the %llu bytes such a file may have",
                    s->path, (unsigned long long)s->limit);
}

cpl_status cpl_stream_read(cpl_stream *s, char *out, size_t capacity, size_t *got)
{
    *got = 0;
    CPL_ASSERT(capacity > 0);
    size_t have = s->peek_length - s->peek_at;
    if (!have) return decode(s, out, capacity, got);
    *got = have < capacity ? have : capacity;
    memcpy(out, s->peeked + s->peek_at, *got);
    s->peek_at += *got;
    return CPL_OK;
}

cpl_status cpl_stream_peek(cpl_stream *s, const char **bytes, size_t *length)
{
    if (!s->peeked && !(s->peeked = cpl_alloc(PEEK_BYTES))) return CPL_ERR_MEMORY;
    if (s->peek_at == s->peek_length) {
        s->peek_at = s->peek_length = 0;
        CPL_TRY(decode(s, s->peeked, PEEK_BYTES, &s->peek_length));
    }
    *bytes  = s->peeked + s->peek_at;
    *length = s->peek_length - s->peek_at;
    return CPL_OK;
}

/* ---- pieces ---- */

cpl_status cpl_pieces_init(cpl_pieces *p, cpl_stream *stream, const char *delimiter, size_t limit)
{
    memset(p, 0, sizeof *p);
    p->stream    = stream;
    p->delimiter = delimiter;
    p->limit     = limit;
    p->chunk     = cpl_alloc(CHUNK_BYTES);
    return p->chunk ? CPL_OK : CPL_ERR_MEMORY;
}

void cpl_pieces_free(cpl_pieces *p)
{
    cpl_text_free(&p->buffer);
    cpl_free(p->chunk);
    memset(p, 0, sizeof *p);
}

/* Drops the bytes before `at` and appends the next bytes of the stream. */
static cpl_status read_more(cpl_pieces *p)
{
    size_t got = 0, keep = p->buffer.length - p->at;
    if (p->at) {
        memmove(p->buffer.bytes, p->buffer.bytes + p->at, keep);
        p->buffer.length = keep;
        p->at            = 0;
    }
    CPL_TRY(cpl_stream_read(p->stream, p->chunk, CHUNK_BYTES, &got));
    p->end = got == 0;
    cpl_text_append(&p->buffer, p->chunk, got);
    return cpl_text_status(&p->buffer);
}

static cpl_status set_piece(cpl_pieces *p, cpl_piece *piece, size_t length, size_t step)
{
    piece->bytes  = p->buffer.bytes ? p->buffer.bytes + p->at : "";
    piece->length = length;
    if (length > p->limit) piece->too_long = true;
    p->at += step;
    p->searched = 0;
    return CPL_OK;
}

cpl_status cpl_pieces_next(cpl_pieces *p, cpl_piece *piece)
{
    size_t n = strlen(p->delimiter);
    memset(piece, 0, sizeof *piece);
    for (;;) {
        size_t have      = p->buffer.length - p->at;
        const char *from = have ? p->buffer.bytes + p->at : "";
        const char *hit =
            n && have ? memmem(from + p->searched, have - p->searched, p->delimiter, n) : NULL;
        if (hit) return set_piece(p, piece, (size_t)(hit - from), (size_t)(hit - from) + n);
        if (p->end) {
            piece->end = have == 0 && !piece->too_long;
            return set_piece(p, piece, have, have);
        }
        size_t tail = n && have >= n ? n - 1 : n ? have : 0; /* a delimiter may begin here */
        p->searched = have - tail;
        if (have - tail > p->limit) {
            piece->too_long = true;
            p->at += have - tail;
            p->searched = 0;
        }
        CPL_TRY(read_more(p));
    }
}
