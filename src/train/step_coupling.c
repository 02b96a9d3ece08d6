/* step_coupling.c - the coupling loss of one optimizer step, over all layers; see step.h. */
#include "train/step.h"

#include <math.h>

/* ---- memory ---- */

/* The coupling gradient of one layer, apart from the rest. */
typedef struct apart {
    cpl_tensor router;
    cpl_expert_weights experts;
} apart;

static apart take_apart(cpl_arena *arena, const cpl_settings *settings, const cpl_model_settings *c)
{
    int64_t n = c->n_experts, d = c->d_model, D = c->d_expert;
    bool gate_only   = settings->losses.erc.activation == CPL_ERC_GATE;
    apart a          = {.router = cpl_take_2d(arena, n, d)};
    a.experts.w_gate = cpl_take_3d(arena, n, D, d);
    a.experts.w_up   = gate_only ? cpl_tensor_none() : cpl_take_3d(arena, n, D, d);
    a.experts.w_down = gate_only ? cpl_tensor_none() : cpl_take_3d(arena, n, d, D);
    return a;
}

void cpl_step_coupling_measure(cpl_arena *arena, const cpl_settings *settings,
                               const cpl_model_settings *config)
{
    if (cpl_router_of(config)->has_rows) (void)take_apart(arena, settings, config);
}

/* ---- the coupling loss ---- */

/* How a gradient of the coupling loss stands to that of all the rest. */
static void compare(cpl_backend *be, double *ratio, double *cosine, cpl_tensor erc, cpl_tensor rest)
{
    double ee = be->ops->dot(be, erc, erc), rr = be->ops->dot(be, rest, rest);
    double er = be->ops->dot(be, erc, rest);
    *ratio    = sqrt(ee / rr);
    *cosine   = er / sqrt(ee * rr);
}

static void zero(cpl_backend *be, cpl_tensor t)
{
    if (t.data) be->ops->fill(be, t, 0);
}

static void add(cpl_backend *be, cpl_tensor to, cpl_tensor t)
{
    if (t.data) be->ops->add(be, to, t);
}

/* What one layer's loss counts in the whole: erc.reduce over the layers that have it. */
static double layers_share(const cpl_settings *settings, double coupled)
{
    return settings->losses.erc.reduce == CPL_ERC_MEAN ? 1.0 / coupled : 1.0;
}

typedef struct coupling_of {
    float alpha;
    double weight; /* of one layer's loss */
    bool figures;
} coupling_of;

static double couple(cpl_step *step, cpl_model *model, int64_t l, const cpl_settings *settings,
                     coupling_of how, int64_t at_step, cpl_tensor dR, cpl_expert_weights dw)
{
    cpl_coupling_result result;
    cpl_coupling_noise noise = {.seed  = (uint64_t)settings->train.seed,
                                .step  = (uint64_t)at_step,
                                .layer = (uint32_t)l,
                                .given = step->has_delta};
    cpl_coupling_outputs out = {step->M[l], step->eps[l], step->delta[l], dR, dw};
    cpl_coupling(model->be, &result, &out, model->master.layer[l].router,
                 cpl_moe_experts(&model->compute.layer[l]), &settings->losses.erc, how.alpha,
                 (float)how.weight, &noise);
    return result.loss;
}

/* The layer's coupling gradient by itself in the activations' memory, compared, then added. */
static double couple_separately(cpl_step *step, cpl_model *model, cpl_layer_params *grads,
                                int64_t l, const cpl_settings *settings, coupling_of how,
                                int64_t at_step, cpl_layer_metrics *layer)
{
    cpl_backend *be = model->be;
    cpl_arena_release(&step->arena, step->pass_mark);
    apart a = take_apart(&step->arena, settings, &model->config);
    zero(be, a.router);
    zero(be, a.experts.w_gate);
    zero(be, a.experts.w_up);
    zero(be, a.experts.w_down);
    double loss = couple(step, model, l, settings, how, at_step, a.router, a.experts);
    compare(be, &layer->router_ratio, &layer->router_cos, a.router, grads->router);
    compare(be, &layer->gate_ratio, &layer->gate_cos, a.experts.w_gate, grads->w_gate);
    add(be, grads->router, a.router);
    add(be, grads->w_gate, a.experts.w_gate);
    add(be, grads->w_up, a.experts.w_up);
    add(be, grads->w_down, a.experts.w_down);
    return loss;
}

