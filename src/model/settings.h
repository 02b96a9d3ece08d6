/* settings.h - the settings of this room as structs (of the .def files) and as lists.
 *
 * Room:  model. */
#ifndef CPL_MODEL_SETTINGS_H
#define CPL_MODEL_SETTINGS_H

#include "settings/settings.h"

typedef enum cpl_erc_reduce { CPL_ERC_MEAN, CPL_ERC_SUM } cpl_erc_reduce;
typedef enum cpl_erc_noise { CPL_NOISE_BOUNDED, CPL_NOISE_NONE } cpl_erc_noise;
typedef enum cpl_z_form { CPL_Z_MEAN, CPL_Z_OVER_K } cpl_z_form;
/* erc.activation is couplet.h's cpl_erc_activation, in the same order. */

#define CPL_ROUTER(id, ...) CPL_ROUTER_##id,
typedef enum cpl_router {
#include "model/routers.def"
} cpl_router;
#undef CPL_ROUTER

#define CPL_SETTING(field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_model_settings {
#include "model/model.def"
} cpl_model_settings;
#undef CPL_SETTING

/* cpl_erc_settings and so on: one struct and one section for each auxiliary loss. */
#define CPL_LOSS(id, name, ...)                        typedef struct cpl_##name##_settings {
#define CPL_LOSS_SETTING(loss, field, name, kind, ...) cpl_field_##kind field;
#define CPL_LOSS_END(name)                                                                         \
    }                                                                                              \
    cpl_##name##_settings;                                                                         \
    extern const cpl_section cpl_##name##_section;
#include "model/aux_losses.def"

/* Their offsets are 0: each is a struct of its own. */
extern const cpl_section cpl_model_section;

/* The settings of all auxiliary losses; `which` indexes their lists. */
typedef struct cpl_aux_settings {
#define CPL_LOSS(id, name, ...) cpl_##name##_settings name;
#include "model/aux_losses.def"
} cpl_aux_settings;

typedef enum cpl_aux_loss {
#define CPL_LOSS(id, ...) CPL_AUX_##id,
#include "model/aux_losses.def"
    CPL_N_AUX_LOSSES
} cpl_aux_loss;

#endif /* CPL_MODEL_SETTINGS_H */
