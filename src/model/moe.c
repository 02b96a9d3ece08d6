/* moe.c - see moe.h */
#include "model/moe.h"

/* Takes a dispatch for t tokens with k choices among n experts. */
static cpl_dispatch take_plan(cpl_tensor_arena *arena, int64_t t, int64_t k, int64_t n)
{
    cpl_dispatch plan;
    plan.offset = cpl_tensor_take_ids(arena, n + 1);
    plan.token  = cpl_tensor_take_ids(arena, t * k);
    plan.row    = cpl_tensor_as_2d(cpl_tensor_take_ids(arena, t * k), t, k);
    return plan;
}

void cpl_moe_take(cpl_moe_kept *kept, cpl_tensor_arena *arena, const cpl_model_settings *config,
                  int64_t t, bool training, const cpl_moe_kept *first)
{
    const int64_t n = config->n_experts, k = config->top_k, r = cpl_router_gate_rank(config);
    const int64_t width   = cpl_model_shared_width(config);
    const cpl_tensor none = cpl_tensor_none();
    const cpl_dtype type  = cpl_model_activations(config, training);
    kept->b =
        first ? first->b : cpl_tensor_take(arena, cpl_tensor_2d(NULL, type, t, config->d_model));
    kept->inv             = cpl_tensor_take_1d(arena, t);
    kept->hidden          = r ? cpl_tensor_take(arena, cpl_tensor_3d(NULL, type, t, n, r)) : none;
    kept->norm            = r ? cpl_tensor_take_2d(arena, t, n) : none;
    kept->probs           = cpl_tensor_take_2d(arena, t, n);
    kept->lse             = cpl_tensor_take_1d(arena, t);
    kept->expert          = cpl_tensor_as_2d(cpl_tensor_take_ids(arena, t * k), t, k);
    kept->weight          = cpl_tensor_take_2d(arena, t, k);
    kept->plan            = take_plan(arena, t, k, n);
    const bool own        = training && cpl_model_local_experts(config) == n; /* see exchange.h */
    const cpl_tensor slim = cpl_tensor_2d(NULL, type, t * k, config->d_expert);
    kept->gate            = own ? cpl_tensor_take(arena, slim) : none;
    kept->up              = own ? cpl_tensor_take(arena, slim) : none;
    const int64_t l       = config->d_latent;
    kept->latent          = l ? cpl_tensor_take(arena, cpl_tensor_2d(NULL, type, t, l)) : none;
    kept->mixed           = l ? cpl_tensor_take_2d(arena, t, l) : none;
    kept->counts          = cpl_tensor_take_1d(arena, n);
    kept->mean_prob       = cpl_tensor_take_1d(arena, n);
    kept->z               = cpl_tensor_take_1d(arena, 1);
    kept->entropy         = cpl_tensor_take_1d(arena, 1);
    kept->shared_gate = kept->shared_up = kept->n_negative = kept->moments = none;
    if (!width || !training) return;
    kept->shared_gate = cpl_tensor_take(arena, cpl_tensor_2d(NULL, type, t, width));
    kept->shared_up   = cpl_tensor_take(arena, cpl_tensor_2d(NULL, type, t, width));
}

void cpl_moe_scratch_take(cpl_moe_scratch *s, cpl_tensor_arena *arena,
                          const cpl_model_settings *config, int64_t t, bool training)
{
    const cpl_tensor none = cpl_tensor_none();
    const bool hidden     = training && cpl_router_gate_rank(config) > 0;
    s->logits             = cpl_tensor_take_2d(arena, t, config->n_experts);
    s->dweight            = training ? cpl_tensor_take_2d(arena, t, config->top_k) : none;
    s->dhidden = hidden ? cpl_tensor_take_2d(arena, t * config->top_k, config->aoe_rank) : none;
    const bool latent = training && config->d_latent > 0;
    s->dlatent        = latent ? cpl_tensor_take_2d(arena, t, config->d_latent) : none;
    s->dmixed         = latent ? cpl_tensor_take_2d(arena, t, config->d_latent) : none;
    s->db             = none;
    s->exchange       = NULL;
    s->kept           = 0;
    s->shared.y = s->shared.expert = s->shared.weight = s->shared.dweight = none;
    if (cpl_model_shared_width(config) == 0) return;
    s->shared.y       = cpl_tensor_take_2d(arena, t, config->d_model);
    s->shared.expert  = cpl_tensor_as_2d(cpl_tensor_take_ids(arena, t), t, 1);
    s->shared.weight  = cpl_tensor_take_2d(arena, t, 1);
    s->shared.dweight = training ? cpl_tensor_take_2d(arena, t, 1) : none;
    s->shared.plan    = take_plan(arena, t, 1, 1);
}

