/* yaml_paths.c - see yaml_paths.h */
#include "settings/yaml_paths.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "io/file.h"
#include "settings/yaml.h"

static cpl_status resolve(char **path, const char *folder)
{
    if (!*path || **path == '/' || **path == '\0') return CPL_OK;
    const char *relative = *path;
    while (strncmp(relative, "./", 2) == 0) relative += 2;
    char *whole = cpl_path_join(folder, relative);
    if (!whole) return CPL_ERR_MEMORY;
    cpl_free(*path);
    *path = whole;
    return CPL_OK;
}

cpl_status cpl_yaml_resolve(const cpl_setting *setting, void *field, const char *folder)
{
    if (strcmp(folder, ".") == 0) return CPL_OK;
    if (setting->kind == CPL_KIND_STRING && strcmp(setting->unit, "path") == 0)
        return resolve(field, folder);
    if (setting->kind == CPL_KIND_STRINGS && strcmp(setting->unit, "paths") == 0) {
        cpl_strings *paths = field;
        for (int64_t i = 0; i < paths->count; i++) CPL_TRY(resolve(&paths->at[i], folder));
    }
    return CPL_OK;
}

cpl_status cpl_yaml_absolute(void *joint, const cpl_section *sections, size_t count)
{
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here))
        return CPL_FAIL(CPL_ERR_IO, "the current folder has no name: %s", strerror(errno));
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++)
            CPL_TRY(
                cpl_yaml_resolve(&s->list[i], (char *)joint + s->offset + s->list[i].offset, here));
    return CPL_OK;
}
