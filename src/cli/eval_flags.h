/* eval_flags.h - which form of couplet eval is wanted, and what does not go with it.
 *
 * Room:  cli. Nothing is swallowed: a flag that the form has no use for is wrong use. */
#ifndef CPL_CLI_EVAL_FLAGS_H
#define CPL_CLI_EVAL_FLAGS_H

#include "cli/flags.h"

typedef enum cpl_eval_mode {
    CPL_EVAL_MODE_TASKS,
    CPL_EVAL_MODE_TEXT,
    CPL_EVAL_MODE_LIST
} cpl_eval_mode;

/* The form, from --tasks or --task-file, --text, --list. CPL_ERR_USAGE: none of them, two of them, a
 * flag of another form, --samples without --json, MODEL_DIR missing or too many words. */
CPL_NODISCARD cpl_status cpl_eval_mode_of(cpl_eval_mode *form, const cpl_arguments *args);

/* Before the model is run: --json and --html can be written, and hold no results yet or may be
 * replaced (--overwrite). CPL_ERR_INPUT, CPL_ERR_IO, CPL_ERR_USAGE. */
CPL_NODISCARD cpl_status cpl_eval_flags_check_results(const cpl_arguments *args);

#endif /* CPL_CLI_EVAL_FLAGS_H */
