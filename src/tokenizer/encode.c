/* encode.c - converts text to ids (see tokenizer.h).
 *
 * A text goes through these steps. Invalid UTF-8 is repaired. The text is split at the added tokens
 * that are searched in raw text. Each piece is normalised, then split at the added tokens that are
 * searched in normalised text, then split into words. Each word is looked up in the cache or
 * merged.
 *
 * The cache has two places per hash, one cache line each. The first holds the word used last. A
 * third word replaces the word in the second place. Words of up to 32 bytes with up to 7 ids fit,
 * which is nearly every word of any language. All other words are merged each time. Words are
 * processed in batches: cache lines are fetched while keys of later words are computed. */
#include <string.h>

#include "base/arena.h"
#include "tokenizer/internal.h"
#include "tokenizer/unicode.h"

enum {
    CACHE_BITS = 15, /* 32,768 pairs of places of 64 bytes: 4 MiB */
    KEY_BYTES  = 32,
    KEY_IDS    = 7,
    BATCH      = 64, /* words */
};

/* A word of up to 32 bytes, padded with zeros. */
typedef struct key {
    uint64_t words[4];
    size_t length;  /* 0 if too long for the cache */
    uint32_t place; /* index of the first of the word's two places */
} key;

typedef struct entry {
    uint64_t words[4];
    uint16_t length; /* 0 if free */
    uint16_t count;
    int32_t ids[KEY_IDS];
} entry;

struct cpl_encoder {
    const cpl_tokenizer *t;
    bool special_as_text;
    int64_t repaired;
    entry *cache;
    cpl_text whole;    /* the repaired text */
    cpl_text normal;   /* the normalised piece */
    cpl_text prefixed; /* the part with a space in front */
    cpl_nfc nfc;
    cpl_merge_scratch scratch;
};

cpl_status cpl_encoder_init(cpl_encoder **out, const cpl_tokenizer *t, bool special_as_text)
{
    *out           = NULL;
    cpl_encoder *e = cpl_alloc(sizeof *e);
    if (!e) return CPL_ERR_MEMORY;
    *e       = (cpl_encoder){.t = t, .special_as_text = special_as_text};
    e->cache = cpl_alloc(sizeof(entry) * 2 << CACHE_BITS);
    if (!e->cache) {
        cpl_encoder_free(e);
        return CPL_ERR_MEMORY;
    }
    memset(e->cache, 0, sizeof(entry) * 2 << CACHE_BITS);
    *out = e;
    return CPL_OK;
}

void cpl_encoder_free(cpl_encoder *e)
{
    if (!e) return;
    cpl_free(e->cache);
    cpl_text_free(&e->whole);
    cpl_text_free(&e->normal);
    cpl_text_free(&e->prefixed);
    cpl_nfc_free(&e->nfc);
    cpl_merge_scratch_free(&e->scratch);
    cpl_free(e);
}

int64_t cpl_encoder_repaired(const cpl_encoder *e)
{
    return e->repaired;
}

static cpl_status reserve(cpl_ids *ids, size_t more)
{
    if ((size_t)(ids->capacity - ids->count) >= more) return CPL_OK;
    if (more > PTRDIFF_MAX / 16)
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory: %zu ids at once", more);
    size_t capacity = (size_t)ids->capacity * 2 + more + 256;
    int32_t *at     = cpl_realloc(ids->at, capacity * sizeof *at);
    if (!at) return CPL_ERR_MEMORY;
    ids->at       = at;
    ids->capacity = (int64_t)capacity;
    return CPL_OK;
}

/* Returns the first n of 8 bytes in the machine's order, and zero for the other bytes. */
static inline uint64_t first_bytes(uint64_t word, size_t n)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return n >= 8 ? word : n == 0 ? 0 : word & ~(UINT64_MAX >> (8 * n));
#else
    return n >= 8 ? word : word & ~(UINT64_MAX << (8 * n));
#endif
}

static inline uint64_t rotated(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline uint32_t place_of(const key *k)
{
    uint64_t h = k->words[0] * 0x9E3779B97F4A7C15u ^ rotated(k->words[1], 29) * 0xC2B2AE3D27D4EB4Fu;
    h ^= rotated(k->words[2], 17) * 0x165667B19E3779F9u + k->words[3] * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 32) * 0xFF51AFD7ED558CCDu;
    return (uint32_t)(h >> (64 - CACHE_BITS)) * 2;
}

/* Computes the key of a word. `readable` >= `length` is the number of bytes from `word` on that may
 * be read. */
static inline void make_key(key *k, const char *word, size_t length, size_t readable)
{
    uint64_t words[4] = {0};
    k->length         = 0;
    k->place          = 0;
    if (length > KEY_BYTES) return;
    k->length = length;
    if (readable < KEY_BYTES) {
        memcpy(words, word, length);
        memcpy(k->words, words, sizeof words);
    } else if (length <= 16) {
        memcpy(words, word, 16);
        k->words[0] = first_bytes(words[0], length);
        k->words[1] = length > 8 ? first_bytes(words[1], length - 8) : 0;
        k->words[2] = k->words[3] = 0;
    } else {
        memcpy(words, word, 32);
        k->words[0] = words[0];
        k->words[1] = words[1];
        k->words[2] = first_bytes(words[2], length - 16);
        k->words[3] = length > 24 ? first_bytes(words[3], length - 24) : 0;
    }
    k->place = place_of(k);
}

