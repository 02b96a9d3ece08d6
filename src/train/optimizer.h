/* optimizer.h - AdamW over all parameters, with the gradients' norm, its clipping, and the learning
 * rate.
 *
 * Room:   train. g = grad * coef, coef = min(1, clip / (norm + 1e-6)); moments m, v with bias
 *         correction; decoupled weight decay on all parameters, norms and embeddings included
 *         (OLMoE). Formula: docs/method.md 7.3. */
#ifndef CPL_TRAIN_OPTIMIZER_H
#define CPL_TRAIN_OPTIMIZER_H

#include "model/model.h"
#include "train/config/settings.h"
#include "train/share.h"

/* The training state other than the weights. It has the lifetime of the run. */
typedef struct cpl_optimizer {
    cpl_tensor_arena arena;
    cpl_params grads; /* F32, with the shapes of the weights */
    cpl_params m, v;  /* F32: this rank's parts (share.h); in one process shaped as the weights */
    cpl_share share;
    int64_t count; /* updates so far, without skipped steps */
} cpl_optimizer;

/* Allocates gradients and moments on `be`. `config` describes this process's model. The backend and
 * the mesh must outlive the optimizer. mesh is NULL for one process. Returns CPL_ERR_MEMORY if
 * memory is not available. */
CPL_NODISCARD cpl_status cpl_optimizer_init(cpl_optimizer *o, cpl_backend *be,
                                            const cpl_model_settings *config, cpl_mesh *mesh,
                                            bool overlap);
void cpl_optimizer_free(cpl_optimizer *o);

/* Sets *bytes to the bytes of gradients, moments, divided masters and messages. */
CPL_NODISCARD cpl_status cpl_optimizer_bytes(size_t *bytes, const cpl_model_settings *config,
                                             cpl_mesh *mesh, cpl_dtype compute);

/* Returns the argument `over` of cpl_model_init_over: the gradients if masters are divided
 * (share.h), otherwise NULL. */
cpl_params *cpl_optimizer_over(cpl_optimizer *o);

/* Sets all gradients to 0. */
void cpl_optimizer_zero(cpl_optimizer *o, cpl_model *model);

/* Updates this rank's parts of the weights (and their copies), and starts to send them to the ranks
 * that hold the same parameters. `norm` is the norm of all gradients. */
void cpl_optimizer_update(cpl_optimizer *o, cpl_model *model, const cpl_train_settings *settings,
                          double norm, double lr);

/* Returns the learning rate of a step, counted from 1. Up to warm-up it is peak * step / warmup.
 * Then it is a cosine from the peak to the minimum at the last step (docs/method.md 7.4). */
double cpl_optimizer_lr(const cpl_train_settings *settings, int64_t step);

/* Returns the learning rate of the last step: train.lr_min, or a tenth of the peak. */
double cpl_optimizer_lr_min(const cpl_train_settings *settings);

#endif /* CPL_TRAIN_OPTIMIZER_H */
