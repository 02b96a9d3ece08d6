/* balance.c - see balance.h */
#include "model/balance.h"

#include <string.h>

#include "model/aux_losses.h"
#include "parallel/tensors.h"

/* ---- spans ---- */

static cpl_balance_scope scope_of(const cpl_balance_settings *settings)
{
    return settings->scope == CPL_BALANCE_AUTO ? CPL_BALANCE_MICRO
                                               : (cpl_balance_scope)settings->scope;
}

static bool within_pass(const cpl_balance *b)
{
    return b->span_tokens < b->pass_tokens;
}

static bool beyond_pass(const cpl_balance *b)
{
    return b->span_tokens > b->pass_tokens;
}

void cpl_balance_take(cpl_balance *b, cpl_tensor_arena *arena, const cpl_balance_settings *settings,
                      const cpl_model_settings *config, int64_t micro)
{
    const cpl_balance_scope scope = scope_of(settings);
    const int64_t layers = config->n_layers, n = config->n_experts;
    const int64_t rows = scope == CPL_BALANCE_SEQUENCE ? micro : 1;
    memset(b, 0, sizeof *b);
    b->micro = micro;
    if (scope == CPL_BALANCE_MICRO) return;
    b->counts = cpl_tensor_take_3d(arena, layers, rows, n);
    b->prob   = cpl_tensor_take_3d(arena, layers, rows, n);
    b->unused = cpl_tensor_take_1d(arena, 2);
}

bool cpl_balance_begin(cpl_balance *b, cpl_model *model, const cpl_balance_settings *settings,
                       int64_t n_sequences, int64_t seq_len)
{
    const cpl_model_settings *c = &model->config;
    const int64_t batch = n_sequences * seq_len, pass = b->micro * seq_len;
    const int64_t spans[] = {
        [CPL_BALANCE_MICRO] = pass, [CPL_BALANCE_GLOBAL] = batch, [CPL_BALANCE_SEQUENCE] = seq_len};
    b->pass_tokens     = pass;
    b->span_tokens     = spans[scope_of(settings)];
    b->n_spans         = batch / b->span_tokens;
    const double share = 1.0 / ((double)b->n_spans * (double)c->n_layers);
    b->scale =
        cpl_aux_balance_scale(settings->weight * share, c->n_experts, b->span_tokens, c->top_k);
    model->be->ops->fill(model->be, b->dots, 0);
    if (!beyond_pass(b)) return false;
    model->be->ops->fill(model->be, b->counts, 0);
    model->be->ops->fill(model->be, b->prob, 0);
    return settings->weight > 0;
}

/* ---- counting ---- */

/* Adds one span's part of the loss of layer l. */
static void add_loss(const cpl_balance *b, const cpl_model *model, int64_t l, cpl_tensor counts,
                     cpl_tensor prob)
{
    model->be->ops->dot(model->be, cpl_tensor_range(b->dots, l, 1), counts, prob);
}

static void count_sequences(cpl_balance *b, const cpl_model *model, int64_t l,
                            const cpl_moe_kept *kept)
{
    cpl_backend *be     = model->be;
    const int64_t t     = b->span_tokens;
    const bool sigmoid  = cpl_router_of(&model->config)->scores == CPL_SCORES_SIGMOID;
    const cpl_tensor z  = cpl_tensor_range(b->unused, 0, 1);
    const cpl_tensor h  = cpl_tensor_range(b->unused, 1, 1);
    const cpl_tensor of = cpl_tensor_at(b->counts, l), p = cpl_tensor_at(b->prob, l);
    for (int64_t i = 0; i < b->micro; i++) {
        const cpl_tensor counts = cpl_tensor_at(of, i), prob = cpl_tensor_at(p, i);
        be->ops->route_stats(be, counts, prob, z, h, cpl_tensor_range(kept->probs, i * t, t),
                             cpl_tensor_range(kept->lse, i * t, t),
                             cpl_tensor_range(kept->expert, i * t, t), sigmoid);
        add_loss(b, model, l, counts, prob);
    }
}

static cpl_tensor sum_at(cpl_tensor sums, int64_t l)
{
    return cpl_tensor_at(cpl_tensor_at(sums, l), 0);
}

void cpl_balance_count(cpl_balance *b, cpl_model *model, const cpl_pass *pass)
{
    const cpl_ops *ops = model->be->ops;
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const cpl_moe_kept *kept = &pass->moe[l];
        if (within_pass(b)) {
            count_sequences(b, model, l, kept);
        } else if (beyond_pass(b)) {
            ops->add(model->be, sum_at(b->counts, l), kept->counts, 1);
            ops->add(model->be, sum_at(b->prob, l), kept->mean_prob, 1);
        } else {
            add_loss(b, model, l, kept->counts, kept->mean_prob);
        }
    }
}

void cpl_balance_collect(cpl_balance *b, cpl_model *model, cpl_group *world)
{
    if (!beyond_pass(b)) return;
    cpl_group_sum_tensor(world, model->be, b->counts);
    cpl_group_sum_tensor(world, model->be, b->prob);
    if (world->rank > 0) return; /* rank 0 computes the whole loss */
    for (int64_t l = 0; l < model->config.n_layers; l++)
        add_loss(b, model, l, sum_at(b->counts, l), sum_at(b->prob, l));
}

double cpl_balance_loss(const cpl_balance *b, const cpl_model_settings *config, double dot)
{
    const double passes = (double)b->span_tokens / (double)b->pass_tokens;
    const double loss =
        cpl_aux_balance_loss(dot, config->n_experts, b->span_tokens, config->top_k) /
        (double)b->n_spans;
    return beyond_pass(b) ? loss / passes : loss; /* prob is the sum of the passes' means */
}

cpl_tensor cpl_balance_counts(const cpl_balance *b)
{
    return within_pass(b) || beyond_pass(b) ? b->counts : cpl_tensor_none();
}
