/* internal.h - groups of sequences that pass through the model together.
 *
 * Room:  infer. lm_batch.c states the requests for each sequence; lm_batch_group.c divides the
 *        sequences into groups and runs the groups through the model in order. */
#ifndef CPL_INFER_INTERNAL_H
#define CPL_INFER_INTERNAL_H

#include "infer/lm_batch.h"

enum { CPL_LM_BATCH_PICKS = 128 }; /* rows of logits at once */

/* A request at one token of the tree: the log-probability of `id` (>= 0), or which token is
 * the most likely. */
typedef struct cpl_lm_batch_pick {
    int64_t token;    /* its number in the tree */
    int64_t sequence; /* of the group */
    int32_t id;
    double log_prob; /* answers */
    int32_t best;
} cpl_lm_batch_pick;

typedef struct cpl_lm_batch_group {
    cpl_lm_batch *a;
    const int64_t *index; /* [n] number of each sequence among all */
    cpl_sequence *tail;   /* [n] what is fed of each, without the first `shared` tokens */
    int64_t n;
    int64_t shared;    /* tokens that all begin with and that are in the cache */
    int64_t first_row; /* of the tree's first token; token t is in row first_row + t */
    cpl_prefix_tree tree;
    cpl_lm_batch_pick *picks; /* owned */
    int64_t n_picks;
    int64_t n_ids; /* the most likely among ids below it */
} cpl_lm_batch_group;

/* What is fed of all sequences, and what is done with a group of them. */
typedef struct cpl_lm_batch_plan {
    cpl_lm_batch *a;
    const cpl_sequence *fed; /* [n] */
    const int64_t *needed;   /* [n] number of last tokens that need logits; NULL: one */
    int64_t n;
    int64_t extra; /* additional rows that each needs */
    int64_t most;  /* sequences of a group; 0: any number */
    int64_t n_ids; /* see cpl_lm_batch_group */
    cpl_status (*work)(void *ctx, cpl_lm_batch_group *group);
    void *ctx;
} cpl_lm_batch_plan;

/* Cuts the sequences, in lexicographic order, into groups for which the cache has rows, and calls
 * `work` for each. CPL_ERR_MEMORY, and as `work`. */
CPL_NODISCARD cpl_status cpl_lm_batch_groups(const cpl_lm_batch_plan *p);

/* Takes room for `count` picks. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_lm_batch_take_picks(cpl_lm_batch_group *g, int64_t count);

/* Passes all tokens of the tree through the model and answers all picks, which are then in the
 * order of sequences, then tokens. The next group may continue from the path of the last
 * sequence. */
CPL_NODISCARD cpl_status cpl_lm_batch_run(cpl_lm_batch_group *g);

/* The tree's number of token `at` of a sequence's tail. */
int64_t cpl_lm_batch_token(const cpl_lm_batch_group *g, int64_t sequence, int64_t at);

/* rows [shared + end] = those of the shared tokens and of the tokens on the way to token end - 1 of
 * the node's sequence. */
void cpl_lm_batch_rows(const cpl_lm_batch_group *g, const cpl_node *node, int64_t end,
                       int32_t *rows);

/* Sets *at to room for `count` more rows of keys after the existing ones. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_lm_batch_more_keys(cpl_lm_batch *a, int64_t count, int32_t **at);

/* Tokens from ... to - 1, which are listed in a->list with their segments and rows of keys,
 * through the model into rows first_row ... of the cache; answers the picks, sorted by
 * token, from *next on that lie among them. */
CPL_NODISCARD cpl_status cpl_lm_batch_answer(cpl_lm_batch_group *g, int64_t from, int64_t to,
                                             int64_t n_segments, int64_t first_row, int64_t *next);

#endif /* CPL_INFER_INTERNAL_H */
