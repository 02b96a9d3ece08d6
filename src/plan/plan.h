/* plan.h - predicts parameters, work, memory, disk and time of a training run.
 *
 * Room:    plan. Bytes come from the functions that allocate in a run, called with an arena that
 *          only measures.
 * Names:   T tokens of one optimizer step over all ranks, n experts, K a token, d model width,
 *          D expert width, L layers, N ranks, E ranks along the experts (parallel/mesh.h). FLOPs:
 *          a product [m,k][k,n] is 2 m k n.
 * Ranks:   memory and work are given for rank 0, which has the maximum over the ranks: if parts are
 *          not equal, the first ranks have the larger parts. docs/scale.md has the formulas. */
#ifndef CPL_PLAN_PLAN_H
#define CPL_PLAN_PLAN_H

#include <jansson.h>
#include <stdbool.h>

#include "base/text.h"
#include "model/exchange.h"
#include "model/settings.h"
#include "parallel/mesh.h"
#include "tensor/backend/gpu.h"
#include "tensor/tensor.h"

typedef enum cpl_plan_term {
#define CPL_PLAN_TERM(name, ...) CPL_PLAN_##name,
#include "plan/terms.def"
    CPL_N_PLAN_TERMS
} cpl_plan_term;

typedef enum cpl_plan_overlap {
    CPL_PLAN_NOTHING,
    CPL_PLAN_BACKWARD,
    CPL_PLAN_UPDATE
} cpl_plan_overlap;

typedef struct cpl_plan_term_row {
    const char *name, *sentence;
    cpl_plan_overlap overlap;
} cpl_plan_term_row;

extern const cpl_plan_term_row cpl_plan_terms[CPL_N_PLAN_TERMS];

/* Sizes of one rank that the room train counts, which this room may not call. */
typedef struct cpl_plan_counted {
    size_t step;          /* memory of a step of the loop (cpl_step_bytes); 0: memory of one pass */
    size_t step_host;     /* part of `step` (cpl_step_host_bytes) */
    size_t optimizer;     /* cpl_optimizer_bytes; this and the next two are not read for one rank */
    size_t messages;      /* part of `optimizer`: buffers of pending messages */
    size_t moments;       /* part of `optimizer`: the two moments of the rank's part */
    int64_t numbers;      /* number of parameters that the rank updates */
    bool divides_masters; /* `optimizer` contains the F32 masters of the rank's part only */
    size_t evaluation;    /* memory of eval.tasks and eval.prompts; 0: no evaluation */
    cpl_work evaluating;  /* largest shapes of the evaluation; not read if evaluation is 0 */
} cpl_plan_counted;

/* The speed of one rank's part of a machine. flops 0: no time is predicted. */
typedef struct cpl_plan_machine {
    double flops;     /* FLOP/s of a training step; if `attention` is not 0, of its products only */
    double attention; /* FLOP/s of attention; 0: attention and traffic are not timed separately */
    double memory;    /* bytes/s of an optimizer update and of passes over memory */
    double bandwidth; /* bytes/s that the rank can send */
    double latency;   /* seconds per message */
} cpl_plan_machine;

/* The input of a plan. */
typedef struct cpl_plan_input {
    cpl_model_settings model; /* resolved, with the type of activations */
    cpl_erc_settings erc;
    int64_t batch_tokens;           /* T; need not be a multiple of seq_len */
    int64_t seq_len;                /* tokens of a sequence */
    int64_t micro_sequences;        /* sequences computed at once */
    int64_t ranks, expert_parallel; /* N, E: E divides N and n */
    cpl_dtype compute;              /* CPL_F32 or CPL_BF16 */
    cpl_backend *backend; /* backend of the training, for scratch and memory; NULL: the CPU */
    int n_threads;        /* threads of the CPU; 0: one per processor */
    int64_t keep;         /* checkpoints kept on disk */
    /* True if every micro-batch is first run forward to count the load of the batch (balance.scope:
     * global, with several micro-batches): in this run, and if one process trained alone. */
    bool counts_ahead, counts_ahead_alone;
    bool overlap; /* dist.overlap */
    cpl_plan_counted counted;
    cpl_plan_counted twin; /* counts of cpl_plan_twin's model; only for Autonomy-of-Experts */
    cpl_sent sent[CPL_N_PLAN_TERMS]; /* from train/traffic.h; cpl_plan_make counts the exchange */
    int64_t copied; /* bytes read and written to pack, sum and unpack gradients and parameters */
    cpl_plan_machine machine;
} cpl_plan_input;

