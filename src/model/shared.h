/* shared.h - the shared expert of a layer: every token goes to it, with weight 1 (DeepSeekMoE).
 *
 * Room:   model. S = n_shared_experts * intermediate_size: shared experts side by side are one of
 *         that width. The operation is that of all experts, with one expert and one choice.
 *
 *             y += W_down (SiLU(W_gate b) * (W_up b)) */
#ifndef CPL_MODEL_SHARED_H
#define CPL_MODEL_SHARED_H

#include "base/arena.h"
#include "model/params.h"
#include "tensor/ops.h"

/* What forward keeps of one layer for backward. */
typedef struct cpl_shared_kept {
    cpl_tensor gate, up; /* [T,S]; none when not training */
} cpl_shared_kept;

/* Shared by all layers. */
typedef struct cpl_shared_scratch {
    cpl_tensor y;       /* [T,d] */
    cpl_tensor expert;  /* [T,1] I32, 0 */
    cpl_tensor weight;  /* [T,1], 1 */
    cpl_tensor dweight; /* [T,1]: of the weight, which nobody wants */
    cpl_dispatch plan;
} cpl_shared_scratch;

/* Nothing is taken where the model has no shared expert, and nothing is done below. */
void cpl_shared_take(cpl_shared_kept *kept, cpl_arena *arena, const cpl_model_settings *config,
                     int64_t n_tokens, bool training);
void cpl_shared_scratch_take(cpl_shared_scratch *s, cpl_arena *arena,
                             const cpl_model_settings *config, int64_t n_tokens, bool training);

/* y [T,d] *adds* the expert's output for b [T,d]. */
void cpl_shared_forward(cpl_backend *be, cpl_tensor y, cpl_shared_kept *kept, cpl_tensor b,
                        const cpl_layer_params *w, const cpl_shared_scratch *s);

/* db [T,d] and dw *add*; dy [T,d]. kept's tensors are used up. */
void cpl_shared_backward(cpl_backend *be, cpl_tensor db, cpl_layer_params *dw,
                         cpl_shared_kept *kept, cpl_tensor dy, cpl_tensor b,
                         const cpl_layer_params *w, const cpl_shared_scratch *s);

#endif /* CPL_MODEL_SHARED_H */
