/* settings.c - see settings.h */
#include "tensor/settings.h"

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(compute, field, __VA_ARGS__)
static const cpl_setting compute_list[] = {
#include "tensor/compute.def"
};
#undef CPL_SETTING

const cpl_section cpl_compute_section =
    CPL_SECTION(compute, "threads and the type of matrix products");
