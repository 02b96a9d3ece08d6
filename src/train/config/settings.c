/* settings.c - see settings.h */
#include "train/config/settings.h"

#include <string.h>

#define CPL_RUN_SECTION(name, ...)          static const cpl_setting name##_list[] = {
#define CPL_RUN_SETTING(section, name, ...) CPL_SETTING_ROW(section, name, name, __VA_ARGS__)
#define CPL_RUN_END(name)                                                                          \
    }                                                                                              \
    ;
#include "train/config/run.def"

#define CPL_RUN_SECTION(name, help)                                                                \
    static const cpl_section cpl_section_##name = CPL_SECTION(name, help);
#include "train/config/run.def"

static cpl_section at(cpl_section section, size_t offset)
{
    section.offset = offset;
    return section;
}

#define AT(name) at(cpl_section_##name, offsetof(cpl_settings, name))

void cpl_settings_sections(cpl_section sections[CPL_N_SECTIONS])
{
    const cpl_section all[] = {
        AT(model),   AT(data), AT(train),
#define CPL_LOSS(id, name, ...) at(cpl_section_##name, offsetof(cpl_settings, losses.name)),
#include "model/aux_losses.def"
        AT(compute), AT(dist), AT(checkpoint), AT(eval), AT(log),
    };
    _Static_assert(sizeof all / sizeof *all == CPL_N_SECTIONS, "a section too many or too few");
    memcpy(sections, all, sizeof all);
}
