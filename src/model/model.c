/* model.c - see model.h */
#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- weights ---- */

static void take_power(cpl_model *model)
{
    const int64_t n = model->config.n_experts, d = model->config.d_model;
    model->power.h     = cpl_tensor_take_2d(&model->arena, n, model->config.d_expert);
    model->power.dh    = cpl_tensor_take_2d(&model->arena, n, model->config.d_expert);
    model->power.G     = cpl_tensor_take_2d(&model->arena, n, d);
    model->power.dG    = cpl_tensor_take_2d(&model->arena, n, d);
    model->power.zeros = cpl_tensor_take_1d(&model->arena, d);
}

/* Takes the weights and the rotary table. Masters of parameters with a copy share the memory of
 * `over`. If `over` is NULL, they have their own memory. */
static void take_all(cpl_model *model, cpl_dtype compute, int64_t positions, cpl_params *over)
{
    const cpl_model_settings *c = &model->config;
    int64_t half                = c->d_model / c->n_heads / 2;
    if (over)
        cpl_params_take_some(&model->master, &model->arena, c, CPL_F32, false, over);
    else
        cpl_params_take(&model->master, &model->arena, c, CPL_F32);
    model->compute = model->master;
    if (compute != CPL_F32)
        cpl_params_take_some(&model->compute, &model->arena, c, compute, true, &model->master);
    model->rope = cpl_tensor_take_3d(&model->arena, positions, half, 2);
    if (cpl_router_of(c)->iterates) take_power(model);
}

static cpl_tensor_arena measure(const cpl_model_settings *config, cpl_dtype compute,
                                int64_t positions, cpl_params *over)
{
    cpl_model model = {.config = *config};
    model.arena     = cpl_tensor_arena_measure();
    take_all(&model, compute, positions, over);
    return model.arena;
}

size_t cpl_model_bytes(const cpl_model_settings *config, cpl_dtype compute, int64_t positions)
{
    const cpl_tensor_arena measured = measure(config, compute, positions, NULL);
    return cpl_tensor_arena_bytes(&measured);
}

size_t cpl_model_bytes_over(const cpl_model_settings *config, cpl_dtype compute, int64_t positions)
{
    cpl_params unseen               = {0};
    const cpl_tensor_arena measured = measure(config, compute, positions, &unseen);
    return cpl_tensor_arena_bytes(&measured);
}

cpl_status cpl_model_init_over(cpl_model *model, cpl_backend *be, const cpl_model_settings *config,
                               int64_t positions, cpl_params *over)
{
    const cpl_tensor_arena measured = measure(config, be->compute, positions, over);
    CPL_ASSERT(!over || be->compute != CPL_F32);
    memset(model, 0, sizeof *model);
    model->be     = be;
    model->config = *config;
    CPL_TRY(cpl_tensor_arena_init(&model->arena, be, &measured, "the weights"));
    take_all(model, be->compute, positions, over);
    be->ops->rope_table(be, model->rope, (float)config->rope_theta);
    return CPL_OK;
}

cpl_status cpl_model_init(cpl_model *model, cpl_backend *be, const cpl_model_settings *config,
                          int64_t positions)
{
    return cpl_model_init_over(model, be, config, positions, NULL);
}

void cpl_model_free(cpl_model *model)
{
    cpl_tensor_arena_free(&model->arena);
    memset(model, 0, sizeof *model);
}

static double initial_std(const cpl_model_settings *c, const cpl_param *p)
{
    const bool factor = p->offset == offsetof(cpl_layer_params, w_gate_a) ||
                        p->offset == offsetof(cpl_layer_params, w_gate_b);
    return p->layer >= 0 && factor && c->aoe_init_std > 0 ? c->aoe_init_std : c->init_std;
}

void cpl_model_randomize(cpl_model *model, uint64_t seed)
{
    const cpl_model_settings *c = &model->config;
    for (int64_t i = 0; i < cpl_params_count(c); i++) {
        cpl_param p     = cpl_params_at(c, i);
        cpl_tensor *t   = cpl_params_tensor(&model->master, &p);
        cpl_rng_key key = {.seed   = seed,
                           .stream = CPL_STREAM_INIT,
                           .layer  = (uint32_t)(p.layer + 1),
                           .step   = (uint64_t)p.stream};
        if (p.init == CPL_INIT_NORMAL)
            model->be->ops->normal(model->be, *t, (float)initial_std(c, &p), 3, key, p.begin);
        else
            model->be->ops->fill(model->be, *t, p.init == CPL_INIT_ONES ? 1 : 0);
    }
    cpl_model_refresh(model);
    cpl_model_set_rows(model);
}