/* ---- scores: from a router, or from the experts themselves ---- */

static cpl_routing routing_of(const cpl_layer_params *w, const cpl_model_settings *config)
{
    return (cpl_routing){.sigmoid     = cpl_router_of(config)->scores == CPL_SCORES_SIGMOID,
                         .renormalise = config->norm_topk,
                         .z_centred   = config->z_centred,
                         .bias        = config->router_bias ? w->router_bias : cpl_tensor_none()};
}

/* Merges two dimensions: [n,r,d] becomes [n r, d], and [T,n,r] becomes [T, n r]. */
static cpl_tensor all_rows(cpl_tensor w)
{
    return cpl_tensor_as_2d(w, w.shape[0] * w.shape[1], w.shape[2]);
}

static cpl_tensor all_columns(cpl_tensor hidden)
{
    return cpl_tensor_as_2d(hidden, hidden.shape[0], hidden.shape[1] * hidden.shape[2]);
}

/* Returns the numbers that order the experts: the router's logits, or the norms of the h_e. */
static cpl_tensor scores_forward(cpl_backend *be, cpl_moe_kept *kept, const cpl_layer_params *w,
                                 const cpl_model_settings *config, const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    if (cpl_router_of(config)->has_rows) {
        ops->gemm_f32(be, s->logits, CPL_AS_IS, kept->b, CPL_TRANSPOSED, w->router, 0);
        return s->logits;
    }
    ops->gemm(be, all_columns(kept->hidden), CPL_AS_IS, kept->b, CPL_TRANSPOSED,
              all_rows(w->w_gate_a), 0);
    ops->row_norms(be, cpl_tensor_as_1d(kept->norm), all_rows(kept->hidden));
    return kept->norm;
}

/* Runs backward of scores_forward: *adds* to s->db and dw. s->logits holds the scores' gradient. */
static void scores_backward(cpl_backend *be, cpl_layer_params *dw, cpl_moe_kept *kept,
                            const cpl_layer_params *w, const cpl_model_settings *config,
                            const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    if (cpl_router_of(config)->has_rows) {
        ops->gemm_f32(be, s->db, CPL_AS_IS, s->logits, CPL_AS_IS, w->router, 1);
        ops->gemm_f32(be, dw->router, CPL_TRANSPOSED, s->logits, CPL_AS_IS, kept->b, 1);
        return;
    }
    ops->hidden_backward(be, kept->hidden, kept->norm, s->logits, s->dhidden, kept->expert,
                         kept->plan);
    ops->linear_backward(be, s->db, all_rows(dw->w_gate_a), all_columns(kept->hidden), kept->b,
                         all_rows(w->w_gate_a), 1);
}

/* ---- the shared expert ---- */

/* Returns a matrix as the matrices [1, ...] of one expert. */
static cpl_tensor of_one(cpl_tensor w)
{
    return cpl_tensor_as_3d(w, 1, w.shape[0], w.shape[1]);
}

static cpl_expert_weights shared_expert(const cpl_layer_params *w)
{
    return (cpl_expert_weights){of_one(w->shared_gate), of_one(w->shared_up),
                                of_one(w->shared_down)};
}

/* Sends every token to the shared expert, as expert 0 with weight 1. */
static void send_all(cpl_backend *be, const cpl_moe_scratch *s)
{
    be->ops->fill(be, s->shared.expert, 0);
    be->ops->fill(be, s->shared.weight, 1);
    be->ops->dispatch(be, s->shared.plan, s->shared.expert, 1);
}

