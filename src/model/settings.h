/* settings.h - the settings of this room as structs and lists, from the .def files, and the traits
 * of each kind of router (model.router), from routers.def.
 *
 * Room:    model.
 * Routers: code tests traits, not kinds. A new kind is a row of routers.def and, if its scores are
 *          new, a case in moe.c. */
#ifndef CPL_MODEL_SETTINGS_H
#define CPL_MODEL_SETTINGS_H

#include <stdbool.h>

#include "settings/settings.h"
#include "tensor/tensor.h"

typedef enum cpl_erc_reduce { CPL_ERC_MEAN, CPL_ERC_SUM } cpl_erc_reduce;
typedef enum cpl_erc_noise { CPL_NOISE_BOUNDED, CPL_NOISE_NONE } cpl_erc_noise;
typedef enum cpl_erc_proxy { CPL_PROXY_ROW, CPL_PROXY_CENTRED, CPL_PROXY_TOKENS } cpl_erc_proxy;
typedef enum cpl_erc_gradient {
    CPL_ERC_TO_BOTH,
    CPL_ERC_TO_ROUTER,
    CPL_ERC_TO_EXPERTS
} cpl_erc_gradient;
typedef enum cpl_z_form { CPL_Z_MEAN, CPL_Z_OVER_K, CPL_Z_CENTRED } cpl_z_form;
typedef enum cpl_balance_scope {
    CPL_BALANCE_AUTO,
    CPL_BALANCE_MICRO,
    CPL_BALANCE_GLOBAL,
    CPL_BALANCE_SEQUENCE
} cpl_balance_scope;
/* erc.activation is couplet.h's cpl_erc_activation, with the values in equal order. */

#define CPL_ROUTER(id, ...) CPL_ROUTER_##id,
typedef enum cpl_router {
#include "model/routers.def"
} cpl_router;
#undef CPL_ROUTER

#define CPL_SETTING(field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_model_settings {
#include "model/model.def"
    /* The experts that this process holds (parallel/mesh.h). They are not settings. n_local is 0 if
     * the process holds all experts. */
    int64_t first_expert, n_local;
    bool recompute_norms;  /* the backward pass recomputes norms' outputs and rotated q and k */
    bool z_centred;        /* the z-loss has the form `centred` (tensor/ops.h: cpl_routing) */
    cpl_dtype activations; /* type of activations in training: F32, or BF16 if products are in
                              bf16 */
} cpl_model_settings;
#undef CPL_SETTING

/* One struct and one section for each auxiliary loss, such as cpl_erc_settings. */
#define CPL_LOSS(id, name, ...)                        typedef struct cpl_##name##_settings {
#define CPL_LOSS_SETTING(loss, field, name, kind, ...) cpl_field_##kind field;
#define CPL_LOSS_END(name)                                                                         \
    }                                                                                              \
    cpl_##name##_settings;                                                                         \
    extern const cpl_section cpl_section_##name;
#include "model/aux_losses.def"

/* The section of the model's settings, and the sections of the auxiliary losses. Offsets of an
 * auxiliary section are relative to its own struct. */
extern const cpl_section cpl_section_model;

/* The settings of all auxiliary losses. `which` indexes their lists. */
typedef struct cpl_aux_settings {
#define CPL_LOSS(id, name, ...) cpl_##name##_settings name;
#include "model/aux_losses.def"
} cpl_aux_settings;

typedef enum cpl_aux_loss {
#define CPL_LOSS(id, ...) CPL_AUX_##id,
#include "model/aux_losses.def"
    CPL_N_AUX_LOSSES
} cpl_aux_loss;

/* ---- routers ---- */

typedef enum cpl_router_scores {
    CPL_SCORES_SOFTMAX,
    CPL_SCORES_SIGMOID,
    CPL_SCORES_NORMS
} cpl_router_scores;

typedef struct cpl_router_traits {
    const char *name, *description;
    cpl_router_scores scores;
    bool has_rows, allows_z, allows_bias, is_olmoe, iterates;
} cpl_router_traits;

/* A trait of the router that a loss or a setting needs. */
typedef enum cpl_router_need {
    CPL_NEEDS_NOTHING,
    CPL_NEEDS_ROWS,      /* has_rows */
    CPL_NEEDS_LOGSUMEXP, /* allows_z */
    CPL_NEEDS_SOFTMAX    /* softmax scores of router rows */
} cpl_router_need;

/* Returns the traits of the model's router. */
const cpl_router_traits *cpl_router_of(const cpl_model_settings *model);

bool cpl_router_meets(const cpl_model_settings *model, cpl_router_need need);

/* Writes a description, such as "sigmoid router with biases" or "Autonomy-of-Experts of rank 3", to
 * `out` and returns `out`. */
const char *cpl_router_describe(char out[96], const cpl_model_settings *model);

/* Returns the type of the activations of a pass: values kept for the backward pass and operands of
 * products. Always in F32 are the residual stream, the router's logits and values computed from
 * them, the sums of norms, losses, gradients, and all values of a pass without training. */
cpl_dtype cpl_model_activations(const cpl_model_settings *model, bool training);

/* Returns the number of experts of each layer in this process. */
int64_t cpl_model_local_experts(const cpl_model_settings *model);

/* Returns the rank of the factorised gates that compute the scores, or 0 with a router. */
int64_t cpl_router_gate_rank(const cpl_model_settings *model);

#endif /* CPL_MODEL_SETTINGS_H */
