/* added.c - finds added tokens, leftmost and longest (see split.h). */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/split.h"

/* The longest first; of equal ones the lowest id. */
static int by_length(const void *a, const void *b)
{
    const cpl_added *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int first_byte(const cpl_added_set *set, uint32_t i)
{
    return (unsigned char)set->bytes[set->at[i].start];
}

/* Brings tokens with the same first byte together, from begin[b] on. Each
 * byte value takes one pass over what is left. */
static uint32_t gather(cpl_added_set *set, uint32_t next, int b)
{
    uint32_t begin = next;
    for (uint32_t i = next; i < set->count; i++) {
        if (first_byte(set, i) != b) continue;
        cpl_added kept  = set->at[i];
        set->at[i]      = set->at[next];
        set->at[next++] = kept;
    }
    if (next > begin) qsort(set->at + begin, next - begin, sizeof *set->at, by_length);
    return next;
}

static void mark_second(cpl_added_set *set, const cpl_added *added, uint8_t bit)
{
    if (added->length > 1)
        set->second[(unsigned char)set->bytes[added->start + 1]] |= bit;
    else
        for (int c = 0; c < 256; c++) set->second[c] |= bit;
}

void cpl_added_index(cpl_added_set *set, const char *bytes)
{
    set->bytes = bytes;
    memset(set->first, 0, sizeof set->first);
    memset(set->second, 0, sizeof set->second);
    uint32_t next = 0;
    int groups    = 0;
    set->only     = set->count ? first_byte(set, 0) : -1;
    for (int b = 0; b < 256; b++) {
        set->begin[b] = next;
        next          = gather(set, next, b);
        if (next == set->begin[b]) continue;
        if (b != set->only) set->only = -1;
        uint8_t bit = set->first[b] = (uint8_t)(1u << (groups++ % 8));
        for (uint32_t i = set->begin[b]; i < next; i++) mark_second(set, set->at + i, bit);
    }
    set->begin[256] = next;
}

static const cpl_added *longest_at(const cpl_added_set *set, const char *text, size_t left)
{
    int b = (unsigned char)text[0];
    for (uint32_t i = set->begin[b]; i < set->begin[b + 1]; i++) {
        const cpl_added *added = set->at + i;
        if (added->length <= left && memcmp(set->bytes + added->start, text, added->length) == 0)
            return added;
    }
    return NULL;
}

/* Whether a token may begin at `s`, where at least two bytes are left. */
static inline int may_begin(const cpl_added_set *set, const unsigned char *s)
{
    return set->first[s[0]] & set->second[s[1]];
}

/* The first place from `at` on where a token may begin; `length` if there is none. */
static size_t next_candidate(const cpl_added_set *set, const unsigned char *s, size_t length,
                             size_t at)
{
    if (set->only >= 0) {
        const unsigned char *found = memchr(s + at, set->only, length - at);
        return found ? (size_t)(found - s) : length;
    }
    for (; length - at > 8; at += 8) {
        int some = 0;
        for (size_t i = 0; i < 8; i++) some |= may_begin(set, s + at + i);
        if (some) break;
    }
    while (length - at > 1 && !may_begin(set, s + at)) at++;
    return length - at > 1 || set->first[s[at]] ? at : length;
}

size_t cpl_added_find(const cpl_added_set *set, const char *text, size_t length, size_t from,
                      const cpl_added **hit)
{
    const unsigned char *s = (const unsigned char *)text;
    *hit                   = NULL;
    if (set->count == 0) return length;
    for (size_t at = from; at < length; at++) {
        at = next_candidate(set, s, length, at);
        if (at == length) break;
        *hit = longest_at(set, text + at, length - at);
        if (*hit) return at;
    }
    return length;
}
