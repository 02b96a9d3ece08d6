/* split.h - cuts text into the words that BPE works on, and finds added tokens in it.
 *
 * Room:  tokenizer. Not for other rooms. */
#ifndef CPL_TOKENIZER_SPLIT_H
#define CPL_TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The two patterns that are known. Both tile the text. */
typedef enum cpl_split_kind {
    CPL_SPLIT_GPT2,  /* 's|'t|... ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    CPL_SPLIT_DOLMA2 /* contractions in any case, digits in threes, words with one mark before them
                      */
} cpl_split_kind;

/* Cuts well-formed UTF-8 from *at on, up to `max` words: sets ends[i] to where word i ends and *at
 * to where the last one does; returns how many. The end of the text is `length`. */
size_t cpl_split(cpl_split_kind kind, const char *text, size_t length, size_t *at, size_t *ends,
                 size_t max);

/* The kind whose regular expression, as written in tokenizer.json, is `pattern`; false if none is.
 */
bool cpl_split_known(const char *pattern, cpl_split_kind *kind);

typedef struct cpl_added {
    uint32_t start, length; /* what is looked for: bytes of the set; length at least 1 */
    int32_t id;
    bool special;
} cpl_added;

/* Added tokens to be found in one pass. `first` and `second` have a common bit for two bytes only
 * if some token may begin with them, which settles nearly every place without a comparison. */
typedef struct cpl_added_set {
    cpl_added *at;       /* by first byte, the longest first within it */
    const char *bytes;   /* what `start` counts in; not owned */
    uint32_t begin[257]; /* tokens with first byte b: begin[b] to begin[b + 1] */
    uint32_t count;
    uint8_t first[256], second[256];
    int only; /* the first byte of all of them; -1 if they differ */
} cpl_added_set;

/* Sorts at[0..count), whose contents lie in `bytes`, and sets the rest. */
void cpl_added_index(cpl_added_set *set, const char *contents);

/* The first place from `from` on where a token of the set stands, and the longest one there; or
 * `length`, and *hit NULL. */
size_t cpl_added_find(const cpl_added_set *set, const char *text, size_t length, size_t from,
                      const cpl_added **hit);

#endif /* CPL_TOKENIZER_SPLIT_H */
