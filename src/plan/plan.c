/* plan.c - see plan.h: all sizes of a plan; show.c shows it in two formats */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/cost.h"
#include "model/coupling.h"
#include "model/model.h"
#include "tensor/backend/backend.h"

static const double most_bytes = 0x1p56; /* limit below which sizes fit integers */
static const char training[]   = "training with these settings";

/* ---- twins ---- */

bool cpl_plan_is_aoe(const cpl_model_settings *c)
{
    return cpl_router_of(c)->scores == CPL_SCORES_NORMS;
}

cpl_model_settings cpl_plan_twin(const cpl_model_settings *model)
{
    cpl_model_settings twin = *model;
    twin.router             = CPL_ROUTER_SOFTMAX;
    twin.router_bias        = 0;
    twin.aoe_rank           = CPL_UNSET;
    return twin;
}

/* Returns the model with Autonomy-of-Experts, at the rank that keeps the number of parameters. */
static cpl_model_settings as_aoe(const cpl_model_settings *model)
{
    cpl_model_settings aoe = *model;
    if (cpl_plan_is_aoe(model)) return aoe;
    aoe.router   = CPL_ROUTER_AOE;
    aoe.aoe_rank = cpl_model_aoe_rank(model->d_model, model->d_expert);
    return aoe;
}

/* ---- parameters and work ---- */

static void count_parameters(cpl_plan *plan)
{
    const cpl_model_settings *c             = &plan->input.model;
    int64_t table                           = c->vocab_size * c->d_model;
    plan->total_parameters                  = cpl_params_numbers(c);
    plan->active_parameters                 = cpl_params_active(c);
    plan->active_without_input_embedding    = plan->active_parameters - (c->tied ? 0 : table);
    plan->active_without_embedding_and_head = plan->active_parameters - (c->tied ? 1 : 2) * table;
}

static double step_flops(const cpl_plan_input *input)
{
    return cpl_cost_step(&input->model, (double)input->batch_tokens, (double)input->seq_len,
                         input->erc.weight > 0 ? &input->erc : NULL);
}

/* Counts the coupling loss alone and in the step. */
static void count_coupling(cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    const cpl_model_settings *c = &input->model;
    if (!cpl_router_of(c)->has_rows) return;
    plan->erc_flops             = cpl_cost_coupling(c, &input->erc);
    plan->erc_token_equivalents = plan->erc_flops * (double)c->top_k / cpl_cost_experts(c, 1) /
                                  (double)input->expert_parallel;
    plan->erc_overhead = plan->erc_token_equivalents / plan->base_token_equivalents;
    if (!(input->erc.weight > 0)) return;
    plan->coupled_layers        = cpl_erc_n_layers(&input->erc, c->n_layers);
    double forward              = (double)plan->coupled_layers * plan->erc_flops;
    plan->erc_share_all_active  = 3 * forward / plan->step_flops;
    plan->erc_share_none_active = forward / (plan->step_flops - 2 * forward);
}

static void count_work(cpl_plan *plan)
{
    const cpl_plan_input *input  = &plan->input;
    const cpl_model_settings *c  = &input->model;
    const cpl_model_settings aoe = as_aoe(c);
    double t                     = (double)input->batch_tokens;

    plan->base_flops             = cpl_cost_experts(c, t);
    plan->aoe_rank               = aoe.aoe_rank;
    plan->aoe_extra_flops        = cpl_cost_aoe(&aoe, t);
    plan->base_token_equivalents = (double)c->top_k * t / (double)input->ranks;
    plan->token_forward_flops    = cpl_cost_token(c, (double)input->seq_len);
    plan->step_flops             = step_flops(input);
    count_coupling(plan);
}

/* ---- bytes ---- */

static size_t set_bytes(const cpl_model_settings *config)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    cpl_params unseen      = {0};
    cpl_params_take(&unseen, &arena, config, CPL_F32);
    return cpl_tensor_arena_bytes(&arena);
}

static size_t pass_bytes(const cpl_plan_input *input, const cpl_model_settings *own)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    cpl_pass unseen;
    cpl_pass_take(&unseen, &arena, own, input->micro_sequences, input->seq_len, true, false);
    return cpl_tensor_arena_bytes(&arena);
}

