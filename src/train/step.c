/* step.c - see step.h */
#include "train/step.h"

#include <math.h>
#include <string.h>

#include "model/balance.h"

/* ---- memory ---- */

static cpl_tensor take1(cpl_arena *arena, int64_t count)
{
    return cpl_tensor_1d(cpl_arena_take(arena, (size_t)count * sizeof(float)), CPL_F32, count);
}

static cpl_tensor take2(cpl_arena *arena, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols) * sizeof(float);
    return cpl_tensor_2d(cpl_arena_take(arena, bytes), CPL_F32, rows, cols);
}

/* The coupling gradient of one layer, apart from the rest. */
typedef struct apart {
    cpl_tensor router;
    cpl_expert_weights experts;
} apart;

static cpl_tensor like(cpl_arena *arena, int64_t n, int64_t rows, int64_t cols)
{
    return cpl_tensor_3d(take2(arena, n * rows, cols).data, CPL_F32, n, rows, cols);
}

static apart take_apart(cpl_arena *arena, const cpl_settings *settings, const cpl_model_settings *c)
{
    int64_t n = c->n_experts, d = c->d_model, D = c->d_expert;
    bool gate_only   = settings->erc.activation == CPL_ERC_GATE;
    apart a          = {.router = take2(arena, n, d)};
    a.experts.w_gate = like(arena, n, D, d);
    a.experts.w_up   = gate_only ? cpl_tensor_none() : like(arena, n, D, d);
    a.experts.w_down = gate_only ? cpl_tensor_none() : like(arena, n, d, D);
    return a;
}

static void take_all(cpl_step *step, const cpl_settings *settings, const cpl_model_settings *c)
{
    int64_t n = c->n_experts, d = c->d_model, layers = c->n_layers;
    cpl_tensor unseen = cpl_tensor_none();
    step->M           = cpl_arena_take(&step->arena, (size_t)layers * sizeof *step->M);
    step->eps         = cpl_arena_take(&step->arena, (size_t)layers * sizeof *step->eps);
    step->delta       = cpl_arena_take(&step->arena, (size_t)layers * sizeof *step->delta);
    for (int64_t l = 0; l < layers; l++) {
        *(step->M ? &step->M[l] : &unseen)         = take2(&step->arena, n, n);
        *(step->eps ? &step->eps[l] : &unseen)     = take1(&step->arena, n);
        *(step->delta ? &step->delta[l] : &unseen) = take2(&step->arena, n, d);
    }
    step->gate_norm = take1(&step->arena, n);
    step->pass_mark = cpl_arena_mark(&step->arena);
    cpl_pass_take(&step->pass, &step->arena, c, step->micro, step->seq_len, true, false);
    size_t end = cpl_arena_mark(&step->arena);
    cpl_arena_release(&step->arena, step->pass_mark);
    (void)take_apart(&step->arena, settings, c); /* raises the peak where it is the larger one */
    cpl_arena_release(&step->arena, step->pass_mark);
    step->arena.used = end;
}

size_t cpl_step_bytes(const cpl_settings *settings, const cpl_model_settings *config, int64_t micro)
{
    cpl_step step = {.micro = micro, .seq_len = settings->data.seq_len};
    cpl_arena_measure(&step.arena);
    take_all(&step, settings, config);
    return step.arena.peak;
}

cpl_status cpl_step_init(cpl_step *step, const cpl_settings *settings,
                         const cpl_model_settings *config, int64_t micro)
{
    memset(step, 0, sizeof *step);
    step->micro   = micro;
    step->seq_len = settings->data.seq_len;
    CPL_TRY(cpl_arena_init(&step->arena, cpl_step_bytes(settings, config, micro),
                           "the activations of a step"));
    take_all(step, settings, config);
    return CPL_OK;
}

void cpl_step_free(cpl_step *step)
{
    cpl_arena_free(&step->arena);
    memset(step, 0, sizeof *step);
}

