/* settings.h - the settings of a run as structs, from run.def, and the list of all sections.
 *
 * Room:   train/config. */
#ifndef CPL_TRAIN_CONFIG_SETTINGS_H
#define CPL_TRAIN_CONFIG_SETTINGS_H

#include "data/settings.h"
#include "model/settings.h"
#include "settings/settings.h"
#include "tensor/backend/backend.h"

typedef enum cpl_dtype_choice { CPL_DTYPE_AUTO, CPL_DTYPE_F32, CPL_DTYPE_BF16 } cpl_dtype_choice;

typedef enum cpl_recompute { CPL_RECOMPUTE_NONE, CPL_RECOMPUTE_NORMS } cpl_recompute;

/* Returns the type for compute.dtype or compute.activations. auto gives cpl_dtype_fastest. */
static inline cpl_dtype cpl_dtype_chosen(cpl_field_CHOICE choice)
{
    return choice == CPL_DTYPE_AUTO   ? cpl_dtype_fastest
           : choice == CPL_DTYPE_BF16 ? CPL_BF16
                                      : CPL_F32;
}

/* One struct for each section of run.def, such as cpl_train_settings. */
#define CPL_RUN_SECTION(name, ...)                typedef struct cpl_##name##_settings {
#define CPL_RUN_SETTING(section, name, kind, ...) cpl_field_##kind name;
#define CPL_RUN_END(name)                                                                          \
    }                                                                                              \
    cpl_##name##_settings;
#include "train/config/run.def"

/* All sections of a run's configuration file. */
typedef struct cpl_settings {
    cpl_model_settings model;
    cpl_data_settings data;
    cpl_train_settings train;
    cpl_aux_settings losses;
    cpl_compute_settings compute;
    cpl_dist_settings dist;
    cpl_checkpoint_settings checkpoint;
    cpl_eval_settings eval;
    cpl_log_settings log;
} cpl_settings;

#define CPL_SETTING(...)      +1
#define CPL_LOSS_SETTING(...) +1
#define CPL_RUN_SETTING(...)  +1
enum {
    CPL_N_SECTIONS = CPL_N_AUX_LOSSES + 8, /* model data train compute dist checkpoint eval log */
    CPL_N_SETTINGS = 0                     /* number of settings of all sections: the size of an
                                              array `given` */
#include "data/data.def"
#include "model/aux_losses.def"
#include "model/model.def"
#include "train/config/run.def"
};
#undef CPL_SETTING

/* Fills `sections` with all sections, at their offsets in cpl_settings, in the order above. */
void cpl_settings_sections(cpl_section sections[CPL_N_SECTIONS]);

#endif /* CPL_TRAIN_CONFIG_SETTINGS_H */
