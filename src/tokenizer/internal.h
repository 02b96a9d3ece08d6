/* internal.h - what a loaded tokenizer consists of.
 *
 * Room:  tokenizer. Private to src/io/tokenizer*. */
#ifndef CPL_TOKENIZER_INTERNAL_H
#define CPL_TOKENIZER_INTERNAL_H

#include "tokenizer/merge.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer.h"

enum {
    CPL_TOKEN_MAX_ID    = (1 << 22) - 1, /* bounds the table that a small file can ask for */
    CPL_ALPHABET_POINTS = 256 + 68,      /* code points 0 to 143 (hex) can stand for a byte */
};

typedef struct cpl_token {
    uint32_t start, length; /* bytes in cpl_tokenizer.bytes */
    bool present, added, special;
} cpl_token;

struct cpl_tokenizer {
    cpl_token *tokens; /* [vocab_size] */
    int64_t vocab_size;
    cpl_text bytes; /* of all tokens, one after the other */
    int32_t eos;
    bool nfc, prefix_space; /* prefix_space: a word's space is put before every piece without one */
    cpl_split_kind split;
    cpl_merges merges;
    cpl_added_set raw, normalized; /* searched before and after normalisation */
    uint64_t hash;
};

/* The byte-level alphabet: sets point_of[b] to the code point that stands for byte b. */
void cpl_alphabet_points(uint32_t point_of[256]);

/* Its inverse: byte_of[code point] or -1. */
void cpl_alphabet_bytes(int16_t byte_of[CPL_ALPHABET_POINTS]);

#endif /* CPL_TOKENIZER_INTERNAL_H */