static inline bool holds(const entry *place, const key *k)
{
    uint64_t differ = (place->words[0] ^ k->words[0]) | (place->words[1] ^ k->words[1]) |
                      (place->words[2] ^ k->words[2]) | (place->words[3] ^ k->words[3]);
    return (differ | (place->length ^ k->length)) == 0;
}

/* Returns the cache entry of the word, moved to the first of its two places, or NULL. */
static inline const entry *find(cpl_encoder *e, const key *k)
{
    entry *place = e->cache + k->place;
    if (k->length == 0) return NULL;
    if (holds(place, k)) return place;
    if (!holds(place + 1, k)) return NULL;
    entry first = place[0];
    place[0]    = place[1];
    place[1]    = first;
    return place;
}

/* Merges a word and stores it in the cache if it fits. `ids` must have room for `length` ids. */
static cpl_status encode_new(cpl_encoder *e, cpl_ids *ids, const char *word, size_t length,
                             const key *k)
{
    int32_t *to = ids->at + ids->count;
    size_t count;
    CPL_TRY(cpl_merge_word(&e->t->merges, &e->scratch, word, length, to, &count));
    ids->count += (int64_t)count;
    if (k->length == 0 || count > KEY_IDS) return CPL_OK;
    entry *place = e->cache + k->place;
    place[1]     = place[0];
    memcpy(place->words, k->words, sizeof place->words);
    memcpy(place->ids, to, count * sizeof *to);
    place->length = (uint16_t)length;
    place->count  = (uint16_t)count;
    return CPL_OK;
}

/* Encodes the words that end at ends[0..n). The first word begins at `start`. */
static cpl_status encode_batch(cpl_encoder *e, cpl_ids *ids, const char *text, size_t length,
                               size_t start, const size_t *ends, size_t n)
{
    key keys[BATCH];
    for (size_t i = 0, at = start; i < n; at = ends[i++]) {
        make_key(keys + i, text + at, ends[i] - at, length - at);
        if (keys[i].length == 0) continue;
        __builtin_prefetch(e->cache + keys[i].place);
        __builtin_prefetch(e->cache + keys[i].place + 1);
    }
    CPL_TRY(reserve(ids, ends[n - 1] - start + KEY_IDS));
    for (size_t i = 0, at = start; i < n; at = ends[i++]) {
        const entry *place = find(e, keys + i);
        if (place) {
            memcpy(ids->at + ids->count, place->ids, sizeof place->ids);
            ids->count += place->count;
        } else {
            CPL_TRY(encode_new(e, ids, text + at, ends[i] - at, keys + i));
        }
    }
    return CPL_OK;
}

/* Encodes text without added tokens. */
static cpl_status encode_words(cpl_encoder *e, cpl_ids *ids, const char *text, size_t length)
{
    size_t ends[BATCH], at = 0;
    if (e->t->prefix_space && length > 0 && text[0] != ' ') {
        cpl_text_clear(&e->prefixed);
        cpl_text_char(&e->prefixed, ' ');
        cpl_text_append(&e->prefixed, text, length);
        CPL_TRY(cpl_text_status(&e->prefixed));
        text = e->prefixed.bytes;
        length++;
    }
    while (at < length) {
        size_t start = at, n = cpl_split(e->t->split, text, length, &at, ends, BATCH);
        CPL_TRY(encode_batch(e, ids, text, length, start, ends, n));
    }
    return CPL_OK;
}

typedef cpl_status encode_piece(cpl_encoder *e, cpl_ids *ids, const char *text, size_t length);

/* Splits text at the added tokens of a set: appends their ids, and calls `inner` for the pieces
 * between. */
static cpl_status encode_around(cpl_encoder *e, cpl_ids *ids, const char *text, size_t length,
                                const cpl_added_set *set, encode_piece *inner)
{
    const cpl_added *hit;
    size_t start = 0, from = 0;
    for (size_t at; (at = cpl_added_find(set, text, length, from, &hit)) < length;) {
        from = at + hit->length;
        if (hit->special && e->special_as_text) continue;
        CPL_TRY(inner(e, ids, text + start, at - start));
        CPL_TRY(reserve(ids, 1));
        ids->at[ids->count++] = hit->id;
        start                 = from;
    }
    return inner(e, ids, text + start, length - start);
}

static cpl_status encode_normalized(cpl_encoder *e, cpl_ids *ids, const char *text, size_t length)
{
    if (e->t->nfc && !cpl_nfc_is_plain(text, length)) {
        cpl_text_clear(&e->normal);
        CPL_TRY(cpl_nfc_append(&e->nfc, &e->normal, text, length));
        text   = e->normal.bytes;
        length = e->normal.length;
    }
    return encode_around(e, ids, text, length, &e->t->normalized, encode_words);
}

cpl_status cpl_encoder_append(cpl_encoder *e, cpl_ids *ids, const char *text, size_t length)
{
    int64_t before = ids->count, repaired = 0;
    if (length == 0) return CPL_OK;
    if (!cpl_unicode_is_utf8(text, length)) {
        cpl_text_clear(&e->whole);
        repaired = cpl_utf8_repair(&e->whole, text, length);
        CPL_TRY(cpl_text_status(&e->whole));
        text   = e->whole.bytes;
        length = e->whole.length;
    }
    cpl_status status = encode_around(e, ids, text, length, &e->t->raw, encode_normalized);
    if (status == CPL_OK)
        e->repaired += repaired;
    else
        ids->count = before;
    return status;
}