cpl_work cpl_step_work(const cpl_settings *settings, const cpl_model_settings *config,
                       int64_t micro)
{
    int64_t seq_len = settings->data.seq_len;
    return cpl_pass_work(config, micro, seq_len, seq_len, true);
}

/* ---- micro-batches ---- */

/* What one pass counted, into the metrics, as one of `parts` equal parts. */
static void add_counts(cpl_metrics *m, cpl_model *model, const cpl_pass *pass, double parts)
{
    int64_t n = model->config.n_experts, t = pass->batch * pass->n_queries;
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const cpl_moe_kept *kept = &pass->moe[l];
        cpl_layer_metrics *layer = &m->layer[l];
        const float *counts      = cpl_f32(kept->counts);
        layer->balance +=
            cpl_balance_loss(model->be, kept->counts, kept->mean_prob, t, model->config.top_k) /
            parts;
        layer->z += *cpl_f32(kept->z) / parts;
        layer->entropy += *cpl_f32(kept->entropy) / parts;
        for (int64_t e = 0; e < n; e++) m->counts[l * n + e] += counts[e];
    }
}

/* Loads from the counts, means over layers from the layers. */
static void sum_up(cpl_metrics *m, const cpl_model_settings *c, const cpl_settings *settings)
{
    for (int64_t l = 0; l < m->n_layers; l++) {
        double all = 0, most = 0, dead = 0;
        for (int64_t e = 0; e < m->n_experts; e++) {
            double count = m->counts[l * m->n_experts + e];
            all += count;
            most = fmax(most, count);
            dead += count == 0;
        }
        m->layer[l].load_max = most * (double)m->n_experts / all;
        m->layer[l].dead     = dead;
        m->balance += m->layer[l].balance / (double)m->n_layers;
        m->layer[l].z *= cpl_z_factor(&settings->z, c->top_k);
        m->z += m->layer[l].z / (double)m->n_layers;
    }
}

static cpl_tensor ids_of(const int32_t *all, int64_t first, int64_t count)
{
    return cpl_tensor_1d((void *)(uintptr_t)(all + first), CPL_I32, count);
}

static void micro_batches(cpl_step *step, cpl_model *model, cpl_params *grads,
                          const cpl_settings *settings, const cpl_step_batch *batch, cpl_metrics *m)
{
    const cpl_model_settings *c = &model->config;
    int64_t parts = batch->n_sequences / step->micro, t = step->micro * step->seq_len;
    double share      = 1.0 / ((double)parts * (double)c->n_layers);
    float ce_scale    = batch->n_targets ? (float)(1.0 / (double)batch->n_targets) : 0.0f;
    cpl_moe_pull pull = {
        cpl_balance_scale(settings->balance.weight * share, c->n_experts, t, c->top_k),
        (float)(settings->z.weight * share * cpl_z_factor(&settings->z, c->top_k) / (double)t)};
    for (int64_t i = 0; i < parts; i++) {
        cpl_tensor ids = ids_of(batch->ids, i * t, t), target = ids_of(batch->target, i * t, t);
        cpl_tensor doc = cpl_tensor_none();
        if (batch->doc_start) {
            doc = ids_of(batch->doc_start, i * t, t);
            doc = cpl_tensor_2d(doc.data, CPL_I32, step->micro, step->seq_len);
        }
        cpl_model_forward(model, &step->pass, ids, doc, NULL);
        m->loss += cpl_model_backward(model, &step->pass, grads, ids, doc, target, ce_scale, pull);
        add_counts(m, model, &step->pass, (double)parts);
    }
    m->loss *= ce_scale;
    sum_up(m, c, settings);
}

/* ---- the coupling loss ---- */

static cpl_expert_weights experts_of(const cpl_layer_params *w)
{
    cpl_expert_weights e = {w->w_gate, w->w_up, w->w_down};
    return e;
}

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
                 experts_of(&model->compute.layer[l]), &settings->erc, how.alpha, (float)how.weight,
                 &noise);
    return result.loss;
}

