/* traffic.c - see traffic.h */
#include "train/traffic.h"

#include "model/coupling.h"

/* A sum of `count` numbers of `unit` bytes over a group. */
static int64_t sum_over(const cpl_group *g, int64_t count, int64_t unit)
{
    return cpl_group_sum_bytes(g->size, g->rank, count, unit);
}

/* Of one layer and draw: diagonals and row counts along the experts, counts over the replicas, the
 * loss over all (model/coupling.c). */
static int64_t of_coupling(const cpl_mesh *m, int64_t n)
{
    return sum_over(&m->experts, n, 4) + sum_over(&m->experts, 2 * n, 4) +
           sum_over(&m->replicas, 2 * n, 4) + sum_over(&m->world, 1, 8);
}

void cpl_traffic_of_step(cpl_step_traffic *out, const cpl_settings *s,
                         const cpl_model_settings *config, const cpl_share *share,
                         cpl_params *compute)
{
    const cpl_mesh *m    = share->mesh;
    const cpl_group *all = &m->world;
    const int64_t layers = config->n_layers, n = config->n_experts;
    const bool couples    = s->losses.erc.weight > 0 && cpl_router_of(config)->has_rows;
    const bool noisy      = s->losses.erc.noise != CPL_NOISE_NONE;
    const int64_t coupled = couples ? cpl_erc_n_layers(&s->losses.erc, layers) : 0;
    *out                  = (cpl_step_traffic){0};
    cpl_share_traffic(share, compute, &out->gradients, &out->parameters);
    out->coupling = coupled * (noisy ? s->losses.erc.draws : 1) * of_coupling(m, n);
    if (s->losses.balance.scope == CPL_BALANCE_GLOBAL)
        out->balance = 2 * sum_over(all, layers * n, 4);
    out->figures = sum_over(all, 1, 8) +                             /* targets */
                   sum_over(all, 1 + CPL_N_AUX_LOSSES * layers, 8) + /* losses */
                   sum_over(all, layers * n, 8) +                    /* loads */
                   sum_over(all, 1, 8) +                             /* norm */
                   sum_over(all, 2, 8) +                             /* stop */
                   2 * (all->size - 1) * 8;                          /* agreement: batch, report */
}
