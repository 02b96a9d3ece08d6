/* cmd_help.h - what --help prints, made from the tables of verbs, flags and settings.
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

/* Prints the help of one verb: usage, description, all flags and, if there are many settings, their
 * sections. `topic` NULL: this; the name of a section: each of its settings; of a setting: that
 * one; "all": this and all settings. CPL_ERR_USAGE, with the nearest name, if the verb has no such
 * settings. */
CPL_NODISCARD cpl_status cpl_help_verb(FILE *out, const cpl_verb *verb, const char *topic);

/* Appends the help text of a flag, with the allowed values and the default. */
void cpl_help_describe(cpl_text *out, const cpl_verb *verb, const cpl_flag *flag);

/* The program's description of itself, for help and the manual. */
extern const char *const cpl_help_about;

#endif /* CPL_CLI_CMD_HELP_H */
