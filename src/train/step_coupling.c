/* step_coupling.c - the coupling loss of one optimizer step, over all layers. See step.h. */
#include "train/step.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "parallel/tensors.h"

/* ---- memory ---- */

/* The coupling gradient of one layer, separate from the other gradients. */
typedef struct apart {
    cpl_tensor router; /* [n,d] for the rows that are trained */
    cpl_tensor latent; /* [l,d]; none without latent experts */
    cpl_expert_weights experts;
} apart;

static apart take_apart(cpl_tensor_arena *arena, const cpl_settings *settings,
                        const cpl_model_settings *c)
{
    int64_t n = cpl_model_local_experts(c), d = c->d_model, D = c->d_expert;
    const int64_t l  = cpl_model_expert_input(c);
    bool gate_only   = settings->losses.erc.activation == CPL_ERC_GATE;
    apart a          = {.router = cpl_tensor_take_2d(arena, c->n_experts, d)};
    a.latent         = c->d_latent ? cpl_tensor_take_2d(arena, l, d) : cpl_tensor_none();
    a.experts.w_gate = cpl_tensor_take_3d(arena, n, D, l);
    a.experts.w_up   = gate_only ? cpl_tensor_none() : cpl_tensor_take_3d(arena, n, D, l);
    a.experts.w_down = gate_only ? cpl_tensor_none() : cpl_tensor_take_3d(arena, n, l, D);
    return a;
}

void cpl_step_coupling_measure(cpl_tensor_arena *arena, const cpl_settings *settings,
                               const cpl_model_settings *config)
{
    if (cpl_router_of(config)->has_rows) (void)take_apart(arena, settings, config);
}

/* ---- the coupling loss ---- */

static void zero(cpl_backend *be, cpl_tensor t)
{
    if (cpl_tensor_is_there(t)) be->ops->fill(be, t, 0);
}

static void add(cpl_backend *be, cpl_tensor to, cpl_tensor t)
{
    if (cpl_tensor_is_there(t)) be->ops->add(be, to, t, 1);
}

/* The coupling loss of a step. */
typedef struct job {
    cpl_step *step;
    cpl_model *model;
    cpl_params *grads;
    const cpl_settings *settings;
    cpl_metrics *m;
    float alpha;
    double share; /* factor of one layer in the loss, from erc.reduce and erc.layers */
    bool figures;
} job;

cpl_coupling_latent cpl_step_latent(const cpl_step *step, const cpl_layer_params *w)
{
    cpl_coupling_latent latent = step->latent;
    latent.w                   = w->latent_down;
    latent.dw                  = cpl_tensor_none();
    return latent;
}

/* Returns the tensor that cpl_coupling adds the gradient of layer l's router rows to. With
 * model.router mpi it is `router` of the gradients, which is 0 before and after. */
static cpl_tensor rows_grad(const job *j, int64_t l, apart to)
{
    const bool passes_on = cpl_router_of(&j->model->config)->iterates;
    return passes_on && cpl_tensor_is_there(to.router) ? j->grads->layer[l].router : to.router;
}

/* Passes the gradient of layer l's router rows on, with model.router mpi. Where erc.gradient is
 * router, the gates are constants here too. */
static void pass_on(const job *j, int64_t l, apart to)
{
    const bool alone = j->settings->losses.erc.gradient == CPL_ERC_TO_ROUTER;
    if (!cpl_tensor_is_there(to.router)) return;
    cpl_model_rows_backward(j->model, j->grads->layer[l].router, to.router,
                            alone ? cpl_tensor_none() : to.experts.w_gate, l);
}