/* Adds the shared expert's output to y [T,d]. */
static void shared_forward(cpl_backend *be, cpl_tensor y, const cpl_moe_kept *kept,
                           const cpl_layer_params *w, const cpl_moe_scratch *s)
{
    if (!cpl_tensor_is_there(w->shared_gate)) return;
    send_all(be, s);
    be->ops->experts(be, s->shared.y, kept->shared_gate, kept->shared_up, kept->b,
                     cpl_tensor_none(), s->shared.weight, s->shared.plan, shared_expert(w));
    be->ops->add(be, y, s->shared.y, 1);
}

/* Runs backward of the shared expert: *adds* to s->db [T,d] and dw. dy [T,d] is the gradient of the
 * shared expert's output. */
static void shared_backward(cpl_backend *be, const cpl_layer_params *dw, const cpl_moe_kept *kept,
                            cpl_tensor dy, const cpl_layer_params *w, const cpl_moe_scratch *s)
{
    const cpl_tensor none = cpl_tensor_none();
    if (!cpl_tensor_is_there(w->shared_gate)) return;
    be->ops->experts_backward(be, s->db, none, s->shared.dweight, shared_expert(dw), dy,
                              kept->shared_gate, kept->shared_up, kept->b, none, s->shared.weight,
                              s->shared.plan, shared_expert(w));
}

/* ---- the gradient of the choice ---- */

/* Sets s->logits [T,n] to the gradient of the logits, for each part of the tokens that
 * scales.counts distinguishes. */
static void route_backward(cpl_backend *be, const cpl_moe_kept *kept, cpl_aux_grad_scales scales,
                           cpl_routing how, const cpl_moe_scratch *s)
{
    const bool counted  = cpl_tensor_is_there(scales.counts);
    const int64_t parts = counted ? scales.counts.shape[0] : 1, t = kept->probs.shape[0] / parts;
    for (int64_t i = 0; i < parts; i++) {
        const int64_t at = i * t;
        be->ops->route_backward(
            be, cpl_tensor_range(s->logits, at, t), cpl_tensor_range(s->dweight, at, t),
            cpl_tensor_range(kept->probs, at, t), cpl_tensor_range(kept->lse, at, t),
            cpl_tensor_range(kept->expert, at, t), cpl_tensor_range(kept->weight, at, t),
            counted ? cpl_tensor_at(scales.counts, i) : kept->counts, scales.balance_scale,
            scales.z_scale, how);
    }
}

/* ---- the layer ---- */

cpl_expert_weights cpl_moe_experts(const cpl_layer_params *w)
{
    cpl_expert_weights e = {cpl_tensor_is_there(w->w_gate) ? w->w_gate : w->w_gate_b, w->w_up,
                            w->w_down};
    return e;
}

/* Sets y to the outputs of the chosen experts for the input x, computed by this process or by the
 * ranks that hold the experts. x and y are [T,d], or [T,l] of latent experts. */
static void experts_forward(cpl_backend *be, cpl_tensor y, cpl_tensor x, const cpl_moe_kept *kept,
                            const cpl_layer_params *w, const cpl_moe_scratch *s)
{
    if (s->exchange)
        cpl_exchange_experts(s->exchange, be, s->kept, y, x, kept->weight, kept->plan,
                             cpl_moe_experts(w));
    else
        be->ops->experts(be, y, kept->gate, kept->up, x, kept->hidden, kept->weight, kept->plan,
                         cpl_moe_experts(w));
}

/* Runs backward of experts_forward: *adds* to dx and dw. */
static void experts_backward(cpl_backend *be, const cpl_layer_params *dw, cpl_tensor dx,
                             cpl_tensor x, const cpl_moe_kept *kept, cpl_tensor dy,
                             const cpl_layer_params *w, const cpl_moe_scratch *s)
{
    if (s->exchange)
        cpl_exchange_experts_backward(s->exchange, be, s->kept, dx, s->dweight, cpl_moe_experts(dw),
                                      dy, kept->plan, cpl_moe_experts(w));
    else
        be->ops->experts_backward(be, dx, s->dhidden, s->dweight, cpl_moe_experts(dw), dy,
                                  kept->gate, kept->up, x, kept->hidden, kept->weight, kept->plan,
                                  cpl_moe_experts(w));
}

