/* predict.c - the work, messages and time of a rank in a step; see plan.h. The formulas are in
 * docs/scale.md. */
#include <math.h>

#include "model/cost.h"
#include "model/model.h"
#include "plan/plan.h"

const cpl_plan_term_row cpl_plan_terms[CPL_N_PLAN_TERMS] = {
#define CPL_PLAN_TERM(name, sentence, overlap) {#name, sentence, CPL_PLAN_##overlap},
#include "plan/terms.def"
};

/* ---- the mesh ---- */

cpl_mesh cpl_plan_mesh(int64_t ranks, int64_t expert_parallel, int64_t rank, int64_t n_experts)
{
    cpl_mesh m      = cpl_mesh_self(n_experts);
    m.world.size    = (int)ranks;
    m.world.rank    = (int)rank;
    m.experts.size  = (int)expert_parallel;
    m.experts.rank  = (int)(rank % expert_parallel);
    m.replicas.size = (int)(ranks / expert_parallel);
    m.replicas.rank = (int)(rank / expert_parallel);
    m.n_local       = n_experts / expert_parallel;
    m.first_expert  = m.experts.rank * m.n_local;
    return m;
}

cpl_model_settings cpl_plan_own(const cpl_plan_input *input, const cpl_model_settings *model)
{
    cpl_model_settings own = *model;
    own.n_local            = model->n_experts / input->expert_parallel;
    return own;
}

/* ---- work ---- */

/* Returns the tokens of a step of one of `ranks` ranks. */
static double tokens_of(const cpl_plan_input *input, int64_t ranks)
{
    return (double)input->batch_tokens / (double)ranks;
}

static double passes_of(const cpl_plan_input *input, int64_t ranks)
{
    const double micro = (double)(input->micro_sequences * input->seq_len);
    return fmax(1, ceil(tokens_of(input, ranks) / micro));
}

/* Returns the forward passes that only count the load, as a share of a pass over the whole batch. */
static double share_ahead(bool counts_ahead, double passes)
{
    return counts_ahead ? (passes - 1) / passes : 0;
}

/* Returns rank 0's share of the n^2 entries of M: the rows of the first replica, the columns of its
 * experts. */
static double share_of_coupling(const cpl_plan_input *input, int64_t ranks, int64_t experts)
{
    const int64_t n = input->model.n_experts, replicas = ranks / experts;
    const int64_t rows = (n + replicas - 1) / replicas;
    return (double)rows / (double)n / (double)experts;
}

/* Returns the FLOPs of rank 0 of `ranks` ranks: three passes of its tokens, forward passes that only
 * count the load (without the head), and its part of the coupling loss with every hinge active. */
static double flops_of(const cpl_plan *plan, int64_t ranks, int64_t experts, bool counts_ahead)
{
    const cpl_plan_input *input = &plan->input;
    const cpl_model_settings *c = &input->model;
    const double head           = 2.0 * (double)c->vocab_size * (double)c->d_model;
    const double ahead          = share_ahead(counts_ahead, passes_of(input, ranks));
    const double token = 3 * plan->token_forward_flops + ahead * (plan->token_forward_flops - head);
    const double coupling = 3 * (double)plan->coupled_layers * plan->erc_flops;
    return tokens_of(input, ranks) * token + coupling * share_of_coupling(input, ranks, experts);
}

/* ---- bytes that are sent ---- */

static int64_t pass_tokens(const cpl_plan_input *input)
{
    return input->micro_sequences * input->seq_len;
}

int64_t cpl_plan_balanced_rows(const cpl_plan_input *input)
{
    return pass_tokens(input) * input->model.top_k;
}

/* Returns the most experts of this rank that a token can choose. */
static int64_t most_choices(const cpl_plan_input *input)
{
    const int64_t n_local = input->model.n_experts / input->expert_parallel;
    return input->model.top_k < n_local ? input->model.top_k : n_local;
}

int64_t cpl_plan_most_rows(const cpl_plan_input *input)
{
    return input->expert_parallel * pass_tokens(input) * most_choices(input);
}

/* Returns bytes and messages of the exchange in a step, over all layers and passes, each with `away`
 * rows sent and `here` rows received. */
static cpl_sent exchange_of(const cpl_plan *plan, int64_t away, int64_t here)
{
    const cpl_plan_input *input  = &plan->input;
    const cpl_model_settings own = cpl_plan_own(input, &input->model);
    const int64_t ranks = input->expert_parallel, backward = (int64_t)plan->passes;
    const int64_t forward = backward + (input->counts_ahead ? backward - 1 : 0);
    const cpl_sent f      = cpl_exchange_forward_sent(&own, ranks, input->compute, away, here);
    const cpl_sent b      = cpl_exchange_backward_sent(&own, ranks, input->compute, away, here);
    return (cpl_sent){own.n_layers * (forward * f.bytes + backward * b.bytes),
                      own.n_layers * (forward * f.messages + backward * b.messages)};
}

static void count_sent(cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    const int64_t ranks = input->expert_parallel, rows = cpl_plan_balanced_rows(input);
    const int64_t own = pass_tokens(input) * most_choices(input);
    for (int i = 0; i < CPL_N_PLAN_TERMS; i++) plan->sent[i] = input->sent[i];
    plan->sent[CPL_PLAN_exchange] = plan->worst_exchange = (cpl_sent){0};
    if (ranks == 1) return;
    const int64_t others          = rows / ranks * (ranks - 1) + rows % ranks * (ranks - 1) / ranks;
    plan->sent[CPL_PLAN_exchange] = exchange_of(plan, others, others);
    plan->worst_exchange          = exchange_of(plan, rows - own, (ranks - 1) * own);
}