/* Computes layer l's loss, and its gradient times `weight`. `to` has the tensors of gradients. */
static void couple(const job *j, int64_t l, double weight, apart to)
{
    const cpl_step *step       = j->step;
    cpl_coupling_noise noise   = {.seed  = (uint64_t)j->settings->train.seed,
                                  .step  = (uint64_t)j->m->step,
                                  .layer = (uint32_t)l,
                                  .given = step->has_delta};
    cpl_coupling_outputs out   = {.M          = step->M[l],
                                  .eps        = step->eps[l],
                                  .delta      = step->delta[l],
                                  .rows       = step->rows,
                                  .drows      = step->drows,
                                  .loss       = cpl_step_result(step, l, CPL_AUX_ERC),
                                  .diagonal   = step->diagonal,
                                  .violations = step->violations,
                                  .latent     = cpl_step_latent(step, &j->model->compute.layer[l]),
                                  .dR         = rows_grad(j, l, to),
                                  .dw         = to.experts};
    const cpl_erc_settings erc = cpl_step_erc(step, &j->settings->losses.erc);
    out.latent.dw              = to.latent;
    out.tokens                 = cpl_step_tokens_of(step, l);
    cpl_coupling(j->model->be, &out, j->model->master.layer[l].router,
                 cpl_moe_experts(&j->model->compute.layer[l]), &erc, j->alpha, (float)weight,
                 j->model->be->compute, &noise, j->step->mesh);
    pass_on(j, l, to);
}

/* The parameter `offset` of layer l, and its coupling gradient. */
typedef struct compared {
    size_t offset; /* offset in cpl_layer_params */
    bool per_expert;
    cpl_tensor erc, rest;
} compared;

/* Adds the squares and products of a and b to step->products. */
static void add_products(const job *j, cpl_tensor a, cpl_tensor b)
{
    cpl_backend *be      = j->model->be;
    const cpl_tensor out = j->step->products;
    be->ops->dot(be, cpl_tensor_range(out, 0, 1), a, a);
    be->ops->dot(be, cpl_tensor_range(out, 1, 1), b, b);
    be->ops->dot(be, cpl_tensor_range(out, 2, 1), a, b);
}

/* Sets `sums` to the sums of squares of both gradients and of their products. With several ranks,
 * sums over the parts of all ranks, after the coupling gradient is summed over the ranks. */
static void multiply(const job *j, double sums[3], int64_t l, const compared *c)
{
    const cpl_param p      = {.layer = l, .offset = c->offset, .per_expert = c->per_expert};
    const cpl_share *share = j->step->share;
    j->model->be->ops->fill(j->model->be, j->step->products, 0);
    if (!j->step->mesh) {
        add_products(j, c->erc, c->rest);
        j->model->be->ops->get(j->model->be, sums, j->step->products);
        return;
    }
    cpl_share_sum_tensor(j->step->share, &p, c->erc);
    for (const cpl_slice *x = share->slices; x < share->slices + share->n_slices; x++) {
        if (x->param.offset != p.offset || x->param.layer != l) continue;
        add_products(j, cpl_tensor_numbers(c->erc, x->own, x->n_own),
                     cpl_tensor_numbers(c->rest, x->own, x->n_own));
    }
    j->model->be->ops->get(j->model->be, sums, j->step->products);
    cpl_group_sum_f64(j->step->world, sums, 3);
}

/* Compares the gradient of the coupling loss with the gradient of all other losses: ratio of norms
 * and cosine. */
static void compare(const job *j, double *ratio, double *cosine, int64_t l, const compared *c)
{
    double sums[3];
    multiply(j, sums, l, c);
    *ratio  = sqrt(sums[0] / sums[1]);
    *cosine = sums[2] / sqrt(sums[0] * sums[1]);
}

/* Sums over the ranks a gradient that no figure compares. Does nothing if the gradient is none. */
static void sum_over_ranks(const job *j, int64_t l, size_t offset, bool per_expert, cpl_tensor erc)
{
    const cpl_param p = {.layer = l, .offset = offset, .per_expert = per_expert};
    if (j->step->mesh && cpl_tensor_is_there(erc)) cpl_share_sum_tensor(j->step->share, &p, erc);
}

/* Computes the layer's coupling gradient in the activations' memory, compares it with the other
 * gradients, and adds it. */
