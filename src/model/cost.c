/* cost.c - see cost.h */
#include "model/cost.h"

#include "model/coupling.h"
#include "model/params.h"

double cpl_cost_experts(const cpl_model_settings *c, double n_tokens)
{
    const double latent = 4.0 * (double)c->d_latent * (double)c->d_model;
    return n_tokens *
           (6.0 * (double)c->top_k * (double)c->d_expert * (double)cpl_model_expert_input(c) +
            latent);
}

double cpl_cost_coupling(const cpl_model_settings *c, const cpl_erc_settings *erc)
{
    static const double matrices[] = {1, 1, 1, 2, 3, 2}; /* gate ... output, gate_up */
    const double n = (double)c->n_experts, times = matrices[erc->activation] * (double)erc->draws;
    const double latent = 2.0 * n * (double)c->d_latent * (double)c->d_model * (double)erc->draws;
    return 2.0 * n * n * (double)c->d_expert * (double)cpl_model_expert_input(c) * times + latent;
}

double cpl_cost_aoe(const cpl_model_settings *c, double n_tokens)
{
    double n = (double)c->n_experts, k = (double)c->top_k, r = (double)c->aoe_rank;
    double d = (double)c->d_model, D = (double)c->d_expert;
    return 2.0 * n_tokens * ((n - k) * d * r + k * (d * r + r * D - d * D));
}

static double cost_router(const cpl_model_settings *c)
{
    if (cpl_router_gate_rank(c)) return cpl_cost_aoe(c, 1.0);
    return 2.0 * (double)c->n_experts * (double)c->d_model;
}

double cpl_cost_attention(const cpl_model_settings *c, double seq_len)
{
    return (double)c->n_layers * 4.0 * (double)c->d_model * (seq_len + 1.0) / 2.0;
}

double cpl_cost_token(const cpl_model_settings *c, double seq_len)
{
    double d = (double)c->d_model, kv = (double)cpl_model_kv_width(c);
    double projections = 2.0 * (2.0 * d * d + 2.0 * d * kv);
    double shared      = 6.0 * (double)cpl_model_shared_width(c) * d;
    double layer       = projections + cost_router(c) + cpl_cost_experts(c, 1.0) + shared;
    return (double)c->n_layers * layer + cpl_cost_attention(c, seq_len) +
           2.0 * (double)c->vocab_size * d;
}

/* Returns the operations of a step for the rows of model.router mpi and their gradient. */
static double cost_power_rows(const cpl_model_settings *c)
{
    if (!cpl_router_of(c)->iterates) return 0;
    return 16.0 * (double)c->n_layers * (double)c->n_experts * (double)c->d_expert *
           (double)c->d_model;
}

double cpl_cost_step(const cpl_model_settings *c, double n_tokens, double seq_len,
                     const cpl_erc_settings *erc)
{
    double tokens = 3.0 * n_tokens * cpl_cost_token(c, seq_len) + cost_power_rows(c);
    if (!erc) return tokens;
    return tokens + 3.0 * (double)cpl_erc_n_layers(erc, c->n_layers) * cpl_cost_coupling(c, erc);
}
