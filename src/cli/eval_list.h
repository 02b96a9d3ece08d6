/* eval_list.h - `couplet eval --list`, and the names that completion offers.
 *
 * Room:  cli. */
#ifndef CPL_CLI_EVAL_LIST_H
#define CPL_CLI_EVAL_LIST_H

#include "base/text.h"
#include "eval/evaluation.h"

/* Prints the tasks there are: set, profiles, rows found in `data`, where the full ones are published.
 * Those of `files` (n_files) too. */
CPL_NODISCARD cpl_status cpl_eval_list(const cpl_selection *selection, const char *data);

/* Appends the words that --tasks takes, and the names of profiles, with a blank behind each. */
void cpl_eval_list_task_words(cpl_text *words);
void cpl_eval_list_profile_words(cpl_text *words);

#endif /* CPL_CLI_EVAL_LIST_H */
