/* merge.h - byte-pair encoding of one word.
 *
 * Room:    tokenizer. Private to src/io/tokenizer*.
 * Meaning: among neighbouring tokens that have a merge, the pair with the lowest rank, the leftmost
 *          of equal ones, becomes one token; again until no pair has a merge. */
#ifndef CPL_TOKENIZER_MERGE_H
#define CPL_TOKENIZER_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CPL_NO_RANK = INT32_MAX };

typedef struct cpl_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: a free place */
    int32_t rank;  /* place in the list of merges: lower joins earlier; distinct */
    int32_t id;    /* what the two become */
} cpl_merge;

/* Merges by pair: open addressing, at most half full. All zero is an empty table to be made. */
typedef struct cpl_merges {
    cpl_merge *at;
    uint32_t mask; /* places - 1 */
    uint32_t count;
    int32_t byte_id[256]; /* the token of a single byte, -1 if there is none */
    uint64_t *byte_pairs; /* [256 * 256] what two bytes offer: rank << 32 | id */
} cpl_merges;

CPL_NODISCARD cpl_status cpl_merges_init(cpl_merges *merges, uint32_t count);
void cpl_merges_free(cpl_merges *merges);

/* Adds one merge; of a pair that is there already the first stays. At most the promised count. */
void cpl_merges_add(cpl_merges *merges, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Makes byte_pairs, when byte_id and all merges are there: nearly every word begins with them, and
 * the few that letters make lie close together, unlike their places in the table. */
CPL_NODISCARD cpl_status cpl_merges_finish(cpl_merges *merges);

/* Memory for long words; all zero is valid. */
typedef struct cpl_merge_scratch {
    void *memory;
    size_t bytes;
} cpl_merge_scratch;
void cpl_merge_scratch_free(cpl_merge_scratch *scratch);

/* Writes the ids of `word` (n bytes, at least 1) to ids, which has room for n; sets *count. Words
 * beyond 2 GiB are CPL_ERR_INPUT. Bytes without a token are left out (they occur in no UTF-8). */
CPL_NODISCARD cpl_status cpl_merge_word(const cpl_merges *merges, cpl_merge_scratch *scratch,
                                        const char *word, size_t n, int32_t *ids, size_t *count);

#endif /* CPL_TOKENIZER_MERGE_H */
