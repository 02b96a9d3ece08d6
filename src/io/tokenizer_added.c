/* tokenizer_added.c - finds added tokens, leftmost and longest (see tokenizer_split.h). */
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_split.h"

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
    for (int b = 0; b < 256; b++) {
        set->begin[b] = next;
        next          = gather(set, next, b);
        if (next == set->begin[b]) continue;
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

size_t cpl_added_find(const cpl_added_set *set, const char *text, size_t length, size_t from,
                      const cpl_added **hit)
{
    const unsigned char *s = (const unsigned char *)text;
    *hit                   = NULL;
    if (set->count == 0) return length;
    for (size_t at = from; at < length; at++) {
        bool last = at + 1 == length;
        if (!(set->first[s[at]] & (last ? 0xFF : set->second[s[at + 1]]))) continue;
        *hit = longest_at(set, text + at, length - at);
        if (*hit) return at;
    }
    return length;
}
