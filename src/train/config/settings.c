/* settings.c - see settings.h */
#include "train/config/settings.h"

#include <string.h>

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(train, field, __VA_ARGS__)
static const cpl_setting train_list[] = {
#include "train/config/train.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(checkpoint, field, __VA_ARGS__)
static const cpl_setting checkpoint_list[] = {
#include "train/config/checkpoint.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(eval, field, __VA_ARGS__)
static const cpl_setting eval_list[] = {
#include "train/config/eval.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(log, field, __VA_ARGS__)
static const cpl_setting log_list[] = {
#include "train/config/log.def"
};
#undef CPL_SETTING

const cpl_section cpl_train_section      = CPL_SECTION(train, "steps, learning rate, optimizer");
const cpl_section cpl_checkpoint_section = CPL_SECTION(checkpoint, "the checkpoints of a run");
const cpl_section cpl_eval_section =
    CPL_SECTION(eval, "evaluation on held-out text and on tasks during training");
const cpl_section cpl_log_section = CPL_SECTION(log, "the lines of metrics.jsonl");

static cpl_section at(cpl_section section, size_t offset)
{
    section.offset = offset;
    return section;
}

#define AT(name) at(cpl_##name##_section, offsetof(cpl_settings, name))

void cpl_settings_sections(cpl_section sections[CPL_N_SECTIONS])
{
    const cpl_section all[] = {
        AT(model),   AT(data),       AT(train),
#define CPL_LOSS(id, name, ...) at(cpl_##name##_section, offsetof(cpl_settings, losses.name)),
#include "model/aux_losses.def"
        AT(compute), AT(checkpoint), AT(eval),  AT(log),
    };
    _Static_assert(sizeof all / sizeof *all == CPL_N_SECTIONS, "a section too many or too few");
    memcpy(sections, all, sizeof all);
}
