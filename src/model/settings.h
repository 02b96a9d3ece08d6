/* settings.h - the settings of this floor as structs (of the .def files) and as lists.
 *
 * Room:  model. */
#ifndef CPL_MODEL_SETTINGS_H
#define CPL_MODEL_SETTINGS_H

#include "settings/settings.h"

typedef enum cpl_erc_reduce { CPL_ERC_MEAN, CPL_ERC_SUM } cpl_erc_reduce;
typedef enum cpl_erc_noise { CPL_NOISE_BOUNDED, CPL_NOISE_NONE } cpl_erc_noise;
typedef enum cpl_router { CPL_ROUTER_SOFTMAX, CPL_ROUTER_SIGMOID, CPL_ROUTER_AOE } cpl_router;
typedef enum cpl_z_form { CPL_Z_MEAN, CPL_Z_OVER_K } cpl_z_form;
/* erc.activation is couplet.h's cpl_erc_activation, in the same order. */

#define CPL_SETTING(field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_model_settings {
#include "model/model.def"
} cpl_model_settings;

typedef struct cpl_erc_settings {
#include "model/erc.def"
} cpl_erc_settings;

typedef struct cpl_balance_settings {
#include "model/balance.def"
} cpl_balance_settings;

typedef struct cpl_z_settings {
#include "model/z.def"
} cpl_z_settings;

typedef struct cpl_orth_settings {
#include "model/orth.def"
} cpl_orth_settings;

#undef CPL_SETTING

/* Their offsets are 0: each is a struct of its own. */
extern const cpl_section cpl_model_section, cpl_erc_section, cpl_balance_section, cpl_z_section,
    cpl_orth_section;

#endif /* CPL_MODEL_SETTINGS_H */
