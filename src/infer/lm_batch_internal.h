/* lm_batch_internal.h - what the files of lm_batch.h share.
 *
 * Room:  infer. lm_batch.c holds the memory and passes tokens through the model; lm_batch_group.c
 *        cuts sequences into groups and takes one through; lm_batch_score.c and lm_batch_continue.c are
 *        what is made of that. */
#ifndef CPL_INFER_LM_BATCH_INTERNAL_H
#define CPL_INFER_LM_BATCH_INTERNAL_H

#include "infer/lm_batch.h"

/* ---- one pass (lm_batch.c) ---- */

enum { CPL_LM_BATCH_PICKS = 128 }; /* rows of logits at once */

/* Sets *at to room for `count` more rows of keys behind those there are. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_lm_batch_more_keys(cpl_lm_batch *a, int64_t count, int32_t **at);

/* `count` tokens, in a->ids and a->position, with a->segment and a->key_row, go into rows first_row
 * ... of the cache; of the n_picked in a->picked the pass has the stream's end. */
void cpl_lm_batch_pass(cpl_lm_batch *a, cpl_pass *pass, int64_t count, int64_t n_segments,
                       int64_t first_row, int64_t n_picked);

/* CPL_ERR_INPUT: an id outside the vocabulary. */
CPL_NODISCARD cpl_status cpl_lm_batch_check_ids(const cpl_lm_batch *a, const int32_t *ids,
                                                int64_t length);

/* ---- a group (lm_batch_group.c) ---- */

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
    cpl_sequence *tail; /* [n] what is fed of each, without the first `shared` tokens */
    int64_t n;
    int64_t shared;    /* tokens that all begin with and that are in the cache */
    int64_t first_row; /* of the tree's first token; token t is in row first_row + t */
    cpl_prefix_tree tree;
    cpl_lm_batch_pick *picks; /* by token */
    int64_t n_picks;
    int64_t n_ids; /* the most likely among ids below it */
} cpl_lm_batch_group;

/* What is fed of all sequences, and how the groups are cut. */
typedef struct cpl_lm_batch_plan {
    cpl_lm_batch *a;
    const cpl_sequence *fed; /* [n] */
    int64_t *order;          /* [n] lexicographic */
    int64_t n;
    int64_t extra; /* rows that each needs besides */
    int64_t most;  /* sequences of a group; 0: any number */
    cpl_sequence *tail;
} cpl_lm_batch_plan;

/* For qsort: picks by token; by sequence, then token. */
int cpl_lm_batch_by_token(const void *left, const void *right);
int cpl_lm_batch_by_sequence(const void *left, const void *right);

CPL_NODISCARD cpl_status cpl_lm_batch_plan_init(cpl_lm_batch_plan *p, cpl_lm_batch *a,
                                                const cpl_sequence *fed, int64_t n);
void cpl_lm_batch_plan_free(cpl_lm_batch_plan *p);

/* The end of the group that begins at order[first]: as many as the cache has rows for. */
int64_t cpl_lm_batch_group_end(const cpl_lm_batch_plan *p, int64_t first);

/* The group order[first ... last - 1], of which the last needed[i] tokens of sequence i are looked
 * at. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_lm_batch_open(cpl_lm_batch_group *g, cpl_lm_batch_plan *p,
                                           int64_t first, int64_t last, const int64_t *needed);
void cpl_lm_batch_close(cpl_lm_batch_group *g);

/* The tree's number of token `at` of a sequence's tail. */
int64_t cpl_lm_batch_token(const cpl_lm_batch_group *g, int64_t sequence, int64_t at);

/* rows [shared + end] = those of the shared tokens and of the tokens on the way to token end - 1 of
 * the node's sequence. */
void cpl_lm_batch_rows(const cpl_lm_batch_group *g, const cpl_node *node, int64_t end,
                       int32_t *rows);

/* All tokens of the tree through the model, and all picks, sorted by token, answered. */
CPL_NODISCARD cpl_status cpl_lm_batch_run(cpl_lm_batch_group *g);

/* Tokens from ... to - 1, which lie ready as for cpl_lm_batch_pass, through the model into rows
 * first_row ... of the cache; answers the picks from *next on that lie among them. */
CPL_NODISCARD cpl_status cpl_lm_batch_answer(cpl_lm_batch_group *g, int64_t from, int64_t to,
                                             int64_t n_segments, int64_t first_row, int64_t *next);

/* The path of the group's last sequence is what the next group may go on from. */
void cpl_lm_batch_hold(const cpl_lm_batch_group *g, const cpl_lm_batch_plan *p, int64_t sequence);

#endif /* CPL_INFER_LM_BATCH_INTERNAL_H */
