/* documents_flags.c - see documents_flags.h */
#include "cli/documents_flags.h"

#include <stdio.h>
#include <unistd.h>

#include "base/arena.h"

static const struct row {
    const char *flag, *setting;
} rows[] = {
    {"--split", "data.split"},
    {"--separator", "data.separator"},
    {"--text-field", "data.text_field"},
    {"--id-field", "data.id_field"},
    {"--source-field", "data.source_field"},
    {"--bad", "data.bad"},
};

/* The text is taken as it stands: quotes and colons in it mean nothing. */
static cpl_status apply(cpl_configuration *c, const char *setting, const char *value)
{
    cpl_text assignment = {0};
    cpl_text_printf(&assignment, "%s=", setting);
    cpl_setting_quote(&assignment, value);
    cpl_status status = cpl_text_status(&assignment);
    if (status == CPL_OK)
        status =
            cpl_settings_set(&c->settings, c->sections, CPL_N_SECTIONS, assignment.bytes, c->given);
    cpl_text_free(&assignment);
    return status;
}

cpl_status cpl_documents_flags_apply(cpl_configuration *c, const cpl_arguments *args)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (cpl_flag_given(args, rows[i].flag))
            CPL_TRY(apply(c, rows[i].setting, cpl_flag_text(args, rows[i].flag)));
    if (cpl_flag_on(args, "--no-strip")) c->settings.data.strip = 0;
    return CPL_OK;
}

bool cpl_live_line_wanted(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void cpl_live_line_clear(void)
{
    if (cpl_live_line_wanted()) fputs("\r\033[K", stderr);
}
