/* configure.h - the settings of a command: defaults, then the configuration file, then --set.
 *
 * Room:  cli/arguments. */
#ifndef CPL_CLI_ARGUMENTS_CONFIGURE_H
#define CPL_CLI_ARGUMENTS_CONFIGURE_H

#include "cli/arguments/flags.h"
#include "train/config/settings.h"

/* Names of the settings for reading documents that have no row in documents_flags.def. */
#define CPL_SETTINGS_DOCUMENTS "data.max_line_bytes data.zstd_window_log"

typedef struct cpl_configuration {
    cpl_settings settings;
    cpl_section sections[CPL_N_SECTIONS];
    bool given[CPL_N_SETTINGS]; /* true if the file or --set gives it; by cpl_settings_index */
} cpl_configuration;

/* Sets the configuration: the defaults, then `file` (may be NULL), then the --set flags in their
 * order, then the flags of `args` (may be NULL) that are another form of a setting. Fails with
 * CPL_ERR_USAGE if --set names a setting that the verb does not use, or gives another value than
 * such a flag. The caller frees `c`. After a failure `c` needs no freeing. */
CPL_NODISCARD cpl_status cpl_configure(cpl_configuration *c, const char *file,
                                       const cpl_arguments *args);
void cpl_configuration_free(cpl_configuration *c);

/* Returns true if the file or --set gives the setting of this dotted name, which must exist. */
bool cpl_configuration_gives(const cpl_configuration *c, const char *dotted);

/* Returns true if the verb's table names the setting or its section. Help and completion list such
 * settings. */
bool cpl_verb_lists(const cpl_verb *verb, const cpl_setting *setting);

/* Returns true if --set may name the setting: the verb lists it or has a flag for it. */
bool cpl_verb_takes(const cpl_verb *verb, const cpl_setting *setting);

#endif /* CPL_CLI_ARGUMENTS_CONFIGURE_H */
