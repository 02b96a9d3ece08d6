/* settings.h - the settings of this floor as structs (of the .def files) and as lists.
 *
 * Room:  tensor. */
#ifndef CPL_TENSOR_SETTINGS_H
#define CPL_TENSOR_SETTINGS_H

#include "settings/settings.h"

typedef enum cpl_dtype_choice { CPL_DTYPE_AUTO, CPL_DTYPE_F32, CPL_DTYPE_BF16 } cpl_dtype_choice;

#define CPL_SETTING(field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_compute_settings {
#include "tensor/compute.def"
} cpl_compute_settings;

#undef CPL_SETTING

/* Their offsets are 0: each is a struct of its own. */
extern const cpl_section cpl_compute_section;

#endif /* CPL_TENSOR_SETTINGS_H */
