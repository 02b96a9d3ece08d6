/* settings.c - lists of settings: defaults, names, --set (see settings.h) */
#include "settings/settings.h"

#include <stdio.h>
#include <string.h>

static void *field_of(void *joint, const cpl_section *section, const cpl_setting *setting)
{
    return (char *)joint + section->offset + setting->offset;
}

void cpl_settings_free(void *joint, const cpl_section *sections, size_t count)
{
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++)
            cpl_setting_free(&s->list[i], field_of(joint, s, &s->list[i]));
}

cpl_status cpl_settings_init(void *joint, const cpl_section *sections, size_t count)
{
    cpl_status status = CPL_OK;
    for (const cpl_section *s = sections; s < sections + count; s++)
        memset((char *)joint + s->offset, 0, s->bytes);
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++)
            CPL_TRY_DONE(cpl_setting_parse(&s->list[i], field_of(joint, s, &s->list[i]),
                                           s->list[i].default_value));
done:
    if (status != CPL_OK) cpl_settings_free(joint, sections, count);
    return status;
}

size_t cpl_settings_index(const cpl_section *sections, size_t count, const cpl_setting *setting)
{
    size_t before = 0;
    for (size_t s = 0; s < count; s++) {
        for (size_t i = 0; i < sections[s].count; i++)
            if (&sections[s].list[i] == setting) return before + i;
        before += sections[s].count;
    }
    CPL_ASSERT(false); /* the setting is not in these sections */
    return 0;
}

const cpl_setting *cpl_settings_find(void *joint, const cpl_section *sections, size_t count,
                                     const char *dotted, void **field)
{
    char name[CPL_SETTING_NAME_BYTES];
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++) {
            if (strcmp(cpl_setting_dotted(name, &s->list[i]), dotted) != 0) continue;
            if (joint && field) *field = field_of(joint, s, &s->list[i]);
            return &s->list[i];
        }
    return NULL;
}

/* Returns a setting of any section whose name without the section is `name`, or NULL. */
static const cpl_setting *find_by_name(const cpl_section *sections, size_t count, const char *name)
{
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++)
            if (strcmp(s->list[i].name, name) == 0) return &s->list[i];
    return NULL;
}

const cpl_setting *cpl_settings_nearest(const cpl_section *sections, size_t count,
                                        const char *dotted)
{
    char name[CPL_SETTING_NAME_BYTES];
    const char *dot         = strchr(dotted, '.');
    const cpl_setting *best = find_by_name(sections, count, dot ? dot + 1 : dotted);
    int limit               = best ? 0 : cpl_text_near_limit(dotted);
    for (const cpl_section *s = sections; s < sections + count; s++)
        for (size_t i = 0; i < s->count; i++)
            if (cpl_text_is_nearer(&limit, dotted,
                                   dot ? cpl_setting_dotted(name, &s->list[i]) : s->list[i].name))
                best = &s->list[i];
    return best;
}

const char *cpl_settings_removed(const char *dotted)
{
    static const struct {
        const char *name, *sentence;
    } removed[] = {
#define CPL_REMOVED(...) {__VA_ARGS__},
#include "settings/removed.def"
#undef CPL_REMOVED
    };
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
        if (strcmp(removed[i].name, dotted) == 0) return removed[i].sentence;
    return NULL;
}

cpl_status cpl_settings_unknown(cpl_status code, const cpl_section *sections, size_t count,
                                const char *dotted)
{
    char name[CPL_SETTING_NAME_BYTES];
    const char *removed = cpl_settings_removed(dotted);
    if (removed) return CPL_FAIL(code, "the setting %s is no longer there: %s", dotted, removed);
    const cpl_setting *near = cpl_settings_nearest(sections, count, dotted);
    if (near)
        return CPL_FAIL(code, "there is no setting %.200s; did you mean %s?", dotted,
                        cpl_setting_dotted(name, near));
    return CPL_FAIL(code, "there is no setting %.200s", dotted);
}

cpl_status cpl_settings_set(void *joint, const cpl_section *sections, size_t count,
                            const char *assignment, bool *given)
{
    const char *equals = strchr(assignment, '=');
    char dotted[256];
    void *field = NULL;
    if (!equals || equals == assignment)
        return CPL_FAIL(CPL_ERR_USAGE, "--set needs SECTION.NAME=VALUE, not \"%.200s\"",
                        assignment);
    snprintf(dotted, sizeof dotted, "%.*s",
             (int)(equals - assignment < 255 ? equals - assignment : 255), assignment);
    const cpl_setting *setting = cpl_settings_find(joint, sections, count, dotted, &field);
    if (!setting) return cpl_settings_unknown(CPL_ERR_USAGE, sections, count, dotted);
    cpl_status status = cpl_setting_parse(setting, field, equals + 1);
    if (status == CPL_ERR_INPUT) return CPL_FAIL(CPL_ERR_USAGE, "%s", cpl_last_error());
    if (status == CPL_OK && given) given[cpl_settings_index(sections, count, setting)] = true;
    return status;
}