/* Returns the scratch of the kernels, in passes and for `rows` rows of other ranks. */
static size_t scratch_bytes(const cpl_plan_input *input, int64_t rows)
{
    cpl_backend cpu, *be = input->backend;
    const cpl_model_settings own = cpl_plan_own(input, &input->model);
    const cpl_work work    = cpl_pass_work(&own, input->micro_sequences * input->seq_len, true);
    const cpl_work arrived = cpl_exchange_work(&own, rows);
    if (!be) cpl_backend_cpu(be = &cpu, input->compute, input->n_threads);
    const size_t pass    = be->ops->scratch_bytes(be, &work);
    const size_t of_rows = rows ? be->ops->scratch_bytes(be, &arrived) : 0;
    const size_t of_eval =
        input->counted.evaluation ? be->ops->scratch_bytes(be, &input->counted.evaluating) : 0;
    const size_t most = pass > of_rows ? pass : of_rows;
    return most > of_eval ? most : of_eval;
}

/* Counts the memory of gradients and optimizer. */
static void count_optimizer(cpl_plan_bytes *b, const cpl_plan_input *input, size_t set)
{
    const cpl_plan_counted *counted = &input->counted;
    b->gradients                    = set;
    b->moments                      = input->ranks == 1 ? 2 * set : counted->moments;
    if (input->ranks == 1) return;
    b->messages = counted->messages;
    b->parts    = counted->optimizer - b->gradients - b->moments - b->messages;
}

/* Sets *scratch, and returns the bytes of the exchange, if this rank receives `rows` rows. */
static size_t rows_bytes(const cpl_plan_input *input, int64_t rows, size_t *scratch)
{
    const cpl_model_settings own = cpl_plan_own(input, &input->model);
    if (input->expert_parallel == 1) rows = 0;
    *scratch = scratch_bytes(input, rows);
    if (rows == 0) return 0;
    return cpl_exchange_bytes_for(&own, input->compute, own.n_layers,
                                  input->micro_sequences * input->seq_len, rows);
}

bool cpl_plan_on_gpu(const cpl_plan_input *input)
{
    return input->backend && input->backend->room;
}

/* Returns the host memory with a GPU: for an operation without a kernel its scratch
 * (tensor/cuda/borrowed.c) and a copy of the largest parameter, pinned pieces of 4 MiB for copies,
 * and the arrays of a step. */
static size_t host_bytes(const cpl_plan_input *input)
{
    const cpl_model_settings *c = &input->model;
    const int64_t experts       = c->n_experts * c->d_expert * cpl_model_expert_input(c);
    const int64_t v             = c->vocab_size * c->d_model;
    const cpl_work work         = cpl_pass_work(c, 1, false);
    cpl_backend cpu;
    if (!cpl_plan_on_gpu(input)) return 0;
    cpl_backend_cpu(&cpu, input->compute, input->n_threads);
    return cpu.ops->scratch_bytes(&cpu, &work) +
           (size_t)(experts > v ? experts : v) * sizeof(float) + ((size_t)8 << 20) +
           input->counted.step_host;
}

static cpl_plan_bytes bytes_of(const cpl_plan_input *input)
{
    const cpl_model_settings own = cpl_plan_own(input, &input->model);
    cpl_plan_bytes b             = {0};
    size_t most_scratch;
    b.weights        = cpl_model_bytes(&own, CPL_F32, input->seq_len);
    b.compute_copies = cpl_model_bytes(&own, input->compute, input->seq_len) - b.weights;
    if (input->counted.divides_masters)
        b.weights = cpl_model_bytes_over(&own, input->compute, input->seq_len) - b.compute_copies;
    count_optimizer(&b, input, set_bytes(&own));
    const size_t of_host = cpl_plan_on_gpu(input) ? input->counted.step_host : 0;
    const size_t step    = input->counted.step - of_host;
    b.activations        = pass_bytes(input, &own);
    b.coupling           = step > b.activations ? step - b.activations : 0;
    b.exchange           = rows_bytes(input, cpl_plan_balanced_rows(input), &b.scratch);
    b.host               = host_bytes(input);
    b.evaluation         = input->counted.evaluation;
    b.device             = cpl_plan_on_gpu(input) ? cpl_gpu_device_bytes : 0;
#define CPL_PLAN_PART(name, sentence) b.total += b.name;
#include "plan/bytes.def"
    b.worst = b.total - b.scratch - b.exchange;
    b.worst += rows_bytes(input, cpl_plan_most_rows(input), &most_scratch) + most_scratch;
    b.checkpoint = 3 * (size_t)cpl_params_numbers(&input->model) * sizeof(float);
    b.disk       = ((size_t)input->keep + 1) * b.checkpoint;
    return b;
}

/* ---- Autonomy-of-Experts compared with its twin ---- */

