/* plan_run.c - see plan_run.h */
#include "app/plan_run.h"

#include <stdio.h>

#include "infer/lm_batch.h"
#include "model/aux_losses.h"
#include "model/params.h"
#include "parallel/mpi.h"
#include "tensor/backend/backend.h"
#include "tokenizer/tokenizer.h"
#include "train/loop.h"
#include "train/optimizer.h"
#include "train/step.h"
#include "train/traffic.h"

enum { VOCABULARY_MULTIPLE = 128 }; /* embedding rows are padded to a multiple of it, as by OLMo */

static cpl_status resolve(cpl_settings *s)
{
    cpl_model_settings *config = &s->model;
    const char *tokenizer_path = s->data.tokenizer;
    if (config->vocab_size == CPL_UNSET && tokenizer_path) {
        cpl_tokenizer *tokenizer = NULL;
        CPL_TRY(cpl_tokenizer_load_given(&tokenizer, tokenizer_path));
        int64_t multiples =
            (cpl_tokenizer_vocab_size(tokenizer) + VOCABULARY_MULTIPLE - 1) / VOCABULARY_MULTIPLE;
        config->vocab_size = multiples * VOCABULARY_MULTIPLE;
        cpl_tokenizer_free(tokenizer);
    }
    CPL_TRY(cpl_model_resolve(config));
    return cpl_aux_resolve(&s->losses, config);
}

/* Returns the number of sequences that one rank computes at once, as in the trainer. */
static int64_t micro_of(const cpl_settings *s, int64_t ranks)
{
    int64_t all = s->data.batch_tokens / s->data.seq_len / ranks;
    if (s->train.micro_batch > 0) return s->train.micro_batch;
    return all > 0 ? all : 1;
}

/* ---- sizes counted by room train ---- */

/* Makes the smallest model of this kind, for the types of parameters that products read. */
static cpl_status init_types(cpl_model *model, cpl_backend *be, const cpl_model_settings *config)
{
    cpl_model_settings least = *config;
    least.d_model            = 2 * config->n_heads;
    least.d_expert = least.vocab_size = least.n_experts = least.top_k = 1;
    least.first_expert = least.n_local = 0;
    if (cpl_router_gate_rank(config)) least.aoe_rank = 1;
    return cpl_model_init(model, be, &least, 1);
}

static cpl_status count_sent(cpl_plan_input *input, const cpl_settings *s,
                             const cpl_model_settings *config, const cpl_share *share)
{
    cpl_step_traffic t;
    cpl_backend be;
    cpl_model types;
    cpl_backend_cpu(&be, input->compute, 1);
    CPL_TRY(init_types(&types, &be, config));
    cpl_traffic_of_step(&t, s, config, share, &types.compute);
    input->copied = cpl_share_copied(share, &types.compute);
    cpl_model_free(&types);
    cpl_backend_free(&be);
    input->sent[CPL_PLAN_gradients]  = t.gradients;
    input->sent[CPL_PLAN_parameters] = t.parameters;
    input->sent[CPL_PLAN_coupling]   = t.coupling;
    input->sent[CPL_PLAN_balance]    = t.balance;
    input->sent[CPL_PLAN_figures]    = t.figures;
    return CPL_OK;
}

static size_t moments_bytes(const cpl_share *share, const cpl_model_settings *config)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    cpl_params unseen      = {0};
    cpl_share_take_parts(&unseen, &arena, share, config);
    return 2 * cpl_tensor_arena_bytes(&arena);
}

static size_t messages_bytes(cpl_share *share)
{
    cpl_tensor_arena arena = cpl_tensor_arena_measure();
    cpl_share_take_buffers(share, &arena);
    return cpl_tensor_arena_bytes(&arena);
}

/* Counts the memory of rank 0's part of the model, and the bytes sent unless `sent` is NULL. */
static cpl_status count(cpl_plan_counted *out, cpl_plan_input *sent, const cpl_plan_input *input,
                        const cpl_settings *s, const cpl_model_settings *model)
{
    const cpl_model_settings own = cpl_plan_own(input, model);
    cpl_mesh mesh = cpl_plan_mesh(input->ranks, input->expert_parallel, 0, model->n_experts);
    cpl_share share;
    const cpl_lm_batch_settings windows = {.window = s->data.seq_len};
    *out = (cpl_plan_counted){.step      = cpl_step_bytes(s, &own, input->micro_sequences),
                              .step_host = cpl_step_host_bytes(s, &own, input->micro_sequences)};
    if (s->eval.tasks.count || s->eval.prompts.count) {
        out->evaluation = cpl_lm_batch_bytes(&own, &windows);
        out->evaluating = cpl_lm_batch_work(&own, &windows);
    }
    CPL_TRY(cpl_optimizer_bytes(&out->optimizer, &own, &mesh, input->compute));
    CPL_TRY(cpl_share_init(&share, &own, &mesh, input->compute, true));
    out->moments         = moments_bytes(&share, &own);
    out->messages        = messages_bytes(&share);
    out->divides_masters = share.divides_masters;
    for (int64_t i = 0; i < share.n_slices; i++) out->numbers += share.slices[i].n_own;
    const cpl_status status = sent ? count_sent(sent, s, &own, &share) : CPL_OK;
    cpl_share_free(&share);
    return status;
}

