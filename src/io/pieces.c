/* pieces.c - see pieces.h */
#include "io/pieces.h"

#include <string.h>

#include "base/arena.h"

enum { CHUNK_BYTES = 1 << 18 };

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

/* Gives back what is before `at` and appends what the stream has next. */
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

static cpl_status give(cpl_pieces *p, cpl_piece *piece, size_t length, size_t step)
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
        if (hit) return give(p, piece, (size_t)(hit - from), (size_t)(hit - from) + n);
        if (p->end) {
            piece->end = have == 0 && !piece->too_long;
            return give(p, piece, have, have);
        }
        size_t tail = n && have >= n ? n - 1 : n ? have : 0; /* a delimiter may begin in it */
        p->searched = have - tail;
        if (have - tail > p->limit) {
            piece->too_long = true;
            p->at += have - tail;
            p->searched = 0;
        }
        CPL_TRY(read_more(p));
    }
}