void cpl_model_refresh(cpl_model *model)
{
    const cpl_model_settings *c = &model->config;
    for (int64_t i = 0; i < cpl_params_count(c); i++) {
        cpl_param p      = cpl_params_at(c, i);
        cpl_tensor *copy = cpl_params_tensor(&model->compute, &p);
        cpl_tensor *from = cpl_params_tensor(&model->master, &p);
        if (!cpl_tensor_is_same(*copy, *from)) model->be->ops->copy(model->be, *copy, *from);
    }
}

/* ---- router rows by Manifold Power Iteration ---- */

static double length_of_rows(const cpl_model_settings *c)
{
    return c->router_scale / sqrt((double)c->n_experts);
}

/* Computes y_i = beta y_i + W_i x_i, or W_i^T x_i if `trans` is CPL_AS_IS, for each row. */
static void through_gates(cpl_backend *be, cpl_tensor y, cpl_tensor x, cpl_trans trans,
                          cpl_tensor W, float beta)
{
    for (int64_t i = 0; i < x.shape[0]; i++)
        be->ops->gemm_f32(be, cpl_tensor_range(y, i, 1), CPL_AS_IS, cpl_tensor_range(x, i, 1),
                          trans, cpl_tensor_at(W, i), beta);
}

/* Adds the outer products of the rows of h [n,D] and x [n,d] to dW [n,D,d]. */
static void add_outer(cpl_backend *be, cpl_tensor dW, cpl_tensor h, cpl_tensor x)
{
    for (int64_t i = 0; i < h.shape[0]; i++)
        be->ops->gemm_f32(be, cpl_tensor_at(dW, i), CPL_TRANSPOSED, cpl_tensor_range(h, i, 1),
                          CPL_AS_IS, cpl_tensor_range(x, i, 1), 1);
}

/* Sets h and G of layer l. */
static void iterate(cpl_model *model, int64_t l)
{
    const cpl_layer_params *w = &model->compute.layer[l];
    through_gates(model->be, model->power.h, w->router_original, CPL_TRANSPOSED, w->w_gate, 0);
    through_gates(model->be, model->power.G, model->power.h, CPL_AS_IS, w->w_gate, 0);
}

void cpl_model_set_rows(cpl_model *model)
{
    const cpl_model_settings *c = &model->config;
    for (int64_t l = 0; l < c->n_layers && cpl_router_of(c)->iterates; l++) {
        iterate(model, l);
        model->be->ops->unit_rows(model->be, model->compute.layer[l].router, model->power.G,
                                  model->power.zeros, length_of_rows(c));
    }
}

void cpl_model_rows_backward(cpl_model *model, cpl_tensor drows, cpl_tensor dR, cpl_tensor dgate,
                             int64_t l)
{
    const cpl_model_settings *c = &model->config;
    const cpl_layer_params *w   = &model->compute.layer[l];
    const cpl_tensor dG = model->power.dG, dh = model->power.dh;
    cpl_backend *be = model->be;
    if (!cpl_router_of(c)->iterates) return;
    iterate(model, l);
    be->ops->unit_rows_backward(be, dG, drows, model->power.G, length_of_rows(c));
    through_gates(be, dh, dG, CPL_TRANSPOSED, w->w_gate, 0);
    through_gates(be, dR, dh, CPL_AS_IS, w->w_gate, 1);
    be->ops->fill(be, drows, 0);
    if (!cpl_tensor_is_there(dgate)) return;
    add_outer(be, dgate, model->power.h, dG);
    add_outer(be, dgate, dh, w->router_original);
}

/* ---- activations ---- */

/* Takes the kept activations. Training needs one set per layer. Otherwise all layers share a set.
 * While measuring, the arrays do not exist and a local set is used instead. */
static void take_layers(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                        bool cached)
{
    cpl_attention_kept attention = {0};
    cpl_moe_kept moe             = {0};
    int64_t count                = pass->training ? config->n_layers : 1;
    pass->attention = cpl_tensor_take_host(arena, (size_t)count * sizeof *pass->attention);
    pass->moe       = cpl_tensor_take_host(arena, (size_t)count * sizeof *pass->moe);
    for (int64_t l = 0; l < count; l++) {
        cpl_attention_kept *a = pass->attention ? pass->attention : &attention;
        cpl_moe_kept *m       = pass->moe ? pass->moe : &moe;
        const bool shares     = config->recompute_norms && l > 0;
        cpl_attention_take(pass->attention ? a + l : a, arena, config, pass->batch, pass->n_queries,
                           pass->training, cached, shares ? a : NULL);
        cpl_moe_take(pass->moe ? m + l : m, arena, config, pass->batch * pass->n_queries,
                     pass->training, shares ? m : NULL);
    }
}

/* Takes the residual stream. Its first tensor may have the type of the activations, since it is a
 * copy of embedding rows. The last tensor and `final` are no longer needed when the backward pass
 * of a layer takes its scratch. Without training the stream alternates between two tensors. */
