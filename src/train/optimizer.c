/* optimizer.c - see optimizer.h */
#include "train/optimizer.h"

#include <math.h>
#include <string.h>

static void take(cpl_optimizer *o, const cpl_model_settings *config)
{
    cpl_params_take(&o->grads, &o->arena, config, CPL_F32);
    cpl_params_take(&o->m, &o->arena, config, CPL_F32);
    cpl_params_take(&o->v, &o->arena, config, CPL_F32);
}

cpl_status cpl_optimizer_init(cpl_optimizer *o, const cpl_model_settings *config)
{
    memset(o, 0, sizeof *o);
    cpl_arena_measure(&o->arena);
    take(o, config);
    CPL_TRY(cpl_arena_init(&o->arena, o->arena.used, "gradients and moments"));
    take(o, config); /* the arena is zero, and so are the moments */
    return CPL_OK;
}

void cpl_optimizer_free(cpl_optimizer *o)
{
    cpl_arena_free(&o->arena);
    memset(o, 0, sizeof *o);
}

void cpl_optimizer_zero(cpl_optimizer *o, cpl_model *model)
{
    for (int64_t i = 0; i < cpl_params_count(&model->config); i++) {
        cpl_param p = cpl_params_at(&model->config, i);
        model->be->ops->fill(model->be, *cpl_params_tensor(&o->grads, &p), 0);
    }
}

double cpl_optimizer_norm(cpl_optimizer *o, cpl_model *model)
{
    double squares = 0;
    for (int64_t i = 0; i < cpl_params_count(&model->config); i++) {
        cpl_param p  = cpl_params_at(&model->config, i);
        cpl_tensor g = *cpl_params_tensor(&o->grads, &p);
        squares += model->be->ops->dot(model->be, g, g);
    }
    return sqrt(squares);
}

void cpl_optimizer_update(cpl_optimizer *o, cpl_model *model, const cpl_train_settings *s,
                          double norm, double lr)
{
    double coef = s->clip > 0 ? fmin(1.0, s->clip / (norm + 1e-6)) : 1.0;
    o->count++;
    double correct1 = 1.0 - pow(s->beta1, (double)o->count);
    double correct2 = 1.0 - pow(s->beta2, (double)o->count);
    for (int64_t i = 0; i < cpl_params_count(&model->config); i++) {
        cpl_param p = cpl_params_at(&model->config, i);
        if (!cpl_param_trains(&p)) continue;
        cpl_tensor w    = *cpl_params_tensor(&model->master, &p);
        cpl_tensor copy = *cpl_params_tensor(&model->compute, &p);
        if (copy.data == w.data) copy = cpl_tensor_none();
        model->be->ops->adamw(
            model->be, w, *cpl_params_tensor(&o->m, &p), *cpl_params_tensor(&o->v, &p), copy,
            *cpl_params_tensor(&o->grads, &p), (float)coef, (float)lr, (float)s->weight_decay,
            (float)s->beta1, (float)s->beta2, (float)s->eps, correct1, correct2);
    }
}

double cpl_optimizer_lr(const cpl_train_settings *s, int64_t step)
{
    double peak    = s->lr;
    double minimum = isnan(s->lr_min) ? 0.1 * peak : s->lr_min;
    if (step <= s->warmup_steps) return peak * (double)step / (double)s->warmup_steps;
    if (step >= s->steps) return minimum;
    double done = (double)(step - s->warmup_steps) / (double)(s->steps - s->warmup_steps);
    return minimum + (peak - minimum) * 0.5 * (1.0 + cos(3.14159265358979323846 * done));
}
