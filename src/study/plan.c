/* plan.c - see plan.h; the two ways of showing it are in plan_show.c */
#include "study/plan.h"

#include <math.h>
#include <string.h>

#include "model/cost.h"
#include "model/model.h"
#include "base/memory.h"
#include "tensor/backend.h"

static const double most_bytes = 0x1p56; /* more is beyond all machines */
static const char training[]   = "training with these settings";

int64_t cpl_plan_aoe_rank(int64_t d_model, int64_t d_expert)
{
    int64_t sum = d_model + d_expert;
    return (2 * d_model * d_expert + sum) / (2 * sum);
}

/* ---- parameters and work ---- */

static void count_parameters(cpl_plan *plan)
{
    const cpl_model_settings *c = &plan->asked.model;
    int64_t idle                = c->n_layers * (c->n_experts - c->top_k);
    int64_t table               = c->vocab_size * c->d_model;
    plan->total_parameters      = cpl_params_numbers(c);
    plan->active_parameters     = plan->total_parameters - idle * 3 * c->d_model * c->d_expert;
    plan->active_without_input_embedding    = plan->active_parameters - (c->tied ? 0 : table);
    plan->active_without_embedding_and_head = plan->active_parameters - (c->tied ? 1 : 2) * table;
}

/* Products [D,d] a proxy meets in one expert, by erc.activation. */
static double products_of(int activation)
{
    static const double products[] = {1, 1, 1, 2, 3}; /* gate up silu swiglu output */
    return products[activation];
}

static void count_work(cpl_plan *plan)
{
    const cpl_plan_case *asked  = &plan->asked;
    const cpl_model_settings *c = &asked->model;
    double t = (double)asked->batch_tokens, n = (double)c->n_experts, k = (double)c->top_k;
    double times = products_of(asked->erc.activation) * (double)asked->erc.draws;

    plan->aoe_rank        = cpl_plan_aoe_rank(c->d_model, c->d_expert);
    plan->base_flops      = cpl_cost_experts(c, t);
    plan->erc_flops       = times * cpl_cost_coupling(c);
    plan->aoe_extra_flops = 2 * t * (n - k) * (double)c->d_model * (double)plan->aoe_rank;

    plan->base_token_equivalents = k * t / (double)asked->dp;
    plan->erc_token_equivalents  = times * n * (n / (double)asked->ep) / 3;
    plan->erc_overhead           = plan->erc_token_equivalents / plan->base_token_equivalents;

    plan->token_forward_flops = cpl_cost_token(c, (double)asked->seq_len);
    plan->step_flops          = cpl_cost_step(c, t, (double)asked->seq_len, 0);
    if (asked->erc.weight > 0) plan->step_flops += 3 * (double)c->n_layers * plan->erc_flops;
}

/* ---- bytes ---- */

static size_t set_bytes(const cpl_model_settings *config)
{
    cpl_arena arena;
    cpl_params unseen = {0};
    cpl_arena_measure(&arena);
    cpl_params_take(&unseen, &arena, config, CPL_F32);
    return arena.used;
}

static size_t pass_bytes(const cpl_plan_case *asked)
{
    cpl_arena arena;
    cpl_pass unseen;
    cpl_arena_measure(&arena);
    cpl_pass_take(&unseen, &arena, &asked->model, asked->micro_sequences, asked->seq_len, true,
                  false);
    return arena.used;
}

static size_t scratch_bytes(const cpl_plan_case *asked)
{
    cpl_backend be;
    cpl_work work =
        cpl_pass_work(&asked->model, asked->micro_sequences, asked->seq_len, asked->seq_len, true);
    cpl_backend_cpu(&be, asked->compute, asked->n_threads);
    return be.ops->scratch_bytes(&be, &work);
}

static void count_bytes(cpl_plan *plan)
{
    const cpl_plan_case *asked  = &plan->asked;
    const cpl_model_settings *c = &asked->model;
    cpl_plan_bytes *b           = &plan->bytes;
    size_t set                  = set_bytes(c);
    b->weights                  = cpl_model_bytes(c, CPL_F32, asked->seq_len);
    b->compute_copies           = cpl_model_bytes(c, asked->compute, asked->seq_len) - b->weights;
    b->gradients                = set;
    b->moments                  = 2 * set;
    b->activations              = pass_bytes(asked);
    b->coupling = asked->step_bytes > b->activations ? asked->step_bytes - b->activations : 0;
    b->scratch  = scratch_bytes(asked);
    b->total    = b->weights + b->compute_copies + b->gradients + b->moments + b->activations +
               b->coupling + b->scratch;
    b->checkpoint = 3 * (size_t)plan->total_parameters * sizeof(float);
    b->disk       = ((size_t)asked->keep + 1) * b->checkpoint;
}

/* The bytes to within a small factor, in double, which cannot run over. */
static double rough_bytes(const cpl_plan_case *asked)
{
    const cpl_model_settings *c = &asked->model;
    double l = (double)c->n_layers, d = (double)c->d_model, e = (double)c->d_expert;
    double n = (double)c->n_experts, k = (double)c->top_k, v = (double)c->vocab_size;
    double t      = (double)asked->micro_sequences * (double)asked->seq_len;
    double params = 2 * v * d + l * d * (4 * d + n + 3 * n * e);
    double layer  = 12 * d + 3 * n + 6 * k + 2 * k * e;
    return 16 * params + 4 * t * l * layer + 4 * l * n * (n + d) + 4 * (double)asked->seq_len * d;
}

cpl_status cpl_plan_check_size(const cpl_plan_case *asked)
{
    return cpl_memory_compare(rough_bytes(asked), most_bytes, training);
}

cpl_status cpl_plan_make(cpl_plan *plan, const cpl_plan_case *asked)
{
    CPL_ASSERT(asked->dp > 0 && asked->ep > 0 && asked->seq_len > 0 && asked->batch_tokens > 0);
    memset(plan, 0, sizeof *plan);
    plan->asked = *asked;
    if (asked->model.n_experts % asked->ep != 0)
        return CPL_FAIL(CPL_ERR_USAGE,
                        "an expert-parallel size of %lld does not divide %lld experts",
                        (long long)asked->ep, (long long)asked->model.n_experts);
    CPL_TRY(cpl_plan_check_size(asked));
    count_parameters(plan);
    count_work(plan);
    count_bytes(plan);
    return CPL_OK;
}

cpl_status cpl_plan_check_memory(const cpl_plan *plan)
{
    return cpl_memory_foretell((double)plan->bytes.total, training);
}
