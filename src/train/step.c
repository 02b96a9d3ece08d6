/* step.c - see step.h */
#include "train/step.h"

#include <math.h>
#include <string.h>

#include "model/aux_losses.h"
#include "tensor/backend/backend.h"

/* Figures of each layer that are summed over ranks: the entropy, and the auxiliary losses except
 * the coupling loss. */
enum { N_SUMS = CPL_N_AUX_LOSSES };

/* ---- the layout of the results ---- */

/* Returns the index of the first count of layer l. */
static int64_t counts_at(const cpl_model_settings *c, int64_t l)
{
    return cpl_step_result_at(c->n_layers, 0) + l * c->n_experts;
}

static int64_t dots_at(const cpl_model_settings *c)
{
    return counts_at(c, c->n_layers);
}

static int64_t squares_at(const cpl_model_settings *c)
{
    return dots_at(c) + c->n_layers;
}

/* ---- memory ---- */

/* Takes the pass from the arena and sets its exchange. */
static void take_pass(cpl_step *step, const cpl_model_settings *config)
{
    cpl_pass_take(&step->pass, &step->arena, config, step->micro, step->seq_len, true, false);
    step->pass.moe_scratch.exchange = step->exchange;
}

/* Takes the memory of the coupling loss of a step and its figures. */
static void take_coupling(cpl_step *step, const cpl_model_settings *c)
{
    int64_t n = c->n_experts, d = c->d_model, layers = c->n_layers;
    cpl_tensor unseen = cpl_tensor_none();
    step->M           = cpl_tensor_take_host(&step->arena, (size_t)layers * sizeof *step->M);
    step->eps         = cpl_tensor_take_host(&step->arena, (size_t)layers * sizeof *step->eps);
    step->delta       = cpl_tensor_take_host(&step->arena, (size_t)layers * sizeof *step->delta);
    for (int64_t l = 0; l < layers && cpl_router_of(c)->has_rows; l++) {
        *(step->M ? &step->M[l] : &unseen)         = cpl_tensor_take_2d(&step->arena, n, n);
        *(step->eps ? &step->eps[l] : &unseen)     = cpl_tensor_take_1d(&step->arena, n);
        *(step->delta ? &step->delta[l] : &unseen) = cpl_tensor_take_2d(&step->arena, n, d);
    }
    step->rows  = cpl_tensor_take_2d(&step->arena, n, d);
    step->drows = cpl_tensor_take_2d(&step->arena, n, d);
    if (c->d_latent)
        step->latent =
            (cpl_coupling_latent){.x  = cpl_tensor_take_2d(&step->arena, n, d),
                                  .v  = cpl_tensor_take_2d(&step->arena, n, c->d_latent),
                                  .dx = cpl_tensor_take_2d(&step->arena, n, d),
                                  .dv = cpl_tensor_take_2d(&step->arena, n, c->d_latent)};
    step->diagonal      = cpl_tensor_take_1d(&step->arena, n);
    step->violations    = cpl_tensor_as_2d(cpl_tensor_take_ids(&step->arena, 2 * n), 2, n);
    step->centred       = (cpl_coupling_outputs){.M          = cpl_tensor_take_2d(&step->arena, n, n),
                                                 .eps        = cpl_tensor_take_1d(&step->arena, n),
                                                 .delta      = cpl_tensor_take_2d(&step->arena, n, d),
                                                 .rows       = step->rows,
                                                 .loss       = cpl_tensor_take_numbers(&step->arena, 1),
                                                 .diagonal   = step->diagonal,
                                                 .violations = step->violations};
    step->gate_norm     = cpl_tensor_take_1d(&step->arena, n);
    step->gate_spectral = cpl_tensor_take_1d(&step->arena, n);
    step->own           = cpl_tensor_take_1d(&step->arena, n);
    step->products      = cpl_tensor_take_numbers(&step->arena, 3);
    step->figures       = cpl_tensor_take_numbers(&step->arena, CPL_N_FIGURES);
}

