/* internal.h - the parts of a loaded tokenizer: BPE of one word, words of a text, reading of files.
 *
 * Room:   tokenizer. Other rooms do not include it.
 * Merges: of all pairs of neighbouring tokens that have a merge, the pair with the lowest rank (the
 *         leftmost of equal pairs) becomes one token. This repeats until no pair has a merge. */
#ifndef CPL_TOKENIZER_INTERNAL_H
#define CPL_TOKENIZER_INTERNAL_H

#include <jansson.h>

#include "tokenizer/listing.h"
#include "tokenizer/tokenizer.h"

/* ---- byte-pair encoding of one word (merge.c) ---- */

enum { CPL_NO_RANK = INT32_MAX };

typedef struct cpl_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX if the place is free */
    int32_t rank;  /* index in the list of merges, distinct; lower ranks join earlier */
    int32_t id;    /* id of the joined token */
} cpl_merge;

/* Merges by pair: open addressing, at most half full. All zero is an empty table. */
typedef struct cpl_merges {
    cpl_merge *at;
    uint32_t mask; /* places - 1 */
    uint32_t count;
    int32_t byte_id[256]; /* the token of a single byte, or -1 */
    uint64_t *byte_pairs; /* [256 * 256] merges of two bytes: rank << 32 | id */
} cpl_merges;

CPL_NODISCARD cpl_status cpl_merges_init(cpl_merges *merges, uint32_t count);
void cpl_merges_free(cpl_merges *merges);

/* Adds one merge. There may be at most as many merges as cpl_merges_init announced. A later merge
 * of a pair replaces an earlier merge of that pair. */
void cpl_merges_add(cpl_merges *merges, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Sets byte_pairs, after byte_id and all merges are set. Nearly every word begins with merges of
 * two bytes, and in byte_pairs the few pairs of letters are close together in memory. */
CPL_NODISCARD cpl_status cpl_merges_finish(cpl_merges *merges);

/* Scratch memory for long words. All zero is valid. */
typedef struct cpl_merge_scratch {
    void *memory;
    size_t bytes;
} cpl_merge_scratch;
void cpl_merge_scratch_free(cpl_merge_scratch *scratch);

/* Writes the ids of `word` (n bytes, at least 1) to ids, which has room for n, and sets *count.
 * Words beyond 2 GiB give CPL_ERR_INPUT. Bytes without a token do not occur in UTF-8 and are
 * skipped. */
CPL_NODISCARD cpl_status cpl_merge_word(const cpl_merges *merges, cpl_merge_scratch *scratch,
                                        const char *word, size_t n, int32_t *ids, size_t *count);

/* ---- splitting text into words, and finding added tokens (split.c) ---- */

/* Splits well-formed UTF-8 from *at on into up to `max` words. Sets ends[i] to the end of word i
 * and *at to the end of the last word. Returns the number of words. The text ends at `length`. */
size_t cpl_split(cpl_split_kind kind, const char *text, size_t length, size_t *at, size_t *ends,
                 size_t max);

/* Sets *kind to the kind whose regular expression, as written in tokenizer.json, is `pattern`.
 * Returns false for an unknown pattern. */
bool cpl_split_known(const char *pattern, cpl_split_kind *kind);

typedef struct cpl_added {
    uint32_t start, length; /* position of the token in the set's bytes; length at least 1 */
    int32_t id;
    bool special;
} cpl_added;

/* Added tokens to be found in one pass. `first` and `second` have a common bit for two bytes only
 * if a token may begin with them, so that nearly no position needs a comparison. */
typedef struct cpl_added_set {
    cpl_added *at;       /* sorted by first byte, then by falling length */
    const char *bytes;   /* the texts of the tokens; not owned */
    uint32_t begin[257]; /* tokens with first byte b: begin[b] to begin[b + 1] */
    uint32_t count;
    uint8_t first[256], second[256];
    int only; /* the first byte of all tokens, or -1 if they differ */
} cpl_added_set;

/* Sorts at[0..count), whose texts are in `contents`, and sets the other fields. */
void cpl_added_index(cpl_added_set *set, const char *contents);

/* Returns the first position at or after `from` with a token of the set. Sets *hit to the longest
 * token there. If no token occurs, returns `length` and sets *hit to NULL. */
size_t cpl_added_find(const cpl_added_set *set, const char *text, size_t length, size_t from,
                      const cpl_added **hit);

/* ---- the tokenizer (tokenizer.c) ---- */

enum {
    CPL_TOKEN_MAX_ID    = (1 << 22) - 1, /* bounds the table that a small file can request */
    CPL_ALPHABET_POINTS = 256 + 68,      /* code points 0 to 143 (hex) can represent a byte */
};

typedef struct cpl_token {
    uint32_t start, length; /* bytes in cpl_tokenizer.bytes */
    bool present, added, special;
} cpl_token;

struct cpl_tokenizer {
    cpl_token *tokens; /* [vocab_size] */
    int64_t vocab_size;
    cpl_text bytes; /* texts of all tokens */
    int32_t eos;
    bool nfc, prefix_space; /* prefix_space: a piece that begins without a space gets a space */
    cpl_split_kind split;
    cpl_merges merges;
    cpl_added_set raw, normalized; /* searched before and after normalisation */
    uint64_t hash;
    cpl_text ignored; /* warnings about ignored parts of the file; may be empty */
};

/* Computes the byte-level alphabet: sets point_of[b] to the code point that represents byte b. */
void cpl_tokenizer_alphabet_points(uint32_t point_of[256]);

/* Computes the inverse alphabet: sets byte_of[code point] to the byte, or -1. */
void cpl_tokenizer_alphabet_bytes(int16_t byte_of[CPL_ALPHABET_POINTS]);

/* ---- reading a tokenizer's file, for load.c (tokens.c) ---- */

/* Reads the vocabulary {"token": id, ...} and the list of added tokens (NULL or an array) into the
 * table of `t`, which must be empty, with the sets of added tokens and the ids of single bytes. */
CPL_NODISCARD cpl_status cpl_tokenizer_read_tokens(cpl_tokenizer *t, json_t *vocab,
                                                   const json_t *added, const char *path);

/* Reads merges from an array of "a b" or ["a", "b"], or from the lines `a b` of a text, whose first
 * line may be a "#version". Both functions need the vocabulary for the ids. */
CPL_NODISCARD cpl_status cpl_tokenizer_read_merges(cpl_tokenizer *t, const json_t *vocab,
                                                   const json_t *merges, const char *path);
CPL_NODISCARD cpl_status cpl_tokenizer_read_merge_lines(cpl_tokenizer *t, const json_t *vocab,
                                                        const cpl_text *lines, const char *path);

/* Checks a file with ignore_merges, with which a word that is a token becomes that token. Returns
 * CPL_ERR_INPUT if the merges give other ids for such a word. */
CPL_NODISCARD cpl_status cpl_tokenizer_check_words(const cpl_tokenizer *t, const char *path);

#endif /* CPL_TOKENIZER_INTERNAL_H */
