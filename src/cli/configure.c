/* configure.c - see configure.h */
#include "cli/configure.h"

#include <string.h>

#include "io/yaml.h"

bool cpl_verb_takes(const cpl_verb *verb, const char *section)
{
    size_t length = strlen(section);
    if (!verb->sections) return false;
    if (strcmp(verb->sections, "*") == 0) return true;
    for (const char *at = verb->sections; *at; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        if (word == length && memcmp(at, section, length) == 0) return true;
        at += word;
    }
    return false;
}

/* Refuses to set what the verb would not look at. */
static cpl_status check_section(const cpl_configuration *c, const cpl_verb *verb, const char *set)
{
    for (size_t s = 0; s < CPL_N_SECTIONS; s++) {
        const char *name = c->sections[s].name;
        size_t length    = strlen(name);
        if (strncmp(set, name, length) == 0 && set[length] == '.' && !cpl_verb_takes(verb, name))
            return CPL_FAIL(CPL_ERR_USAGE, "%s does not use the settings of %s: --set %.100s",
                            verb->name, name, set);
    }
    return CPL_OK;
}

/* Applies the --set flags in their order; marks them in `given` unless it is NULL. */
static cpl_status apply_sets(cpl_configuration *c, const cpl_arguments *args, bool *given)
{
    for (int i = 0; i < args->n_sets; i++) {
        CPL_TRY(check_section(c, args->verb, args->sets[i]));
        CPL_TRY(cpl_settings_set(&c->settings, c->sections, CPL_N_SECTIONS, args->sets[i], given));
    }
    return CPL_OK;
}

cpl_status cpl_configure(cpl_configuration *c, const char *file, const cpl_arguments *args)
{
    cpl_status status = CPL_OK;
    memset(c, 0, sizeof *c);
    cpl_settings_sections(c->sections);
    CPL_TRY(cpl_settings_init(&c->settings, c->sections, CPL_N_SECTIONS));
    if (file) { /* once before it is read: wrong use is told before a wrong file */
        CPL_TRY_DONE(apply_sets(c, args, NULL));
        CPL_TRY_DONE(cpl_yaml_read(&c->settings, c->sections, CPL_N_SECTIONS, file, c->given));
    }
    CPL_TRY_DONE(apply_sets(c, args, c->given));
done:
    if (status != CPL_OK) cpl_configuration_free(c);
    return status;
}

void cpl_configuration_free(cpl_configuration *c)
{
    cpl_settings_free(&c->settings, c->sections, CPL_N_SECTIONS);
}

bool cpl_configuration_gives(const cpl_configuration *c, const char *dotted)
{
    const cpl_setting *setting = cpl_settings_find(NULL, c->sections, CPL_N_SECTIONS, dotted, NULL);
    CPL_ASSERT(setting);
    return c->given[cpl_settings_index(c->sections, CPL_N_SECTIONS, setting)];
}