static void take_all(cpl_step *step, const cpl_settings *settings, const cpl_model_settings *c)
{
    int64_t n = c->n_experts, layers = c->n_layers, t = step->micro * step->seq_len;
    take_coupling(step, c);
    step->load      = cpl_tensor_take_1d(&step->arena, n);
    step->host_load = cpl_tensor_take_host(&step->arena, (size_t)n * sizeof *step->host_load);
    step->sums      = cpl_tensor_take_host(
             &step->arena, (size_t)(1 + N_SUMS * layers > n ? 1 + N_SUMS * layers : n) * sizeof(double));
    step->squares = cpl_tensor_take_numbers(&step->arena, n);
    step->tokens  = (cpl_step_tokens){
         cpl_tensor_take_ids(&step->arena, t), cpl_tensor_take_ids(&step->arena, t),
         cpl_tensor_as_2d(cpl_tensor_take_ids(&step->arena, t), step->micro, step->seq_len)};
    const bool moments = settings->losses.erc.proxy == CPL_PROXY_TOKENS;
    const int64_t own = squares_at(c) + 1, more = moments ? layers * 2 * c->d_model : 0;
    step->results       = cpl_tensor_take_numbers(&step->arena, own + more);
    step->result        = cpl_tensor_take_host(&step->arena, cpl_tensor_bytes(step->results));
    step->token_moments = moments ? cpl_tensor_as_3d(cpl_tensor_range(step->results, own, more),
                                                     layers, 2, c->d_model)
                                  : cpl_tensor_none();
    if (moments) cpl_step_tokens_take(step, c);
    cpl_step_samples_take(step, settings, c);
    cpl_balance_take(&step->balance, &step->arena, &settings->losses.balance, c, step->micro);
    step->balance.dots = cpl_tensor_range(step->results, dots_at(c), layers);
    step->pass_mark    = cpl_tensor_arena_mark(&step->arena);
    cpl_step_coupling_measure(&step->arena, settings, c); /* figures reuse the memory of the pass */
    cpl_tensor_arena_release(&step->arena, step->pass_mark);
    take_pass(step, c);
}

static cpl_tensor_arena measure(const cpl_settings *settings, const cpl_model_settings *config,
                                int64_t micro)
{
    cpl_step step = {.micro = micro, .seq_len = settings->data.seq_len};
    step.arena    = cpl_tensor_arena_measure();
    take_all(&step, settings, config);
    return step.arena;
}

size_t cpl_step_bytes(const cpl_settings *settings, const cpl_model_settings *config, int64_t micro)
{
    const cpl_tensor_arena measured = measure(settings, config, micro);
    return cpl_tensor_arena_bytes(&measured);
}

size_t cpl_step_host_bytes(const cpl_settings *settings, const cpl_model_settings *config,
                           int64_t micro)
{
    return measure(settings, config, micro).host.peak;
}

cpl_status cpl_step_init(cpl_step *step, cpl_backend *be, const cpl_settings *settings,
                         const cpl_model_settings *config, int64_t micro, cpl_share *share)
{
    const cpl_tensor_arena measured = measure(settings, config, micro);
    memset(step, 0, sizeof *step);
    step->micro   = micro;
    step->seq_len = settings->data.seq_len;
    step->share   = share;
    step->mesh    = share && share->mesh->world.size > 1 ? share->mesh : NULL;
    step->alone   = cpl_group_self();
    step->world   = step->mesh ? &step->mesh->world : &step->alone;
    CPL_TRY(cpl_tensor_arena_init(&step->arena, be, &measured, "the activations of a step"));
    cpl_status status = CPL_OK;
    if (step->mesh && step->mesh->experts.size > 1)
        status = cpl_exchange_init(&step->exchange, be, config, step->mesh, config->n_layers);
    if (status == CPL_OK)
        take_all(step, settings, config);
    else
        cpl_step_free(step);
    if (cpl_tensor_is_there(step->token_means)) be->ops->fill(be, step->token_means, 0);
    return status;
}

cpl_status cpl_step_status(const cpl_step *step)
{
    CPL_TRY(cpl_backend_status(step->arena.be));
    CPL_TRY(cpl_group_status(step->world));
    return step->exchange ? cpl_exchange_status(step->exchange) : CPL_OK;
}

