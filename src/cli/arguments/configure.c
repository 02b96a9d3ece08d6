/* configure.c - see configure.h */
#include "cli/arguments/configure.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "settings/yaml.h"

/* Returns true if one of the blank-separated words names the setting or its section and no later
 * word with a minus sign removes it. */
static bool are_named(const char *words, const cpl_setting *setting)
{
    char dotted[CPL_SETTING_NAME_BYTES];
    size_t section = strlen(setting->section), whole;
    bool named     = false;
    cpl_setting_dotted(dotted, setting);
    whole = strlen(dotted);
    for (const char *at = words; *at; at += strspn(at, " ")) {
        const bool out = *at == '-';
        size_t word    = strcspn(at += out, " ");
        if ((word == section || word == whole) && memcmp(at, dotted, word) == 0) named = !out;
        at += word;
    }
    return named;
}

bool cpl_verb_lists(const cpl_verb *verb, const cpl_setting *setting)
{
    if (!verb->settings) return false;
    return strcmp(verb->settings, "*") == 0 || are_named(verb->settings, setting);
}

/* Returns true if `assignment` is NAME or NAME=VALUE of the setting. */
static bool assigns(const char *assignment, const cpl_setting *setting)
{
    char dotted[CPL_SETTING_NAME_BYTES];
    const size_t length = strcspn(assignment, "=");
    cpl_setting_dotted(dotted, setting);
    return strlen(dotted) == length && memcmp(assignment, dotted, length) == 0;
}

bool cpl_verb_takes(const cpl_verb *verb, const cpl_setting *setting)
{
    for (size_t f = 0; f < verb->n_flags; f++)
        if (verb->flags[f].setting && assigns(verb->flags[f].setting, setting)) return true;
    return cpl_verb_lists(verb, setting);
}

/* Fails if the verb does not use the setting of this --set. */
static cpl_status check_set(const cpl_configuration *c, const cpl_verb *verb, const char *set)
{
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        for (size_t i = 0; i < c->sections[s].count; i++)
            if (assigns(set, &c->sections[s].list[i]) &&
                !cpl_verb_takes(verb, &c->sections[s].list[i]))
                return CPL_FAIL(CPL_ERR_USAGE,
                                "%s does not use --set %.100s; couplet %s --help all lists the "
                                "settings it uses",
                                verb->name, set, verb->name);
    return CPL_OK;
}

/* Appends "SECTION.NAME=VALUE" for a flag that is another form of a setting. Text is literal:
 * quotes and colons in it have no meaning. */
static void write_assignment(cpl_text *out, const cpl_flag *flag, const char *value)
{
    cpl_text_printf(out, "%s", flag->setting);
    if (flag->kind == CPL_FLAG_SWITCH) return;
    cpl_text_char(out, '=');
    if (flag->kind == CPL_FLAG_TEXT)
        cpl_setting_quote(out, value);
    else
        cpl_text_printf(out, "%s", value);
}

/* Applies `assignment` and appends the value that its setting then has. */
static cpl_status assign(cpl_configuration *c, const char *assignment, bool *given, cpl_text *value)
{
    char dotted[CPL_SETTING_NAME_BYTES];
    void *field = NULL;
    CPL_TRY(cpl_settings_set(&c->settings, c->sections, CPL_N_SECTIONS, assignment, given));
    snprintf(dotted, sizeof dotted, "%.*s", (int)strcspn(assignment, "="), assignment);
    const cpl_setting *setting =
        cpl_settings_find(&c->settings, c->sections, CPL_N_SECTIONS, dotted, &field);
    cpl_setting_print(value, setting, field);
    return cpl_text_status(value);
}

/* Sets the flag's setting, and fails if --set gives another value. */
static cpl_status apply_flag(cpl_configuration *c, const cpl_arguments *args, size_t f, bool *given)
{
    const cpl_flag *flag = &args->verb->flags[f];
    const size_t name    = strcspn(flag->setting, "=");
    cpl_text assignment = {0}, ours = {0}, theirs = {0};
    cpl_status status = CPL_OK;
    write_assignment(&assignment, flag, args->flag[f].text);
    CPL_TRY_DONE(cpl_text_status(&assignment));
    CPL_TRY_DONE(assign(c, assignment.bytes, given, &ours));
    for (int i = 0; i < args->n_sets; i++) {
        const char *set = args->sets[i];
        if (strncmp(set, flag->setting, name) != 0 || set[name] != '=') continue;
        cpl_text_clear(&theirs);
        CPL_TRY_DONE(assign(c, set, given, &theirs));
        if (strcmp(ours.bytes, theirs.bytes) == 0) continue;
        CPL_TRY_DONE(
            CPL_FAIL(CPL_ERR_USAGE, "%s and --set %.100s give different values", flag->name, set));
    }
done:
    cpl_text_free(&assignment);
    cpl_text_free(&ours);
    cpl_text_free(&theirs);
    return status;
}

/* Applies the --set flags in their order, and the flags that are settings. Marks the settings in
 * `given`, which may be NULL. */
static cpl_status apply_flags(cpl_configuration *c, const cpl_arguments *args, bool *given)
{
    if (!args) return CPL_OK;
    for (int i = 0; i < args->n_sets; i++) {
        CPL_TRY(check_set(c, args->verb, args->sets[i]));
        CPL_TRY(cpl_settings_set(&c->settings, c->sections, CPL_N_SECTIONS, args->sets[i], given));
    }
    for (size_t f = 0; f < args->verb->n_flags; f++)
        if (args->verb->flags[f].setting && args->flag[f].given)
            CPL_TRY(apply_flag(c, args, f, given));
    return CPL_OK;
}

cpl_status cpl_configure(cpl_configuration *c, const char *file, const cpl_arguments *args)
{
    cpl_status status = CPL_OK;
    memset(c, 0, sizeof *c);
    cpl_settings_sections(c->sections);
    CPL_TRY(cpl_settings_init(&c->settings, c->sections, CPL_N_SECTIONS));
    if (file) { /* before the file is read, so that wrong use is reported first */
        CPL_TRY_DONE(apply_flags(c, args, NULL));
        if (cpl_path_is_folder(file))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_INPUT,
                                  "%s is a folder; give a configuration file (the configuration "
                                  "of a run is RUN/config.yaml)",
                                  file));
        CPL_TRY_DONE(cpl_yaml_read(&c->settings, c->sections, CPL_N_SECTIONS, file, c->given));
    }
    CPL_TRY_DONE(apply_flags(c, args, c->given));
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
