/* settings.h - the settings of this room as a struct and as a list, from data.def.
 *
 * Room:  data. */
#ifndef CPL_DATA_SETTINGS_H
#define CPL_DATA_SETTINGS_H

#include "settings/settings.h"

typedef enum cpl_bad_choice { CPL_BAD_SKIP, CPL_BAD_STOP } cpl_bad_choice;
typedef enum cpl_split_choice {
    CPL_SPLIT_FILE,
    CPL_SPLIT_BLANK_LINE,
    CPL_SPLIT_LINE,
    CPL_SPLIT_SEPARATOR
} cpl_split_choice;
typedef enum cpl_token_type_choice {
    CPL_TOKEN_AUTO,
    CPL_TOKEN_UINT16,
    CPL_TOKEN_UINT32
} cpl_token_type_choice;

#define CPL_SETTING(field, name, kind, ...) cpl_field_##kind field;
typedef struct cpl_data_settings {
#include "data/data.def"
} cpl_data_settings;

#undef CPL_SETTING

/* The section of the data's settings. Its offsets are relative to cpl_data_settings. */
extern const cpl_section cpl_section_data;

#endif /* CPL_DATA_SETTINGS_H */
