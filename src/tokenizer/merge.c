/* merge.c - byte-pair encoding of one word, see internal.h.
 *
 * Nearly all words are short: each step searches all ranks for the lowest. Long words (lines of
 * "=====", base64, Chinese without spaces) use a linked list of tokens and a heap of candidates,
 * O(n log n). An entry of the heap is outdated if the pair now at its place has another rank. Ranks
 * are distinct and identify the pair. */
#include "tokenizer/internal.h"

#include <string.h>

#include "base/arena.h"

enum { SHORT_WORD = 48 };

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline uint32_t place_of(uint64_t pair)
{
    pair *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(pair >> 32) ^ (uint32_t)(pair >> 47);
}

cpl_status cpl_merges_init(cpl_merges *merges, uint32_t count)
{
    uint32_t places = 2;
    while (places < count * (uint64_t)2) places *= 2;
    merges->at = cpl_alloc(places * sizeof *merges->at);
    if (!merges->at) return CPL_ERR_MEMORY;
    memset(merges->at, 0xFF, places * sizeof *merges->at);
    merges->mask  = places - 1;
    merges->count = 0;
    return CPL_OK;
}

void cpl_merges_free(cpl_merges *merges)
{
    cpl_free(merges->at);
    cpl_free(merges->byte_pairs);
    merges->at         = NULL;
    merges->byte_pairs = NULL;
}

void cpl_merges_add(cpl_merges *merges, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t pair  = pair_of(left, right);
    uint32_t place = place_of(pair) & merges->mask;
    while (merges->at[place].pair != UINT64_MAX && merges->at[place].pair != pair)
        place = (place + 1) & merges->mask;
    merges->count += merges->at[place].pair == UINT64_MAX;
    CPL_ASSERT(merges->count <= merges->mask);
    merges->at[place] = (cpl_merge){.pair = pair, .rank = rank, .id = id};
}

/* Returns the rank of a pair, or CPL_NO_RANK. Sets *id to the joined token. */
static inline int32_t rank_of(const cpl_merges *merges, int32_t left, int32_t right, int32_t *id)
{
    uint64_t pair = pair_of(left, right);
    for (uint32_t place = place_of(pair) & merges->mask;; place = (place + 1) & merges->mask) {
        const cpl_merge *merge = merges->at + place;
        if (merge->pair == pair) {
            *id = merge->id;
            return merge->rank;
        }
        if (merge->pair == UINT64_MAX) return CPL_NO_RANK;
    }
}

/* Returns the rank and the joined token of a pair in one number that sorts by rank. */
static inline uint64_t offer_of(const cpl_merges *merges, int32_t left, int32_t right)
{
    int32_t id = 0, rank = rank_of(merges, left, right, &id);
    return (uint64_t)rank << 32 | (uint32_t)id;
}

cpl_status cpl_merges_finish(cpl_merges *merges)
{
    merges->byte_pairs = cpl_alloc(256 * 256 * sizeof *merges->byte_pairs);
    if (!merges->byte_pairs) return CPL_ERR_MEMORY;
    for (size_t pair = 0; pair < 256 * 256; pair++)
        merges->byte_pairs[pair] =
            offer_of(merges, merges->byte_id[pair >> 8], merges->byte_id[pair & 255]);
    return CPL_OK;
}

static size_t byte_tokens(const cpl_merges *merges, const char *word, size_t n, int32_t *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        ids[count] = merges->byte_id[(unsigned char)word[i]];
        count += ids[count] >= 0;
    }
    return count;
}

/* Merges a short word in place. `ids` are initially the ids of the n bytes of `word`. Returns the
 * number of tokens. */
static size_t merge_short(const cpl_merges *merges, const char *word, int32_t *ids, size_t n)
{
    const uint64_t none       = (uint64_t)CPL_NO_RANK << 32;
    const unsigned char *byte = (const unsigned char *)word;
    uint64_t offers[SHORT_WORD]; /* offer_of token i and the next */
    for (size_t i = 0; i + 1 < n; i++)
        offers[i] = merges->byte_pairs[(size_t)byte[i] << 8 | byte[i + 1]];
    while (n > 1) {
        uint64_t best = none;
        size_t at     = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            at   = offers[i] < best ? i : at;
            best = offers[i] < best ? offers[i] : best;
        }
        if (best == none) break;
        ids[at] = (int32_t)(uint32_t)best;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        if (at + 1 < n) {
            memmove(offers + at, offers + at + 1, (n - at - 1) * sizeof *offers);
            offers[at] = offer_of(merges, ids[at], ids[at + 1]);
        }
        if (at > 0) offers[at - 1] = offer_of(merges, ids[at - 1], ids[at]);
    }
    return n;
}

