/* settings.c - see settings.h */
#include "tensor/settings.h"

#define CPL_SETTING(section, field, name, kind, standard, low, high, unit, sentence)               \
    {#section,  #name, CPL_KIND_##kind, offsetof(cpl_##section##_settings, field),                 \
     standard, low,   high,            unit,                                                       \
     sentence},
const cpl_setting cpl_compute_list[] = {
#include "tensor/compute.def"
};
#undef CPL_SETTING
const size_t cpl_compute_count = sizeof cpl_compute_list / sizeof *cpl_compute_list;
