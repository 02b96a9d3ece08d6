/* tally.h - byte strings, numbered as they first come, each with a count.
 *
 * Room:  tokenizer. Private to src/io/tokenizer*: the trainer keeps its words, its tokens and its pairs
 *        so. */
#ifndef CPL_TOKENIZER_TALLY_H
#define CPL_TOKENIZER_TALLY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct cpl_tally_entry {
    size_t start, length; /* bytes in cpl_tally.bytes */
    int64_t count;        /* 0 at first; the caller's to change */
} cpl_tally_entry;

/* All zero is a valid empty tally. */
typedef struct cpl_tally {
    cpl_text bytes;
    cpl_tally_entry *at; /* [count] */
    uint32_t count, capacity;
    uint32_t *table; /* number + 1 by hash, 0 is free; at most half full */
    uint32_t mask;   /* places - 1 */
} cpl_tally;

void cpl_tally_free(cpl_tally *tally);

/* Sets *number to that of the string, which is added with count 0 if it is new. At most 2^31 - 1
 * strings. On failure the tally is as before. */
CPL_NODISCARD cpl_status cpl_tally_number(cpl_tally *tally, const void *bytes, size_t length,
                                          uint32_t *number);

#endif /* CPL_TOKENIZER_TALLY_H */
