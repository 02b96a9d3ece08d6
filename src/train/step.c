/* step.c - see step.h */
#include "train/step.h"

#include <math.h>
#include <string.h>

#include "model/aux_losses.h"

/* ---- memory ---- */

static void take_all(cpl_step *step, const cpl_settings *settings, const cpl_model_settings *c)
{
    int64_t n = c->n_experts, d = c->d_model, layers = c->n_layers;
    cpl_tensor unseen = cpl_tensor_none();
    step->M           = cpl_arena_take(&step->arena, (size_t)layers * sizeof *step->M);
    step->eps         = cpl_arena_take(&step->arena, (size_t)layers * sizeof *step->eps);
    step->delta       = cpl_arena_take(&step->arena, (size_t)layers * sizeof *step->delta);
    for (int64_t l = 0; l < layers && cpl_router_of(c)->has_rows; l++) {
        *(step->M ? &step->M[l] : &unseen)         = cpl_take_2d(&step->arena, n, n);
        *(step->eps ? &step->eps[l] : &unseen)     = cpl_take_1d(&step->arena, n);
        *(step->delta ? &step->delta[l] : &unseen) = cpl_take_2d(&step->arena, n, d);
    }
    step->gate_norm = cpl_take_1d(&step->arena, n);
    step->load      = cpl_take_1d(&step->arena, n);
    cpl_balance_take(&step->balance, &step->arena, &settings->losses.balance, c, step->micro);
    step->pass_mark = cpl_arena_mark(&step->arena);
    cpl_pass_take(&step->pass, &step->arena, c, step->micro, step->seq_len, true, false);
    size_t end = cpl_arena_mark(&step->arena);
    cpl_arena_release(&step->arena, step->pass_mark);
    cpl_step_coupling_measure(&step->arena, settings, c); /* raises the peak if it is larger */
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
    const int64_t n = model->config.n_experts;
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const cpl_moe_kept *kept = &pass->moe[l];
        cpl_layer_metrics *layer = &m->layer[l];
        const float *counts      = cpl_f32(kept->counts);
        layer->aux[CPL_AUX_Z] += *cpl_f32(kept->z) / parts;
        layer->entropy += *cpl_f32(kept->entropy) / parts;
        for (int64_t e = 0; e < n; e++) m->counts[l * n + e] += counts[e];
    }
}

/* Loads from the counts, means over layers from the layers. */
static void sum_up(cpl_metrics *m, const cpl_model_settings *c, const cpl_settings *settings)
{
    static const int in_pass[] = {CPL_AUX_BALANCE, CPL_AUX_Z, -1};
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
        m->layer[l].aux[CPL_AUX_Z] *= cpl_aux_z_factor(&settings->losses.z, c->top_k);
        for (const int *i = in_pass; *i >= 0; i++)
            m->aux[*i].value += m->layer[l].aux[*i] / (double)m->n_layers;
    }
    for (const int *i = in_pass; *i >= 0; i++) m->aux[*i].computed = true;
}

static cpl_tensor ids_of(const int32_t *all, int64_t first, int64_t count)
{
    return cpl_tensor_1d((void *)(uintptr_t)(all + first), CPL_I32, count);
}

/* A micro-batch of the batch. */
typedef struct part {
    cpl_tensor ids, target, doc_start;
} part;

static part part_of(const cpl_step *step, const cpl_step_batch *batch, int64_t i)
{
    const int64_t t = step->micro * step->seq_len;
    part p = {ids_of(batch->ids, i * t, t), ids_of(batch->target, i * t, t), cpl_tensor_none()};
    if (batch->doc_start)
        p.doc_start = cpl_tensor_2d(ids_of(batch->doc_start, i * t, t).data, CPL_I32, step->micro,
                                    step->seq_len);
    return p;
}

static void forward(cpl_step *step, cpl_model *model, const cpl_step_batch *batch, int64_t i)
{
    const part p = part_of(step, batch, i);
    cpl_model_forward(model, &step->pass, p.ids, p.doc_start, NULL);
}

/* The load of the whole batch before the first backward pass. Micro-batch 0 is the last, so that
 * its activations are those that stay. */
static void count_ahead(cpl_step *step, cpl_model *model, const cpl_step_batch *batch,
                        int64_t parts)
{
    for (int64_t i = parts - 1; i >= 0; i--) {
        forward(step, model, batch, i);
        cpl_balance_count(&step->balance, model, &step->pass);
    }
    cpl_balance_collect(&step->balance, model);
}

static cpl_aux_grad_scales scales_of(const cpl_step *step, const cpl_z_settings *z,
                                     const cpl_model_settings *c, int64_t parts)
{
    const double share   = 1.0 / ((double)parts * (double)c->n_layers);
    const double t       = (double)(step->micro * step->seq_len);
    const double z_scale = z->weight * share * cpl_aux_z_factor(z, c->top_k) / t;
    return (cpl_aux_grad_scales){step->balance.scale, (float)z_scale,
                                 cpl_balance_counts(&step->balance)};
}

