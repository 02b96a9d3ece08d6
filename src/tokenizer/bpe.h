/* bpe.h - what a trainer holds: words and tokens with their counts, and the pairs of neighbours.
 *
 * Room:  tokenizer. Not for other rooms. */
#ifndef CPL_TOKENIZER_BPE_H
#define CPL_TOKENIZER_BPE_H

#include "tokenizer/internal.h"
#include "tokenizer/unicode.h"

/* ---- byte strings, numbered in the order of first occurrence, each with a count (tally.c) ---- */

typedef struct cpl_tally_entry {
    size_t start, length; /* bytes in cpl_tally.bytes */
    int64_t count;        /* 0 at first; the caller's to change */
} cpl_tally_entry;

/* All zero is a valid empty tally. */
typedef struct cpl_tally {
    cpl_text bytes;
    cpl_tally_entry *at; /* [count] */
    uint32_t count;
    size_t capacity;
    uint32_t *table; /* number + 1 by hash, 0 is free; at most half full */
    uint32_t mask;   /* places - 1 */
} cpl_tally;

void cpl_tally_free(cpl_tally *tally);

/* Sets *number to that of the string, which is added with count 0 if it is new. At most 2^31 - 1
 * strings. On failure the tally is as before. */
CPL_NODISCARD cpl_status cpl_tally_number(cpl_tally *tally, const void *bytes, size_t length,
                                          uint32_t *number);

/* Room for one more item in a list of `count`: `list` is the address of the pointer to it. */
CPL_NODISCARD cpl_status cpl_tally_grow(void *list, size_t *capacity, size_t count,
                                        size_t item_bytes);

/* ---- the pairs of neighbouring tokens: how often each occurs in the words, in which words, and
 * which is the most frequent (pairs.c) ---- */

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
    uint32_t first; /* the head of the list of its words */
    bool waiting;   /* in cpl_pairs.grown */
    bool joined;    /* the trainer's: it is among the merges */
} cpl_pair_state;

/* All zero is a valid empty set. */
typedef struct cpl_pairs {
    cpl_tally tally;       /* of cpl_pair: numbers and counts */
    cpl_pair_state *state; /* by number */
    size_t state_capacity;
    cpl_pair_word *words;
    size_t word_count, word_capacity;
    uint32_t *grown; /* pairs that gained since cpl_pairs_offer */
    size_t grown_count, grown_capacity;
    cpl_pair_candidate *heap; /* the best on top; an entry may be out of date */
    size_t heap_count, heap_capacity;
} cpl_pairs;

void cpl_pairs_free(cpl_pairs *pairs);

/* Adds `count` to a pair. If it is positive the word is noted, and the pair will be offered. */
CPL_NODISCARD cpl_status cpl_pairs_add(cpl_pairs *pairs, cpl_pair pair, int64_t count,
                                       uint32_t word);

/* Makes candidates of the pairs that gained since the last call. */
CPL_NODISCARD cpl_status cpl_pairs_offer(cpl_pairs *pairs);

/* Takes the best pair: the highest count, then the smaller left id, then the smaller right id.
 * Returns its number, or CPL_NO_PAIR if none has a count of at least `least` (1 or more). */
uint32_t cpl_pairs_take(cpl_pairs *pairs, int64_t least, cpl_pair *pair);

/* ---- the trainer (train.c) ---- */

enum {
    CPL_BPE_SPECIALS = 2, /* ids 0 and 1 */
    CPL_BPE_LEAST    = 256 + CPL_BPE_SPECIALS,
    CPL_BPE_MOST     = 1000000,
    CPL_BPE_EOS_MOST = 100, /* bytes */
};

struct cpl_bpe_trainer {
    cpl_bpe_settings settings;            /* eos points to `contents` */
    char contents[CPL_BPE_EOS_MOST + 16]; /* of the special tokens, each with a NUL */
    cpl_added special[CPL_BPE_SPECIALS];
    cpl_added_set specials; /* of special[] */
    cpl_tally words;
    cpl_tally tokens; /* by id: special contents, then bytes */
    bool trained;
    cpl_text repaired, normal; /* of one document */
    cpl_nfc nfc;
    cpl_pairs pairs;
    cpl_pair *merges; /* [n_merges] in the order of joining */
    size_t n_merges, merge_capacity;
};

#endif /* CPL_TOKENIZER_BPE_H */
