/* evaluate.c - see evaluate.h */
#include "train/evaluate.h"

static cpl_status one_source(cpl_step *step, cpl_model *model, cpl_loader *held_out, int64_t label,
                             int64_t max_sequences, cpl_batch *batch, cpl_source_loss *loss)
{
    int64_t t       = step->micro * step->seq_len;
    int64_t batches = cpl_loader_eval_batches(held_out, label, max_sequences);
    loss->nll       = 0;
    loss->targets   = 0;
    for (int64_t i = 0; i < batches; i++) {
        CPL_TRY(cpl_loader_eval_batch(held_out, label, max_sequences, i, batch));
        cpl_model_forward(model, &step->pass, cpl_tensor_1d(batch->ids, CPL_I32, t),
                          cpl_tensor_none(), NULL);
        loss->nll += cpl_model_score(model, &step->pass, cpl_tensor_1d(batch->targets, CPL_I32, t));
        loss->targets += batch->n_targets;
    }
    return CPL_OK;
}

cpl_status cpl_evaluate_loss(cpl_step *step, cpl_model *model, cpl_loader *held_out,
                             int64_t max_sequences, cpl_batch *batch, cpl_metrics *metrics)
{
    for (int64_t i = 0; i < metrics->n_sources; i++)
        CPL_TRY(one_source(step, model, held_out, i, max_sequences, batch, &metrics->source[i]));
    return CPL_OK;
}

void cpl_evaluate_coupling(cpl_step *step, cpl_model *model, const cpl_settings *settings,
                           bool figures, cpl_metrics *metrics)
{
    cpl_backend f32         = *model->be; /* the masters are F32, whatever training computes in */
    cpl_erc_settings erc    = settings->losses.erc;
    cpl_coupling_noise none = {0};
    if (!cpl_router_of(&model->config)->has_rows) return;
    f32.compute = CPL_F32;
    erc.noise   = CPL_NOISE_NONE;
    for (int64_t l = 0; l < metrics->n_layers; l++) {
        const cpl_layer_params *w = &model->master.layer[l];
        cpl_coupling_outputs out  = {.M = step->M[l], .eps = step->eps[l], .delta = step->delta[l]};
        cpl_coupling_result result;
        cpl_coupling(&f32, &result, &out, w->router, cpl_moe_experts(w), &erc, erc.alpha, 0, &none);
        metrics->layer[l].erc_clean = result.loss;
        if (!figures) continue;
        f32.ops->row_norms(&f32, step->gate_norm, w->w_gate);
        f32.ops->coupling_figures(&f32, &metrics->layer[l].figures, step->M[l], step->eps[l],
                                  w->router, cpl_tensor_none(), step->gate_norm, erc.alpha,
                                  model->config.top_k);
    }
    metrics->has_clean = true;
    if (figures) metrics->has_figures = true;
}
