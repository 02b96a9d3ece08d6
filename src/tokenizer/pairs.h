/* pairs.h - the pairs of neighbouring tokens while a tokenizer is trained: how often each
 * stands in the words, in which words, and which is the most frequent.
 *
 * Room:  tokenizer. Private to src/io/tokenizer*. */
#ifndef CPL_TOKENIZER_PAIRS_H
#define CPL_TOKENIZER_PAIRS_H

#include <stdbool.h>

#include "tokenizer/tally.h"

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

#endif /* CPL_TOKENIZER_PAIRS_H */
