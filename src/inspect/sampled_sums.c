/* sampled_sums.c - with --sample: the rows are multiplied, and their sums become the figures of a layer,
 * by the statistics of row_sample.h. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/internal.h"

/* ---- the sums ---- */

cpl_status cpl_sampled_sums_init(cpl_sampled_sums *s, const cpl_coupling_report *r,
                                 const cpl_layer_report *l)
{
    const cpl_row_plan *plan = &l->sample->plan;
    double *memory           = cpl_alloc(cpl_sampled_memory(r, l));
    if (!memory) return CPL_ERR_MEMORY;
    s->raw     = (cpl_row_sums){.n        = l->at->n,
                                .n_read   = plan->n_read,
                                .n_blocks = plan->n_blocks,
                                .norms    = memory,
                                .squares  = memory + l->at->n * plan->n_read};
    s->centred = s->raw;
    s->centred.squares =
        r->options.noisy ? NULL : s->raw.squares + l->at->n * l->at->n * plan->n_read;
    return CPL_OK;
}

void cpl_sampled_sums_free(cpl_sampled_sums *s)
{
    cpl_free(s->raw.norms); /* with all others */
    *s = (cpl_sampled_sums){0};
}

/* ---- an expert ---- */

/* Adds the rows that are loaded to squares, centred (NULL: none) [n] and norm. */
static cpl_status add_block(cpl_inspect_worker *h, const cpl_moe_layer *at, const void *packed,
                            double *squares, double *centred, double *norm)
{
    const int64_t most = cpl_inspect_worker_rows(at), end = h->gate.first + h->gate.rows;
    for (int64_t c = h->gate.first; c < end; c += most) {
        const cpl_matrix W = {h->rows, end - c < most ? end - c : most, at->d};
        cpl_gate_rows(W, &h->gate, c);
        cpl_cpu_on_host()->response.add(squares, centred, norm, packed, at->n, W, h->scratch);
    }
    return isfinite(*norm) ? CPL_OK : cpl_gate_check(&h->gate, h->rows);
}

cpl_status cpl_sampled_expert(cpl_sampled_sums *s, const cpl_coupling_report *r,
                              const cpl_layer_report *l, cpl_inspect_worker *h, const void *packed,
                              int64_t j)
{
    const int64_t n = l->at->n, b = l->sample->plan.n_read;
    int64_t chosen[CPL_ROW_BLOCKS], rows;
    cpl_sampled_choose(chosen, r, l, j);
    for (int64_t k = 0; k < b; k++) {
        double *squares = s->raw.squares + (j * b + k) * n, *norm = s->raw.norms + j * b + k;
        double *centred     = s->centred.squares ? s->centred.squares + (j * b + k) * n : NULL;
        const int64_t first = cpl_row_plan_block(&l->sample->plan, chosen[k], &rows);
        memset(squares, 0, (size_t)n * sizeof *squares);
        if (centred) memset(centred, 0, (size_t)n * sizeof *centred);
        *norm = 0;
        CPL_TRY(cpl_gate_load_rows(&h->gate, l->at, j, first, rows));
        CPL_TRY(add_block(h, l->at, packed, squares, centred, norm));
        for (int64_t i = 0; i < n; i++)
            if (!isfinite((float)squares[i]))
                return cpl_inspect_too_large(l->at, i, "the gate of expert", j);
    }
    return CPL_OK;
}

/* ---- figures ---- */

cpl_status cpl_sampled_finish(cpl_layer_report *l, const cpl_sampled_sums *s,
                              const cpl_inspect_options *o, const double *centred_norm)
{
    cpl_sample_report *to     = l->sample;
    l->figures.gate_norm_mean = l->figures.gate_norm_std = (double)NAN;
    CPL_TRY(cpl_row_sums_estimate(&to->estimates, &s->raw, l->router_norm));
    CPL_TRY(cpl_row_sums_bound(&to->bounds, &s->raw, l->router_norm, o->alphas, o->n_alphas));
    to->has_M       = l->at->comparable;
    to->has_centred = to->has_M && s->centred.squares;
    if (!to->has_centred) return CPL_OK;
    CPL_TRY(cpl_row_sums_estimate(&to->centred_estimates, &s->centred, centred_norm));
    return cpl_row_sums_bound(&to->centred_bounds, &s->centred, centred_norm, o->alphas,
                              o->n_alphas);
}

static cpl_interval exactly(double x)
{
    return (cpl_interval){x, x, x};
}

static cpl_interval bound_exactly(double x)
{
    return (cpl_interval){NAN, x, x};
}

static void set_exactly(cpl_row_estimates *e, cpl_row_bounds *b, const cpl_null_model *chance,
                        const cpl_null_model_ratios *ratios, const cpl_coupling_figures *figures,
                        const double *erc, int n_alphas)
{
    e->kappa_diagonal     = exactly(chance->kappa_diagonal);
    e->kappa_off_diagonal = exactly(chance->kappa_off_diagonal);
    e->m_diagonal         = exactly(figures->m_diagonal);
    e->m_off_diagonal     = exactly(figures->m_off_diagonal);
    e->z                  = exactly(chance->z);
    for (int a = 0; a < n_alphas; a++) {
        b->erc[a]          = bound_exactly(erc[a]);
        b->erc_relative[a] = bound_exactly(erc[a] / figures->m_diagonal);
    }
    b->ratio_50       = bound_exactly(ratios->q50);
    b->ratio_90       = bound_exactly(ratios->q90);
    b->ratio_99       = bound_exactly(ratios->q99);
    b->alpha_min      = bound_exactly(ratios->most);
    b->violated       = bound_exactly(ratios->violated);
    b->active_rows    = bound_exactly(figures->active_rows);
    b->active_columns = bound_exactly(figures->active_columns);
    b->rows_own       = bound_exactly(chance->kappa_row_top1);
    b->columns_own    = bound_exactly(chance->kappa_column_top1);
    b->assigned       = bound_exactly(chance->assignment_accuracy);
}

void cpl_sampled_exact(cpl_layer_report *l, const cpl_inspect_options *o)
{
    cpl_sample_report *to       = l->sample;
    const cpl_centred_report *c = &l->centred;
    to->has_M                   = l->has_M;
    to->has_centred             = c->has_M;
    set_exactly(&to->estimates, &to->bounds, &l->chance, &l->ratios, &l->figures, l->erc,
                o->n_alphas);
    to->estimates.gate_norm = exactly(l->figures.gate_norm_mean);
    set_exactly(&to->centred_estimates, &to->centred_bounds, &c->chance, &c->ratios, &c->figures,
                c->erc, o->n_alphas);
    to->centred_estimates.gate_norm = to->estimates.gate_norm;
}
