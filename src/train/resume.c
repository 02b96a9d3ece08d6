/* resume.c - which settings may change when a run goes on; see loop.h. */
#include <string.h>

#include "train/loop.h"

static bool may_change(const cpl_setting *s)
{
    static const char *const sections[] = {"checkpoint", "eval", "log"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strcmp(s->section, sections[i]) == 0) return true;
    return strcmp(s->section, "compute") == 0 && strcmp(s->name, "threads") == 0;
}

static cpl_status refuse(const cpl_setting *s, const void *old, const void *fresh)
{
    cpl_text was = {0}, is = {0};
    cpl_setting_print(&was, s, old);
    cpl_setting_print(&is, s, fresh);
    cpl_status status =
        CPL_FAIL(CPL_ERR_INPUT,
                 "%s.%s is %s in the run and cannot become %s when it goes on; begin a new run "
                 "(--from starts from this one's weights)",
                 s->section, s->name, was.bytes ? was.bytes : "?", is.bytes ? is.bytes : "?");
    cpl_text_free(&was);
    cpl_text_free(&is);
    return status;
}

cpl_status cpl_train_may_resume(cpl_settings *old, cpl_settings *fresh, const cpl_log *log)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    for (int i = 0; i < CPL_N_SECTIONS; i++)
        for (size_t k = 0; k < sections[i].count; k++) {
            const cpl_setting *s = &sections[i].list[k];
            const char *a        = (const char *)old + sections[i].offset + s->offset;
            const char *b        = (const char *)fresh + sections[i].offset + s->offset;
            if (cpl_setting_equal(s, a, b) || may_change(s)) continue;
            if (strcmp(s->section, "train") != 0 || strcmp(s->name, "steps") != 0)
                return refuse(s, a, b);
            cpl_log_warn(log,
                         "train.steps was %lld and is now %lld: the learning rates from here on "
                         "are those of a schedule of the new length",
                         (long long)old->train.steps, (long long)fresh->train.steps);
        }
    return CPL_OK;
}
