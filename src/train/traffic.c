/* traffic.c - see traffic.h */
#include "train/traffic.h"

#include "model/coupling.h"

/* Adds the bytes and messages of `times` sums of `count` numbers of `unit` bytes over a group, in
 * one or two steps (parallel/group.h). */
static void add_sums(cpl_sent *sent, const cpl_group *g, int64_t times, int64_t count, int64_t unit)
{
    const int64_t steps = count < 8 * (int64_t)g->size ? 1 : 2;
    sent->bytes += times * cpl_group_sum_bytes(g->size, g->rank, count, unit);
    sent->messages += times * steps * (g->size - 1);
}

/* Adds the messages of the coupling loss of `layers` layers: for each draw diagonals and counts
 * over the expert ranks, then the loss over all ranks (model/coupling.c). */
static void add_coupling(cpl_sent *sent, const cpl_mesh *m, int64_t layers, int64_t draws,
                         int64_t n)
{
    add_sums(sent, &m->experts, layers * draws, n, 4);
    add_sums(sent, &m->experts, layers * draws, 2 * n, 4);
    add_sums(sent, &m->world, layers, 1, 8);
}

static void add_figures(cpl_sent *sent, const cpl_group *all, int64_t layers, int64_t n)
{
    add_sums(sent, all, 1, 1, 8);                             /* targets */
    add_sums(sent, all, 1, 1 + CPL_N_AUX_LOSSES * layers, 8); /* losses */
    add_sums(sent, all, 1, layers * n, 8);                    /* loads */
    add_sums(sent, all, 1, 1, 8);                             /* norm */
    add_sums(sent, all, 1, 2, 8);                             /* stop */
    sent->bytes += 2 * (all->size - 1) * 8;                   /* agreement: batch, report */
    sent->messages += 2 * (all->size - 1);
}

void cpl_traffic_of_step(cpl_step_traffic *out, const cpl_settings *s,
                         const cpl_model_settings *config, const cpl_share *share,
                         cpl_params *compute)
{
    const cpl_mesh *m    = share->mesh;
    const int64_t layers = config->n_layers, n = config->n_experts;
    const bool couples    = s->losses.erc.weight > 0 && cpl_router_of(config)->has_rows;
    const bool noisy      = s->losses.erc.noise != CPL_NOISE_NONE;
    const int64_t coupled = couples ? cpl_erc_n_layers(&s->losses.erc, layers) : 0;
    *out                  = (cpl_step_traffic){0};
    cpl_share_traffic(share, compute, &out->gradients.bytes, &out->parameters.bytes);
    for (int64_t b = 0; b < share->n_buckets; b++)
        out->gradients.messages += share->buckets[b].group->size - 1;
    out->parameters.messages = out->gradients.messages;
    add_coupling(&out->coupling, m, coupled, noisy ? s->losses.erc.draws : 1, n);
    if (s->losses.balance.scope == CPL_BALANCE_GLOBAL)
        add_sums(&out->balance, &m->world, 2, layers * n, 4);
    add_figures(&out->figures, &m->world, layers, n);
    if (s->losses.erc.proxy == CPL_PROXY_TOKENS)
        add_sums(&out->figures, &m->world, 1, layers * 2 * config->d_model, 8);
}