void cpl_step_free(cpl_step *step)
{
    cpl_tensor_arena_free(&step->arena);
    cpl_exchange_free(step->exchange);
    memset(step, 0, sizeof *step);
}

cpl_work cpl_step_work(const cpl_settings *settings, const cpl_model_settings *config,
                       int64_t micro)
{
    return cpl_pass_work(config, micro * settings->data.seq_len, true);
}

/* ---- micro-batches ---- */

/* Adds the counts of one pass to the results. */
static void add_counts(const cpl_step *step, cpl_model *model)
{
    const cpl_model_settings *c = &model->config;
    cpl_backend *be             = model->be;
    for (int64_t l = 0; l < c->n_layers; l++) {
        const cpl_moe_kept *kept = &step->pass.moe[l];
        const cpl_tensor counts  = cpl_tensor_range(step->results, counts_at(c, l), c->n_experts);
        be->ops->sum(be, cpl_step_result(step, l, CPL_AUX_Z), kept->z);
        be->ops->sum(be, cpl_step_result(step, l, CPL_STEP_ENTROPY), kept->entropy);
        be->ops->add(be, counts, kept->counts, 1);
    }
}

/* Reads the results of a step after its operations are queued. This is the only wait of a step
 * without figures in one process. */
static void read_results(cpl_step *step, cpl_model *model, const cpl_step_batch *batch,
                         cpl_metrics *m)
{
    const cpl_model_settings *c = &model->config;
    const int64_t own           = batch->n_sequences / step->micro;
    const double parts          = (double)(own * step->world->size);
    const double scores         = parts * (double)cpl_tensor_count(step->pass.moe[0].probs);
    model->be->ops->get(model->be, step->result, step->results);
    m->loss = step->result[0] * (double)step->ce_scale;
    for (int64_t l = 0; l < m->n_layers; l++) {
        const double *of         = &step->result[cpl_step_result_at(l, 0)];
        cpl_layer_metrics *layer = &m->layer[l];
        for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
            if (i != CPL_AUX_ERC) layer->aux[i] = of[i];
        layer->aux[CPL_AUX_Z] /= parts;
        layer->aux[CPL_AUX_BALANCE] =
            cpl_balance_loss(&step->balance, c, step->result[dots_at(c) + l]);
        layer->entropy         = of[CPL_STEP_ENTROPY] / parts;
        layer->scores_negative = of[CPL_STEP_NEGATIVE] / scores;
    }
    memcpy(m->counts, &step->result[counts_at(c, 0)],
           (size_t)(m->n_layers * m->n_experts) * sizeof *m->counts);
    m->grad_norm = step->result[squares_at(c)];
}

/* Copies micro-batch i of the batch to the step's tensors. */
static cpl_step_tokens put_tokens(cpl_step *step, cpl_backend *be, const cpl_step_batch *batch,
                                  int64_t i)
{
    const int64_t first = i * step->micro * step->seq_len;
    cpl_step_tokens t   = step->tokens;
    be->ops->put(be, t.ids, batch->ids + first);
    be->ops->put(be, t.target, batch->target + first);
    if (batch->doc_start)
        be->ops->put(be, t.doc_start, batch->doc_start + first);
    else
        t.doc_start = cpl_tensor_none();
    return t;
}

/* Runs micro-batch i forward. With `again`, a later pass of the same tokens counts the signs and
 * the moments. */
static cpl_step_tokens forward(cpl_step *step, cpl_model *model, const cpl_step_batch *batch,
                               int64_t i, bool again)
{
    const cpl_step_tokens t = put_tokens(step, model->be, batch, i);
    for (int64_t l = 0; l < model->config.n_layers; l++)
        step->pass.moe[l].n_negative = step->counts_signs && !again
                                           ? cpl_step_result(step, l, CPL_STEP_NEGATIVE)
                                           : cpl_tensor_none();
    for (int64_t l = 0; l < model->config.n_layers; l++)
        step->pass.moe[l].moments = cpl_tensor_is_there(step->token_means) && !again
                                        ? cpl_tensor_at(step->token_moments, l)
                                        : cpl_tensor_none();
    cpl_model_forward(model, &step->pass, t.ids, t.doc_start, NULL);
    return t;
}

