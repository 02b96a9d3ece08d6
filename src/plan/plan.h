/* plan.h - what a training run will take, before it runs: parameters, work, memory, disk.
 *
 * Room:    plan. Allocates nothing of what it counts: bytes come from the functions that will
 *          allocate, on an arena that only measures.
 * Names:   T tokens of one optimizer step over all devices, n experts, K a token, d model width,
 *          D expert width, L layers; dp x ep devices. FLOPs: a product [m,k][k,n] is 2 m k n. */
#ifndef CPL_PLAN_PLAN_H
#define CPL_PLAN_PLAN_H

#include <jansson.h>
#include <stdbool.h>

#include "base/text.h"
#include "model/settings.h"
#include "tensor/tensor.h"

/* The input of a plan. */
typedef struct cpl_plan_input {
    cpl_model_settings model; /* resolved */
    cpl_erc_settings erc;
    int64_t batch_tokens;    /* T; need not be a multiple of seq_len */
    int64_t seq_len;         /* tokens of a sequence */
    int64_t micro_sequences; /* sequences computed at once */
    int64_t dp, ep;          /* data-parallel and expert-parallel size; ep divides n */
    cpl_dtype compute;       /* CPL_F32 or CPL_BF16 */
    int n_threads;           /* 0: one per processor */
    int64_t keep;            /* checkpoints kept on disk */
    size_t step_bytes;       /* memory of a step of the training loop, in all (train/step.h:
                                cpl_step_bytes, which this floor may not call); 0: one pass alone */
    size_t twin_step_bytes;  /* the same of cpl_plan_twin's model; only for Autonomy-of-Experts */
} cpl_plan_input;

/* Bytes by lifetime, in one process that holds the whole model (dp and ep do not enter). */
typedef struct cpl_plan_bytes {
    /* the model */
    size_t weights;        /* F32 masters and the rotary table */
    size_t compute_copies; /* BF16; 0 when computing in f32 */
    /* the run */
    size_t gradients, moments;
    /* the step: one micro-batch */
    size_t activations;
    size_t coupling; /* the rest of input.step_bytes: the coupling loss and its figures */
    size_t scratch;  /* of the kernels */
    size_t total;    /* of all above */
    /* on disk */
    size_t checkpoint; /* one: weights and two moments, F32 */
    size_t disk;       /* `keep` of them and the one being written */
} cpl_plan_bytes;

/* The extra cost of Autonomy-of-Experts over its twin, the same model with a softmax router and
 * without coupling loss; negative if it costs less. */
typedef struct cpl_plan_extra {
    int64_t parameters;
    double step_flops, share_of_step; /* the latter of the twin's step */
    int64_t model_bytes, run_bytes, step_bytes, total_bytes;
    double share_of_bytes; /* of the twin's total */
} cpl_plan_extra;

typedef struct cpl_plan {
    cpl_plan_input input;
    int64_t total_parameters;
    int64_t active_parameters;              /* OLMoE's way: cpl_params_active */
    int64_t active_without_input_embedding; /* the same as above if the head is tied to it */
    int64_t active_without_embedding_and_head;

    /* Forward FLOPs of one MoE layer over T tokens, all devices together: model/cost.h. */
    double base_flops;      /* 6 T K D d: the experts */
    double erc_flops;       /* 2 n^2 D d, times the products of erc.activation and erc.draws; 0 for
                               Autonomy-of-Experts, which cannot have it */
    int64_t aoe_rank;       /* r: the model's, or with a router that of the same parameters */
    double aoe_extra_flops; /* 2 T (n-K) d r: what Autonomy-of-Experts adds, or would add */

    /* Predicted price of the coupling loss per device, in tokens through one expert. */
    double base_token_equivalents; /* K T / dp */
    double erc_token_equivalents;  /* n (n/ep) / 3, times the same two factors */
    double erc_overhead;           /* their ratio */

    /* Whole model: one token forward, and a step, forward and backward, with the coupling loss in
     * coupled_layers (erc.layers; 0 if erc.weight is 0), every hinge of it active. */
    double token_forward_flops, step_flops;
    int64_t coupled_layers;
    double erc_share_all_active;  /* of step_flops: three products a layer */
    double erc_share_none_active; /* one product a layer, of a step with no more than that */

    cpl_plan_bytes bytes;
    cpl_plan_extra aoe; /* zero if the model has a router */
} cpl_plan;

/* The model that Autonomy-of-Experts is compared with: the same with a softmax router. */
cpl_model_settings cpl_plan_twin(const cpl_model_settings *model);

/* CPL_ERR_MEMORY if the sizes are beyond all machines (2^56 bytes): to be called before any of
 * the functions that count bytes in integers, which could run over. */
CPL_NODISCARD cpl_status cpl_plan_check_size(const cpl_plan_input *input);

/* Fills `plan`. CPL_ERR_USAGE if ep does not divide the experts; else as cpl_plan_check_size. */
CPL_NODISCARD cpl_status cpl_plan_make(cpl_plan *plan, const cpl_plan_input *input);

/* CPL_ERR_MEMORY "not enough memory: ..." if bytes.total are more than this process can
 * have now. */
CPL_NODISCARD cpl_status cpl_plan_check_memory(const cpl_plan *plan);

/* Appends the table for people. */
void cpl_plan_text(cpl_text *out, const cpl_plan *plan);

/* The plan as an object of the caller's; NULL if there is no memory. Members:
 *     L d D H Hkv n K V tied router router_bias n_shared_experts r
 *     total_parameters active_parameters active_without_input_embedding
 *     active_without_embedding_and_head
 *     T dp ep base_token_equivalents_per_device erc_token_equivalents_per_device erc_overhead
 *     forward_flops_per_moe_layer { base erc aoe_extra }
 *     seq_len micro_sequences dtype erc_in_step token_forward_flops step_flops
 *     coupled_layers erc_share_all_active erc_share_none_active
 *     bytes { weights compute_copies gradients moments activations coupling scratch total
 *             checkpoint disk }
 *     aoe_beside_softmax { extra_parameters extra_step_flops extra_share_of_step extra_model_bytes
 *             extra_run_bytes extra_step_bytes extra_total_bytes extra_share_of_bytes };
 *             null if the model has a router
 * Whole numbers below 2^53 are integers. */
json_t *cpl_plan_json(const cpl_plan *plan);

#endif /* CPL_PLAN_PLAN_H */
