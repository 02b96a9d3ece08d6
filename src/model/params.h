/* params.h - the parameters of a model as tensors, from the one list params.def.
 *
 * Room:   model. A set of parameters (weights, their bf16 copies, gradients, moments) is a
 *         cpl_params whose tensors lie in an arena in the list's order.
 * Names:  matrices are stored [out, in], as by Hugging Face; the paper writes the transposes. */
#ifndef CPL_MODEL_PARAMS_H
#define CPL_MODEL_PARAMS_H

#include <stdbool.h>

#include "model/settings.h"
#include "tensor/memory.h"

/* The parameters of one layer. */
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
    cpl_layer_params *layer; /* [L], in the same arena */
} cpl_params;

/* The initial value of a parameter. */
typedef enum cpl_param_init { CPL_INIT_NORMAL, CPL_INIT_ONES, CPL_INIT_ZEROS } cpl_param_init;

/* One parameter of a model, in any of the sets (weights, gradients, moments, copies). */
typedef struct cpl_param {
    const char *field; /* "w_gate" */
    const char *hub;   /* the last part of its Hugging Face name; the whole name outside of
                          layers */
    int64_t layer;     /* -1 for parameters outside of layers */
    bool per_expert;   /* [n, rows, columns]: one Hugging Face tensor for each of the n; n is the
                          number of experts in this process */
    cpl_param_init init;
    int stream;    /* number of its random stream */
    size_t offset; /* offset of the tensor in cpl_params or in cpl_layer_params */
    int rank;
    int64_t shape[3];
    int64_t begin; /* index in the whole parameter of the first number of this process's part */
} cpl_param;

/* Returns the key/value width: d G / H. */
int64_t cpl_model_kv_width(const cpl_model_settings *config);

/* Returns the width of an expert's input and output: model.latent_dim, or d without it. */
int64_t cpl_model_expert_input(const cpl_model_settings *config);

/* Returns the total width of the shared experts, or 0 if the model has none. */
int64_t cpl_model_shared_width(const cpl_model_settings *config);

/* Returns whether the model is an OLMoE, which other programs can load: a softmax router without
 * any extension. */
bool cpl_model_is_olmoe(const cpl_model_settings *config);

/* Returns the rank of Autonomy-of-Experts that keeps the number of parameters (docs/method.md 4.2):
 * d D / (d + D) rounded, at least 1. */
int64_t cpl_model_aoe_rank(int64_t d_model, int64_t d_expert);

/* Returns the number of tensors. cpl_params_at returns the i-th tensor in the order of memory.
 * Tensors that the model does not have (a tied head, the router of Autonomy-of-Experts, ...) are
 * not counted. */
int64_t cpl_params_count(const cpl_model_settings *config);
cpl_param cpl_params_at(const cpl_model_settings *config, int64_t i);

/* Returns the tensor of the parameter in a set. */
cpl_tensor *cpl_params_tensor(cpl_params *set, const cpl_param *param);

/* Writes the Hugging Face name to `out`. `expert` is used only if the parameter is per expert. */
void cpl_param_name(char out[128], const cpl_param *param, int64_t expert);

/* Returns whether the parameter has a gradient and AdamW updates it. */
bool cpl_param_trains(const cpl_param *param);

/* Returns whether the parameter holds the rows of a router: `router` or `router_original`. */
bool cpl_param_is_router(const cpl_param *param);

/* Returns the router rows of a layer that are trained: router_original with model.router mpi,
 * otherwise router. */
cpl_tensor cpl_params_trained_router(const cpl_layer_params *set);

/* Returns whether products of another type than F32 read a copy of the parameter. This is true for
 * all parameters but the norms' weights and the router. */
bool cpl_param_has_copy(const cpl_param *param);

/* Takes a whole set of `dtype` from the arena. The head is embed if tied. Tensors that the model
 * does not have are none. */
void cpl_params_take(cpl_params *set, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_dtype dtype);

/* Takes a set like cpl_params_take, but only the parameters that have a copy, or only the
 * parameters without a copy. The tensors of the other parameters are copied from `rest`. */
void cpl_params_take_some(cpl_params *set, cpl_tensor_arena *arena,
                          const cpl_model_settings *config, cpl_dtype dtype, bool have_copy,
                          cpl_params *rest);

/* Returns the number of elements of all parameters. */
int64_t cpl_params_numbers(const cpl_model_settings *config);

/* Returns the number of elements that one token uses, as OLMoE counts: all except the experts that
 * the token is not sent to. Embedding, head and router count whole. The first factors of
 * Autonomy-of-Experts' gates count whole too, since every token uses them. */
int64_t cpl_params_active(const cpl_model_settings *config);

/* Sets unset settings (key/value heads, aoe_rank) and checks relations between settings: K <= n,
 * heads that divide, settings that the router supports. vocab_size must be set. Returns
 * CPL_ERR_INPUT if a relation fails. */
CPL_NODISCARD cpl_status cpl_model_resolve(cpl_model_settings *config);

#endif /* CPL_MODEL_PARAMS_H */
