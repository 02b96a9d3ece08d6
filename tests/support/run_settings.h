/* run_settings.h - the settings of a run: defaults with changes. */
#ifndef CPL_TESTS_SUPPORT_RUN_SETTINGS_H
#define CPL_TESTS_SUPPORT_RUN_SETTINGS_H

#include "check.h"
#include "train/config/settings.h"

static inline cpl_settings default_settings(void)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings settings;
    cpl_settings_sections(sections);
    assert_ok(cpl_settings_init(&settings, sections, CPL_N_SECTIONS));
    return settings;
}

/* `assignment`: section.name=value, as for --set. */
static inline void set(cpl_settings *settings, const char *assignment)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    assert_ok(cpl_settings_set(settings, sections, CPL_N_SECTIONS, assignment, NULL));
}

/* A setting of section data that is a path. */
static inline void set_data(cpl_settings *settings, const char *name, const char *path)
{
    char assignment[600];
    snprintf(assignment, sizeof assignment, "data.%s=%s", name, path);
    set(settings, assignment);
}

static inline void drop(cpl_settings *settings)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    cpl_settings_free(settings, sections, CPL_N_SECTIONS);
}

#endif /* CPL_TESTS_SUPPORT_RUN_SETTINGS_H */
