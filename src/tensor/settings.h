/* settings.h - the settings of compute.def as a struct and as a list.
 *
 * Room:  tensor. */
#ifndef CPL_TENSOR_SETTINGS_H
#define CPL_TENSOR_SETTINGS_H

#include "base/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cpl_dtype_choice { CPL_DTYPE_AUTO, CPL_DTYPE_F32, CPL_DTYPE_BF16 } cpl_dtype_choice;

#define CPL_SETTING(section, field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_compute_settings {
#include "tensor/compute.def"
} cpl_compute_settings;
#undef CPL_SETTING

extern const cpl_setting cpl_compute_list[];
extern const size_t cpl_compute_count;

#ifdef __cplusplus
}
#endif
#endif /* CPL_TENSOR_SETTINGS_H */