static int64_t more(size_t ours, size_t twin)
{
    return (int64_t)ours - (int64_t)twin;
}

static size_t of_run(const cpl_plan_bytes *b)
{
    return b->gradients + b->moments + b->messages + b->parts;
}

static void count_extra(cpl_plan *plan)
{
    cpl_plan_input twin       = plan->input;
    const cpl_plan_bytes *own = &plan->bytes;
    cpl_plan_extra *extra     = &plan->aoe;
    if (!cpl_plan_is_aoe(&twin.model)) return;
    twin.model             = cpl_plan_twin(&twin.model);
    twin.counted           = twin.twin;
    const cpl_plan_bytes b = bytes_of(&twin);
    const double flops     = step_flops(&twin);
    extra->parameters      = plan->total_parameters - cpl_params_numbers(&twin.model);
    extra->step_flops      = plan->step_flops - flops;
    extra->share_of_step   = extra->step_flops / flops;
    extra->model_bytes     = more(own->weights + own->compute_copies, b.weights + b.compute_copies);
    extra->run_bytes       = more(of_run(own), of_run(&b));
    extra->total_bytes     = more(own->total, b.total);
    extra->step_bytes      = extra->total_bytes - extra->model_bytes - extra->run_bytes;
    extra->share_of_bytes  = (double)extra->total_bytes / (double)b.total;
}

/* ---- the whole ---- */

/* Returns the bytes within a small factor, in double, which cannot overflow. With
 * Autonomy-of-Experts they include the bytes of the twin. */
static double rough_bytes(const cpl_plan_input *input)
{
    const cpl_model_settings *c = &input->model;
    double l = (double)c->n_layers, d = (double)c->d_model, e = (double)c->d_expert;
    double n = (double)c->n_experts, k = (double)c->top_k, v = (double)c->vocab_size;
    double r = cpl_plan_is_aoe(c) ? (double)c->aoe_rank : 0, s = (double)c->n_shared * e;
    double t      = (double)input->micro_sequences * (double)input->seq_len;
    double params = 2 * v * d + l * (d * (4 * d + n + 3 * n * e + 3 * s) + n * r * (d + e));
    double most   = input->expert_parallel > 1 ? (double)input->expert_parallel * k : 0;
    double layer =
        13 * d + 3 * n + 6 * k + 2 * k * e + 2 * s + (n + k) * r + most * (2 * d + 2 * e);
    return 16 * params + 4 * t * l * layer + 4 * l * n * (n + d) + 4 * (double)input->seq_len * d;
}

static void ask_gpu(cpl_plan *plan)
{
    cpl_backend *be   = plan->input.backend;
    cpl_plan_gpu *gpu = &plan->gpu;
    if (!cpl_plan_on_gpu(&plan->input)) return;
    be->room(be, &gpu->free, &gpu->memory);
    gpu->name = be->device;
    gpu->fits = (double)(plan->bytes.total - plan->bytes.device) <= gpu->free;
}

cpl_status cpl_plan_check_size(const cpl_plan_input *input)
{
    return cpl_memory_compare(rough_bytes(input), most_bytes, training);
}

cpl_status cpl_plan_make(cpl_plan *plan, const cpl_plan_input *input)
{
    CPL_ASSERT(input->ranks > 0 && input->expert_parallel > 0 && input->seq_len > 0 &&
               input->batch_tokens > 0);
    memset(plan, 0, sizeof *plan);
    plan->input = *input;
    CPL_TRY(cpl_mesh_check(input->ranks, input->expert_parallel, input->model.n_experts));
    CPL_TRY(cpl_plan_check_size(input));
    count_parameters(plan);
    count_work(plan);
    cpl_plan_predict(plan);
    plan->bytes = bytes_of(input);
    ask_gpu(plan);
    count_extra(plan);
    return CPL_OK;
}

cpl_status cpl_plan_check_memory(const cpl_plan *plan, int local_ranks)
{
    char words[96];
    const double needs = (double)(plan->bytes.total - plan->bytes.device);
    if (cpl_plan_on_gpu(&plan->input)) {
        CPL_TRY(cpl_memory_check((double)plan->bytes.host,
                                 "training on a GPU, in memory of the host,"));
        return cpl_backend_fits(plan->input.backend, needs, training);
    }
    CPL_TRY(cpl_memory_check(needs, training));
    if (local_ranks <= 1) return CPL_OK;
    snprintf(words, sizeof words, "%s on the %d ranks of this machine", training, local_ranks);
    return cpl_memory_compare(needs * local_ranks, cpl_memory_of_machine(), words);
}
