/* settings.c - see settings.h */
#include "model/settings.h"

#include <stdio.h>
#include <string.h>

#define CPL_ROUTER(id, name, ...) "|" name
static const char router_names[] =
#include "model/routers.def"
    ;
#undef CPL_ROUTER

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(model, field, __VA_ARGS__)
static const cpl_setting model_list[] = {
#include "model/model.def"
};
#undef CPL_SETTING

const cpl_section cpl_section_model =
    CPL_SECTION(model, "the shape and the mathematics of the model");

#define CPL_LOSS(id, name, ...)            static const cpl_setting name##_list[] = {
#define CPL_LOSS_SETTING(loss, field, ...) CPL_SETTING_ROW(loss, field, __VA_ARGS__)
#define CPL_LOSS_END(name)                                                                         \
    }                                                                                              \
    ;
#include "model/aux_losses.def"

#define CPL_LOSS(id, name, label, needs, weight, where, per_layer, help)                           \
    const cpl_section cpl_section_##name = CPL_SECTION(name, help);
#include "model/aux_losses.def"

/* ---- routers ---- */

static const cpl_router_traits table[] = {
#define CPL_ROUTER(id, name, description, scores, ...)                                             \
    {name, description, CPL_SCORES_##scores, __VA_ARGS__},
#include "model/routers.def"
#undef CPL_ROUTER
};

enum { N_ROUTERS = sizeof table / sizeof *table };

const cpl_router_traits *cpl_router_of(const cpl_model_settings *model)
{
    return &table[model->router];
}

bool cpl_router_meets(const cpl_model_settings *model, cpl_router_need need)
{
    const cpl_router_traits *t = cpl_router_of(model);
    const bool meets[]         = {
                [CPL_NEEDS_NOTHING]   = true,
                [CPL_NEEDS_ROWS]      = t->has_rows,
                [CPL_NEEDS_LOGSUMEXP] = t->allows_z,
                [CPL_NEEDS_SOFTMAX]   = t->has_rows && t->scores == CPL_SCORES_SOFTMAX,
    };
    return meets[need];
}

const char *cpl_router_describe(char out[96], const cpl_model_settings *model)
{
    int used = snprintf(out, 96, "%s", cpl_router_of(model)->description);
    if (cpl_router_gate_rank(model))
        snprintf(out + used, 96 - (size_t)used, " of rank %lld",
                 (long long)cpl_router_gate_rank(model));
    else if (model->router_bias)
        snprintf(out + used, 96 - (size_t)used, " with biases");
    return out;
}

int64_t cpl_router_gate_rank(const cpl_model_settings *model)
{
    return cpl_router_of(model)->scores == CPL_SCORES_NORMS ? model->aoe_rank : 0;
}

int64_t cpl_model_local_experts(const cpl_model_settings *model)
{
    return model->n_local ? model->n_local : model->n_experts;
}

cpl_dtype cpl_model_activations(const cpl_model_settings *model, bool training)
{
    return training ? model->activations : CPL_F32;
}