/* Sizes of rank 0, from bytes.def. */
typedef struct cpl_plan_bytes {
#define CPL_PLAN_BYTES(name) size_t name;
#include "plan/bytes.def"
} cpl_plan_bytes;

/* The extra cost of Autonomy-of-Experts compared with its twin, the same model with a softmax
 * router and without coupling loss. Negative if it costs less. */
typedef struct cpl_plan_extra {
    int64_t parameters;
    double step_flops, share_of_step; /* share_of_step: step_flops / the twin's step_flops */
    int64_t model_bytes, run_bytes, step_bytes, total_bytes;
    double share_of_bytes; /* total_bytes / the twin's total */
} cpl_plan_extra;

/* The predicted times of a step of one rank, in seconds; 0 without input.machine
 * (docs/scale.md). */
typedef struct cpl_plan_time {
    double compute, update;           /* passes; optimizer update */
    double attention, traffic;        /* parts of compute, if machine.attention is not 0 */
    double copies;                    /* packing and summing input.copied bytes */
    double backward;                  /* backward pass of the last micro-batch, hides gradients */
    double sent[CPL_N_PLAN_TERMS];    /* messages latency + bytes / bandwidth */
    double exposed[CPL_N_PLAN_TERMS]; /* part of `sent` that does not overlap with computation */
    double step;                      /* compute + update + copies + sum of exposed */
    double efficiency;                /* ratio: step of one rank alone / (N step), same batch */
} cpl_plan_time;

/* The GPU that the plan is for; zero on the CPU. */
typedef struct cpl_plan_gpu {
    const char *name;
    double memory, free;   /* bytes in all, and bytes available to tensors */
    bool fits;             /* bytes.total - bytes.device <= free */
    int64_t largest_micro; /* sequences of the largest micro-batch that fits; 0: none fits.
                              Set by cpl_plan_run_largest */
} cpl_plan_gpu;

typedef struct cpl_plan {
    cpl_plan_input input;
    int64_t total_parameters;
    int64_t active_parameters;              /* as OLMoE counts: cpl_params_active */
    int64_t active_without_input_embedding; /* active_parameters if the head is tied */
    int64_t active_without_embedding_and_head;

    /* Forward FLOPs of one MoE layer over T tokens, all devices together: model/cost.h. */
    double base_flops;      /* 6 T K D d: the experts */
    double erc_flops;       /* 2 n^2 D d, times the products of erc.activation and erc.draws; 0 for
                               Autonomy-of-Experts, which does not support the loss */
    int64_t aoe_rank;       /* r of the model; with a router, r that keeps the parameters */
    double aoe_extra_flops; /* 2 T (n-K) d r: addition of Autonomy-of-Experts, if used or not */

    /* Predicted price of the coupling loss per rank, in tokens through one expert, as the paper
     * counts: every replica of the experts computes the whole loss. In this program the replicas
     * divide it (rank_flops). */
    double base_token_equivalents; /* K T / N */
    double erc_token_equivalents;  /* n (n/E) / 3, times products and draws as in erc_flops */
    double erc_overhead;           /* erc_token_equivalents / base_token_equivalents */

    /* FLOPs of the whole model, for one token forward, and for one step forward and backward. The
     * step includes the coupling loss in coupled_layers (erc.layers; 0 if erc.weight is 0), with
     * every hinge active. */
    double token_forward_flops, step_flops;
    int64_t coupled_layers;
    double erc_share_all_active;  /* share of the loss in step_flops, with three products a layer */
    double erc_share_none_active; /* share in a step without active hinges, one product a layer */

    /* Costs of a step of rank 0: micro-batches; FLOPs, including forward passes that only count the
     * load; bytes and messages of each term; bytes and messages of the exchange if all ranks send
     * all their rows to rank 0. */
    double passes, rank_flops;
    cpl_sent sent[CPL_N_PLAN_TERMS], worst_exchange;
    cpl_plan_time time;

    cpl_plan_bytes bytes;
    cpl_plan_gpu gpu;
    cpl_plan_extra aoe; /* zero if the model has a router */
} cpl_plan;

