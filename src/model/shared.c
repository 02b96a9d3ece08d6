/* shared.c - see shared.h */
#include "model/shared.h"

static cpl_tensor take(cpl_arena *arena, cpl_dtype dtype, int64_t rows, int64_t cols)
{
    return cpl_tensor_2d(cpl_arena_take(arena, (size_t)(rows * cols) * 4), dtype, rows, cols);
}

static cpl_tensor take1(cpl_arena *arena, int64_t count)
{
    return cpl_tensor_1d(cpl_arena_take(arena, (size_t)count * 4), CPL_I32, count);
}

void cpl_shared_take(cpl_shared_kept *kept, cpl_arena *arena, const cpl_model_settings *config,
                     int64_t t, bool training)
{
    const int64_t width = cpl_model_shared_width(config);
    kept->gate = kept->up = cpl_tensor_none();
    if (width == 0 || !training) return;
    kept->gate = take(arena, CPL_F32, t, width);
    kept->up   = take(arena, CPL_F32, t, width);
}

void cpl_shared_scratch_take(cpl_shared_scratch *s, cpl_arena *arena,
                             const cpl_model_settings *config, int64_t t, bool training)
{
    s->y = s->expert = s->weight = s->dweight = cpl_tensor_none();
    if (cpl_model_shared_width(config) == 0) return;
    s->y           = take(arena, CPL_F32, t, config->d_model);
    s->expert      = take(arena, CPL_I32, t, 1);
    s->weight      = take(arena, CPL_F32, t, 1);
    s->dweight     = training ? take(arena, CPL_F32, t, 1) : cpl_tensor_none();
    s->plan.offset = take1(arena, 2);
    s->plan.token  = take1(arena, t);
    s->plan.row    = take(arena, CPL_I32, t, 1);
}

/* One matrix as that of one expert. */
static cpl_tensor of_one(cpl_tensor w)
{
    return cpl_tensor_3d(w.data, w.dtype, 1, w.shape[0], w.shape[1]);
}

static cpl_expert_weights weights_of(const cpl_layer_params *w)
{
    return (cpl_expert_weights){of_one(w->shared_gate), of_one(w->shared_up),
                                of_one(w->shared_down)};
}

/* Every token's one choice is expert 0 with weight 1. The bits of 0 are the same as a whole number
 * and as F32. */
static void send_all(cpl_backend *be, const cpl_shared_scratch *s)
{
    cpl_tensor zeros = s->expert;
    zeros.dtype      = CPL_F32;
    be->ops->fill(be, zeros, 0);
    be->ops->fill(be, s->weight, 1);
    be->ops->dispatch(be, s->plan, s->expert, 1);
}

void cpl_shared_forward(cpl_backend *be, cpl_tensor y, cpl_shared_kept *kept, cpl_tensor b,
                        const cpl_layer_params *w, const cpl_shared_scratch *s)
{
    if (!w->shared_gate.data) return;
    send_all(be, s);
    be->ops->experts(be, s->y, kept->gate, kept->up, b, cpl_tensor_none(), s->weight, s->plan,
                     weights_of(w));
    be->ops->add(be, y, s->y);
}

void cpl_shared_backward(cpl_backend *be, cpl_tensor db, cpl_layer_params *dw,
                         cpl_shared_kept *kept, cpl_tensor dy, cpl_tensor b,
                         const cpl_layer_params *w, const cpl_shared_scratch *s)
{
    const cpl_tensor none = cpl_tensor_none();
    if (!w->shared_gate.data) return;
    be->ops->experts_backward(be, db, none, s->dweight, weights_of(dw), dy, kept->gate, kept->up, b,
                              none, s->weight, s->plan, weights_of(w));
}
