/* attention.h - the attention half of a layer, forward and backward (docs/method.md 2.2).
 *
 * Room:   model. T = B S tokens; x [T,d] the residual stream; width of keys KV.
 *
 *             a = RMSNorm(x);  q = RMSNorm(W_q a), k = RMSNorm(W_k a) over the full width;
 *             v = W_v a;  clamp q, k, v;  rotate q, k;  out = x + W_o attention(q, k, v) */
#ifndef CPL_MODEL_ATTENTION_H
#define CPL_MODEL_ATTENTION_H

#include "model/params.h"
#include "tensor/memory.h"

/* Activations of one layer that forward keeps for backward. */
typedef struct cpl_attention_kept {
    cpl_tensor a, q_raw, q, att;  /* [T,d] */
    cpl_tensor k_raw, v_raw;      /* [T,KV]; without a clamp v_raw is v */
    cpl_tensor k, v;              /* [T,KV], or rows of a cache */
    cpl_tensor inv, q_inv, k_inv; /* [T] */
    cpl_tensor lse;               /* [B,H,S] */
} cpl_attention_kept;

/* Scratch of the backward pass, shared by all layers. */
typedef struct cpl_attention_scratch {
    cpl_tensor datt, dq, da, dv; /* [T,d], dv [T,KV] */
    cpl_tensor dq_raw,
        dk_raw;    /* [T,d], [T,KV], in the memory of datt and dq, which are unused by then */
    cpl_tensor dk; /* [T,KV], in the memory of da, which is computed later */
} cpl_attention_scratch;

/* Keys and values of earlier tokens, for all layers and any number of sequences. The owner of the
 * cache assigns rows to sequences. */
typedef struct cpl_cache {
    cpl_tensor k, v; /* [L, capacity, KV] */
} cpl_cache;

/* T new tokens of sequences whose earlier tokens are in a cache. The pass reads only `at` and
 * `key_row` of the segments. key_row may contain rows of the same pass, since all keys are stored
 * before the first key is read. */
typedef struct cpl_cached {
    cpl_cache cache;
    int64_t first_row;   /* the new tokens use rows first_row ... first_row + T - 1 */
    cpl_tensor position; /* [T] I32: the position of each token in its sequence */
    cpl_segments segments;
} cpl_cached;

/* Positions of the tokens of a call. The tokens begin B sequences, or follow cached tokens. In the
 * second case n_queries = T and batch = 1. */
typedef struct cpl_positions {
    int64_t batch, n_queries;
    cpl_tensor doc_start;     /* [B,S] I32, or none */
    const cpl_cached *cached; /* NULL without a cache */
} cpl_positions;

/* Takes the activations from the arena. If `first`, the activations of another layer, is not NULL,
 * a, q and k share its memory. */
void cpl_attention_take(cpl_attention_kept *kept, cpl_tensor_arena *arena,
                        const cpl_model_settings *config, int64_t batch, int64_t n_queries,
                        bool training, bool cached, const cpl_attention_kept *first);
void cpl_attention_scratch_take(cpl_attention_scratch *s, cpl_tensor_arena *arena,
                                const cpl_model_settings *config, int64_t n_tokens);

/* Sets out [T,d], which must not be x. `layer` is the layer's index in the cache, if there is a
 * cache. */
void cpl_attention_forward(cpl_backend *be, cpl_tensor out, cpl_attention_kept *kept, cpl_tensor x,
                           const cpl_layer_params *w, const cpl_model_settings *config,
                           cpl_tensor rope, const cpl_positions *at, int64_t layer);

/* Replaces the gradient of out in dx [T,d] by the gradient of x, and *adds* to dw. Recomputes
 * kept's a, q and k if config->recompute_norms. */
void cpl_attention_backward(cpl_backend *be, cpl_tensor dx, cpl_layer_params *dw,
                            const cpl_attention_kept *kept, cpl_tensor x, const cpl_layer_params *w,
                            const cpl_model_settings *config, cpl_tensor rope,
                            const cpl_positions *at, const cpl_attention_scratch *s);

#endif /* CPL_MODEL_ATTENTION_H */
