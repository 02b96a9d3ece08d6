/* tokenizer.c - queries of a loaded tokenizer, and decoding (see tokenizer.h). */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/arena.h"
#include "tokenizer/internal.h"

void cpl_tokenizer_free(cpl_tokenizer *t)
{
    if (!t) return;
    cpl_free(t->tokens);
    cpl_free(t->raw.at);
    cpl_free(t->normalized.at);
    cpl_text_free(&t->bytes);
    cpl_text_free(&t->ignored);
    cpl_merges_free(&t->merges);
    cpl_free(t);
}

void cpl_tokenizer_warn(const cpl_tokenizer *t, const cpl_log *log)
{
    if (t && t->ignored.length > 0) cpl_log_warn(log, "%s", t->ignored.bytes);
}

int64_t cpl_tokenizer_vocab_size(const cpl_tokenizer *t)
{
    return t->vocab_size;
}

int32_t cpl_tokenizer_eos(const cpl_tokenizer *t)
{
    return t->eos;
}

uint64_t cpl_tokenizer_hash(const cpl_tokenizer *t)
{
    return t->hash;
}

int32_t cpl_tokenizer_id(const cpl_tokenizer *t, const char *content)
{
    size_t length = strlen(content);
    int32_t found = -1;
    for (int64_t id = t->vocab_size - 1; id >= 0; id--) {
        const cpl_token *token = t->tokens + id;
        if (!token->present || token->length != length) continue;
        if (memcmp(t->bytes.bytes + token->start, content, length) != 0) continue;
        if (token->added) return (int32_t)id;
        found = (int32_t)id;
    }
    return found;
}

void cpl_ids_free(cpl_ids *ids)
{
    cpl_free(ids->at);
    memset(ids, 0, sizeof *ids);
}

cpl_status cpl_tokenizer_decode(const cpl_tokenizer *t, cpl_text *out, const int32_t *ids,
                                int64_t count, bool skip_special)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "id %d at position %lld is outside the vocabulary of %lld", ids[i],
                            (long long)i, (long long)t->vocab_size);
    for (int64_t i = 0; i < count; i++) {
        const cpl_token *token = t->tokens + ids[i];
        if (!token->present || (skip_special && token->special)) continue;
        cpl_text_append(out, t->bytes.bytes + token->start, token->length);
    }
    return cpl_text_status(out);
}

size_t cpl_tokenizer_utf8_prefix(const char *bytes, size_t length)
{
    const unsigned char *s = (const unsigned char *)bytes;
    size_t tail            = length < 3 ? length : 3;
    for (size_t back = 1; back <= tail; back++) {
        const unsigned char *at = s + length - back;
        if ((*at & 0xC0) == 0x80) continue;
        size_t wanted = *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : *at >= 0xC2 ? 2 : 1;
        bool cut      = *at <= 0xF4 && wanted > back;
        return cut && cpl_utf8_bad_length(at, back) == (int)back ? length - back : length;
    }
    return length;
}

/* ---- the byte-level alphabet ---- */

/* Returns whether byte b is represented by the code point b: 21-7E, A1-AC and AE-FF. The other 68
 * bytes, in increasing order, are U+0100, U+0101, ... (a space is U+0120, a line end U+010A). */
static bool stands_for_itself(int b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

void cpl_tokenizer_alphabet_points(uint32_t point_of[256])
{
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) point_of[b] = stands_for_itself(b) ? (uint32_t)b : next++;
}

void cpl_tokenizer_alphabet_bytes(int16_t byte_of[CPL_ALPHABET_POINTS])
{
    uint32_t point_of[256];
    cpl_tokenizer_alphabet_points(point_of);
    for (int i = 0; i < CPL_ALPHABET_POINTS; i++) byte_of[i] = -1;
    for (int b = 0; b < 256; b++) byte_of[point_of[b]] = (int16_t)b;
}
