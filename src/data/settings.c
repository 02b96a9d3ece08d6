/* settings.c - see settings.h */
#include "data/settings.h"

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(data, field, __VA_ARGS__)
static const cpl_setting data_list[] = {
#include "data/data.def"
};
#undef CPL_SETTING

const cpl_section cpl_section_data =
    CPL_SECTION(data, "the data: documents, token shards, sequences, order");
