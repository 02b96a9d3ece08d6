/* model.h - an OLMoE-style Mixture-of-Experts language model: embedding, layers, head.
 *
 * Room:   model. Independent of files, devices and optimizers. Three lifetimes: the model
 *         (weights), the run (gradients, owned by the trainer), the pass (activations of one
 *         micro-batch).
 * Names:  B sequences of S tokens, T = B S; d model width; V vocabulary; L layers. */
#ifndef CPL_MODEL_MODEL_H
#define CPL_MODEL_MODEL_H

#include "model/attention.h"
#include "model/moe.h"
#include "model/params.h"
#include "tensor/memory.h"

typedef struct cpl_model {
    cpl_backend *be;           /* not owned */
    cpl_model_settings config; /* resolved: nothing unset but clip_qkv */
    cpl_tensor_arena arena;
    cpl_params master;  /* F32: what is trained and saved */
    cpl_params compute; /* what products read: the masters, or their BF16 copies. The norms' weights
                           and the router are the F32 masters in both. */
    cpl_tensor rope;    /* [positions, h/2, 2] */
} cpl_model;

/* Bytes that cpl_model_init allocates; they live as long as the model. */
size_t cpl_model_bytes(const cpl_model_settings *config, cpl_dtype compute, int64_t positions);

/* Memory for the weights (zero) and the rotary table for positions 0 ... positions - 1. `config`
 * must be resolved (params.h). CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_model_init(cpl_model *model, cpl_backend *be,
                                        const cpl_model_settings *config, int64_t positions);

/* The same without memory for the F32 masters of parameters that have a copy (params.h): they lie
 * in `over`, a set of F32 tensors of `config` that must outlive the model and is used for something
 * else too, so that they are valid only where the owner of both says so. The type of products must
 * not be F32. Bytes that it allocates. */
CPL_NODISCARD cpl_status cpl_model_init_over(cpl_model *model, cpl_backend *be,
                                             const cpl_model_settings *config, int64_t positions,
                                             cpl_params *over);
size_t cpl_model_bytes_over(const cpl_model_settings *config, cpl_dtype compute, int64_t positions);
void cpl_model_free(cpl_model *model);

/* Initial weights: matrices from a normal of init_std cut at three of them, norms 1. The same for
 * the same seed everywhere. Refreshes the copies. */
void cpl_model_randomize(cpl_model *model, uint64_t seed);

/* Makes the compute copies from the masters: after loading or changing them. */
void cpl_model_refresh(cpl_model *model);

/* The activations of one micro-batch [B,S]. */
typedef struct cpl_pass {
    int64_t batch, n_queries;
    bool training;
    cpl_tensor *x;                 /* [2L+1] of [T,d]: the stream before, within, after layers; the
                                      last until the backward pass of a layer */
    cpl_attention_kept *attention; /* [L] when training, else one for all */
    cpl_moe_kept *moe;             /* [L], likewise */
    cpl_tensor final, final_inv;   /* [T,d], [T]: the stream after the last norm, likewise; R rows
                                      of it if R tokens were selected */
    cpl_tensor nll;                /* [T] */
    cpl_tensor dx, dfinal;         /* [T,d] */
    cpl_attention_scratch attention_scratch;
    cpl_moe_scratch moe_scratch;

    /* Called by cpl_model_forward when the backend was given the work of a layer's two halves, layer
     * by layer; NULL: not called. The work may still wait: the callback gives operations, and reads
     * by get. `kept` is that layer's: b, inv, probs, lse, expert, weight, plan and the counts are
     * valid for operations that are given before it returns; in a pass that is not training the
     * next layer overwrites them, and there is no gate and no up. The callback changes nothing of
     * it; cpl_pass_take sets none. */
    void (*on_layer)(void *ctx, int64_t layer, const cpl_moe_kept *kept);
    void *ctx;
    /* Called by cpl_model_backward when the backend was given the work that completes the gradients
     * of a layer, from the last one to the first; with the number of layers for head and last norm,
     * before them, and -1 for the embedding, after them. It reads them by get. NULL: not called. */
    void (*on_grads)(void *ctx, int64_t layer);
    void *grads_ctx;
    /* Set by cpl_pass_select: the selected tokens, and the results of the last layer's experts for
     * only these. */
    bool selects;
    cpl_tensor selected;      /* [R] I32 */
    cpl_tensor selected_x[2]; /* [R,d] the stream within and after the last layer */
    cpl_moe_kept selected_moe;
    cpl_moe_scratch selected_scratch;
} cpl_pass;

/* Takes a pass from the arena (which measures or owns memory). Not training: only what forward
 * needs, layers share their activations. cached: k and v go into a cache. */
void cpl_pass_take(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                   int64_t batch, int64_t n_queries, bool training, bool cached);
/* Of a pass that is not training, just taken: `final` is computed only for the tokens `selected`
 * [R] I32, 0 <= R <= T, and becomes [R,d] in their order. The last layer's experts then get only
 * these tokens, and so does a watcher in that layer. `selected` is read by cpl_model_forward. */
void cpl_pass_select(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_tensor selected);

void cpl_cache_take(cpl_cache *cache, cpl_tensor_arena *arena, const cpl_model_settings *config,
                    int64_t capacity);

/* The largest shapes of a pass, for cpl_backend_reserve. */
cpl_work cpl_pass_work(const cpl_model_settings *config, int64_t n_tokens, bool training);

/* ids [T] I32 -> pass->final. doc_start [B,S] I32 or none. cached: NULL, or the cache that the
 * tokens continue (attention.h), in a pass taken for it. */
void cpl_model_forward(cpl_model *model, cpl_pass *pass, cpl_tensor ids, cpl_tensor doc_start,
                       const cpl_cached *cached);

/* For a rank of the experts' mesh without tokens: its experts serve the forward passes of the other
 * ranks until none of them runs one any more (cpl_exchange_meet). Collective with passes that are
 * not training. */
void cpl_model_serve(cpl_model *model, cpl_exchange *exchange);

/* logits [R,V] = head . rows first ... first + R - 1 of the pass's final. */
void cpl_model_logits(cpl_model *model, const cpl_pass *pass, cpl_tensor logits, int64_t first);

/* After forward: pass->nll of target [T] I32 (-1: none); total [1] F64 *adds* their sum, or is
 * none. */
void cpl_model_score(cpl_model *model, cpl_pass *pass, cpl_tensor total, cpl_tensor target);

/* After forward: the gradient of
 *     ce_scale * sum of nll + the auxiliary losses as `scales` weighs them, in every layer
 * *adds* to grads; pass->nll is set; total [1] F64 *adds* the sum of nll. ids, doc_start as in
 * forward. */
void cpl_model_backward(cpl_model *model, cpl_pass *pass, cpl_tensor total, cpl_params *grads,
                        cpl_tensor ids, cpl_tensor doc_start, cpl_tensor target, float ce_scale,
                        cpl_aux_grad_scales scales);

#endif /* CPL_MODEL_MODEL_H */