static void micro_batches(cpl_step *step, cpl_model *model, cpl_params *grads,
                          const cpl_settings *settings, const cpl_step_batch *batch, cpl_metrics *m)
{
    const cpl_model_settings *c = &model->config;
    const int64_t parts         = batch->n_sequences / step->micro;
    const float ce_scale        = batch->n_targets ? (float)(1.0 / (double)batch->n_targets) : 0.0f;
    const bool ahead = cpl_balance_begin(&step->balance, model, &settings->losses.balance,
                                         batch->n_sequences, step->seq_len);
    if (ahead) count_ahead(step, model, batch, parts);
    const cpl_aux_grad_scales scales = scales_of(step, &settings->losses.z, c, parts);
    for (int64_t i = 0; i < parts; i++) {
        const part p = part_of(step, batch, i);
        if (!ahead || i > 0) forward(step, model, batch, i);
        if (!ahead) cpl_balance_count(&step->balance, model, &step->pass);
        m->loss += cpl_model_backward(model, &step->pass, grads, p.ids, p.doc_start, p.target,
                                      ce_scale, scales);
        add_counts(m, model, &step->pass, (double)parts);
    }
    if (!ahead) cpl_balance_collect(&step->balance, model);
    for (int64_t l = 0; l < m->n_layers; l++)
        m->layer[l].aux[CPL_AUX_BALANCE] = step->balance.loss[l];
    m->loss *= ce_scale;
    sum_up(m, c, settings);
}

/* ---- losses that depend only on the weights ---- */

/* Every loss that is a function of a layer's weights; with figures also if its weight is 0. */
static void weight_losses(cpl_model *model, cpl_params *grads, bool with_figures, cpl_metrics *m)
{
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        const cpl_aux_loss_row *row = &cpl_aux_losses[i];
        const double layers = (double)m->n_layers, weight = m->aux[i].weight;
        m->aux[i].computed =
            m->aux[i].computed || (row->per_layer && cpl_router_meets(&model->config, row->needs) &&
                                   (weight > 0 || with_figures));
        if (!row->per_layer || !m->aux[i].computed) continue;
        for (int64_t l = 0; l < m->n_layers; l++) {
            cpl_layer_params *dw = weight > 0 ? &grads->layer[l] : NULL;
            m->layer[l].aux[i] =
                row->per_layer(model->be, dw, &model->master.layer[l], weight / layers);
            m->aux[i].value += m->layer[l].aux[i] / layers;
        }
    }
}

/* ---- the whole ---- */

static void clear(cpl_metrics *m)
{
    *m = (cpl_metrics){.step      = m->step,
                       .tokens    = m->tokens,
                       .skipped   = m->skipped,
                       .n_layers  = m->n_layers,
                       .n_experts = m->n_experts,
                       .n_sources = m->n_sources,
                       .layer     = m->layer,
                       .counts    = m->counts,
                       .source    = m->source};
    memset(m->layer, 0, (size_t)m->n_layers * sizeof *m->layer);
    memset(m->counts, 0, (size_t)(m->n_layers * m->n_experts) * sizeof *m->counts);
}

/* In a fixed order, the coupling loss last: another order would change the last bit. */
static double total(const cpl_metrics *m)
{
    double sum = m->loss;
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        if (i != CPL_AUX_ERC) sum += m->aux[i].weight * m->aux[i].value;
    return sum + m->aux[CPL_AUX_ERC].weight * m->aux[CPL_AUX_ERC].value;
}

void cpl_step_gradient(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool with_figures,
                       bool measure_erc, cpl_metrics *m)
{
    clear(m);
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        m->aux[i].weight = cpl_aux_weight(&settings->losses, (cpl_aux_loss)i);
    micro_batches(step, model, grads, settings, batch, m);
    weight_losses(model, grads, with_figures, m);
    if (cpl_router_of(&model->config)->has_rows)
        cpl_step_coupling(step, model, grads, settings, with_figures, measure_erc, m);
    m->loss_total = total(m);
}

void cpl_step_move_biases(cpl_step *step, cpl_model *model, const cpl_settings *settings,
                          const cpl_metrics *m)
{
    if (!model->config.router_bias) return;
    for (int64_t l = 0; l < m->n_layers; l++) {
        for (int64_t e = 0; e < m->n_experts; e++)
            cpl_f32(step->load)[e] = (float)m->counts[l * m->n_experts + e];
        model->be->ops->balance_bias(model->be, model->master.layer[l].router_bias, step->load,
                                     (float)settings->losses.balance.bias_rate);
    }
}