static void couple_separately(const job *j, int64_t l, double weight)
{
    cpl_backend *be          = j->model->be;
    cpl_layer_params *grads  = &j->grads->layer[l];
    cpl_layer_metrics *layer = &j->m->layer[l];
    const cpl_tensor rows    = cpl_params_trained_router(grads);
    const size_t router      = cpl_tensor_is_there(grads->router_original)
                                   ? offsetof(cpl_layer_params, router_original)
                                   : offsetof(cpl_layer_params, router);
    cpl_tensor_arena_release(&j->step->arena, j->step->pass_mark);
    apart a = take_apart(&j->step->arena, j->settings, &j->model->config);
    zero(be, a.router);
    zero(be, a.latent);
    zero(be, a.experts.w_gate);
    zero(be, a.experts.w_up);
    zero(be, a.experts.w_down);
    couple(j, l, weight, a);
    compare(j, &layer->router_ratio, &layer->router_cos, l,
            &(compared){router, false, a.router, rows});
    compare(j, &layer->gate_ratio, &layer->gate_cos, l,
            &(compared){offsetof(cpl_layer_params, w_gate), true, a.experts.w_gate, grads->w_gate});
    sum_over_ranks(j, l, offsetof(cpl_layer_params, latent_down), false, a.latent);
    sum_over_ranks(j, l, offsetof(cpl_layer_params, w_up), true, a.experts.w_up);
    sum_over_ranks(j, l, offsetof(cpl_layer_params, w_down), true, a.experts.w_down);
    add(be, rows, a.router);
    add(be, grads->latent_down, a.latent);
    add(be, grads->w_gate, a.experts.w_gate);
    add(be, grads->w_up, a.experts.w_up);
    add(be, grads->w_down, a.experts.w_down);
}

/* Adds the squares of this rank's part of a slice of w_gate [experts, D, d] to step->squares
 * [n]. */
static void add_squares(const cpl_step *step, cpl_model *model, const cpl_slice *x)
{
    cpl_backend *be      = model->be;
    const cpl_tensor own = cpl_share_master(step->share, x, &model->master);
    const int64_t each = x->param.shape[1] * x->param.shape[2], end = x->own + x->n_own;
    for (int64_t at = x->own, next; at < end; at = next) {
        const int64_t e = at / each;
        next            = (e + 1) * each < end ? (e + 1) * each : end;
        cpl_tensor part = cpl_tensor_range(own, at - x->own, next - at);
        be->ops->dot(be, cpl_tensor_range(step->squares, model->config.first_expert + e, 1), part,
                     part);
    }
}

/* Computes gate_norm from the parts of the masters of all ranks. The masters need not be whole. */
static void gather_gate_norms(const cpl_step *step, cpl_model *model, int64_t l)
{
    const cpl_share *share = step->share;
    cpl_backend *be        = model->be;
    float *norm            = step->host_load;
    const int64_t n        = cpl_tensor_count(step->gate_norm);
    be->ops->fill(be, step->squares, 0);
    for (const cpl_slice *x = share->slices; x < share->slices + share->n_slices; x++)
        if (x->param.layer == l && x->param.offset == offsetof(cpl_layer_params, w_gate))
            add_squares(step, model, x);
    be->ops->get(be, step->sums, step->squares);
    for (int64_t e = 0; e < n; e++) norm[e] = (float)step->sums[e];
    cpl_group_sum_f32(step->world, norm, n);
    for (int64_t e = 0; e < n; e++) norm[e] = sqrtf(norm[e]);
    be->ops->put(be, step->gate_norm, norm);
}

static void gate_norms(const cpl_step *step, cpl_model *model, int64_t l)
{
    if (step->mesh)
        gather_gate_norms(step, model, l);
    else
        model->be->ops->row_norms(model->be, step->gate_norm, model->master.layer[l].w_gate);
}

/* Sets out [n] for the experts of a layer, whose gates must be whole: |W_g^j|_2, or with rows [n,d]
 * the response of each expert to its own row. Ranks that hold the same experts divide the work. */
static void measure_gates(const cpl_step *step, const cpl_model *model, cpl_backend *be,
                          cpl_tensor out, cpl_tensor rows, cpl_tensor w_gate)
{
    const cpl_group *same = step->mesh ? &step->mesh->replicas : &step->alone;
    const int64_t n = w_gate.shape[0], first = n * same->rank / same->size;
    const int64_t count    = n * (same->rank + 1) / same->size - first;
    const int64_t at       = model->config.first_expert + first;
    const cpl_tensor own   = cpl_tensor_range(out, at, count);
    const cpl_tensor gates = cpl_tensor_range(w_gate, first, count);
    be->ops->fill(be, out, 0);
    if (cpl_tensor_is_there(rows))
        be->ops->own_responses(be, own, cpl_tensor_range(rows, at, count), gates);
    else
        be->ops->spectral_norms(be, own, gates);
    cpl_group_sum_tensor(step->world, be, out);
}

