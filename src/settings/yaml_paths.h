/* yaml_paths.h - relative paths among settings, for the files of yaml.
 *
 * Room:  settings; not for others. */
#ifndef CPL_SETTINGS_YAML_PATHS_H
#define CPL_SETTINGS_YAML_PATHS_H

#include "settings/settings.h"

/* Puts `folder` before the relative paths in `field`, if the setting's unit is "path" or "paths".
 * The folder "." changes nothing. */
CPL_NODISCARD cpl_status cpl_yaml_resolve(const cpl_setting *setting, void *field,
                                          const char *folder);

#endif /* CPL_SETTINGS_YAML_PATHS_H */
