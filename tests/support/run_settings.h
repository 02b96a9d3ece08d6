/* run_settings.h - the settings of a run: defaults with changes, its folder, and its token ids. */
#ifndef CPL_TESTS_SUPPORT_RUN_SETTINGS_H
#define CPL_TESTS_SUPPORT_RUN_SETTINGS_H

#include "support/files.h"
#include "train/config/settings.h"

static inline cpl_settings default_settings(void)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings settings;
    cpl_settings_sections(sections);
    assert_ok(cpl_settings_init(&settings, sections, CPL_N_SECTIONS));
    return settings;
}

/* Changes a setting. `assignment`: section.name=value, as for --set. */
static inline void set(cpl_settings *settings, const char *assignment)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    assert_ok(cpl_settings_set(settings, sections, CPL_N_SECTIONS, assignment, NULL));
}

/* Changes the setting `name` of `section`. */
static inline void set_to(cpl_settings *settings, const char *section, const char *name,
                          const char *value)
{
    char assignment[600];
    snprintf(assignment, sizeof assignment, "%s.%s=%s", section, name, value);
    set(settings, assignment);
}

/* Changes a setting of section data that is a path. */
static inline void set_data(cpl_settings *settings, const char *name, const char *path)
{
    set_to(settings, "data", name, path);
}

static inline void drop(cpl_settings *settings)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    cpl_settings_free(settings, sections, CPL_N_SECTIONS);
}

/* The settings of the test that runs, until drop_all. */
static struct {
    cpl_settings at[64];
    int count;
} all_settings;

/* Returns default settings that last until drop_all. */
static inline cpl_settings *new_settings(void)
{
    assert_true(all_settings.count < (int)(sizeof all_settings.at / sizeof *all_settings.at));
    all_settings.at[all_settings.count] = default_settings();
    return &all_settings.at[all_settings.count++];
}

/* Frees all settings. It is a teardown of cmocka. */
static inline int drop_all(void **state)
{
    (void)state;
    while (all_settings.count > 0) drop(&all_settings.at[--all_settings.count]);
    return 0;
}

/* Returns the path of a run in a fresh folder. The run does not exist yet. */
static inline const char *fresh_run(void)
{
    return in_folder(scratch_folder(), "run");
}

/* Writes a file of `count` ids that a model can learn: each is the id before it plus 1 or 2.
 * `beyond`: the place of an id that is not in the vocabulary, or -1 without such an id. */
static inline const char *learnable_ids(int count, int vocabulary, int beyond)
{
    const char *path = in_folder(scratch_folder(), "ids.npy");
    uint16_t *ids    = calloc((size_t)count, sizeof *ids);
    for (int i = 0; i < count; i++)
        ids[i] = (uint16_t)(i % 61 == 0 ? 0 : 1 + (ids[i - 1] + 1 + i * 7 % 2) % (vocabulary - 1));
    if (beyond >= 0) ids[beyond] = (uint16_t)vocabulary;
    write_bytes(path, ids, (size_t)count * sizeof *ids);
    free(ids);
    return path;
}

#endif /* CPL_TESTS_SUPPORT_RUN_SETTINGS_H */
