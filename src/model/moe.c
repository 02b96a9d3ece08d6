/* moe.c - see moe.h */
#include "model/moe.h"

#include "model/router.h"

static cpl_tensor take(cpl_arena *arena, cpl_dtype dtype, int64_t rows, int64_t cols)
{
    return cpl_tensor_2d(cpl_arena_take(arena, (size_t)(rows * cols) * 4), dtype, rows, cols);
}

static cpl_tensor take1(cpl_arena *arena, cpl_dtype dtype, int64_t count)
{
    return cpl_tensor_1d(cpl_arena_take(arena, (size_t)count * 4), dtype, count);
}

void cpl_moe_take(cpl_moe_kept *kept, cpl_arena *arena, const cpl_model_settings *config, int64_t t,
                  bool training)
{
    const int64_t n = config->n_experts, k = config->top_k, r = cpl_router_gate_rank(config);
    const cpl_tensor none = cpl_tensor_none();
    kept->b               = take(arena, CPL_F32, t, config->d_model);
    kept->inv             = take1(arena, CPL_F32, t);
    kept->hidden = r ? cpl_tensor_3d(take(arena, CPL_F32, t, n * r).data, CPL_F32, t, n, r) : none;
    kept->norm   = r ? take(arena, CPL_F32, t, n) : none;
    kept->probs  = take(arena, CPL_F32, t, n);
    kept->lse    = take1(arena, CPL_F32, t);
    kept->expert = take(arena, CPL_I32, t, k);
    kept->weight = take(arena, CPL_F32, t, k);
    kept->plan.offset = take1(arena, CPL_I32, n + 1);
    kept->plan.token  = take1(arena, CPL_I32, t * k);
    kept->plan.row    = take(arena, CPL_I32, t, k);
    kept->gate        = training ? take(arena, CPL_F32, t * k, config->d_expert) : none;
    kept->up          = training ? take(arena, CPL_F32, t * k, config->d_expert) : none;
    kept->counts      = take1(arena, CPL_F32, n);
    kept->mean_prob   = take1(arena, CPL_F32, n);
    kept->z           = take1(arena, CPL_F32, 1);
    kept->entropy     = take1(arena, CPL_F32, 1);
    cpl_shared_take(&kept->shared, arena, config, t, training);
}

void cpl_moe_scratch_take(cpl_moe_scratch *s, cpl_arena *arena, const cpl_model_settings *config,
                          int64_t t, bool training)
{
    const cpl_tensor none = cpl_tensor_none();
    const bool hidden     = training && cpl_router_gate_rank(config) > 0;
    s->logits             = take(arena, CPL_F32, t, config->n_experts);
    s->dweight            = training ? take(arena, CPL_F32, t, config->top_k) : none;
    s->dhidden = hidden ? take(arena, CPL_F32, t * config->top_k, config->aoe_rank) : none;
    s->db      = training ? take(arena, CPL_F32, t, config->d_model) : none;
    cpl_shared_scratch_take(&s->shared, arena, config, t, training);
}

/* ---- scores: from a router, or from the experts themselves ---- */

static cpl_routing routing_of(const cpl_layer_params *w, const cpl_model_settings *config)
{
    return (cpl_routing){.sigmoid     = cpl_router_of(config)->scores == CPL_SCORES_SIGMOID,
                         .renormalise = config->norm_topk,
                         .bias        = config->router_bias ? w->router_bias : cpl_tensor_none()};
}

/* [n,r,d] as one matrix [n r, d], and [T,n,r] as [T, n r]. */
static cpl_tensor all_rows(cpl_tensor w)
{
    return cpl_tensor_2d(w.data, w.dtype, w.shape[0] * w.shape[1], w.shape[2]);
}

static cpl_tensor all_columns(cpl_tensor hidden)
{
    return cpl_tensor_2d(hidden.data, hidden.dtype, hidden.shape[0],
                         hidden.shape[1] * hidden.shape[2]);
}

/* Returns the numbers whose order chooses: the router's logits, or the norms of the h_e. */
static cpl_tensor scores_forward(cpl_backend *be, cpl_moe_kept *kept, const cpl_layer_params *w,
                                 const cpl_model_settings *config, const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    if (cpl_router_of(config)->has_rows) {
        ops->gemm_f32(be, s->logits, CPL_AS_IS, kept->b, CPL_TRANSPOSED, w->router, 0);
        return s->logits;
    }
    cpl_tensor norm = cpl_tensor_1d(kept->norm.data, CPL_F32, cpl_tensor_count(kept->norm));
    ops->gemm(be, all_columns(kept->hidden), CPL_AS_IS, kept->b, CPL_TRANSPOSED,
              all_rows(w->w_gate_a), 0);
    ops->row_norms(be, norm, all_rows(kept->hidden));
    return kept->norm;
}

/* From the gradient of those numbers, s->logits: db and dw *add*. */
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
    ops->gemm(be, s->db, CPL_AS_IS, all_columns(kept->hidden), CPL_AS_IS, all_rows(w->w_gate_a), 1);
    ops->gemm(be, all_rows(dw->w_gate_a), CPL_TRANSPOSED, all_columns(kept->hidden), CPL_AS_IS,
              kept->b, 1);
}

/* ---- the layer ---- */

static cpl_expert_weights experts_of(const cpl_layer_params *w)
{
    cpl_expert_weights e = {w->w_gate.data ? w->w_gate : w->w_gate_b, w->w_up, w->w_down};
    return e;
}

void cpl_moe_forward(cpl_backend *be, cpl_tensor out, cpl_moe_kept *kept, cpl_tensor x,
                     const cpl_layer_params *w, const cpl_model_settings *config,
                     const cpl_moe_scratch *s)
{
    const cpl_ops *ops    = be->ops;
    const cpl_routing how = routing_of(w, config);
    ops->rms_norm(be, kept->b, kept->inv, x, w->post_norm, (float)config->norm_eps);
    cpl_tensor logits = scores_forward(be, kept, w, config, s);
    ops->route(be, kept->probs, kept->lse, kept->expert, kept->weight, logits, how);
    ops->route_stats(be, kept->counts, kept->mean_prob, kept->z, kept->entropy, kept->probs,
                     kept->lse, kept->expert, how.sigmoid);
    ops->dispatch(be, kept->plan, kept->expert, config->n_experts);
    ops->experts(be, out, kept->gate, kept->up, kept->b, kept->hidden, kept->weight, kept->plan,
                 experts_of(w));
    cpl_shared_forward(be, out, &kept->shared, kept->b, w, &s->shared);
    ops->add(be, out, x);
}

void cpl_moe_backward(cpl_backend *be, cpl_tensor dx, cpl_layer_params *dw, cpl_moe_kept *kept,
                      cpl_tensor x, const cpl_layer_params *w, const cpl_model_settings *config,
                      cpl_aux_grad_scales pull, const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    ops->fill(be, s->db, 0);
    ops->experts_backward(be, s->db, s->dhidden, s->dweight, experts_of(dw), dx, kept->gate,
                          kept->up, kept->b, kept->hidden, kept->weight, kept->plan, experts_of(w));
    cpl_shared_backward(be, s->db, dw, &kept->shared, dx, kept->b, w, &s->shared);
    ops->route_backward(be, s->logits, s->dweight, kept->probs, kept->lse, kept->expert,
                        kept->weight, kept->counts, pull.balance_scale, pull.z_scale,
                        routing_of(w, config));
    scores_backward(be, dw, kept, w, config, s);
    ops->rms_norm_backward(be, dx, dw->post_norm, s->db, x, w->post_norm, kept->inv);
}