/* Of layer l, whose M, eps and delta have just been made. */
static void fill_figures(cpl_step *step, cpl_model *model, int64_t l, const cpl_settings *settings,
                         coupling_of how, cpl_layer_metrics *layer)
{
    cpl_backend *be           = model->be;
    const cpl_layer_params *w = &model->master.layer[l];
    const bool noisy          = settings->losses.erc.noise != CPL_NOISE_NONE;
    be->ops->row_norms(be, step->gate_norm, w->w_gate);
    be->ops->coupling_figures(be, &layer->figures, step->M[l], step->eps[l], w->router,
                              noisy ? step->delta[l] : cpl_tensor_none(), step->gate_norm,
                              how.alpha, model->config.top_k);
    layer->erc_over_diagonal = layer->aux[CPL_AUX_ERC] / layer->figures.m_diagonal;
}

/* Layer l, whose loss has the weight how.weight. */
static void one_layer(cpl_step *step, cpl_model *model, cpl_params *grads, int64_t l,
                      const cpl_settings *settings, coupling_of how, cpl_metrics *m)
{
    const cpl_expert_weights none = {cpl_tensor_none(), cpl_tensor_none(), cpl_tensor_none()};
    cpl_layer_metrics *layer      = &m->layer[l];
    if (how.weight <= 0)
        layer->aux[CPL_AUX_ERC] =
            couple(step, model, l, settings, how, m->step, cpl_tensor_none(), none);
    else if (how.figures)
        layer->aux[CPL_AUX_ERC] =
            couple_separately(step, model, &grads->layer[l], l, settings, how, m->step, layer);
    else
        layer->aux[CPL_AUX_ERC] = couple(step, model, l, settings, how, m->step,
                                         grads->layer[l].router, cpl_moe_experts(&grads->layer[l]));
    if (how.figures) fill_figures(step, model, l, settings, how, layer);
}

/* Every layer that has the loss; with figures or a measurement the others too, without weight. */
static void all_layers(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, coupling_of how, bool measure, cpl_metrics *m)
{
    const double coupled = (double)cpl_erc_n_layers(&settings->losses.erc, m->n_layers);
    coupling_of idle     = how;
    idle.weight          = 0;
    for (int64_t l = 0; l < m->n_layers; l++) {
        const bool has               = cpl_erc_layer_enabled(&settings->losses.erc, l);
        m->layer[l].aux[CPL_AUX_ERC] = NAN; /* where it is not computed */
        if (!has && !how.figures && !measure) continue;
        one_layer(step, model, grads, l, settings, has ? how : idle, m);
        if (has)
            m->aux[CPL_AUX_ERC].value +=
                layers_share(settings, coupled) * m->layer[l].aux[CPL_AUX_ERC];
    }
}

void cpl_step_coupling(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, bool with_figures, bool measure_erc,
                       cpl_metrics *m)
{
    const double coupled = (double)cpl_erc_n_layers(&settings->losses.erc, m->n_layers);
    cpl_aux_metrics *erc = &m->aux[CPL_AUX_ERC];
    m->erc_alpha         = settings->losses.erc.alpha;
    if (m->step > 0) /* step 0 is before the schedule: the settings as they are */
        cpl_coupling_schedule(&settings->losses.erc, m->step, &erc->weight, &m->erc_alpha);
    erc->computed   = erc->weight > 0 || measure_erc;
    m->has_figures  = with_figures;
    coupling_of how = {(float)m->erc_alpha, erc->weight * layers_share(settings, coupled),
                       with_figures};
    if (!erc->computed && !with_figures) return;
    all_layers(step, model, grads, settings, how, measure_erc, m);
    if (!with_figures) return;
    cpl_arena_release(&step->arena, step->pass_mark); /* its arrays were written over */
    cpl_pass_take(&step->pass, &step->arena, &model->config, step->micro, step->seq_len, true,
                  false);
}