/* The layer's coupling gradient by itself in the activations' memory, compared, then added. */
static double couple_apart(cpl_step *step, cpl_model *model, cpl_layer_params *grads, int64_t l,
                           const cpl_settings *settings, coupling_of how, int64_t at_step,
                           cpl_layer_metrics *layer)
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
    const bool noisy          = settings->erc.noise != CPL_NOISE_NONE;
    be->ops->row_norms(be, step->gate_norm, w->w_gate);
    be->ops->coupling_figures(be, &layer->figures, step->M[l], step->eps[l], w->router,
                              noisy ? step->delta[l] : cpl_tensor_none(), step->gate_norm,
                              how.alpha, model->config.top_k);
    layer->erc_over_diagonal = layer->erc / layer->figures.m_diagonal;
}

static void coupling(cpl_step *step, cpl_model *model, cpl_params *grads,
                     const cpl_settings *settings, coupling_of how, cpl_metrics *m)
{
    cpl_expert_weights none = {cpl_tensor_none(), cpl_tensor_none(), cpl_tensor_none()};
    for (int64_t l = 0; l < m->n_layers; l++) {
        cpl_layer_metrics *layer = &m->layer[l];
        if (how.weight <= 0)
            layer->erc = couple(step, model, l, settings, how, m->step, cpl_tensor_none(), none);
        else if (how.figures)
            layer->erc =
                couple_apart(step, model, &grads->layer[l], l, settings, how, m->step, layer);
        else
            layer->erc = couple(step, model, l, settings, how, m->step, grads->layer[l].router,
                                experts_of(&grads->layer[l]));
        if (how.figures) fill_figures(step, model, l, settings, how, layer);
        m->erc += layer->erc;
    }
    if (settings->erc.reduce == CPL_ERC_MEAN) m->erc /= (double)m->n_layers;
    if (!how.figures) return;
    cpl_arena_release(&step->arena, step->pass_mark); /* its arrays were written over */
    cpl_pass_take(&step->pass, &step->arena, &model->config, step->micro, step->seq_len, true,
                  false);
}

static void clear(cpl_metrics *m)
{
    cpl_metrics kept = *m;
    memset(m, 0, sizeof *m);
    m->step      = kept.step;
    m->tokens    = kept.tokens;
    m->skipped   = kept.skipped;
    m->n_layers  = kept.n_layers;
    m->n_experts = kept.n_experts;
    m->n_sources = kept.n_sources;
    m->layer     = kept.layer;
    m->counts    = kept.counts;
    m->source    = kept.source;
    memset(m->layer, 0, (size_t)m->n_layers * sizeof *m->layer);
    memset(m->counts, 0, (size_t)(m->n_layers * m->n_experts) * sizeof *m->counts);
}

void cpl_step_gradient(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool with_figures,
                       bool measure_erc, cpl_metrics *m)
{
    clear(m);
    micro_batches(step, model, grads, settings, batch, m);
    m->erc_weight = settings->erc.weight; /* step 0 stands outside of any schedule */
    m->erc_alpha  = settings->erc.alpha;
    if (m->step > 0) cpl_coupling_schedule(&settings->erc, m->step, &m->erc_weight, &m->erc_alpha);
    double layers   = settings->erc.reduce == CPL_ERC_MEAN ? (double)m->n_layers : 1.0;
    coupling_of how = {(float)m->erc_alpha, m->erc_weight / layers, with_figures};
    m->has_erc      = m->erc_weight > 0 || measure_erc;
    m->has_figures  = with_figures;
    if (m->has_erc || with_figures) coupling(step, model, grads, settings, how, m);
    m->loss_total = m->loss + settings->balance.weight * m->balance + settings->z.weight * m->z +
                    m->erc_weight * m->erc;
}
