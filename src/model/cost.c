/* cost.c - see cost.h */
#include "model/cost.h"

#include "model/params.h"

double cpl_cost_experts(const cpl_model_settings *c, double n_tokens)
{
    return 6.0 * n_tokens * (double)c->top_k * (double)c->d_expert * (double)c->d_model;
}

double cpl_cost_coupling(const cpl_model_settings *c)
{
    return 2.0 * (double)c->n_experts * (double)c->n_experts * (double)c->d_expert *
           (double)c->d_model;
}

double cpl_cost_token(const cpl_model_settings *c, double seq_len)
{
    double d = (double)c->d_model, kv = (double)cpl_model_kv_width(c);
    double projections = 2.0 * (2.0 * d * d + 2.0 * d * kv);
    double scores      = 4.0 * d * (seq_len + 1.0) / 2.0;
    double router      = 2.0 * (double)c->n_experts * d;
    double layer       = projections + scores + router + cpl_cost_experts(c, 1.0);
    return (double)c->n_layers * layer + 2.0 * (double)c->vocab_size * d;
}

double cpl_cost_step(const cpl_model_settings *c, double n_tokens, double seq_len, int coupling)
{
    double tokens = 3.0 * n_tokens * cpl_cost_token(c, seq_len);
    return tokens + (coupling ? 3.0 * (double)c->n_layers * cpl_cost_coupling(c) : 0.0);
}