static void take_stream(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config)
{
    const int64_t count = 2 * config->n_layers + 1, t = pass->batch * pass->n_queries;
    const int64_t apart   = pass->training ? count - 1 : 2;
    const cpl_dtype first = cpl_model_activations(config, pass->training);
    cpl_tensor unseen, *x = cpl_tensor_take_host(arena, (size_t)count * sizeof *x);
    for (int64_t i = 0; i < apart; i++)
        *(x ? &x[i] : &unseen) =
            cpl_tensor_take(arena, cpl_tensor_2d(NULL, i ? CPL_F32 : first, t, config->d_model));
    for (int64_t i = apart; x && i < count; i++)
        x[i] = pass->training ? pass->attention_scratch.datt : x[i % 2];
    pass->x = x;
}

/* Takes the gradients and scratch of the backward pass. */
static void take_gradients(cpl_pass *pass, cpl_tensor_arena *arena,
                           const cpl_model_settings *config, int64_t t)
{
    pass->dx = cpl_tensor_take_2d(arena, t, config->d_model);
    cpl_attention_scratch_take(&pass->attention_scratch, arena, config, t);
    pass->dfinal = pass->moe_scratch.db = pass->attention_scratch.da;
}

void cpl_pass_take(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                   int64_t batch, int64_t n_queries, bool training, bool cached)
{
    int64_t t = batch * n_queries, d = config->d_model;
    memset(pass, 0, sizeof *pass);
    pass->batch     = batch;
    pass->n_queries = n_queries;
    pass->training  = training;
    cpl_moe_scratch_take(&pass->moe_scratch, arena, config, t, training);
    if (training) take_gradients(pass, arena, config, t);
    take_stream(pass, arena, config);
    take_layers(pass, arena, config, cached);
    pass->final     = training ? cpl_tensor_over(pass->attention_scratch.dq,
                                                 cpl_model_activations(config, true), t, d)
                               : cpl_tensor_take_2d(arena, t, d);
    pass->final_inv = cpl_tensor_take_1d(arena, t);
    pass->nll       = cpl_tensor_take_1d(arena, t);
}

void cpl_pass_select(cpl_pass *pass, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_tensor selected)
{
    const int64_t rows = selected.shape[0], d = config->d_model;
    CPL_ASSERT(!pass->training && rows <= pass->batch * pass->n_queries);
    pass->selects       = true;
    pass->selected      = selected;
    pass->selected_x[0] = cpl_tensor_take_2d(arena, rows, d);
    pass->selected_x[1] = cpl_tensor_take_2d(arena, rows, d);
    cpl_moe_take(&pass->selected_moe, arena, config, rows, false, NULL);
    cpl_moe_scratch_take(&pass->selected_scratch, arena, config, rows, false);
    pass->final     = cpl_tensor_take_2d(arena, rows, d);
    pass->final_inv = cpl_tensor_take_1d(arena, rows);
}

void cpl_cache_take(cpl_cache *cache, cpl_tensor_arena *arena, const cpl_model_settings *config,
                    int64_t capacity)
{
    int64_t kv = cpl_model_kv_width(config);
    cache->k   = cpl_tensor_take_3d(arena, config->n_layers, capacity, kv);
    cache->v   = cpl_tensor_take_3d(arena, config->n_layers, capacity, kv);
}

cpl_work cpl_pass_work(const cpl_model_settings *config, int64_t n_tokens, bool training)
{
    cpl_work work = {
        .n_tokens   = n_tokens,
        .d_model    = config->d_model,
        .d_expert   = config->d_expert,
        .n_experts  = config->n_experts,
        .top_k      = config->top_k,
        .n_heads    = config->n_heads,
        .vocab_size = config->vocab_size,
        .d_shared   = cpl_model_shared_width(config),
        .gate_rank  = cpl_router_gate_rank(config),
        .training   = training,
    };
    return work;
}

/* ---- forward ---- */

/* Runs the experts' half of layer l. */
static void forward_experts(cpl_model *model, cpl_pass *pass, int64_t l, cpl_tensor out,
                            cpl_moe_kept *kept, cpl_tensor x, cpl_moe_scratch *scratch)
{
    scratch->kept = pass->training ? l : 0;
    cpl_moe_forward(model->be, out, kept, x, &model->compute.layer[l], &model->config, scratch);
    if (pass->on_layer) pass->on_layer(pass->ctx, l, kept);
}

static void serve_layer(cpl_model *model, cpl_exchange *exchange, int64_t l)
{
    const cpl_expert_weights w = cpl_moe_experts(&model->compute.layer[l]);
    if (exchange) cpl_exchange_serve(exchange, model->be, 0, w);
}

