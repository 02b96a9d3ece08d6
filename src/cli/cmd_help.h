/* cmd_help.h - the texts of --help, made from the tables of verbs, flags and settings.
 *
 * Room:  cli. */
#ifndef CPL_CLI_CMD_HELP_H
#define CPL_CLI_CMD_HELP_H

#include <stdio.h>

#include "cli/arguments/verb.h"
#include "train/config/settings.h"

/* Prints the verbs, one line each. */
void cpl_help_general(FILE *out);

/* Prints the verbs that begin with `word`. */
void cpl_help_family(FILE *out, const char *word);

/* Prints the help of one verb. If `topic` is NULL this is usage, description, all flags and, if
 * there are many settings, their sections. A section's name as topic gives each setting of the
 * section, a setting's name this setting, and "all" the help with all settings. Fails with
 * CPL_ERR_USAGE and the nearest name if the verb has no such settings. */
CPL_NODISCARD cpl_status cpl_help_verb(FILE *out, const cpl_verb *verb, const char *topic);

/* Appends the help text of a flag, with the allowed values and the default. */
void cpl_help_describe(cpl_text *out, const cpl_verb *verb, const cpl_flag *flag);

/* The program's description of itself, for help and the manual. */
extern const char *const cpl_help_about;

#endif /* CPL_CLI_CMD_HELP_H */
