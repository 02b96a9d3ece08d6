/* pieces.h - a stream cut at a delimiter: lines, or what stands between separators.
 *
 * Room:  io.
 * Limit: a piece longer than the limit is passed over without being held in memory. */
#ifndef CPL_IO_PIECES_H
#define CPL_IO_PIECES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"
#include "io/stream.h"

typedef struct cpl_pieces {
    cpl_stream *stream;    /* not owned */
    const char *delimiter; /* not owned; "": the whole stream is one piece */
    size_t limit;          /* bytes of the longest piece given out */
    cpl_text buffer;       /* [at, length) is read and not yet given out */
    size_t at, searched;   /* no delimiter begins in the first `searched` of them */
    char *chunk;
    bool end;
} cpl_pieces;

typedef struct cpl_piece {
    const char *bytes; /* without the delimiter; valid until the next call */
    size_t length;
    bool too_long; /* then the bytes are not the piece's */
    bool end;      /* there was no further piece */
} cpl_piece;

CPL_NODISCARD cpl_status cpl_pieces_init(cpl_pieces *pieces, cpl_stream *stream,
                                         const char *delimiter, size_t limit);
void cpl_pieces_free(cpl_pieces *pieces);

/* The next piece. What follows the last delimiter is a piece unless it is empty. */
CPL_NODISCARD cpl_status cpl_pieces_next(cpl_pieces *pieces, cpl_piece *piece);

#endif /* CPL_IO_PIECES_H */
