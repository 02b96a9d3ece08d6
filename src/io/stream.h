/* stream.h - the bytes of a file that may be compressed: gzip, Zstandard or plain.
 *
 * Room:    io. Uses zlib and libzstd. Does not interpret the bytes.
 * Format:  the first bytes decide. 1f 8b is gzip (any number of members, zero bytes may follow the
 *          last). 28 b5 2f fd is Zstandard (any number of frames). 184D2A50..5F is a Zstandard
 *          skippable frame. All other content is plain.
 * Errors:  a compressed stream that is cut or damaged never ends as if it were complete: the read
 *          fails with an error that names the file and the position in it. */
#ifndef CPL_IO_STREAM_H
#define CPL_IO_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* The default and the largest allowed log2 of the Zstandard window. */
enum { CPL_ZSTD_WINDOW_LOG = 27, CPL_ZSTD_WINDOW_LOG_MAX = 31 };

typedef struct cpl_stream cpl_stream;

/* Opens `path`, a file of a folder (file.h has the two rules), for reading from the beginning. A
 * file whose name ends in .gz or .zst must hold compressed data or text, and must not end within
 * its first bytes. `zstd_window_log` is 10 to CPL_ZSTD_WINDOW_LOG_MAX: frames with a larger window
 * are refused. */
CPL_NODISCARD cpl_status cpl_stream_open(cpl_stream **stream, const char *path,
                                         int zstd_window_log);

/* Opens a file that the user named, with reads that wait for pipes and call cpl_stop_check. */
CPL_NODISCARD cpl_status cpl_stream_open_given(cpl_stream **stream, const char *path,
                                               int zstd_window_log);

/* Makes reading beyond `max_bytes` bytes of plain content an error. Initially there is no limit. */
void cpl_stream_limit(cpl_stream *stream, uint64_t max_bytes);

void cpl_stream_close(cpl_stream *stream); /* NULL is allowed */

/* Reads at most `capacity` (> 0) bytes into `out`. `*got` is the number of bytes read, 0 only at
 * the end of the data. */
CPL_NODISCARD cpl_status cpl_stream_read(cpl_stream *stream, char *out, size_t capacity,
                                         size_t *got);

/* Sets a view of the next bytes of the plain content, at most 4096, without consuming them. It is
 * empty only at the end and valid until the next call. */
CPL_NODISCARD cpl_status cpl_stream_peek(cpl_stream *stream, const char **bytes, size_t *length);

/* Makes zlib allocate with cpl_alloc. Call it before inflateInit or deflateInit. */
struct z_stream_s;
void cpl_stream_gzip_memory(struct z_stream_s *gzip);

/* Pieces ----------------------------------------------------------------------------------------
 *
 * A stream cut at a delimiter, into lines or texts between separators. A piece longer than the
 * limit is skipped without being held in memory. */

typedef struct cpl_pieces {
    cpl_stream *stream;    /* not owned */
    const char *delimiter; /* not owned; with "" the whole stream is one piece */
    size_t limit;          /* bytes of the longest piece returned */
    cpl_text buffer;       /* [at, length) is read and not yet returned */
    size_t at, searched;   /* position, and bytes from there in which no delimiter begins */
    char *chunk;
    bool end;
} cpl_pieces;

typedef struct cpl_piece {
    const char *bytes; /* without the delimiter; valid until the next call */
    size_t length;
    bool too_long; /* the piece exceeds the limit; `bytes` is not its content */
    bool end;      /* no further piece follows */
} cpl_piece;

CPL_NODISCARD cpl_status cpl_pieces_init(cpl_pieces *pieces, cpl_stream *stream,
                                         const char *delimiter, size_t limit);
void cpl_pieces_free(cpl_pieces *pieces);

/* Sets the next piece. The bytes after the last delimiter, if any, are a piece. */
CPL_NODISCARD cpl_status cpl_pieces_next(cpl_pieces *pieces, cpl_piece *piece);

#endif /* CPL_IO_STREAM_H */
