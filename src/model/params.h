/* params.h - the parameters of a model as tensors, from the one list params.def.
 *
 * Room:   model. A set of parameters (weights, their bf16 copies, gradients, moments) is a
 *         cpl_params whose tensors lie in an arena in the list's order.
 * Names:  w_q ... are stored [out, in] as Hugging Face does; the paper writes the transposes. */
#ifndef CPL_MODEL_PARAMS_H
#define CPL_MODEL_PARAMS_H

#include <stdbool.h>

#include "model/settings.h"
#include "tensor/memory.h"

/* Of one layer. */
typedef struct cpl_layer_params {
#define CPL_PARAM_MODEL(field)
#define CPL_PARAM_LAYER(field)       cpl_tensor field;
#define CPL_PARAM_EXPERTS(field)     cpl_tensor field;
#define CPL_PARAM(field, owner, ...) CPL_PARAM_##owner(field)
#include "model/params.def"
#undef CPL_PARAM_MODEL
#undef CPL_PARAM_LAYER
#undef CPL_PARAM_EXPERTS
} cpl_layer_params;

typedef struct cpl_params {
#define CPL_PARAM_MODEL(field) cpl_tensor field;
#define CPL_PARAM_LAYER(field)
#define CPL_PARAM_EXPERTS(field)
#include "model/params.def"
#undef CPL_PARAM_MODEL
#undef CPL_PARAM_LAYER
#undef CPL_PARAM_EXPERTS
#undef CPL_PARAM
    cpl_layer_params *layer; /* [L], of the same arena */
} cpl_params;

/* What a parameter begins with. */
typedef enum cpl_param_init { CPL_INIT_NORMAL, CPL_INIT_ONES, CPL_INIT_ZEROS } cpl_param_init;

/* One parameter of a model, in any of the sets (weights, gradients, moments, copies). */
typedef struct cpl_param {
    const char *field; /* "w_gate" */
    const char *hub;   /* the last part of its Hugging Face name; all of it for the model's own */
    int64_t layer;     /* -1: the model's own */
    bool per_expert;   /* [n, rows, columns]: one Hugging Face tensor for each of the n; n is the
                          number of experts in this process */
    cpl_param_init init;
    int stream;    /* of its random numbers */
    size_t offset; /* of the tensor in cpl_params or in cpl_layer_params */
    int rank;
    int64_t shape[3];
    int64_t begin; /* the number of the whole parameter at which this process's part begins */
} cpl_param;

/* Key/value width: d G / H. */
int64_t cpl_model_kv_width(const cpl_model_settings *config);

/* Width of the shared expert, all of them side by side; 0 if there is none. */
int64_t cpl_model_shared_width(const cpl_model_settings *config);

/* Whether it is an OLMoE, which other programs can load: a softmax router without any extension. */
bool cpl_model_is_olmoe(const cpl_model_settings *config);

/* Autonomy-of-Experts' rank that keeps the number of parameters (docs/method.md 4.2): d D / (d + D)
 * to the nearest, at least 1. */
int64_t cpl_model_aoe_rank(int64_t d_model, int64_t d_expert);

/* Tensors in all, and the i-th of them in memory's order. What the model does not have (a tied
 * head, the router of Autonomy-of-Experts, ...) is not among them. */
int64_t cpl_params_count(const cpl_model_settings *config);
cpl_param cpl_params_at(const cpl_model_settings *config, int64_t i);

/* The tensor of this parameter in a set. */
cpl_tensor *cpl_params_tensor(cpl_params *set, const cpl_param *param);

/* Writes the Hugging Face name; `expert` is used only if the parameter is per expert. */
void cpl_param_name(char out[128], const cpl_param *param, int64_t expert);

/* Whether training gives it a gradient and AdamW moves it. */
bool cpl_param_trains(const cpl_param *param);

/* Whether products read a copy of it where they are of another type than F32: of all but the norms'
 * weights and the router. */
bool cpl_param_has_copy(const cpl_param *param);

/* Takes a whole set from the arena, all tensors of `dtype`; head is embed if tied, and a tensor
 * that the model does not have is none. */
void cpl_params_take(cpl_params *set, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_dtype dtype);

/* The same, but only the parameters that have a copy, or only those that have none, are taken; the
 * tensors of the others are those of `rest`. */
void cpl_params_take_some(cpl_params *set, cpl_tensor_arena *arena,
                          const cpl_model_settings *config, cpl_dtype dtype, bool have_copy,
                          cpl_params *rest);

/* Numbers in all parameters. */
int64_t cpl_params_numbers(const cpl_model_settings *config);

/* Those that take part in one token, as OLMoE counts: all but the experts it is not sent to. Both
 * tables and the router count whole, and so do the first factors of Autonomy-of-Experts' gates,
 * which every token meets. */
int64_t cpl_params_active(const cpl_model_settings *config);

/* Fills what is unset (key/value heads, aoe_rank) and checks what bounds cannot: K <= n, heads that
 * divide, settings of routers that contradict each other.
 * vocab_size must be set. CPL_ERR_INPUT with a sentence. */
CPL_NODISCARD cpl_status cpl_model_resolve(cpl_model_settings *config);

#endif /* CPL_MODEL_PARAMS_H */