/* Sets y [T,d] to the outputs of the chosen experts, through the projections of latent experts. */
static void mix_forward(cpl_backend *be, cpl_tensor y, const cpl_moe_kept *kept,
                        const cpl_layer_params *w, const cpl_moe_scratch *s)
{
    if (!cpl_tensor_is_there(kept->latent)) {
        experts_forward(be, y, kept->b, kept, w, s);
        return;
    }
    be->ops->gemm(be, kept->latent, CPL_AS_IS, kept->b, CPL_TRANSPOSED, w->latent_down, 0);
    experts_forward(be, kept->mixed, kept->latent, kept, w, s);
    be->ops->gemm(be, y, CPL_AS_IS, kept->mixed, CPL_TRANSPOSED, w->latent_up, 0);
}

/* Runs backward of mix_forward: *adds* to s->db and dw. */
static void mix_backward(cpl_backend *be, const cpl_layer_params *dw, const cpl_moe_kept *kept,
                         cpl_tensor dy, const cpl_layer_params *w, const cpl_moe_scratch *s)
{
    if (!cpl_tensor_is_there(kept->latent)) {
        experts_backward(be, dw, s->db, kept->b, kept, dy, w, s);
        return;
    }
    be->ops->linear_backward(be, s->dmixed, dw->latent_up, dy, kept->mixed, w->latent_up, 0);
    be->ops->fill(be, s->dlatent, 0);
    experts_backward(be, dw, s->dlatent, kept->latent, kept, s->dmixed, w, s);
    be->ops->linear_backward(be, s->db, dw->latent_down, s->dlatent, kept->b, w->latent_down, 1);
}

static void norm_input(cpl_backend *be, const cpl_moe_kept *kept, cpl_tensor x,
                       const cpl_layer_params *w, const cpl_model_settings *config)
{
    be->ops->rms_norm(be, kept->b, kept->inv, x, w->post_norm, (float)config->norm_eps);
}

void cpl_moe_forward(cpl_backend *be, cpl_tensor out, cpl_moe_kept *kept, cpl_tensor x,
                     const cpl_layer_params *w, const cpl_model_settings *config,
                     const cpl_moe_scratch *s)
{
    const cpl_ops *ops    = be->ops;
    const cpl_routing how = routing_of(w, config);
    norm_input(be, kept, x, w, config);
    if (cpl_tensor_is_there(kept->moments)) ops->column_moments(be, kept->moments, kept->b);
    cpl_tensor logits = scores_forward(be, kept, w, config, s);
    if (cpl_tensor_is_there(kept->n_negative)) ops->count_negative(be, kept->n_negative, logits);
    ops->route(be, kept->probs, kept->lse, kept->expert, kept->weight, logits, how);
    ops->route_stats(be, kept->counts, kept->mean_prob, kept->z, kept->entropy, kept->probs,
                     kept->lse, kept->expert, how.sigmoid);
    ops->dispatch(be, kept->plan, kept->expert, config->n_experts);
    mix_forward(be, out, kept, w, s);
    shared_forward(be, out, kept, w, s);
    ops->add(be, out, x, 1);
}

void cpl_moe_backward(cpl_backend *be, cpl_tensor dx, cpl_layer_params *dw, cpl_moe_kept *kept,
                      cpl_tensor x, const cpl_layer_params *w, const cpl_model_settings *config,
                      cpl_aux_grad_scales scales, const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    if (config->recompute_norms) norm_input(be, kept, x, w, config);
    ops->fill(be, s->db, 0);
    mix_backward(be, dw, kept, dx, w, s);
    shared_backward(be, dw, kept, dx, w, s);
    route_backward(be, kept, scales, routing_of(w, config), s);
    scores_backward(be, dw, kept, w, config, s);
    ops->rms_norm_backward(be, dx, dw->post_norm, s->db, x, w->post_norm, kept->inv, 1);
}
