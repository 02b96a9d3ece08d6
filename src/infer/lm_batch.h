/* lm_batch.h - log-probabilities and greedy continuations of many token sequences. A shared prefix
 * is computed once.
 *
 * Room:    infer. Handles tokens only. Texts and tasks are handled by other files.
 * Method:  sequences are processed in lexicographic order, in groups that fit into the cache. A
 *          group is a tree in which a common prefix is stored once. The model computes its tokens
 *          in the tree's order, `chunk` at a time without padding. Each token attends to the rows
 *          on the path to its root. The prefix that the next group shares stays in the cache.
 * Results: a result depends on other requests only by rounding. */
#ifndef CPL_INFER_LM_BATCH_H
#define CPL_INFER_LM_BATCH_H

#include "infer/prefix_tree.h"
#include "model/model.h"
#include "tensor/backend/backend.h"

typedef struct cpl_lm_batch_settings {
    int64_t window; /* tokens of the longest sequence */
    int64_t rows;   /* tokens of the cache; 0 means two windows, at least 8192 */
    int64_t chunk;  /* tokens of one pass; 0 means 1024 */
} cpl_lm_batch_settings;

/* The tokens of one pass. */
typedef struct cpl_lm_batch_lists {
    int32_t *ids, *position; /* [chunk] */
    int32_t *requests;       /* [chunk] tokens of the pass that need logits */
    cpl_segment *segment;    /* [chunk] */
    int32_t *key_row;        /* [n_keys] rows of the segments' keys; can grow */
    int64_t n_keys, key_room;
} cpl_lm_batch_lists;

typedef struct cpl_lm_batch {
    cpl_model *model; /* not owned */
    /* The exchange with the ranks that hold other experts, not owned. It is NULL, also after
     * cpl_lm_batch_init, if this process has all experts. While one rank scores or continues, other
     * ranks must do so too, or call cpl_lm_batch_serve. */
    cpl_exchange *exchange;
    cpl_lm_batch_settings settings;
    cpl_tensor_arena arena;
    cpl_cache cache;
    /* The tokens of a pass, as lists in host memory and as I32 tensors. */
    cpl_lm_batch_lists list;
    cpl_tensor ids, position, requests, segments; /* [chunk], the last [chunk,4] */
    cpl_tensor key_rows;                          /* [at least n_keys] */
    cpl_tensor pick_row, pick_id, pick;           /* [PICKS] I32, the last F32 */
    cpl_tensor logits;                            /* [PICKS,V] */
    cpl_tensor_mark mark;                         /* mark of the arena before the pass */
    int32_t *held, *held_row;                     /* [window] tokens with valid rows in the cache */
    int64_t n_held;
} cpl_lm_batch;

/* Returns the bytes that cpl_lm_batch_init allocates, and the shapes for which it reserves the
 * backend's scratch. */
size_t cpl_lm_batch_bytes(const cpl_model_settings *config, const cpl_lm_batch_settings *settings);
cpl_work cpl_lm_batch_work(const cpl_model_settings *config, const cpl_lm_batch_settings *settings);

/* Allocates the cache and reserves the backend's scratch. The model must have `window` positions.
 * Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_lm_batch_init(cpl_lm_batch *batch, cpl_model *model,
                                           const cpl_lm_batch_settings *settings);
void cpl_lm_batch_free(cpl_lm_batch *batch);

/* Computes for the other ranks of batch->exchange until no rank has work. For a rank without work.
 * Does nothing without an exchange. */
void cpl_lm_batch_serve(cpl_lm_batch *batch);

/* A sequence whose last tokens are scored: 1 <= scored < length <= window + 1. */
typedef struct cpl_lm_request {
    const int32_t *ids; /* borrowed */
    int64_t length, scored;
    double log_prob; /* result: natural log of the probability of the scored tokens */
} cpl_lm_request;

/* Called when sequence `index` is done. A failure ends the run. */
typedef cpl_status (*cpl_lm_batch_done)(void *ctx, int64_t index);

/* Scores all requests, in an internal order. Returns CPL_ERR_INPUT for an id outside the
 * vocabulary, a length out of bounds, or a result that is not finite. `done` may be NULL. */
CPL_NODISCARD cpl_status cpl_lm_batch_score(cpl_lm_batch *batch, cpl_lm_request *requests,
                                            int64_t n, cpl_lm_batch_done done, void *ctx);

/* Ids that end a continuation, in addition to the end-of-text id. Borrowed. An empty list is all
 * zero. */
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
    int64_t eos;   /* the id that ends a continuation and is not returned; -1 without such an id */
    int64_t n_ids; /* bound of the ids chosen, the tokenizer's size; 0 for the whole vocabulary */
    bool (*on_token)(void *ctx, int64_t index, int32_t id); /* false ends this continuation */
    cpl_lm_batch_done done;                                 /* may be NULL */
    void *ctx;
    cpl_stop_ids extra_stop_ids; /* further ids that end a continuation like eos */
} cpl_lm_batch_callbacks;

/* Continues every prompt greedily (1 <= length, length + max_tokens <= window). Chooses the most
 * likely token, the lowest id on ties, until an end id, max_tokens tokens, or a false result of
 * `on_token`. Returns errors like cpl_lm_batch_score. */
CPL_NODISCARD cpl_status cpl_lm_batch_continue(cpl_lm_batch *batch, const cpl_sequence *prompts,
                                               int64_t n, int64_t max_tokens,
                                               const cpl_lm_batch_callbacks *callbacks);

#endif /* CPL_INFER_LM_BATCH_H */
