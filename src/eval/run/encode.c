/* encode.c - see encode.h */
#include "eval/run/encode.h"

#include <string.h>

#include "base/arena.h"
#include "eval/grade/words.h"

static cpl_status append(cpl_encoding *e, cpl_ids *ids, cpl_span text)
{
    return cpl_encoder_append(e->encoder, ids, text.length ? text.bytes : "", text.length);
}

/* The end-of-text id, in place of a context. */
static cpl_status append_eos(const cpl_encoding *e, cpl_ids *ids)
{
    if (e->eos < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "its context is empty, and there is no end-of-text token to stand for it");
    if (ids->count == ids->capacity) {
        const int64_t capacity = 2 * ids->capacity + 64;
        int32_t *grown         = cpl_realloc(ids->at, (size_t)capacity * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        ids->at       = grown;
        ids->capacity = capacity;
    }
    ids->at[ids->count++] = (int32_t)e->eos;
    return CPL_OK;
}

/* The text without the white space at its end. */
static cpl_span without_end(cpl_span text)
{
    while (text.length > 0) {
        uint32_t point;
        const size_t last = cpl_words_previous(&point, text, text.length);
        if (!cpl_point_is_space(point)) break;
        text.length -= last;
    }
    return text;
}

/* The tokens of context and continuation together, without the first `n`. */
static cpl_status append_joint(cpl_encoding *e, cpl_ids *ids, const char *context,
                               const char *continuation, int64_t n)
{
    const int64_t first = ids->count;
    cpl_text_clear(&e->joined);
    cpl_text_append(&e->joined, context, strlen(context));
    cpl_text_append(&e->joined, continuation, strlen(continuation));
    CPL_TRY(cpl_text_status(&e->joined));
    CPL_TRY(append(e, ids, cpl_span_text(&e->joined)));
    const int64_t left = ids->count - first - n;
    ids->count         = left > 0 ? first + left : first;
    memmove(ids->at + first, ids->at + first + n, (size_t)(ids->count - first) * sizeof *ids->at);
    return CPL_OK;
}

/* Leaves the last `most` ids of those from out->first on. */
static void keep_last(cpl_ids *ids, cpl_encoded *out, int64_t most)
{
    const int64_t length = ids->count - out->first;
    int32_t *at          = ids->at + out->first;
    out->cut             = length > most ? length - most : 0;
    out->length          = length - out->cut;
    memmove(at, at + out->cut, (size_t)out->length * sizeof *at);
    ids->count = out->first + out->length;
}

cpl_status cpl_encode_pair(cpl_encoding *e, cpl_ids *ids, cpl_encoded *out, const char *context,
                           const char *continuation, cpl_joining joining, int64_t window)
{
    const bool joint    = joining == CPL_JOIN_JOINT;
    const cpl_span text = cpl_span_of(context);
    *out                = (cpl_encoded){.first = ids->count};
    CPL_TRY(append(e, ids, joint ? without_end(text) : text));
    const int64_t own = ids->count - out->first;
    if (own == 0) CPL_TRY(append_eos(e, ids));
    out->context = ids->count - out->first;
    CPL_TRY(joint ? append_joint(e, ids, context, continuation, own)
                  : append(e, ids, cpl_span_of(continuation)));
    out->scored = ids->count - out->first - out->context;
    if (out->scored == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "a continuation of it has no tokens of its own");
    if (out->scored > window)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "a continuation of it has %lld tokens, but the window is %lld; take its "
                        "row out of the file, or a model with a longer window",
                        (long long)out->scored, (long long)window);
    keep_last(ids, out, window + 1);
    return CPL_OK;
}

cpl_status cpl_encode_prompt(cpl_encoding *e, cpl_ids *ids, cpl_encoded *out, const char *prompt,
                             int64_t room)
{
    CPL_ASSERT(room >= 1);
    *out = (cpl_encoded){.first = ids->count};
    CPL_TRY(append(e, ids, cpl_span_of(prompt)));
    if (ids->count == out->first) CPL_TRY(append_eos(e, ids));
    out->context = ids->count - out->first;
    keep_last(ids, out, room);
    return CPL_OK;
}