/* Returns the twin of a model with Autonomy-of-Experts: the same model with a softmax router. */
cpl_model_settings cpl_plan_twin(const cpl_model_settings *model);

/* Returns the mesh of rank `rank`, in which only ranks, sizes and the rank's experts are set. */
cpl_mesh cpl_plan_mesh(int64_t ranks, int64_t expert_parallel, int64_t rank, int64_t n_experts);

/* Returns the settings of the model with the experts of rank 0. */
cpl_model_settings cpl_plan_own(const cpl_plan_input *input, const cpl_model_settings *model);

/* Fails with CPL_ERR_MEMORY if the sizes exceed 2^56 bytes. Call it before functions that count
 * bytes in integers, which could overflow. */
CPL_NODISCARD cpl_status cpl_plan_check_size(const cpl_plan_input *input);

/* Computes *plan. CPL_ERR_INPUT as cpl_mesh_check, CPL_ERR_MEMORY as cpl_plan_check_size. */
CPL_NODISCARD cpl_status cpl_plan_make(cpl_plan *plan, const cpl_plan_input *input);

/* Fails with CPL_ERR_MEMORY "not enough memory: ..." if bytes.total exceed the backend's free
 * memory, bytes.host the host's, or the bytes of `local_ranks` ranks the memory of the machine. */
CPL_NODISCARD cpl_status cpl_plan_check_memory(const cpl_plan *plan, int local_ranks);

/* Appends the table for people. */
void cpl_plan_text(cpl_text *out, const cpl_plan *plan);

/* Returns whether the model has Autonomy-of-Experts in place of a router. */
bool cpl_plan_is_aoe(const cpl_model_settings *model);

/* Returns whether the plan is for a GPU. */
bool cpl_plan_on_gpu(const cpl_plan_input *input);

/* Returns assumed rates of a GPU that has not been measured: shares of its published rates. */
cpl_plan_machine cpl_plan_assumed(const cpl_gpu *gpu);
void cpl_plan_assumed_text(cpl_text *out, const cpl_gpu *gpu);

/* Returns the plan as a JSON object, owned by the caller, or NULL without memory. Members:
 *     L d D H Hkv n K V tied router router_bias n_shared_experts r
 *     total_parameters active_parameters active_without_input_embedding
 *     active_without_embedding_and_head
 *     T ranks expert_parallel data_parallel base_token_equivalents_per_rank
 *     erc_token_equivalents_per_rank erc_overhead
 *     forward_flops_per_moe_layer { base erc aoe_extra }
 *     seq_len micro_sequences dtype activations erc_in_step token_forward_flops step_flops
 *     coupled_layers erc_share_all_active erc_share_none_active
 *     micro_batches rank_flops
 *     bytes { every name of bytes.def }
 *     gpu { name memory_bytes free_bytes fits largest_micro_batch }; null on the CPU
 *     sent { for every term: { bytes messages worst_bytes overlapped_by s exposed_s } }
 *     time { flops_per_second attention_flops_per_second memory_bytes_per_second bytes_per_second
 *             latency_s compute_s attention_s traffic_s update_s copies_s backward_s step_s
 *             tokens_per_second efficiency }; null if no time is predicted
 *     aoe_beside_softmax { extra_parameters extra_step_flops extra_share_of_step extra_model_bytes
 *             extra_run_bytes extra_step_bytes extra_total_bytes extra_share_of_bytes };
 *             null if the model has a router
 * Whole numbers below 2^53 are integers. */
json_t *cpl_plan_json(const cpl_plan *plan);

/* ---- predict.c, only for plan.c ---- */

/* Return the rows that rank 0 receives in a pass: with equal loads of the experts, and at most. */
int64_t cpl_plan_balanced_rows(const cpl_plan_input *input);
int64_t cpl_plan_most_rows(const cpl_plan_input *input);

/* Sets passes, rank_flops, sent, worst_exchange and time, after all work has been counted. */
void cpl_plan_predict(cpl_plan *plan);

#endif /* CPL_PLAN_PLAN_H */
