/* bpe.h - the state of a trainer: words and tokens with their counts, and pairs of neighbours.
 *
 * Room:  tokenizer. Other rooms do not include it. */
#ifndef CPL_TOKENIZER_BPE_H
#define CPL_TOKENIZER_BPE_H

#include "tokenizer/internal.h"
#include "tokenizer/unicode.h"

/* ---- byte strings, numbered in the order of first occurrence, each with a count (tally.c) ---- */

typedef struct cpl_tally_entry {
    size_t start, length; /* bytes in cpl_tally.bytes */
    int64_t count;        /* initially 0, changed by the caller */
} cpl_tally_entry;

/* All zero is a valid empty tally. */
typedef struct cpl_tally {
    cpl_text bytes;
    cpl_tally_entry *at; /* [count] */
    uint32_t count;
    size_t capacity;
    uint32_t *table; /* number + 1 by hash, 0 if free; at most half full */
    uint32_t mask;   /* places - 1 */
} cpl_tally;

void cpl_tally_free(cpl_tally *tally);

/* Sets *number to the number of the string. A new string is added with count 0. A tally holds at
 * most 2^31 - 1 strings. On failure the tally is unchanged. */
CPL_NODISCARD cpl_status cpl_tally_number(cpl_tally *tally, const void *bytes, size_t length,
                                          uint32_t *number);

/* Grows a list of `count` items for one more item. `list` is the address of the pointer to the
 * list. */
CPL_NODISCARD cpl_status cpl_tally_grow(void *list, size_t *capacity, size_t count,
                                        size_t item_bytes);

/* ---- pairs of neighbouring tokens: their counts, their words, and the most frequent pair
 * (pairs.c) ---- */

enum { CPL_NO_PAIR = UINT32_MAX };

typedef struct cpl_pair {
    int32_t left, right;
} cpl_pair;

typedef struct cpl_pair_candidate {
    int64_t count;
    cpl_pair pair;
    uint32_t number;
} cpl_pair_candidate;

/* One word in the list of a pair. */
typedef struct cpl_pair_word {
    uint32_t word, next; /* next: place in cpl_pairs.words, CPL_NO_PAIR at the end */
} cpl_pair_word;

typedef struct cpl_pair_state {
    uint32_t first; /* head of the list of its words */
    bool waiting;   /* the pair is in cpl_pairs.grown */
    bool joined;    /* set by the trainer: the pair is among the merges */
} cpl_pair_state;

/* All zero is a valid empty set. */
typedef struct cpl_pairs {
    cpl_tally tally;       /* numbers and counts of cpl_pair */
    cpl_pair_state *state; /* indexed by number */
    size_t state_capacity;
    cpl_pair_word *words;
    size_t word_count, word_capacity;
    uint32_t *grown; /* pairs whose count rose since cpl_pairs_offer */
    size_t grown_count, grown_capacity;
    cpl_pair_candidate *heap; /* the best on top; entries may be outdated */
    size_t heap_count, heap_capacity;
} cpl_pairs;

void cpl_pairs_free(cpl_pairs *pairs);

/* Adds `count` to a pair. If `count` is positive, records the word and marks the pair for
 * cpl_pairs_offer. */
CPL_NODISCARD cpl_status cpl_pairs_add(cpl_pairs *pairs, cpl_pair pair, int64_t count,
                                       uint32_t word);

/* Adds the pairs whose count rose since the last call to the candidates. */
CPL_NODISCARD cpl_status cpl_pairs_offer(cpl_pairs *pairs);

/* Removes the best candidate: the pair with the highest count, then the smaller left id, then the
 * smaller right id. Returns its number, or CPL_NO_PAIR if no pair has a count of at least `least`
 * (1 or more). */
uint32_t cpl_pairs_take(cpl_pairs *pairs, int64_t least, cpl_pair *pair);

/* ---- the trainer (train.c) ---- */

enum {
    CPL_BPE_SPECIALS = 2, /* ids 0 and 1 */
    CPL_BPE_LEAST    = 256 + CPL_BPE_SPECIALS,
    CPL_BPE_MOST     = 1000000,
    CPL_BPE_EOS_MOST = 100, /* limit of the separator, bytes */
};

struct cpl_bpe_trainer {
    cpl_bpe_settings settings;            /* eos points to `contents` */
    char contents[CPL_BPE_EOS_MOST + 16]; /* texts of the special tokens, each with a NUL */
    cpl_added special[CPL_BPE_SPECIALS];
    cpl_added_set specials; /* index of special[] */
    cpl_tally words;
    cpl_tally tokens; /* number = id: special contents, then bytes */
    bool trained;
    cpl_text repaired, normal; /* one document after repair, and after NFC */
    cpl_nfc nfc;
    cpl_pairs pairs;
    cpl_pair *merges; /* [n_merges] in the order of joining */
    size_t n_merges, merge_capacity;
};

#endif /* CPL_TOKENIZER_BPE_H */
