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
    cpl_model_settings config; /* resolved: only clip_qkv may be unset */
    cpl_tensor_arena arena;
    cpl_params master;  /* F32 parameters that are trained and saved */
    cpl_params compute; /* parameters that products read: the masters, or their BF16 copies; for
                           norms' weights and the router always the masters */
    cpl_tensor rope;    /* [positions, h/2, 2] */
    struct {
        cpl_tensor h, dh; /* [n,D] */
        cpl_tensor G, dG; /* [n,d] */
        cpl_tensor zeros; /* [d] */
    } power;              /* scratch of model.router mpi; none with other routers */
} cpl_model;

/* Returns the bytes that cpl_model_init allocates. They are freed with the model. */
size_t cpl_model_bytes(const cpl_model_settings *config, cpl_dtype compute, int64_t positions);

/* Allocates the weights (zero) and the rotary table for positions 0 ... positions - 1. `config`
 * must be resolved (params.h). Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_model_init(cpl_model *model, cpl_backend *be,
                                        const cpl_model_settings *config, int64_t positions);

/* Initialises the model as cpl_model_init does, but F32 masters of parameters that have a copy
 * (params.h) lie in `over`, a set of F32 tensors of `config` that must outlive the model. The owner
 * of both uses `over` for other data too and determines when the masters are valid. The type of
 * products must not be F32. cpl_model_bytes_over returns the bytes that it allocates. */
CPL_NODISCARD cpl_status cpl_model_init_over(cpl_model *model, cpl_backend *be,
                                             const cpl_model_settings *config, int64_t positions,
                                             cpl_params *over);
size_t cpl_model_bytes_over(const cpl_model_settings *config, cpl_dtype compute, int64_t positions);
void cpl_model_free(cpl_model *model);

/* Sets the initial weights: matrices from a normal distribution of init_std cut at three init_std,
 * norms 1. Equal seeds give equal weights on all machines. Also refreshes the copies and sets the
 * rows of model.router mpi. */
void cpl_model_randomize(cpl_model *model, uint64_t seed);

/* Sets the compute copies from the masters. Call it after loading or changing the masters. */
void cpl_model_refresh(cpl_model *model);

/* ---- router rows by Manifold Power Iteration: model.router mpi (docs/method.md 2.6) ----
 *
 * `router` of the parameters holds the rows R' [n,d] that score tokens, and `router_original` the
 * trained rows R. With the gates W [D,d] of expert i and C = router_scale / sqrt(n):
 *
 *     h_i = W R_i,  G_i = W^T h_i,  R'_i = C G_i / |G_i|, or 0 where G_i is 0
 *
 * (Wu, Lv, Xie, Lin, arXiv 2606.12397, equations 4 and 5). Products are in F32. */

/* Sets R' of every layer from the weights that products read. Call it after the weights have changed.
 * Loading reads R' instead. Does nothing with other routers. */
void cpl_model_set_rows(cpl_model *model);

/* Passes on the gradient `drows` [n,d] of R' of layer l, which becomes 0: *adds* to dR [n,d] and to
 * dgate [n,D,d], the gradient of W_gate (none if not requested). Does nothing with other routers. */
void cpl_model_rows_backward(cpl_model *model, cpl_tensor drows, cpl_tensor dR, cpl_tensor dgate,
                             int64_t l);