/* ---- time ---- */

/* Returns the seconds of AdamW, which reads weight, gradient and two moments and writes all but the
 * gradient, F32, and the BF16 copy. */
static double update_of(const cpl_plan_input *input, int64_t numbers)
{
    const double bytes = input->compute == CPL_BF16 ? 30 : 28;
    return bytes * (double)numbers / input->machine.memory;
}

/* Returns the bytes that a token's forward pass reads and writes outside of products and attention
 * (docs/scale.md). A backward pass takes twice as many. */
static double traffic_bytes(const cpl_plan_input *input)
{
    const cpl_model_settings *c = &input->model;
    const double d = (double)c->d_model, K = (double)c->top_k;
    const double wide   = K * (double)c->d_expert + (double)cpl_model_shared_width(c);
    const double layer  = 18 * d + 3 * wide + 2 * (K * (double)cpl_model_expert_input(c) + d),
                 logits = 10.0 / 3;
    return (double)c->n_layers * layer * (double)cpl_dtype_bytes(c->activations) +
           logits * (double)c->vocab_size;
}

/* Returns the seconds of the operations of flops_of. Sets t->attention and t->traffic, parts of the
 * result. */
static double work_of(cpl_plan_time *t, const cpl_plan *plan, int64_t ranks, int64_t experts,
                      bool ahead)
{
    const cpl_plan_input *input = &plan->input;
    const cpl_plan_machine *m   = &input->machine;
    const double flops          = flops_of(plan, ranks, experts, ahead);
    const double times          = 3 + share_ahead(ahead, passes_of(input, ranks));
    const double tokens         = times * tokens_of(input, ranks);
    const double attention = tokens * cpl_cost_attention(&input->model, (double)input->seq_len);
    if (!(m->attention > 0)) return flops / m->flops;
    t->attention = attention / m->attention;
    t->traffic   = tokens * traffic_bytes(input) / m->memory;
    return (flops - attention) / m->flops + t->attention + t->traffic;
}

/* Returns the seconds of the same step in one process. */
static double step_alone(const cpl_plan *plan)
{
    cpl_plan_time unused;
    return work_of(&unused, plan, 1, 1, plan->input.counts_ahead_alone) +
           update_of(&plan->input, plan->total_parameters);
}

/* Assumed shares of the rates that a GPU's maker publishes. */
static const double of_products = 0.40, of_attention = 0.30, of_memory = 0.75;

cpl_plan_machine cpl_plan_assumed(const cpl_gpu *gpu)
{
    return (cpl_plan_machine){.flops     = of_products * gpu->bf16,
                              .attention = of_attention * gpu->bf16,
                              .memory    = of_memory * gpu->bandwidth};
}

void cpl_plan_assumed_text(cpl_text *out, const cpl_gpu *gpu)
{
    cpl_text_printf(
        out,
        "\nassumed of %s, not measured: products reach %.0f %% of its %.4g TFLOP/s in "
        "bf16, attention %.0f %%,\nother passes and the update %.0f %% of its %.4g GB/s\n",
        gpu->name, 100 * of_products, gpu->bf16 / 1e12, 100 * of_attention, 100 * of_memory,
        gpu->bandwidth / 1e9);
}

static double hidden_by(const cpl_plan *plan, cpl_plan_overlap overlap)
{
    if (!plan->input.overlap || overlap == CPL_PLAN_NOTHING) return 0;
    return overlap == CPL_PLAN_BACKWARD ? plan->time.backward : plan->time.update;
}

static void predict_time(cpl_plan *plan)
{
    const cpl_plan_input *input     = &plan->input;
    const cpl_plan_machine *machine = &input->machine;
    cpl_plan_time *t                = &plan->time;
    const double tokens             = tokens_of(input, input->ranks) / plan->passes;
    t->compute  = work_of(t, plan, input->ranks, input->expert_parallel, input->counts_ahead);
    t->backward = 2 * tokens * plan->token_forward_flops / machine->flops;
    t->update =
        update_of(input, input->ranks == 1 ? plan->total_parameters : input->counted.numbers);
    t->copies = (double)input->copied / machine->memory;
    t->step   = t->compute + t->update + t->copies;
    for (int i = 0; i < CPL_N_PLAN_TERMS; i++) {
        const double seconds = (double)plan->sent[i].messages * machine->latency +
                               (double)plan->sent[i].bytes / machine->bandwidth;
        t->sent[i]    = seconds;
        t->exposed[i] = fmax(0, seconds - hidden_by(plan, cpl_plan_terms[i].overlap));
        t->step += t->exposed[i];
    }
    t->efficiency = step_alone(plan) / ((double)input->ranks * t->step);
}

void cpl_plan_predict(cpl_plan *plan)
{
    const cpl_plan_input *input = &plan->input;
    plan->passes                = passes_of(input, input->ranks);
    plan->rank_flops = flops_of(plan, input->ranks, input->expert_parallel, input->counts_ahead);
    count_sent(plan);
    if (input->machine.flops > 0) predict_time(plan);
}