void cpl_model_serve(cpl_model *model, cpl_exchange *exchange)
{
    while (cpl_exchange_meet(exchange, false) > 0)
        for (int64_t l = 0; l < model->config.n_layers; l++) serve_layer(model, exchange, l);
}

/* Runs the experts' half of the last layer for the selected tokens only. */
static cpl_tensor forward_selected(cpl_model *model, cpl_pass *pass, int64_t l)
{
    const cpl_tensor x = pass->selected_x[0], out = pass->selected_x[1];
    model->be->ops->embed(model->be, x, pass->x[2 * l + 1], pass->selected);
    forward_experts(model, pass, l, out, &pass->selected_moe, x, &pass->selected_scratch);
    return out;
}

void cpl_model_forward(cpl_model *model, cpl_pass *pass, cpl_tensor ids, cpl_tensor doc_start,
                       const cpl_cached *cached)
{
    const cpl_model_settings *c = &model->config;
    cpl_backend *be             = model->be;
    cpl_positions at            = {pass->batch, pass->n_queries, doc_start, cached};
    be->ops->embed(be, pass->x[0], model->compute.embed, ids);
    cpl_tensor end = pass->x[2 * c->n_layers];
    for (int64_t l = 0; l < c->n_layers; l++) {
        int64_t kept = pass->training ? l : 0;
        cpl_attention_forward(be, pass->x[2 * l + 1], &pass->attention[kept], pass->x[2 * l],
                              &model->compute.layer[l], c, model->rope, &at, l);
        if (!pass->selects || l < c->n_layers - 1)
            forward_experts(model, pass, l, pass->x[2 * l + 2], &pass->moe[kept],
                            pass->x[2 * l + 1], &pass->moe_scratch);
        else if (cpl_tensor_rows(pass->final) > 0)
            end = forward_selected(model, pass, l);
        else {
            serve_layer(model, pass->moe_scratch.exchange, l);
            return;
        }
    }
    be->ops->rms_norm(be, pass->final, pass->final_inv, end, model->compute.norm,
                      (float)c->norm_eps);
}

void cpl_model_logits(cpl_model *model, const cpl_pass *pass, cpl_tensor logits, int64_t first)
{
    model->be->ops->gemm(model->be, logits, CPL_AS_IS,
                         cpl_tensor_range(pass->final, first, cpl_tensor_rows(logits)),
                         CPL_TRANSPOSED, model->compute.head, 0);
}

void cpl_model_score(cpl_model *model, cpl_pass *pass, cpl_tensor total, cpl_tensor target)
{
    cpl_backend *be = model->be;
    be->ops->xent(be, pass->nll, pass->final, model->compute.head, target);
    if (cpl_tensor_is_there(total)) be->ops->sum(be, total, pass->nll);
}

/* ---- backward ---- */

static void grads_complete(const cpl_pass *pass, int64_t layer)
{
    if (pass->on_grads) pass->on_grads(pass->grads_ctx, layer);
}

void cpl_model_backward(cpl_model *model, cpl_pass *pass, cpl_tensor total, cpl_params *grads,
                        cpl_tensor ids, cpl_tensor doc_start, cpl_tensor target, float ce_scale,
                        cpl_aux_grad_scales scales)
{
    const cpl_model_settings *c = &model->config;
    cpl_backend *be             = model->be;
    cpl_positions at            = {pass->batch, pass->n_queries, doc_start, NULL};
    CPL_ASSERT(pass->training);
    be->ops->xent_train(be, pass->nll, pass->dfinal, grads->head, pass->final, model->compute.head,
                        target, ce_scale);
    be->ops->rms_norm_backward(be, pass->dx, grads->norm, pass->dfinal, pass->x[2 * c->n_layers],
                               model->compute.norm, pass->final_inv, 0);
    grads_complete(pass, c->n_layers);
    for (int64_t l = c->n_layers - 1; l >= 0; l--) {
        const cpl_layer_params *w = &model->compute.layer[l];
        cpl_aux_grad_scales own   = scales;
        if (cpl_tensor_is_there(scales.counts)) own.counts = cpl_tensor_at(scales.counts, l);
        pass->moe_scratch.kept = l;
        cpl_moe_backward(be, pass->dx, &grads->layer[l], &pass->moe[l], pass->x[2 * l + 1], w, c,
                         own, &pass->moe_scratch);
        cpl_attention_backward(be, pass->dx, &grads->layer[l], &pass->attention[l], pass->x[2 * l],
                               w, c, model->rope, &at, &pass->attention_scratch);
        grads_complete(pass, l);
    }
    be->ops->embed_backward(be, grads->embed, pass->dx, ids);
    grads_complete(pass, -1);
    be->ops->sum(be, total, pass->nll);
}
