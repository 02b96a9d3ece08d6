/* listing.h - lists the tokens and merges of a loaded tokenizer, for files of other programs.
 *
 * Room:   tokenizer. */
#ifndef CPL_TOKENIZER_LISTING_H
#define CPL_TOKENIZER_LISTING_H

#include "tokenizer/tokenizer.h"

/* The two supported patterns, which split a whole text into words. */
typedef enum cpl_split_kind {
    CPL_SPLIT_GPT2,  /* 's|'t|... ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    CPL_SPLIT_DOLMA2 /* contractions in any case, 3 digits, words with one mark before them */
} cpl_split_kind;

/* The treatment of a text before its words are encoded. */
typedef struct cpl_tokenizer_traits {
    cpl_split_kind split;
    bool nfc, prefix_space; /* prefix_space: a piece that begins without a space gets a space */
} cpl_tokenizer_traits;

cpl_tokenizer_traits cpl_tokenizer_traits_of(const cpl_tokenizer *t);

typedef enum cpl_token_kind {
    CPL_TOKEN_ABSENT, /* no token has this id */
    CPL_TOKEN_NORMAL,
    CPL_TOKEN_ADDED,  /* searched in the text before any other step */
    CPL_TOKEN_SPECIAL /* an added token that decoding can skip */
} cpl_token_kind;

/* Returns the kind of token `id` >= 0. Returns ABSENT for ids from the vocabulary's size on. */
cpl_token_kind cpl_tokenizer_kind_of(const cpl_tokenizer *t, int64_t id);

/* Appends the token's text as spelled in tokenizer.json: added tokens unchanged, other tokens in
 * the byte-level alphabet (a space is U+0120), nothing for ABSENT. */
void cpl_tokenizer_spell(cpl_text *out, const cpl_tokenizer *t, int64_t id);

/* Two tokens that are joined. */
typedef struct cpl_token_pair {
    int32_t left, right, rank; /* a lower rank joins earlier */
} cpl_token_pair;

/* Sets a new array of the merges by rank, or NULL without merges. The caller frees the array with
 * cpl_free. A pair that occurs twice in the file is listed once, at its first place. */
CPL_NODISCARD cpl_status cpl_tokenizer_list_merges(cpl_token_pair **merges, int64_t *count,
                                                   const cpl_tokenizer *t);

#endif /* CPL_TOKENIZER_LISTING_H */
