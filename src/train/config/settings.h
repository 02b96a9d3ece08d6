/* settings.h - the settings of this floor as structs (of the .def files) and as lists.
 *
 * Room:   train/config. */
#ifndef CPL_TRAIN_CONFIG_SETTINGS_H
#define CPL_TRAIN_CONFIG_SETTINGS_H

#include "data/settings.h"
#include "model/settings.h"
#include "settings/settings.h"
#include "tensor/settings.h"

#define CPL_SETTING(field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_train_settings {
#include "train/config/train.def"
} cpl_train_settings;

typedef struct cpl_checkpoint_settings {
#include "train/config/checkpoint.def"
} cpl_checkpoint_settings;

typedef struct cpl_eval_settings {
#include "train/config/eval.def"
} cpl_eval_settings;

typedef struct cpl_log_settings {
#include "train/config/log.def"
} cpl_log_settings;

#undef CPL_SETTING

/* Their offsets are 0: each is a struct of its own. */
extern const cpl_section cpl_train_section, cpl_checkpoint_section, cpl_eval_section,
    cpl_log_section;

/* Every section, as the configuration file of a run has them. */
typedef struct cpl_settings {
    cpl_model_settings model;
    cpl_data_settings data;
    cpl_train_settings train;
    cpl_aux_settings losses;
    cpl_compute_settings compute;
    cpl_checkpoint_settings checkpoint;
    cpl_eval_settings eval;
    cpl_log_settings log;
} cpl_settings;

#define CPL_SETTING(...)      +1
#define CPL_LOSS_SETTING(...) +1
enum {
    CPL_N_SECTIONS = CPL_N_AUX_LOSSES + 7, /* model data train compute checkpoint eval log */
    CPL_N_SETTINGS = 0                     /* of all sections: size of an array `given` */
#include "data/data.def"
#include "model/aux_losses.def"
#include "model/model.def"
#include "tensor/compute.def"
#include "train/config/checkpoint.def"
#include "train/config/eval.def"
#include "train/config/log.def"
#include "train/config/train.def"
};
#undef CPL_SETTING

/* Fills `sections` with all of them, at their offsets in cpl_settings, in the order above. */
void cpl_settings_sections(cpl_section sections[CPL_N_SECTIONS]);

#endif /* CPL_TRAIN_CONFIG_SETTINGS_H */