/* Counts the load of the whole batch before the first backward pass. Micro-batch 0 runs last, so
 * that its activations stay for the backward pass. */
static void count_ahead(cpl_step *step, cpl_model *model, const cpl_step_batch *batch,
                        int64_t parts)
{
    for (int64_t i = parts - 1; i >= 0; i--) {
        (void)forward(step, model, batch, i, i > 0);
        cpl_balance_count(&step->balance, model, &step->pass);
    }
    cpl_balance_collect(&step->balance, model, step->world);
}

/* Returns the weights of the auxiliary losses in a micro-batch. `parts` is the number of
 * micro-batches of all ranks. */
static cpl_aux_grad_scales scales_of(const cpl_step *step, const cpl_z_settings *z,
                                     const cpl_model_settings *c, int64_t parts)
{
    const double share   = 1.0 / ((double)parts * (double)c->n_layers);
    const double t       = (double)(step->micro * step->seq_len);
    const double z_scale = z->weight * share * cpl_aux_z_factor(z, c->top_k) / t;
    return (cpl_aux_grad_scales){step->balance.scale, (float)z_scale,
                                 cpl_balance_counts(&step->balance)};
}

/* The gradients to send during a step's last micro-batch. */
typedef struct sending {
    cpl_share *share;
    cpl_model *model;
    cpl_params *grads;
} sending;

/* Completes the gradients of layer l: the gradient of router rows that follow from other weights
 * becomes the gradient of these weights. */
static void complete(cpl_model *model, cpl_params *grads, int64_t l)
{
    const cpl_layer_params *dw = &grads->layer[l];
    cpl_model_rows_backward(model, dw->router, dw->router_original, dw->w_gate, l);
}

static void send_grads(void *ctx, int64_t layer)
{
    const sending *s = ctx;
    if (layer >= 0 && layer < s->model->config.n_layers) complete(s->model, s->grads, layer);
    cpl_share_start_sums(s->share, s->grads, layer);
}

/* Adds losses and gradients of this rank's sequences, as their share of the mean over the batch. If
 * `sends` is not NULL, gradients are complete after the last micro-batch and are summed over the
 * ranks as soon as a layer is complete. */
static void micro_batches(cpl_step *step, cpl_model *model, cpl_params *grads,
                          const cpl_settings *settings, const cpl_step_batch *batch, sending *sends)
{
    const int64_t ranks = step->world->size, parts = batch->n_sequences / step->micro;
    int64_t targets = batch->n_targets;
    cpl_group_sum_i64(step->world, &targets, 1);
    step->ce_scale   = targets ? (float)(1.0 / (double)targets) : 0.0f;
    const bool ahead = cpl_balance_begin(&step->balance, model, &settings->losses.balance,
                                         batch->n_sequences * ranks, step->seq_len);
    if (ahead) count_ahead(step, model, batch, parts);
    const cpl_aux_grad_scales scales =
        scales_of(step, &settings->losses.z, &model->config, parts * ranks);
    for (int64_t i = 0; i < parts; i++) {
        const cpl_step_tokens t = ahead && i == 0 ? put_tokens(step, model->be, batch, i)
                                                  : forward(step, model, batch, i, false);
        if (!ahead) cpl_balance_count(&step->balance, model, &step->pass);
        step->pass.on_grads  = sends && i + 1 == parts ? send_grads : NULL;
        step->pass.grads_ctx = sends;
        cpl_model_backward(model, &step->pass, cpl_tensor_range(step->results, 0, 1), grads, t.ids,
                           t.doc_start, t.target, step->ce_scale, scales);
        add_counts(step, model);
    }
    step->pass.on_grads = NULL;
    if (!ahead) cpl_balance_collect(&step->balance, model, step->world);
}

/* ---- losses that depend only on the weights ---- */

