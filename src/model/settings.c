/* settings.c - see settings.h */
#include "model/settings.h"

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

const cpl_section cpl_model_section =
    CPL_SECTION(model, "the shape and the mathematics of the model");

#define CPL_LOSS(id, name, ...)            static const cpl_setting name##_list[] = {
#define CPL_LOSS_SETTING(loss, field, ...) CPL_SETTING_ROW(loss, field, __VA_ARGS__)
#define CPL_LOSS_END(name)                                                                         \
    }                                                                                              \
    ;
#include "model/aux_losses.def"

#define CPL_LOSS(id, name, label, needs, weight, where, per_layer, help)                           \
    const cpl_section cpl_##name##_section = CPL_SECTION(name, help);
#include "model/aux_losses.def"
