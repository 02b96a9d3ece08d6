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
    bool given[CPL_N_SETTINGS]; /* true: the file or --set gives it; see cpl_settings_index */
} cpl_configuration;

/* Sets the configuration: the defaults, then `file` (NULL: no file), then the --set flags in their
 * order, then the flags that are another form of a setting (`args` NULL: no flags). CPL_ERR_USAGE:
 * a --set of a setting that the verb does not use; a flag together with a --set of another value.
 * The caller frees `c`; after a failure there is nothing to free. */
CPL_NODISCARD cpl_status cpl_configure(cpl_configuration *c, const char *file,
                                       const cpl_arguments *args);
void cpl_configuration_free(cpl_configuration *c);

/* Returns true if the file or --set gives the setting of this dotted name, which must exist. */
bool cpl_configuration_gives(const cpl_configuration *c, const char *dotted);

/* Returns true if the verb's table names the setting or its section: help and completion list
 * it. */
bool cpl_verb_lists(const cpl_verb *verb, const cpl_setting *setting);

/* Returns true if --set may name the setting: it is listed, or a flag is another way to give it. */
bool cpl_verb_takes(const cpl_verb *verb, const cpl_setting *setting);

#endif /* CPL_CLI_ARGUMENTS_CONFIGURE_H */