/* Makes M whole from the parts of all ranks of a mesh. */
static void gather_M(const cpl_step *step, cpl_backend *be, cpl_tensor M)
{
    cpl_group_sum_tensor(step->world, be, M);
}

/* The rows of which figures are computed. */
typedef struct figure_rows {
    cpl_tensor R, rows, delta; /* as in ops->coupling_figures */
    cpl_tensor M, eps;
    double alpha;
} figure_rows;

/* Returns the rows [n,l] that latent experts read for the rows [n,d], set in `room`, or the rows
 * themselves without latent experts. */
static cpl_tensor read_rows(cpl_backend *be, cpl_tensor room, cpl_tensor rows,
                            const cpl_layer_params *w)
{
    if (!cpl_tensor_is_there(w->latent_down)) return rows;
    be->ops->gemm_f32(be, room, CPL_AS_IS, rows, CPL_TRANSPOSED, w->latent_down, 0);
    return room;
}

static void get_figures(cpl_coupling_figures *out, const cpl_step *step, const cpl_model *model,
                        const figure_rows *of, cpl_tensor R, cpl_tensor rows, cpl_tensor delta)
{
    cpl_backend *be = model->be;
    be->ops->coupling_figures(be, step->figures, of->M, of->eps, R, rows, delta, step->gate_norm,
                              step->gate_spectral, step->own, of->alpha, model->config.top_k);
    be->ops->get(be, out, step->figures);
}

/* Computes the figures of a layer. Figures of latent experts that need M or the gates' largest
 * singular values are those of the rows that the experts read. The other figures are those of R. */
static void compute_figures(cpl_coupling_figures *out, cpl_step *step, const cpl_model *model,
                            const figure_rows *of, const cpl_layer_params *w)
{
    cpl_backend *be         = model->be;
    const cpl_tensor V      = read_rows(be, step->latent.v, of->R, w);
    const bool latent       = cpl_tensor_is_there(w->latent_down);
    const cpl_tensor V_rows = read_rows(be, step->latent.dv, of->rows, w);
    cpl_coupling_figures read;
    measure_gates(step, model, be, step->own, V, cpl_moe_experts(w).w_gate);
    get_figures(out, step, model, of, of->R, of->rows, of->delta);
    if (!latent) return;
    get_figures(&read, step, model, of, V, V_rows, cpl_tensor_none());
    cpl_figures_take_read(out, &read);
}

/* Computes the figures of the centred rows without noise. */
static void centred_figures(cpl_step *step, cpl_model *model, cpl_dtype compute,
                            const cpl_layer_params *w, const cpl_erc_settings *erc, double alpha,
                            int64_t l, cpl_layer_metrics *layer)
{
    cpl_backend *be               = model->be;
    const cpl_tensor R            = model->master.layer[l].router;
    const cpl_coupling_noise none = {0};
    cpl_erc_settings centred      = *erc;
    centred.proxy                 = CPL_PROXY_CENTRED;
    centred.noise                 = CPL_NOISE_NONE;
    step->centred.latent          = cpl_step_latent(step, w);
    cpl_coupling(be, &step->centred, R, cpl_moe_experts(w), &centred, alpha, 0, compute, &none,
                 step->mesh);
    gather_M(step, be, step->centred.M);
    const figure_rows of = {step->rows,      step->rows,        cpl_tensor_none(),
                            step->centred.M, step->centred.eps, alpha};
    compute_figures(&layer->centred, step, model, &of, w);
    layer->erc_centred = cpl_tensor_number(be, step->centred.loss);
}

void cpl_step_figures(cpl_step *step, cpl_model *model, cpl_dtype compute,
                      const cpl_layer_params *w, const cpl_erc_settings *erc, double alpha,
                      int64_t l, cpl_metrics *m)
{
    cpl_backend *be      = model->be;
    const cpl_tensor R   = model->master.layer[l].router;
    const figure_rows of = {R,
                            erc->proxy == CPL_PROXY_ROW ? R : step->rows,
                            erc->noise == CPL_NOISE_NONE ? cpl_tensor_none() : step->delta[l],
                            step->M[l],
                            step->eps[l],
                            alpha};
    gate_norms(step, model, l);
    measure_gates(step, model, be, step->gate_spectral, cpl_tensor_none(),
                  cpl_moe_experts(w).w_gate);
    gather_M(step, be, step->M[l]);
    compute_figures(&m->layer[l].figures, step, model, &of, w);
    centred_figures(step, model, compute, w, erc, alpha, l, &m->layer[l]);
}

