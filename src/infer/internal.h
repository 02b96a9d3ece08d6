/* internal.h - groups of sequences that the model computes together.
 *
 * Room:  infer. lm_batch.c states the requests for each sequence; lm_batch_group.c divides the
 *        sequences into groups and runs the groups through the model in order. */
#ifndef CPL_INFER_INTERNAL_H
#define CPL_INFER_INTERNAL_H

#include "infer/lm_batch.h"

enum { CPL_LM_BATCH_PICKS = 128 }; /* rows of logits computed at once */

/* A request at one token of the tree: the log-probability of `id` (>= 0), or the most likely next
 * token. */
typedef struct cpl_lm_batch_pick {
    int64_t token;    /* index of the token in the tree */
    int64_t sequence; /* index of the sequence in the group */
    int32_t id;
    double log_prob; /* the answer; `best` is the other answer */
    int32_t best;
} cpl_lm_batch_pick;

typedef struct cpl_lm_batch_group {
    cpl_lm_batch *a;
    const int64_t *index; /* [n] index of each sequence among all sequences */
    cpl_sequence *tail;   /* [n] the tokens of each sequence after the first `shared` */
    int64_t n;
    int64_t shared;    /* length of the common prefix that is in the cache */
    int64_t first_row; /* row of the tree's first token; token t is in row first_row + t */
    cpl_prefix_tree tree;
    cpl_lm_batch_pick *picks; /* owned */
    int64_t n_picks;
    int64_t n_ids; /* bound of the ids for `best` */
} cpl_lm_batch_group;

/* All sequences, and the function that processes a group of them. */
typedef struct cpl_lm_batch_plan {
    cpl_lm_batch *a;
    const cpl_sequence *fed; /* [n] tokens to feed */
    const int64_t *needed;   /* [n] number of last tokens that need logits; NULL means one token */
    int64_t n;
    int64_t extra; /* additional rows per sequence */
    int64_t most;  /* limit of the sequences of a group; 0 means no limit */
    int64_t n_ids; /* see cpl_lm_batch_group */
    cpl_status (*work)(void *ctx, cpl_lm_batch_group *group);
    void *ctx;
} cpl_lm_batch_plan;

/* Divides the sequences, in lexicographic order, into groups that fit into the cache, and calls
 * `work` for each group. Returns CPL_ERR_MEMORY or an error of `work`. */
CPL_NODISCARD cpl_status cpl_lm_batch_groups(const cpl_lm_batch_plan *p);

/* Allocates `count` picks. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_lm_batch_take_picks(cpl_lm_batch_group *g, int64_t count);

/* Feeds all tokens of the tree and answers all picks, which are then sorted by sequence, then
 * token. The rows of the last sequence stay valid for the next group. */
CPL_NODISCARD cpl_status cpl_lm_batch_run(cpl_lm_batch_group *g);

/* Returns the index in the tree of token `at` of a sequence's tail. */
int64_t cpl_lm_batch_token(const cpl_lm_batch_group *g, int64_t sequence, int64_t at);

/* Sets rows [shared + end] to the rows of the shared tokens and of the first `end` tokens of the
 * tail of the node's sequence. */
void cpl_lm_batch_rows(const cpl_lm_batch_group *g, const cpl_node *node, int64_t end,
                       int32_t *rows);

/* Extends the list of key rows by `count` and sets *at to the new part. Returns CPL_ERR_MEMORY if
 * memory is not available. */
CPL_NODISCARD cpl_status cpl_lm_batch_more_keys(cpl_lm_batch *a, int64_t count, int32_t **at);

/* Feeds tokens from ... to - 1, which a->list holds with their segments and rows of keys, and
 * stores their keys in rows first_row ... of the cache. Answers the picks of these tokens, from
 * *next on. Picks must be sorted by token. */
CPL_NODISCARD cpl_status cpl_lm_batch_answer(cpl_lm_batch_group *g, int64_t from, int64_t to,
                                             int64_t n_segments, int64_t first_row, int64_t *next);

#endif /* CPL_INFER_INTERNAL_H */
