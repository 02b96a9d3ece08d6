/* lm_batch.h - log-probabilities and greedy continuations of many token sequences; a shared prefix
 * is computed once.
 *
 * Room:    infer. Handles tokens and a model, neither texts nor tasks.
 * Method:  sequences are taken in lexicographic order, as many at once as the cache has rows for,
 *          as a tree in which a common prefix is stored once. Its tokens pass through the model in
 *          the tree's order, `chunk` at a time, each seeing the rows on the way to its root; no
 *          padding. The prefix that the next group shares with this one stays in the cache.
 * Same:    a result does not depend on the other requests, but for rounding. */
#ifndef CPL_INFER_LM_BATCH_H
#define CPL_INFER_LM_BATCH_H

#include "infer/prefix_tree.h"
#include "model/model.h"
#include "tensor/backend/backend.h"

typedef struct cpl_lm_batch_settings {
    int64_t window; /* tokens of the longest sequence that is fed */
    int64_t rows;   /* tokens the cache holds; 0: as much as two windows and no less than 8192 */
    int64_t chunk;  /* tokens computed at once; 0: 1024 */
} cpl_lm_batch_settings;

/* Tokens that pass through the model together. */
typedef struct cpl_lm_batch_lists {
    int32_t *ids, *position; /* [chunk] */
    int32_t *requests;       /* [chunk] tokens of the pass whose logits are requested */
    cpl_segment *segment;    /* [chunk] */
    int32_t *key_row;        /* [n_keys] of the segments; grows */
    int64_t n_keys, key_room;
} cpl_lm_batch_lists;

typedef struct cpl_lm_batch {
    cpl_model *model; /* not owned */
    /* The ranks that hold the other experts of the model; not owned. NULL: it is whole, as after
     * cpl_lm_batch_init. While one of
     * them scores or continues, the others do so too, or serve (cpl_lm_batch_serve). */
    cpl_exchange *exchange;
    cpl_lm_batch_settings settings;
    cpl_tensor_arena arena;
    cpl_cache cache;
    /* Of a pass, as lists of the host and as tensors of I32. */
    cpl_lm_batch_lists list;
    cpl_tensor ids, position, requests, segments; /* [chunk], the last [chunk,4] */
    cpl_tensor key_rows;                          /* [at least n_keys] */
    cpl_tensor pick_row, pick_id, pick;           /* [PICKS] I32, the last F32 */
    cpl_tensor logits;                            /* [PICKS,V] */
    cpl_tensor_mark mark;                         /* of the arena: after it lies the pass */
    int32_t *held, *held_row;                     /* [window] tokens whose rows are still good */
    int64_t n_held;
} cpl_lm_batch;

/* Bytes that cpl_lm_batch_init will take, and the work for which it reserves the backend's scratch. */
size_t cpl_lm_batch_bytes(const cpl_model_settings *config, const cpl_lm_batch_settings *settings);
cpl_work cpl_lm_batch_work(const cpl_model_settings *config, const cpl_lm_batch_settings *settings);

/* The model must have been made for `window` positions. CPL_ERR_MEMORY. Reserves the backend's
 * scratch. */
CPL_NODISCARD cpl_status cpl_lm_batch_init(cpl_lm_batch *batch, cpl_model *model,
                                           const cpl_lm_batch_settings *settings);
void cpl_lm_batch_free(cpl_lm_batch *batch);

/* When this rank has nothing to compute: returns when no rank of batch->exchange has. Nothing
 * without one. */
void cpl_lm_batch_serve(cpl_lm_batch *batch);

/* A sequence whose last tokens are scored: 1 <= scored < length <= window + 1. */
typedef struct cpl_lm_request {
    const int32_t *ids; /* borrowed */
    int64_t length, scored;
    double log_prob; /* set: natural log of the probability of those tokens after the others */
} cpl_lm_request;

/* Called when sequence `index` is done. A failure that it returns ends the run. */
typedef cpl_status (*cpl_lm_batch_done)(void *ctx, int64_t index);

/* Scores all of them, in an internal order. CPL_ERR_INPUT: an id outside the vocabulary, a length
 * outside of the bounds, weights that are not finite. `done` may be NULL. */
CPL_NODISCARD cpl_status cpl_lm_batch_score(cpl_lm_batch *batch, cpl_lm_request *requests,
                                            int64_t n, cpl_lm_batch_done done, void *ctx);

/* Ids that end a continuation, in addition to the end-of-text id. Borrowed; all zero: none. */
typedef struct cpl_stop_ids {
    const int64_t *at; /* (count) */
    int64_t count;
} cpl_stop_ids;

static inline bool cpl_stop_ids_hold(const cpl_stop_ids *ends, int64_t id)
{
    for (int64_t i = 0; i < ends->count; i++)
        if (ends->at[i] == id) return true;
    return false;
}

typedef struct cpl_lm_batch_callbacks {
    int64_t eos;   /* the id that ends a continuation and is not returned; -1: none */
    int64_t n_ids; /* only ids below it are chosen: the tokenizer's size; 0: the whole vocabulary */
    bool (*on_token)(void *ctx, int64_t index, int32_t id); /* false: enough of this one */
    cpl_lm_batch_done done;                                 /* may be NULL */
    void *ctx;
    cpl_stop_ids extra_stop_ids; /* other ids that end one as eos does */
} cpl_lm_batch_callbacks;

/* Continues every prompt greedily (1 <= length, length + max_tokens <= window): the most likely
 * token, the lowest id on ties, until an end id, max_tokens, or `on_token` returns false. Failures
 * as cpl_lm_batch_score. */
CPL_NODISCARD cpl_status cpl_lm_batch_continue(cpl_lm_batch *batch, const cpl_sequence *prompts,
                                               int64_t n, int64_t max_tokens,
                                               const cpl_lm_batch_callbacks *callbacks);

#endif /* CPL_INFER_LM_BATCH_H */