/* Computes the figures of layer l, whose M, eps and delta are current. */
static void fill_figures(const job *j, int64_t l)
{
    const cpl_erc_settings erc = cpl_step_erc(j->step, &j->settings->losses.erc);
    cpl_step_figures(j->step, j->model, j->model->be->compute, &j->model->compute.layer[l], &erc,
                     j->alpha, l, j->m);
}

static void one_layer(const job *j, int64_t l, double weight)
{
    const cpl_tensor none   = cpl_tensor_none();
    cpl_layer_params *grads = &j->grads->layer[l];
    if (weight <= 0)
        couple(j, l, weight, (apart){none, none, {none, none, none}});
    else if (j->figures)
        couple_separately(j, l, weight);
    else
        couple(
            j, l, weight,
            (apart){cpl_params_trained_router(grads), grads->latent_down, cpl_moe_experts(grads)});
    if (j->figures) fill_figures(j, l);
}

/* Computes the loss of every layer of erc.layers. With figures or a measurement also computes the
 * loss of other layers, without weight. */
static void all_layers(const job *j, bool measure)
{
    cpl_aux_metrics *erc = &j->m->aux[CPL_AUX_ERC];
    for (int64_t l = 0; l < j->m->n_layers; l++) {
        const bool has                  = cpl_erc_layer_enabled(&j->settings->losses.erc, l);
        j->m->layer[l].aux[CPL_AUX_ERC] = NAN; /* remains NAN if the loss is not computed */
        if (!has && !j->figures && !measure) continue;
        one_layer(j, l, has ? erc->weight * j->share : 0);
        j->m->layer[l].aux[CPL_AUX_ERC] = 0;
    }
}

/* Returns the factor of one layer in the loss: 1 / number of layers with the loss, or 1. */
static double share_of(const cpl_erc_settings *erc, int64_t n_layers)
{
    return erc->reduce == CPL_ERC_MEAN ? 1.0 / (double)cpl_erc_n_layers(erc, n_layers) : 1.0;
}

void cpl_step_read_coupling(const cpl_step *step, const cpl_erc_settings *erc, cpl_metrics *m)
{
    const cpl_coupling_noise noise = {.given = step->has_delta};
    const double draws             = (double)cpl_coupling_draws(erc, &noise);
    const double share             = share_of(erc, m->n_layers);
    if (!m->aux[CPL_AUX_ERC].computed && !m->has_figures) return;
    for (int64_t l = 0; l < m->n_layers; l++) {
        cpl_layer_metrics *layer = &m->layer[l];
        double *loss             = &layer->aux[CPL_AUX_ERC];
        if (!isnan(*loss)) *loss = step->result[cpl_step_result_at(l, CPL_AUX_ERC)] / draws;
        if (cpl_erc_layer_enabled(erc, l)) m->aux[CPL_AUX_ERC].value += share * *loss;
        if (m->has_figures) layer->erc_over_diagonal = *loss / layer->figures.m_diagonal;
    }
}

void cpl_step_coupling(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, bool with_figures, bool measure_erc,
                       cpl_metrics *m)
{
    const cpl_erc_settings *s = &settings->losses.erc;
    cpl_aux_metrics *erc      = &m->aux[CPL_AUX_ERC];
    m->erc_alpha              = s->alpha;
    if (m->step > 0) /* at step 0, before the schedule, the settings apply */
        cpl_coupling_schedule(s, m->step, &erc->weight, &m->erc_alpha);
    if (cpl_step_waits_for_tokens(step, s)) erc->weight = 0;
    erc->computed  = erc->weight > 0 || measure_erc;
    m->has_figures = with_figures;
    if (!erc->computed && !with_figures) return;
    const job j = {
        step,        model, grads, settings, m, (float)m->erc_alpha, share_of(s, m->n_layers),
        with_figures};
    all_layers(&j, measure_erc);
}
