/* attention.c - see attention.h */
#include "model/attention.h"

#include <math.h>

static bool clamps(const cpl_model_settings *config)
{
    return !isnan(config->clip_qkv);
}

void cpl_attention_take(cpl_attention_kept *kept, cpl_tensor_arena *arena,
                        const cpl_model_settings *config, int64_t batch, int64_t n_queries,
                        bool training, bool cached, const cpl_attention_kept *first)
{
    const cpl_dtype type  = cpl_model_activations(config, training);
    const int64_t t       = batch * n_queries;
    const cpl_tensor wide = cpl_tensor_2d(NULL, type, t, config->d_model);
    const cpl_tensor slim = cpl_tensor_2d(NULL, type, t, cpl_model_kv_width(config));
    kept->a               = first ? first->a : cpl_tensor_take(arena, wide);
    kept->q_raw           = cpl_tensor_take(arena, wide);
    kept->q               = first ? first->q : cpl_tensor_take(arena, wide);
    kept->att             = cpl_tensor_take(arena, wide);
    kept->k_raw           = cpl_tensor_take(arena, slim);
    kept->k     = cached ? cpl_tensor_none() : first ? first->k : cpl_tensor_take(arena, slim);
    kept->v     = cached ? cpl_tensor_none() : cpl_tensor_take(arena, slim);
    kept->v_raw = clamps(config) ? cpl_tensor_take(arena, slim) : kept->v;
    kept->inv   = cpl_tensor_take_1d(arena, t);
    kept->q_inv = cpl_tensor_take_1d(arena, t);
    kept->k_inv = cpl_tensor_take_1d(arena, t);
    kept->lse   = cpl_tensor_take_3d(arena, batch, config->n_heads, n_queries);
}

void cpl_attention_scratch_take(cpl_attention_scratch *s, cpl_tensor_arena *arena,
                                const cpl_model_settings *config, int64_t n_tokens)
{
    const int64_t d = config->d_model, kv = cpl_model_kv_width(config);
    s->datt   = cpl_tensor_take_2d(arena, n_tokens, d);
    s->dq     = cpl_tensor_take_2d(arena, n_tokens, d);
    s->da     = cpl_tensor_take_2d(arena, n_tokens, d);
    s->dv     = cpl_tensor_take_2d(arena, n_tokens, kv);
    s->dq_raw = s->datt;
    s->dk_raw = cpl_tensor_over(s->dq, CPL_F32, n_tokens, kv);
    s->dk     = cpl_tensor_over(s->da, CPL_F32, n_tokens, kv);
}

static cpl_attention_shape shape_of(const cpl_model_settings *config, const cpl_positions *at)
{
    cpl_attention_shape s = {
        .batch      = at->batch,
        .n_queries  = at->n_queries,
        .n_keys     = at->n_queries,
        .key_stride = at->n_queries,
        .n_heads    = config->n_heads,
        .n_kv_heads = config->n_kv_heads,
        .head_dim   = config->d_model / config->n_heads,
    };
    return s;
}

/* Copies the keys and values of the new tokens to their rows of the cache. */
static void write_to_cache(cpl_attention_kept *kept, const cpl_cached *cached, int64_t layer,
                           int64_t n_tokens, bool clamped)
{
    const cpl_tensor all_k = cpl_tensor_at(cached->cache.k, layer);
    const cpl_tensor all_v = cpl_tensor_at(cached->cache.v, layer);
    kept->k                = cpl_tensor_range(all_k, cached->first_row, n_tokens);
    kept->v                = cpl_tensor_range(all_v, cached->first_row, n_tokens);
    if (!clamped) kept->v_raw = kept->v;
}

static void attend_to_cache(cpl_backend *be, const cpl_attention_kept *kept,
                            const cpl_cached *cached, const cpl_model_settings *config,
                            int64_t layer)
{
    cpl_segments segments = cached->segments;
    segments.n_heads      = config->n_heads;
    segments.n_kv_heads   = config->n_kv_heads;
    segments.head_dim     = config->d_model / config->n_heads;
    be->ops->attention_segments(be, kept->att, kept->q, cpl_tensor_at(cached->cache.k, layer),
                                cpl_tensor_at(cached->cache.v, layer), segments);
}

/* Rotates q or k in place. */
static void rotate(cpl_backend *be, cpl_tensor x, cpl_tensor rope, int64_t heads,
                   const cpl_positions *at)
{
    if (at->cached)
        be->ops->rope_at(be, x, rope, heads, at->cached->position);
    else
        be->ops->rope(be, x, rope, heads, at->n_queries, 0, 1);
}

static void norm_input(cpl_backend *be, const cpl_attention_kept *kept, cpl_tensor x,
                       const cpl_layer_params *w, const cpl_model_settings *config)
{
    be->ops->rms_norm(be, kept->a, kept->inv, x, w->input_norm, (float)config->norm_eps);
}