/* A long word. Node i is the token from byte i on, with id -1 if joined to an earlier node. */
typedef struct list {
    const cpl_merges *merges;
    int32_t *ids;
    uint32_t *next, *prev; /* n and UINT32_MAX at the ends */
    uint64_t *heap;        /* rank << 32 | node, the smallest on top */
    size_t heaped;
    uint32_t n;
} list;

static void heap_push(list *l, uint64_t entry)
{
    size_t at = l->heaped++;
    for (; at > 0 && l->heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        l->heap[at] = l->heap[(at - 1) / 2];
    l->heap[at] = entry;
}

static uint64_t heap_pop(list *l)
{
    uint64_t top = l->heap[0], last = l->heap[--l->heaped];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < l->heaped; at = child) {
        if (child + 1 < l->heaped && l->heap[child + 1] < l->heap[child]) child++;
        if (l->heap[child] >= last) break;
        l->heap[at] = l->heap[child];
    }
    l->heap[at] = last;
    return top;
}

static int32_t node_rank(const list *l, uint32_t node, int32_t *id)
{
    if (l->ids[node] < 0 || l->next[node] == l->n) return CPL_NO_RANK;
    return rank_of(l->merges, l->ids[node], l->ids[l->next[node]], id);
}

static void offer(list *l, uint32_t node)
{
    int32_t id, rank = node_rank(l, node, &id);
    if (rank != CPL_NO_RANK) heap_push(l, (uint64_t)rank << 32 | node);
}

/* Joins `node` and the next node. */
static void join(list *l, uint32_t node, int32_t id)
{
    uint32_t gone = l->next[node];
    l->ids[node]  = id;
    l->ids[gone]  = -1;
    l->next[node] = l->next[gone];
    if (l->next[gone] != l->n) l->prev[l->next[gone]] = node;
    if (l->prev[node] != UINT32_MAX) offer(l, l->prev[node]);
    offer(l, node);
}

/* Allocates the list. Each join removes one entry of the heap and adds at most two, so 2 n entries
 * are enough. */
static cpl_status list_init(list *l, cpl_merge_scratch *scratch)
{
    size_t bytes = (size_t)l->n * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t));
    if (bytes > scratch->bytes) {
        void *memory = cpl_realloc(scratch->memory, bytes);
        if (!memory) return CPL_ERR_MEMORY;
        scratch->memory = memory;
        scratch->bytes  = bytes;
    }
    l->heap   = scratch->memory;
    l->next   = (uint32_t *)(l->heap + (size_t)2 * l->n);
    l->prev   = l->next + l->n;
    l->heaped = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        l->next[i] = i + 1;
        l->prev[i] = i - 1;
    }
    return CPL_OK;
}

static cpl_status merge_long(const cpl_merges *merges, cpl_merge_scratch *scratch, int32_t *ids,
                             size_t *count)
{
    list l = {.merges = merges, .ids = ids, .n = (uint32_t)*count};
    CPL_TRY(list_init(&l, scratch));
    for (uint32_t i = 0; i < l.n; i++) offer(&l, i);
    while (l.heaped > 0) {
        uint64_t top  = heap_pop(&l);
        uint32_t node = (uint32_t)top;
        int32_t id;
        if (node_rank(&l, node, &id) == (int32_t)(top >> 32)) join(&l, node, id);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < l.n; i = l.next[i]) ids[kept++] = ids[i];
    *count = kept;
    return CPL_OK;
}

void cpl_merge_scratch_free(cpl_merge_scratch *scratch)
{
    cpl_free(scratch->memory);
    memset(scratch, 0, sizeof *scratch);
}

cpl_status cpl_merge_word(const cpl_merges *merges, cpl_merge_scratch *scratch, const char *word,
                          size_t n, int32_t *ids, size_t *count)
{
    if (n > INT32_MAX)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "the text has a word of %zu bytes; at most %d can be encoded", n,
                        INT32_MAX);
    *count = byte_tokens(merges, word, n, ids);
    if (*count == n && n <= SHORT_WORD)
        *count = merge_short(merges, word, ids, n);
    else
        CPL_TRY(merge_long(merges, scratch, ids, count));
    return CPL_OK;
}
