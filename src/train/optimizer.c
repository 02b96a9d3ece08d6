/* optimizer.c - see optimizer.h */
#include "train/optimizer.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static void take_tensors(cpl_optimizer *o, const cpl_model_settings *config)
{
    cpl_params_take(&o->grads, &o->arena, config, CPL_F32);
    cpl_share_take_parts(&o->m, &o->arena, &o->share, config);
    cpl_share_take_parts(&o->v, &o->arena, &o->share, config);
    cpl_share_take_masters(&o->share, &o->arena, config);
    cpl_share_take_buffers(&o->share, &o->arena);
}

cpl_status cpl_optimizer_bytes(size_t *bytes, const cpl_model_settings *config, cpl_mesh *mesh,
                               cpl_dtype compute)
{
    cpl_optimizer o = {0};
    CPL_TRY(cpl_share_init(&o.share, config, mesh, compute, true));
    o.arena = cpl_tensor_arena_measure();
    take_tensors(&o, config);
    *bytes = cpl_tensor_arena_bytes(&o.arena);
    cpl_share_free(&o.share);
    return CPL_OK;
}

cpl_status cpl_optimizer_init(cpl_optimizer *o, cpl_backend *be, const cpl_model_settings *config,
                              cpl_mesh *mesh, bool overlap)
{
    memset(o, 0, sizeof *o);
    CPL_TRY(cpl_share_init(&o->share, config, mesh, be->compute, overlap));
    o->share.be = be;
    o->arena    = cpl_tensor_arena_measure();
    take_tensors(o, config);
    CPL_TRY(cpl_tensor_arena_init(&o->arena, be, &o->arena, "gradients and moments"));
    take_tensors(o, config); /* the arena is zero, and so are the moments */
    return CPL_OK;
}

cpl_params *cpl_optimizer_over(cpl_optimizer *o)
{
    return o->share.divides_masters ? &o->grads : NULL;
}

void cpl_optimizer_free(cpl_optimizer *o)
{
    cpl_tensor_arena_free(&o->arena);
    cpl_share_free(&o->share);
    memset(o, 0, sizeof *o);
}

void cpl_optimizer_zero(cpl_optimizer *o, cpl_model *model)
{
    for (int64_t i = 0; i < cpl_params_count(&model->config); i++) {
        cpl_param p = cpl_params_at(&model->config, i);
        model->be->ops->fill(model->be, *cpl_params_tensor(&o->grads, &p), 0);
    }
}

/* The constants of one update, equal for all numbers. */
typedef struct update {
    float coef, lr;
    double correct1, correct2;
} update;

static void update_slice(cpl_optimizer *o, cpl_model *model, const cpl_train_settings *s,
                         const update *u, const cpl_slice *x)
{
    const float lr = cpl_param_is_router(&x->param) ? (float)(s->router_lr * (double)u->lr) : u->lr;
    cpl_tensor w   = cpl_share_master(&o->share, x, &model->master);
    cpl_tensor g   = cpl_slice_of_whole(x, &o->grads);
    cpl_tensor copy = cpl_slice_of_whole(x, &model->compute);
    if (cpl_tensor_is_same(copy, w)) copy = cpl_tensor_none();
    model->be->ops->adamw(model->be, w, cpl_slice_of_parts(x, &o->m), cpl_slice_of_parts(x, &o->v),
                          copy, g, u->coef, lr, (float)s->weight_decay, (float)s->beta1,
                          (float)s->beta2, (float)s->eps, u->correct1, u->correct2);
}

void cpl_optimizer_update(cpl_optimizer *o, cpl_model *model, const cpl_train_settings *s,
                          double norm, double lr)
{
    const double coef = s->clip > 0 ? fmin(1.0, s->clip / (norm + 1e-6)) : 1.0;
    cpl_share *share  = &o->share;
    o->count++;
    const update u = {(float)coef, (float)lr, 1.0 - pow(s->beta1, (double)o->count),
                      1.0 - pow(s->beta2, (double)o->count)};
    for (int64_t i = 0, bucket = 0; i < share->n_slices; i++) {
        update_slice(o, model, s, &u, &share->slices[i]);
        if (bucket < share->n_buckets &&
            i + 1 == share->buckets[bucket].first + share->buckets[bucket].count)
            cpl_share_start_gather(share, &model->compute, bucket++);
    }
    cpl_share_finish_gather(share);
    cpl_model_set_rows(model);
}

double cpl_optimizer_lr_min(const cpl_train_settings *s)
{
    return isnan(s->lr_min) ? 0.1 * s->lr : s->lr_min;
}

double cpl_optimizer_lr(const cpl_train_settings *s, int64_t step)
{
    double peak    = s->lr;
    double minimum = cpl_optimizer_lr_min(s);
    if (step <= s->warmup_steps) return peak * (double)step / (double)s->warmup_steps;
    if (step >= s->steps) return minimum;
    double done = (double)(step - s->warmup_steps) / (double)(s->steps - s->warmup_steps);
    return minimum + (peak - minimum) * 0.5 * (1.0 + cos(3.14159265358979323846 * done));
}