/* The activations of one micro-batch [B,S]. */
typedef struct cpl_pass {
    int64_t batch, n_queries;
    bool training;
    cpl_tensor *x;                 /* [2L+1] of [T,d]: the stream before, within and after layers;
                                      the last is valid until a layer's backward pass */
    cpl_attention_kept *attention; /* [L] when training, otherwise one for all layers */
    cpl_moe_kept *moe;             /* [L] when training, otherwise one for all layers */
    cpl_tensor final, final_inv;   /* [T,d], [T]: the stream after the last norm, valid as the last
                                      x; R rows if R tokens are selected */
    cpl_tensor nll;                /* [T] */
    cpl_tensor dx, dfinal;         /* [T,d] */
    cpl_attention_scratch attention_scratch;
    cpl_moe_scratch moe_scratch;

    /* Called by cpl_model_forward after it has queued the operations of a layer, layer by layer.
     * NULL if not needed. The operations may not have finished: the callback queues operations and
     * reads results by get. `kept` belongs to the layer: b, inv, probs, lse, expert, weight, plan
     * and the counts are valid for operations queued before the callback returns. In a pass without
     * training the next layer overwrites them, and gate and up are none. The callback must not
     * change `kept`. cpl_pass_take sets the callback to NULL. */
    void (*on_layer)(void *ctx, int64_t layer, const cpl_moe_kept *kept);
    void *ctx;
    /* Called by cpl_model_backward after it has queued the operations that complete the gradients
     * of a layer, from the last layer to the first. Before the layers it is called with layer =
     * number of layers, for head and last norm, and after them with -1, for the embedding. The
     * callback reads gradients by get. NULL if not needed. */
    void (*on_grads)(void *ctx, int64_t layer);
    void *grads_ctx;
    /* Set by cpl_pass_select: the selected tokens, and the stream of the last layer for these
     * tokens. */
    bool selects;
    cpl_tensor selected;      /* [R] I32 */
    cpl_tensor selected_x[2]; /* [R,d] the stream within and after the last layer */
    cpl_moe_kept selected_moe;
    cpl_moe_scratch selected_scratch;
} cpl_pass;

/* Takes a pass from the arena (which measures or owns memory). Without training, layers share their
 * activations and gradients are not taken. With `cached`, keys and values are stored in a cache. */
void cpl_pass_take(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                   int64_t batch, int64_t n_queries, bool training, bool cached);
/* Selects the tokens `selected` [R] I32, 0 <= R <= T, of a pass without training that has just been
 * taken. `final` is computed for these tokens only and becomes [R,d] in their order. The experts of
 * the last layer, and the callback of that layer, get only these tokens. cpl_model_forward reads
 * `selected`. */
void cpl_pass_select(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_tensor selected);

void cpl_cache_take(cpl_cache *cache, cpl_tensor_arena *arena, const cpl_model_settings *config,
                    int64_t capacity);

/* Returns the largest shapes of a pass, for cpl_backend_reserve. */
cpl_work cpl_pass_work(const cpl_model_settings *config, int64_t n_tokens, bool training);

/* Sets pass->final from ids [T] I32. doc_start is [B,S] I32 or none. `cached` is NULL, or the cache
 * that the tokens continue (attention.h), in a pass taken with `cached`. */
void cpl_model_forward(cpl_model *model, cpl_pass *pass, cpl_tensor ids, cpl_tensor doc_start,
                       const cpl_cached *cached);

/* Computes this rank's experts for the forward passes of the other ranks, until no rank runs a pass
 * (cpl_exchange_meet). For a rank of the experts' mesh without tokens. Collective with passes
 * without training. */
void cpl_model_serve(cpl_model *model, cpl_exchange *exchange);

/* Sets logits [R,V] to rows first ... first + R - 1 of pass->final times the head. */
void cpl_model_logits(cpl_model *model, const cpl_pass *pass, cpl_tensor logits, int64_t first);

/* Sets pass->nll of target [T] I32 (-1: no target), after forward. Adds the sum of nll to total [1]
 * F64 unless total is none. */
void cpl_model_score(cpl_model *model, cpl_pass *pass, cpl_tensor total, cpl_tensor target);

/* *Adds* to grads, after forward, the gradient of
 *     ce_scale * sum of nll + the auxiliary losses of every layer, weighted by `scales`.
 * With model.router mpi the gradient of the rows that score tokens is added to grads' `router`, and
 * cpl_model_rows_backward passes it on. Sets pass->nll and *adds* the sum of nll to total [1] F64.
 * ids and doc_start are as in forward. */
void cpl_model_backward(cpl_model *model, cpl_pass *pass, cpl_tensor total, cpl_params *grads,
                        cpl_tensor ids, cpl_tensor doc_start, cpl_tensor target, float ce_scale,
                        cpl_aux_grad_scales scales);

#endif /* CPL_MODEL_MODEL_H */