/* Refuses numbers of ranks that training would refuse. If what->batch_tokens is set, checks only
 * the mesh. */
static cpl_status check_ranks(const cpl_settings *s, const cpl_plan_run_for *what)
{
    CPL_TRY(cpl_train_check_router(s));
    CPL_TRY(cpl_train_check_mesh(s, what->ranks));
    return what->ranks > 1 && !what->batch_tokens ? cpl_train_check_batch(s, what->ranks) : CPL_OK;
}

cpl_status cpl_plan_run(cpl_plan *plan, const cpl_settings *settings, const cpl_plan_run_for *what)
{
    cpl_settings s = *settings; /* the caller owns the strings */
    CPL_TRY(resolve(&s));
    CPL_TRY(check_ranks(&s, what));
    if (what->batch_tokens) s.data.batch_tokens = what->batch_tokens;
    const bool global = s.losses.balance.scope == CPL_BALANCE_GLOBAL && s.losses.balance.weight > 0;
    CPL_TRY(
        cpl_train_resolve_machine(&s, what->backend, what->ranks, false)); /* as the trainer does */
    cpl_train_set_activations(&s.model, &s);
    cpl_plan_input input = {
        .model           = s.model,
        .erc             = s.losses.erc,
        .batch_tokens    = s.data.batch_tokens,
        .seq_len         = s.data.seq_len,
        .micro_sequences = micro_of(&s, what->ranks),
        .ranks           = what->ranks,
        .expert_parallel = s.dist.expert_parallel,
        .compute         = cpl_dtype_chosen(s.compute.dtype),
        .backend         = what->backend,
        .n_threads       = (int)s.compute.threads,
        .keep            = s.checkpoint.keep,
        .counts_ahead = s.losses.balance.scope == CPL_BALANCE_GLOBAL && s.losses.balance.weight > 0,
        .counts_ahead_alone = global && s.train.micro_batch > 0,
        .overlap            = s.dist.overlap,
        .machine            = what->machine,
    };
    CPL_TRY(cpl_plan_check_size(&input));
    const cpl_model_settings twin = cpl_plan_twin(&input.model);
    CPL_TRY(count(&input.counted, &input, &input, &s, &input.model));
    if (cpl_router_gate_rank(&input.model)) CPL_TRY(count(&input.twin, NULL, &input, &s, &twin));
    return cpl_plan_make(plan, &input);
}

cpl_status cpl_plan_run_largest(cpl_plan *plan, const cpl_settings *settings,
                                const cpl_plan_run_for *what)
{
    cpl_settings s          = *settings;
    cpl_plan of             = {.gpu.fits = plan->gpu.name};
    const int64_t sequences = plan->input.batch_tokens / plan->input.seq_len;
    for (int64_t micro = 1; micro <= sequences && of.gpu.fits; micro++) {
        if (sequences % micro) continue;
        s.train.micro_batch = micro;
        CPL_TRY(cpl_plan_run(&of, &s, what));
        if (of.gpu.fits) plan->gpu.largest_micro = micro;
    }
    return CPL_OK;
}

cpl_status cpl_plan_run_fits(cpl_plan *plan, const cpl_settings *settings,
                             const cpl_plan_run_for *what)
{
    char sentence[400];
    const cpl_status status = cpl_plan_check_memory(plan, cpl_mpi_local_ranks());
    if (status != CPL_ERR_MEMORY) return status;
    snprintf(sentence, sizeof sentence, "%s", cpl_last_error());
    if (!plan->gpu.fits) CPL_TRY(cpl_plan_run_largest(plan, settings, what));
    if (plan->gpu.largest_micro > 0)
        return CPL_FAIL(status, "%s; train.micro_batch=%lld fits", sentence,
                        (long long)plan->gpu.largest_micro);
    return cpl_train_advise(settings, CPL_FAIL(status, "%s", sentence));
}

cpl_status cpl_plan_speed(double *flops, cpl_backend *be)
{
    CPL_TRY(cpl_cpu_start(be->n_threads));
    return cpl_backend_peak(flops, be, 1.0 / 3);
}