/* Computes every loss that is a function of a layer's weights, with figures also losses of weight
 * 0. The layers are divided over the ranks in turn. */
static void weight_losses(const cpl_step *step, cpl_model *model, cpl_params *grads,
                          bool with_figures, cpl_metrics *m)
{
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        const cpl_aux_loss_row *row = &cpl_aux_losses[i];
        const double weight         = m->aux[i].weight;
        if (!row->per_layer || !cpl_router_meets(&model->config, row->needs)) continue;
        m->aux[i].computed = weight > 0 || with_figures;
        for (int64_t l = step->world->rank; m->aux[i].computed && l < m->n_layers;
             l += step->world->size) {
            cpl_layer_params *dw = weight > 0 ? &grads->layer[l] : NULL;
            row->per_layer(model->be, cpl_step_result(step, l, i), dw, &model->master.layer[l],
                           weight / (double)m->n_layers);
        }
    }
}

/* ---- the whole step ---- */

/* Sums the counts of negative logits over the ranks. Only steps with figures need them, so other
 * steps send nothing. */
static void sum_signs_over_ranks(cpl_step *step, cpl_metrics *m)
{
    if (!step->mesh || !m->has_figures) return;
    for (int64_t l = 0; l < m->n_layers; l++) step->sums[l] = m->layer[l].scores_negative;
    cpl_group_sum_f64(step->world, step->sums, m->n_layers);
    for (int64_t l = 0; l < m->n_layers; l++) m->layer[l].scores_negative = step->sums[l];
}

/* Sums the figures over the ranks: copies them to step->sums, sums, and copies them back. */
static void sum_over_ranks(cpl_step *step, cpl_metrics *m)
{
    if (!step->mesh) return;
    for (int back = 0; back < 2; back++) {
        double *at = step->sums, *figures[1 + N_SUMS];
        for (int64_t l = -1; l < m->n_layers; l++) {
            int n = 0;
            if (l < 0) figures[n++] = &m->loss;
            if (l >= 0) figures[n++] = &m->layer[l].entropy;
            for (int i = 0; l >= 0 && i < CPL_N_AUX_LOSSES; i++)
                if (i != CPL_AUX_ERC) figures[n++] = &m->layer[l].aux[i];
            for (int i = 0; i < n; i++, at++) *(back ? figures[i] : at) = *(back ? at : figures[i]);
        }
        if (!back) cpl_group_sum_f64(step->world, step->sums, 1 + N_SUMS * m->n_layers);
    }
    cpl_group_sum_f64(step->world, m->counts, m->n_layers * m->n_experts);
    cpl_group_sum_f64(step->world, &m->grad_norm, 1);
}

/* Computes loads from the counts, and means over layers. */
static void sum_up(cpl_metrics *m, const cpl_model_settings *c, const cpl_settings *settings)
{
    m->aux[CPL_AUX_BALANCE].computed = m->aux[CPL_AUX_Z].computed = true;
    for (int64_t l = 0; l < m->n_layers; l++) {
        double all = 0, most = 0, dead = 0;
        for (int64_t e = 0; e < m->n_experts; e++) {
            double count = m->counts[l * m->n_experts + e];
            all += count;
            most = fmax(most, count);
            dead += count == 0;
        }
        m->layer[l].load_max = most * (double)m->n_experts / all;
        m->layer[l].max_vio  = m->layer[l].load_max - 1;
        m->layer[l].dead     = dead;
        m->layer[l].aux[CPL_AUX_Z] *= cpl_aux_z_factor(&settings->losses.z, c->top_k);
        for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
            if (i != CPL_AUX_ERC && m->aux[i].computed)
                m->aux[i].value += m->layer[l].aux[i] / (double)m->n_layers;
    }
}

static void clear(cpl_metrics *m)
{
    *m = (cpl_metrics){.step      = m->step,
                       .tokens    = m->tokens,
                       .skipped   = m->skipped,
                       .made_with = m->made_with,
                       .n_layers  = m->n_layers,
                       .n_experts = m->n_experts,
                       .n_sources = m->n_sources,
                       .layer     = m->layer,
                       .counts    = m->counts,
                       .source    = m->source};
    memset(m->layer, 0, (size_t)m->n_layers * sizeof *m->layer);
    memset(m->counts, 0, (size_t)(m->n_layers * m->n_experts) * sizeof *m->counts);
}

