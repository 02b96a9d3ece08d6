/* eval_forms.h - the forms of couplet eval: --tasks, --text, --documents and --list, and the flags of each.
 *
 * Room:  cli/verbs. Nothing is swallowed: a flag that the form does not take is wrong use. */
#ifndef CPL_CLI_VERBS_EVAL_FORMS_H
#define CPL_CLI_VERBS_EVAL_FORMS_H

#include "base/log.h"
#include "cli/arguments/configure.h"
#include "eval/evaluation.h"
#include "parallel/gather.h"

/* ---- eval_flags.c ---- */

typedef enum cpl_eval_mode {
    CPL_EVAL_MODE_TASKS,
    CPL_EVAL_MODE_TEXT,
    CPL_EVAL_MODE_DOCUMENTS,
    CPL_EVAL_MODE_LIST
} cpl_eval_mode;

/* The form, from --tasks or --task-file, --text, --documents, --list. CPL_ERR_USAGE: none of them, two of them,
 * a flag of another form, --samples without --json, MODEL_DIR missing or too many words. */
CPL_NODISCARD cpl_status cpl_eval_mode_of(cpl_eval_mode *form, const cpl_arguments *args);

/* ---- eval_text.c ---- */

/* Reads, scores, prints a table of the sources and writes --json. args->words are the model and
 * further inputs; the ranks of `world` (NULL: one process) share the text. */
CPL_NODISCARD cpl_status cpl_eval_text(const cpl_arguments *args, const cpl_configuration *c,
                                       cpl_group *world, const cpl_log *log);

/* ---- eval_list.c ---- */

/* Prints the tasks there are: set, profiles, rows found in `data`, where the full ones are
 * published. */
CPL_NODISCARD cpl_status cpl_eval_list(const cpl_selection *selection, const char *data);

/* Appends the words that --tasks takes, and the names of profiles, with a blank after each. */
void cpl_eval_list_task_words(cpl_text *words);
void cpl_eval_list_profile_words(cpl_text *words);

#endif /* CPL_CLI_VERBS_EVAL_FORMS_H */
