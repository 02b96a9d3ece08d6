/* plan.h - what a training run will take, before it runs: parameters, work, memory, disk.
 *
 * Room:    plan. Allocates nothing of what it counts: bytes come from the functions that will
 *          allocate, on an arena that only measures.
 * Names:   T tokens of one optimizer step over all ranks, n experts, K a token, d model width,
 *          D expert width, L layers; N ranks, E of them along the experts (parallel/mesh.h). FLOPs: a
 *          product [m,k][k,n] is 2 m k n.
 * Ranks:   memory and work are those of rank 0, which no other exceeds: where parts are not equal,
 *          the first ranks have the larger ones. docs/scale.md has the formulas. */
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

/* What train, which this floor may not call, counts for one rank. */
typedef struct cpl_plan_counted {
    size_t step;      /* memory of a step of the loop, in all (cpl_step_bytes); 0: one pass alone */
    size_t optimizer; /* cpl_optimizer_bytes; this and the next are not read for one rank */
    size_t messages;  /* in it: buffers of messages under way */
    size_t moments;   /* in it: two parts */
    int64_t numbers;  /* of its own that the rank updates */
    bool divides_masters; /* a rank has the F32 masters of its parts alone: in `optimizer` */
    size_t evaluation;    /* memory of eval.tasks and eval.prompts; 0: the run has none */
    cpl_work evaluating;  /* what they compute at once; not read if it has none */
} cpl_plan_counted;

/* What one rank's part of a machine can do; flops 0: no time is predicted. */
typedef struct cpl_plan_machine {
    double flops;     /* FLOP/s of a training step; with `attention` of its products alone */
    double attention; /* FLOP/s of attention, where passes over memory count too; else 0 */
    double memory;    /* bytes/s of an optimizer update, and of these passes */
    double bandwidth; /* bytes/s that the rank sends */
    double latency;   /* s, of a message */
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
    cpl_backend *backend; /* that will train: its scratch, and its memory; NULL: the CPU's */
    int n_threads;        /* of the CPU; 0: one per processor */
    int64_t keep;         /* checkpoints kept on disk */
    /* Every micro-batch is first run forward, to count the load of the batch, if there are several
     * (balance.scope: global); the same in one process that trains alone. */
    bool counts_ahead, counts_ahead_alone;
    bool overlap; /* dist.overlap */
    cpl_plan_counted counted;
    cpl_plan_counted twin; /* the same of cpl_plan_twin's model; only for Autonomy-of-Experts */
    cpl_sent sent[CPL_N_PLAN_TERMS]; /* by train/traffic.h; the exchange is counted here */
    int64_t copied; /* bytes read and written to pack, sum and unpack gradients and parameters */
    cpl_plan_machine machine;
} cpl_plan_input;

/* Bytes in rank 0: bytes.def. */
typedef struct cpl_plan_bytes {
#define CPL_PLAN_BYTES(name) size_t name;
#include "plan/bytes.def"
} cpl_plan_bytes;

/* The extra cost of Autonomy-of-Experts over its twin, the same model with a softmax router and
 * without coupling loss; negative if it costs less. */
typedef struct cpl_plan_extra {
    int64_t parameters;
    double step_flops, share_of_step; /* the latter of the twin's step */
    int64_t model_bytes, run_bytes, step_bytes, total_bytes;
    double share_of_bytes; /* of the twin's total */
} cpl_plan_extra;

/* A step of one rank, predicted; zero without input.machine. docs/scale.md. */
typedef struct cpl_plan_time {
    double compute, update;           /* s */
    double attention, traffic;        /* s, in compute, where machine.attention is given */
    double copies;                    /* s, of input.copied */
    double backward;                  /* s, of the last micro-batch: hides the gradients */
    double sent[CPL_N_PLAN_TERMS];    /* s: messages latency + bytes / bandwidth */
    double exposed[CPL_N_PLAN_TERMS]; /* s, what nothing hides of it */
    double step;                      /* s: compute + update + copies + all exposed */
    double efficiency;                /* step of one rank alone / (N step), the same batch */
} cpl_plan_time;

