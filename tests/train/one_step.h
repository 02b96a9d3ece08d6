/* one_step.h - a model with the memory of a training step, for tests of the gradient of a step;
 * golden_model.h sets its settings. */
#ifndef CPL_TESTS_TRAIN_ONE_STEP_H
#define CPL_TESTS_TRAIN_ONE_STEP_H

#include "model/aux_losses.h"
#include "tensor/backend/backend.h"
#include "tensor/poison/poison.h"
#include "train/golden_model.h"

/* A model with its steps. `end` releases all memory. */
typedef struct world {
    cpl_settings settings;
    cpl_backend cpu, poison, *be;
    cpl_model model;
    cpl_step step;
    cpl_tensor_arena arena;
    cpl_params grads;
    cpl_metrics metrics;
} world;

static void take_grads(world *w)
{
    cpl_params_take(&w->grads, &w->arena, &w->settings.model, CPL_F32);
    cpl_metrics_take(&w->metrics, &w->arena.host, &w->settings.model, 0);
}

/* Makes random weights and the memory of a step of `micro` sequences a micro-batch, by w->settings,
 * which are resolved. All other members are 0. */
static void begin_world(world *w, int64_t micro, bool poisoned)
{
    const cpl_model_settings *config = &w->settings.model;
    const cpl_work work              = cpl_step_work(&w->settings, config, micro);
    assert_ok(cpl_backend_open(w->be = &w->cpu, "cpu", CPL_F32, 2));
    if (poisoned) cpl_backend_poison(w->be = &w->poison, &w->cpu);
    assert_ok(cpl_backend_reserve(w->be, &work));
    assert_ok(cpl_model_init(&w->model, w->be, config, w->settings.data.seq_len));
    cpl_model_randomize(&w->model, 3);
    assert_ok(cpl_step_init(&w->step, w->be, &w->settings, config, micro, NULL));
    w->arena = cpl_tensor_arena_measure();
    take_grads(w);
    assert_ok(cpl_tensor_arena_init(&w->arena, w->be, &w->arena, "gradients and metrics"));
    take_grads(w);
}

static void end(world *w)
{
    drop(&w->settings);
    cpl_tensor_arena_free(&w->arena);
    cpl_step_free(&w->step);
    cpl_model_free(&w->model);
    cpl_backend_free(w->be);
}

/* Sets w->grads to the gradient of step `number` for the batch. */
static void compute_gradient(world *w, const cpl_step_batch *batch, int64_t number, bool figures)
{
    w->metrics.step = number;
    for (int64_t i = 0; i < cpl_params_count(&w->model.config); i++) {
        const cpl_param p = cpl_params_at(&w->model.config, i);
        w->be->ops->fill(w->be, *cpl_params_tensor(&w->grads, &p), 0);
    }
    cpl_step_gradient(&w->step, &w->model, &w->grads, &w->settings, batch, figures, false,
                      &w->metrics);
    assert_ok(w->be->ops->sync(w->be));
}

#endif /* CPL_TESTS_TRAIN_ONE_STEP_H */