/* Returns the weighted sum of the losses, in a fixed order with the coupling loss last, since the
 * order affects the last bit. */
static double total(const cpl_metrics *m)
{
    double sum = m->loss;
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        if (i != CPL_AUX_ERC) sum += m->aux[i].weight * m->aux[i].value;
    return sum + m->aux[CPL_AUX_ERC].weight * m->aux[CPL_AUX_ERC].value;
}

/* Computes a step that overlaps communication. Gradients that need no tokens come first, so that a
 * layer's gradients are complete, and are sent, when the last micro-batch has passed the layer. */
static void overlapped(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool measure_erc,
                       cpl_metrics *m)
{
    sending sends = {step->share, model, grads};
    if (cpl_router_of(&model->config)->has_rows)
        cpl_step_coupling(step, model, grads, settings, false, measure_erc, m);
    weight_losses(step, model, grads, false, m);
    micro_batches(step, model, grads, settings, batch, &sends);
    cpl_share_finish_sums(step->share);
}

/* Computes a step without overlap. The coupling gradient comes last, since figures compare it with
 * the sum of all other gradients, with several ranks summed over the ranks. */
static void one_by_one(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool with_figures,
                       bool measure_erc, cpl_metrics *m)
{
    micro_batches(step, model, grads, settings, batch, NULL);
    weight_losses(step, model, grads, with_figures, m);
    for (int64_t l = 0; l < m->n_layers; l++) complete(model, grads, l);
    if (step->mesh) {
        for (int64_t l = m->n_layers; l >= -1; l--) cpl_share_start_sums(step->share, grads, l);
        cpl_share_finish_sums(step->share);
    }
    if (cpl_router_of(&model->config)->has_rows)
        cpl_step_coupling(step, model, grads, settings, with_figures, measure_erc, m);
    if (!with_figures) return;
    cpl_tensor_arena_release(&step->arena,
                             step->pass_mark); /* figures reuse the memory of activations */
    take_pass(step, &model->config);
}

void cpl_step_gradient(cpl_step *step, cpl_model *model, cpl_params *grads,
                       const cpl_settings *settings, const cpl_step_batch *batch, bool with_figures,
                       bool measure_erc, cpl_metrics *m)
{
    clear(m);
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        m->aux[i].weight = cpl_aux_weight(&settings->losses, (cpl_aux_loss)i);
    model->be->ops->fill(model->be, step->results, 0);
    step->counts_signs = with_figures && cpl_router_of(&model->config)->has_rows;
    if (step->mesh && !with_figures)
        overlapped(step, model, grads, settings, batch, measure_erc, m);
    else
        one_by_one(step, model, grads, settings, batch, with_figures, measure_erc, m);
    if (step->share)
        cpl_share_add_squares(step->share, grads,
                              cpl_tensor_range(step->results, squares_at(&model->config), 1));
    read_results(step, model, batch, m);
    cpl_step_read_coupling(step, &settings->losses.erc, m);
    sum_over_ranks(step, m);
    sum_signs_over_ranks(step, m);
    sum_up(m, &model->config, settings);
    m->loss_total = total(m);
    m->grad_norm  = sqrt(m->grad_norm);
}

void cpl_step_move_biases(cpl_step *step, cpl_model *model, const cpl_settings *settings,
                          const cpl_metrics *m)
{
    cpl_backend *be = model->be;
    if (!model->config.router_bias) return;
    for (int64_t l = 0; l < m->n_layers; l++) {
        for (int64_t e = 0; e < m->n_experts; e++)
            step->host_load[e] = (float)m->counts[l * m->n_experts + e];
        be->ops->put(be, step->load, step->host_load);
        be->ops->balance_bias(be, model->master.layer[l].router_bias, step->load,
                              (float)settings->losses.balance.bias_rate);
    }
}
