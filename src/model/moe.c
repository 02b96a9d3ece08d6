/* moe.c - see moe.h */
#include "model/moe.h"

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
    int64_t n = config->n_experts, k = config->top_k;
    kept->b           = take(arena, CPL_F32, t, config->d_model);
    kept->inv         = take1(arena, CPL_F32, t);
    kept->probs       = take(arena, CPL_F32, t, n);
    kept->lse         = take1(arena, CPL_F32, t);
    kept->expert      = take(arena, CPL_I32, t, k);
    kept->weight      = take(arena, CPL_F32, t, k);
    kept->plan.offset = take1(arena, CPL_I32, n + 1);
    kept->plan.token  = take1(arena, CPL_I32, t * k);
    kept->plan.row    = take(arena, CPL_I32, t, k);
    kept->gate      = training ? take(arena, CPL_F32, t * k, config->d_expert) : cpl_tensor_none();
    kept->up        = training ? take(arena, CPL_F32, t * k, config->d_expert) : cpl_tensor_none();
    kept->counts    = take1(arena, CPL_F32, n);
    kept->mean_prob = take1(arena, CPL_F32, n);
    kept->z         = take1(arena, CPL_F32, 1);
    kept->entropy   = take1(arena, CPL_F32, 1);
}

void cpl_moe_scratch_take(cpl_moe_scratch *s, cpl_arena *arena, const cpl_model_settings *config,
                          int64_t t, bool training)
{
    s->logits  = take(arena, CPL_F32, t, config->n_experts);
    s->dweight = training ? take(arena, CPL_F32, t, config->top_k) : cpl_tensor_none();
    s->db      = training ? take(arena, CPL_F32, t, config->d_model) : cpl_tensor_none();
}

static cpl_expert_weights experts_of(const cpl_layer_params *w)
{
    cpl_expert_weights e = {w->w_gate, w->w_up, w->w_down};
    return e;
}

static cpl_routing routing_of(const cpl_model_settings *config)
{
    return (cpl_routing){.renormalise = config->norm_topk, .bias = cpl_tensor_none()};
}

void cpl_moe_forward(cpl_backend *be, cpl_tensor out, cpl_moe_kept *kept, cpl_tensor x,
                     const cpl_layer_params *w, const cpl_model_settings *config,
                     const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    ops->rms_norm(be, kept->b, kept->inv, x, w->post_norm, (float)config->norm_eps);
    ops->gemm_f32(be, s->logits, CPL_AS_IS, kept->b, CPL_TRANSPOSED, w->router, 0);
    ops->route(be, kept->probs, kept->lse, kept->expert, kept->weight, s->logits,
               routing_of(config));
    ops->route_stats(be, kept->counts, kept->mean_prob, kept->z, kept->entropy, kept->probs,
                     kept->lse, kept->expert, false);
    ops->dispatch(be, kept->plan, kept->expert, config->n_experts);
    ops->experts(be, out, kept->gate, kept->up, kept->b, cpl_tensor_none(), kept->weight,
                 kept->plan, experts_of(w));
    ops->add(be, out, x);
}

void cpl_moe_backward(cpl_backend *be, cpl_tensor dx, cpl_layer_params *dw, cpl_moe_kept *kept,
                      cpl_tensor x, const cpl_layer_params *w, const cpl_model_settings *config,
                      cpl_moe_pull pull, const cpl_moe_scratch *s)
{
    const cpl_ops *ops = be->ops;
    ops->fill(be, s->db, 0);
    ops->experts_backward(be, s->db, cpl_tensor_none(), s->dweight, experts_of(dw), dx, kept->gate,
                          kept->up, kept->b, cpl_tensor_none(), kept->weight, kept->plan,
                          experts_of(w));
    ops->route_backward(be, s->logits, s->dweight, kept->probs, kept->lse, kept->expert,
                        kept->weight, kept->counts, pull.balance_scale, pull.z_scale,
                        routing_of(config));
    ops->gemm_f32(be, s->db, CPL_AS_IS, s->logits, CPL_AS_IS, w->router, 1);
    ops->gemm_f32(be, dw->router, CPL_TRANSPOSED, s->logits, CPL_AS_IS, kept->b, 1);
    ops->rms_norm_backward(be, dx, dw->post_norm, s->db, x, w->post_norm, kept->inv);
}
