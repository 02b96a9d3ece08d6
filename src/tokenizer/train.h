/* train.h - what a trainer holds.
 *
 * Room:  tokenizer. Not for other rooms. */
#ifndef CPL_TOKENIZER_TRAIN_H
#define CPL_TOKENIZER_TRAIN_H

#include "tokenizer/pairs.h"
#include "tokenizer/split.h"
#include "tokenizer/tally.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

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

#endif /* CPL_TOKENIZER_TRAIN_H */