/* Computes q and k from q_raw and k_raw: norm, clamp, rotation. */
static void make_q_and_k(cpl_backend *be, const cpl_attention_kept *kept, const cpl_layer_params *w,
                         const cpl_model_settings *config, cpl_tensor rope, const cpl_positions *at)
{
    const cpl_ops *ops = be->ops;
    const float eps = (float)config->norm_eps, limit = (float)config->clip_qkv;
    ops->rms_norm(be, kept->q, kept->q_inv, kept->q_raw, w->q_norm, eps);
    ops->rms_norm(be, kept->k, kept->k_inv, kept->k_raw, w->k_norm, eps);
    if (clamps(config)) {
        ops->clamp(be, kept->q, kept->q, limit);
        ops->clamp(be, kept->k, kept->k, limit);
    }
    rotate(be, kept->q, rope, config->n_heads, at);
    rotate(be, kept->k, rope, config->n_kv_heads, at);
}

void cpl_attention_forward(cpl_backend *be, cpl_tensor out, cpl_attention_kept *kept, cpl_tensor x,
                           const cpl_layer_params *w, const cpl_model_settings *config,
                           cpl_tensor rope, const cpl_positions *at, int64_t layer)
{
    const cpl_ops *ops = be->ops;
    if (at->cached)
        write_to_cache(kept, at->cached, layer, at->batch * at->n_queries, clamps(config));
    norm_input(be, kept, x, w, config);
    ops->gemm(be, kept->q_raw, CPL_AS_IS, kept->a, CPL_TRANSPOSED, w->w_q, 0);
    ops->gemm(be, kept->k_raw, CPL_AS_IS, kept->a, CPL_TRANSPOSED, w->w_k, 0);
    ops->gemm(be, kept->v_raw, CPL_AS_IS, kept->a, CPL_TRANSPOSED, w->w_v, 0);
    make_q_and_k(be, kept, w, config, rope, at);
    if (clamps(config)) ops->clamp(be, kept->v, kept->v_raw, (float)config->clip_qkv);
    if (at->cached)
        attend_to_cache(be, kept, at->cached, config, layer);
    else
        ops->attention(be, kept->att, kept->lse, kept->q, kept->k, kept->v, at->doc_start,
                       shape_of(config, at));
    ops->copy(be, out, x);
    ops->gemm(be, out, CPL_AS_IS, kept->att, CPL_TRANSPOSED, w->w_o, 1);
}

/* Computes the gradient of the full-width norm's input: draw [T,width] from dy, through clamp and
 * norm. The clamp's input, which is the norm's output, is recomputed in draw. */
static void norm_and_clamp_backward(cpl_backend *be, cpl_tensor draw, cpl_tensor dweight,
                                    cpl_tensor dy, cpl_tensor raw, cpl_tensor weight,
                                    cpl_tensor inv, const cpl_model_settings *config)
{
    if (clamps(config)) {
        be->ops->rms_norm(be, draw, inv, raw, weight, (float)config->norm_eps);
        be->ops->clamp_backward(be, dy, dy, draw, (float)config->clip_qkv);
    }
    be->ops->rms_norm_backward(be, draw, dweight, dy, raw, weight, inv, 0);
}

void cpl_attention_backward(cpl_backend *be, cpl_tensor dx, cpl_layer_params *dw,
                            const cpl_attention_kept *kept, cpl_tensor x, const cpl_layer_params *w,
                            const cpl_model_settings *config, cpl_tensor rope,
                            const cpl_positions *at, const cpl_attention_scratch *s)
{
    const cpl_ops *ops = be->ops;
    if (config->recompute_norms) {
        norm_input(be, kept, x, w, config);
        make_q_and_k(be, kept, w, config, rope, at);
    }
    ops->linear_backward(be, s->datt, dw->w_o, dx, kept->att, w->w_o, 0);
    ops->attention_backward(be, s->dq, s->dk, s->dv, s->datt, kept->att, kept->lse, kept->q,
                            kept->k, kept->v, at->doc_start, shape_of(config, at));
    ops->rope(be, s->dq, rope, config->n_heads, at->n_queries, 0, -1);
    ops->rope(be, s->dk, rope, config->n_kv_heads, at->n_queries, 0, -1);
    norm_and_clamp_backward(be, s->dq_raw, dw->q_norm, s->dq, kept->q_raw, w->q_norm, kept->q_inv,
                            config);
    norm_and_clamp_backward(be, s->dk_raw, dw->k_norm, s->dk, kept->k_raw, w->k_norm, kept->k_inv,
                            config);
    if (clamps(config)) ops->clamp_backward(be, s->dv, s->dv, kept->v_raw, (float)config->clip_qkv);
    ops->linear_backward(be, s->da, dw->w_q, s->dq_raw, kept->a, w->w_q, 0);
    ops->linear_backward(be, s->da, dw->w_k, s->dk_raw, kept->a, w->w_k, 1);
    ops->linear_backward(be, s->da, dw->w_v, s->dv, kept->a, w->w_v, 1);
    ops->rms_norm_backward(be, dx, dw->input_norm, s->da, x, w->input_norm, kept->inv, 1);
}
