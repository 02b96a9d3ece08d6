/* moe.h - the Mixture-of-Experts half of a layer, forward and backward (paper, section 2;
 * docs/method.md 2.1, 2.5, 4.2).
 *
 * Room:   model. T tokens, n experts, K of them a token, r rank of factorised gates.
 *
 *             b = RMSNorm(x);  p = scores of the experts;  S = the K with the largest
 *             out = x + sum_{e in S} p[e] W_down_e (SiLU(g_e) * (W_up_e b)) + shared expert of b
 *
 *         model.router determines the scores and g_e:
 *             softmax  p = softmax(b R^T) over all n;          g_e = W_gate_e b
 *             sigmoid  p = sigmoid(b R^T), each independently; S by p + bias if there is one
 *             mpi      softmax, whose rows follow from others and from W_gate (model.h)
 *             aoe      no router: h_e = W_gate_a_e b [r], p = softmax over e of |h_e|, and
 *                      g_e = W_gate_b_e h_e reuses the same h_e (Autonomy-of-Experts)
 *
 *         The shared expert (DeepSeekMoE) gets every token with weight 1. Its width is
 *         S = n_shared_experts * intermediate_size, since several shared experts equal one of their
 *         total width. It is computed by the same operation, with one expert and one choice.
 *
 *             shared expert of b = W_down (SiLU(W_gate b) * (W_up b))
 *
 *         With model.latent_dim the experts (not the shared one) read W_l b [l] and their sum returns
 *         by W_u (LatentMoE of Nemotron 3; docs/method.md 3.14):
 *
 *             out = x + W_u sum_{e in S} p[e] E_e(W_l b) + shared expert of b
 *
 *         The router's logits are F32 products of the F32 master rows, whatever type the experts
 *         use. */
#ifndef CPL_MODEL_MOE_H
#define CPL_MODEL_MOE_H

#include "model/exchange.h"
#include "model/params.h"
#include "tensor/memory.h"

/* Activations of one layer that forward keeps for backward, and the counts of forward. */
typedef struct cpl_moe_kept {
    cpl_tensor b;      /* [T,d] */
    cpl_tensor inv;    /* [T] */
    cpl_tensor hidden; /* [T,n,r] h_e of all experts with aoe, otherwise none */
    cpl_tensor norm;   /* [T,n] |h_e| with aoe, otherwise none */
    cpl_tensor probs;  /* [T,n] scores */
    cpl_tensor lse;    /* [T] */
    cpl_tensor expert; /* [T,K] I32 */
    cpl_tensor weight; /* [T,K] */
    cpl_dispatch plan;
    cpl_tensor gate, up;          /* [T K, D]; none when not training, or with an exchange */
    cpl_tensor latent, mixed;     /* [T,l] W_l b, and the sum of the experts' outputs, F32; none
                                          without latent_dim */
    cpl_tensor counts, mean_prob; /* [n] */
    cpl_tensor z, entropy;        /* [1] */
    cpl_tensor n_negative;        /* [1] F64 *adds* the number of the T n logits below 0;
                                          none, as cpl_moe_take sets it: not counted */
    cpl_tensor moments;           /* [2,d] F64 *adds* the moments of b (ops.h: column_moments);
                                         none, as cpl_moe_take sets it: not computed */
    cpl_tensor shared_gate, shared_up; /* [T,S]; none if not training, or without shared expert */
} cpl_moe_kept;

/* Scratch shared by all layers. */
typedef struct cpl_moe_scratch {
    cpl_tensor logits;          /* [T,n]: logits in forward, dlogits in backward */
    cpl_tensor dweight;         /* [T,K] */
    cpl_tensor dhidden;         /* [T K, r] gradient of the chosen h_e with aoe, otherwise none */
    cpl_tensor db;              /* [T,d], set by the caller to memory that is otherwise unused */
    cpl_tensor dlatent, dmixed; /* [T,l] gradients of latent and mixed; none without latent_dim */
    cpl_exchange *exchange;     /* NULL if all experts are in this process */
    int64_t kept;
    struct {                /* for the shared expert; none if the model has no shared expert */
        cpl_tensor y;       /* [T,d] */
        cpl_tensor expert;  /* [T,1] I32, all 0 */
        cpl_tensor weight;  /* [T,1], all 1 */
        cpl_tensor dweight; /* [T,1]: gradient of weight, which is never read */
        cpl_dispatch plan;
    } shared;
} cpl_moe_scratch;

/* The weights of the auxiliary losses in route_backward. */
typedef struct cpl_aux_grad_scales {
    float balance_scale, z_scale;
    cpl_tensor counts; /* [L,G,n] load (model/balance.h) of each of G equal, consecutive parts of
                          the T tokens; [G,n] for one layer; none: forward's counts over all T */
} cpl_aux_grad_scales;

/* Returns the experts' matrices of a layer as an argument of operations. */
cpl_expert_weights cpl_moe_experts(const cpl_layer_params *w);

/* Takes the activations from the arena. If `first`, the activations of another layer, is not NULL,
 * b shares its memory. */
void cpl_moe_take(cpl_moe_kept *kept, cpl_tensor_arena *arena, const cpl_model_settings *config,
                  int64_t n_tokens, bool training, const cpl_moe_kept *first);
void cpl_moe_scratch_take(cpl_moe_scratch *s, cpl_tensor_arena *arena,
                          const cpl_model_settings *config, int64_t n_tokens, bool training);

/* Sets out [T,d], which must not be x. */
void cpl_moe_forward(cpl_backend *be, cpl_tensor out, cpl_moe_kept *kept, cpl_tensor x,
                     const cpl_layer_params *w, const cpl_model_settings *config,
                     const cpl_moe_scratch *s);

/* Replaces the gradient of out in dx [T,d] by the gradient of x, and *adds* to dw. Overwrites
 * kept's gate, up and hidden. Recomputes b if config->recompute_norms. */
void cpl_moe_backward(cpl_backend *be, cpl_tensor dx, cpl_layer_params *dw, cpl_moe_kept *kept,
                      cpl_tensor x, const cpl_layer_params *w, const cpl_model_settings *config,
                      cpl_aux_grad_scales scales, const cpl_moe_scratch *s);

#endif /* CPL_MODEL_MOE_H */