/* Of the GPU that was planned for; zero on the CPU. */
typedef struct cpl_plan_gpu {
    const char *name;
    double memory, free;   /* bytes: the whole, and what tensors can have of it */
    bool fits;             /* bytes.total less bytes.device are no more than `free` */
    int64_t largest_micro; /* sequences of the largest micro-batch that fits; 0: none.
                              cpl_plan_run_largest sets it */
} cpl_plan_gpu;

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

    /* Predicted price of the coupling loss per rank, in tokens through one expert, as the paper
     * counts it: every replica of the experts repeats it. Here the replicas share it
     * (rank_flops). */
    double base_token_equivalents; /* K T / N */
    double erc_token_equivalents;  /* n (n/E) / 3, times the same two factors */
    double erc_overhead;           /* their ratio */

    /* Whole model: one token forward, and a step, forward and backward, with the coupling loss in
     * coupled_layers (erc.layers; 0 if erc.weight is 0), every hinge of it active. */
    double token_forward_flops, step_flops;
    int64_t coupled_layers;
    double erc_share_all_active;  /* of step_flops: three products a layer */
    double erc_share_none_active; /* one product a layer, of a step with no more than that */

    /* Of rank 0: micro-batches of a step, its operations with those of passes that only count,
     * bytes and messages of every term, and of the exchange if all ranks send this one all they
     * can. */
    double passes, rank_flops;
    cpl_sent sent[CPL_N_PLAN_TERMS], worst_exchange;
    cpl_plan_time time;

    cpl_plan_bytes bytes;
    cpl_plan_gpu gpu;
    cpl_plan_extra aoe; /* zero if the model has a router */
} cpl_plan;

/* The model that Autonomy-of-Experts is compared with: the same with a softmax router. */
cpl_model_settings cpl_plan_twin(const cpl_model_settings *model);

/* Rank `rank` of the mesh, without transport: ranks, sizes and its experts alone. */
cpl_mesh cpl_plan_mesh(int64_t ranks, int64_t expert_parallel, int64_t rank, int64_t n_experts);

/* The settings of the model with the experts of rank 0. */
cpl_model_settings cpl_plan_own(const cpl_plan_input *input, const cpl_model_settings *model);

/* CPL_ERR_MEMORY if the sizes are beyond all machines (2^56 bytes): to be called before any of
 * the functions that count bytes in integers, which could run over. */
CPL_NODISCARD cpl_status cpl_plan_check_size(const cpl_plan_input *input);

/* Fills `plan`. CPL_ERR_INPUT as cpl_mesh_check; else as cpl_plan_check_size. */
CPL_NODISCARD cpl_status cpl_plan_make(cpl_plan *plan, const cpl_plan_input *input);

/* CPL_ERR_MEMORY "not enough memory: ..." if bytes.total are more than this process can have now of
 * the backend's memory, bytes.host more than of the host's, or those of `local_ranks` ranks more than the
 * machine has. */
CPL_NODISCARD cpl_status cpl_plan_check_memory(const cpl_plan *plan, int local_ranks);

/* Appends the table for people. */
void cpl_plan_text(cpl_text *out, const cpl_plan *plan);

/* Whether the plan is that of a GPU. */
bool cpl_plan_on_gpu(const cpl_plan_input *input);

/* The rates of a GPU of which nothing was measured, shares of its published ones; appends what they are. */
cpl_plan_machine cpl_plan_assumed(const cpl_gpu *gpu);
void cpl_plan_assumed_text(cpl_text *out, const cpl_gpu *gpu);

/* The plan as an object of the caller's; NULL if there is no memory. Members:
 *     L d D H Hkv n K V tied router router_bias n_shared_experts r
 *     total_parameters active_parameters active_without_input_embedding
 *     active_without_embedding_and_head
 *     T ranks expert_parallel data_parallel base_token_equivalents_per_rank
 *     erc_token_equivalents_per_rank erc_overhead
 *     forward_flops_per_moe_layer { base erc aoe_extra }
 *     seq_len micro_sequences dtype activations erc_in_step token_forward_flops step_flops
 *     coupled_layers erc_share_all_active erc_share_none_active
 *     micro_batches rank_flops
 *     bytes { of bytes.def }
 *     gpu { name memory_bytes free_bytes fits largest_micro_batch }; null on the CPU
 *     sent { of every term: { bytes messages worst_bytes overlapped_by s exposed_s } }
 *     time { flops_per_second attention_flops_per_second memory_bytes_per_second bytes_per_second
 *             latency_s compute_s attention_s traffic_s update_s copies_s backward_s step_s
 *             tokens_per_second efficiency }; null if no time is predicted
 *     aoe_beside_softmax { extra_parameters extra_step_flops extra_share_of_step extra_model_bytes
 *             extra_run_bytes extra_step_bytes extra_total_bytes extra_share_of_bytes };
 *             null if the model has a router
 * Whole numbers below 2^53 are integers. */
json_t *cpl_plan_json(const cpl_plan *plan);

/* ---- predict.c, only for plan.c ---- */

/* How many rows of tokens come to rank 0 in a pass, if every expert gets as many, and at most. */
int64_t cpl_plan_balanced_rows(const cpl_plan_input *input);
int64_t cpl_plan_most_rows(const cpl_plan_input *input);

/* After all of the work was counted: passes, rank_flops, sent, worst_exchange and time. */
void cpl_plan_predict(cpl_plan *plan);

#endif /* CPL_PLAN_PLAN_H */
